"""What a training run is: `TrainConfig`, presets, YAML. Imports neither JAX nor Flax, so that help is instant."""

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
import yaml

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.user_files import parse_yaml

PRESET_FOLDER = Path(__file__).parent.parent / "configs"
FINETUNE_FOLDER = PRESET_FOLDER / "finetune"
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def parse_scalar(text: str) -> Any:
    """Reads `3`, `0.5`, `true`, `null`, `[1, 2]` as YAML and JSON would; other text stays as it is, line breaks too.

    Args:
      text: what the user typed.
    """
    try:
        value = parse_yaml(text)
    except ValueError:
        return text
    if isinstance(value, bool | int | float | list | None) or text[0] in "'\"":
        return value
    return _number_or_text(text)


def _number_or_text(text: str) -> float | str:
    """YAML 1.1 takes 1e-3 for text; everyone else takes it for a number."""
    return float(text) if _EXPONENT.fullmatch(text) else text


def _parse_settings(arguments: Sequence[str]) -> dict[str, Any]:
    settings = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (name and equals and value):
            raise ValueError(f"expected name=value, got '{argument}'")
        if name in settings:
            raise ValueError(f"{name} is given twice: give it once")
        settings[name] = parse_scalar(value)
    return settings


def parse_count(text: str) -> int:
    """Reads a whole number, also as `1e6` or `1_000_000`.

    Raises:
      ValueError: not a whole number.
    """
    try:
        number = float(text)
        if number == int(number):
            return int(text) if "e" not in text.lower() and "." not in text else int(number)
    except (OverflowError, ValueError):
        pass
    raise ValueError(f"expected a whole number such as 500000 or 5e5, got '{text}'")


Settings = Annotated[
    dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="NAME=VALUE ...",
        instance_from_str=_parse_settings,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [f"{name}={setting}" for name, setting in value.items()],
    ),
]
# One of two ways, also by their short names, or the policy of each role.
_SHARING_NAMES = {"sp": "shared", "ip": "isolated"}


def _parse_sharing(arguments: Sequence[str]) -> str | dict[str, Any]:
    if len(arguments) == 1 and "=" not in arguments[0]:
        return _SHARING_NAMES.get(arguments[0].lower(), arguments[0])
    return _parse_settings(arguments)


RoleSharing = Annotated[
    str | dict[str, Any],
    tyro.constructors.PrimitiveConstructorSpec(
        nargs="*",
        metavar="shared|isolated|ROLE=POLICY ...",
        instance_from_str=_parse_sharing,
        is_instance=lambda value: isinstance(value, str | dict),
        str_from_instance=lambda value: (
            [value] if isinstance(value, str) else [f"{role}={policy}" for role, policy in value.items()]
        ),
    ),
]
Count = Annotated[
    int,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=1,
        metavar="N",
        instance_from_str=lambda arguments: parse_count(arguments[0]),
        is_instance=lambda value: isinstance(value, int),
        str_from_instance=lambda value: [f"{value:_}"],
    ),
]


Algorithm = Literal["ippo", "mappo", "coma", "happo", "hatrpo", "teamtr", "iql", "vdn", "qmix", "weighted_qmix"]


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Everything that decides a training run; two runs of one configuration are the same run.

    Counts of steps are steps of the environment (one step moves all agents of one environment), counted over all
    parallel environments of one seed.
    """

    # What is learned.
    algorithm: Algorithm = "ippo"
    """The algorithm: ippo (each agent's own critic), mappo (a critic that sees the global state), coma (one that
    values actions), happo, hatrpo and teamtr (policies one after the other); or action values: iql (each agent its
    own), vdn (their sum), qmix (mixed by the state), weighted_qmix (with a central value)."""
    algorithm_args: Settings = dataclasses.field(default_factory=dict)
    """Further settings of the algorithm, such as batch_size=64: `jaxmarl-llm presets NAME` lists those of a preset or
    an algorithm; added to those of the preset."""
    env: Annotated[str, tyro.conf.arg(metavar="NAME")] = "overcooked"
    """The environment: a name that `jaxmarl-llm envs` lists, or an import path such as mypackage.mymodule:MyEnv."""
    env_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the environment, such as layout=coord_ring max_steps=200: `jaxmarl-llm envs NAME` lists them; added
    to those of the preset."""

    # How much.
    total_steps: Count = 1_000_000
    """Environment steps to train, for each seed."""
    seed: int = 0
    """The first seed."""
    num_seeds: int = 1
    """Independent runs trained at once, with seeds seed, seed + 1, and so on."""
    num_envs: int = 16
    """Parallel environments, for each seed."""
    rollout_length: int = 128
    """Steps that each environment takes between two updates."""

    # How.
    num_epochs: int = 4
    """Passes over each rollout."""
    num_minibatches: int = 4
    """Minibatches of a pass."""
    learning_rate: float = 2.5e-4
    """Step size of Adam at the start."""
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the step size falls over total_steps; linear and cosine end at 0."""
    adam_epsilon: float = 1e-5
    """Adam's epsilon."""
    max_grad_norm: float = 0.5
    """Gradients are scaled down to this global norm."""
    discount: float = 0.99
    """Weight of a reward one step later."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 trusts the critic, 1 the rewards."""
    clip_low: float = 0.2
    """The importance ratio is clipped at 1 - clip_low."""
    clip_high: float = 0.2
    """The importance ratio is clipped at 1 + clip_high."""
    value_clip: float = 0.2
    """How far a value may move from the old one in an update."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coefficient_final: float | None = None
    """Weight of the entropy bonus at the end, linear in between; without it, the weight stays as at the start."""
    normalize_advantage: bool = True
    """Whether advantages get mean 0 and deviation 1 in each minibatch."""
    normalize_value: bool | None = None
    """Whether the critic learns normalised returns; without it, what the algorithm does: not ippo, but mappo and those
    built on it."""
    shaped_reward_coefficient: float = 1.0
    """Weight of the environment's shaped reward at the start, where it has one."""
    shaped_reward_horizon: float = 0.0
    """Environment steps over which the shaped reward fades to 0 (0: it does not fade)."""
    network: Literal["mlp", "cnn", "gru", "coordinator"] = "mlp"
    """The network: mlp, cnn (grids), gru (memory) or coordinator (attention among the agents, who act as one)."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Sizes of the hidden layers."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the hidden layers."""
    gru_size: int = 64
    """Size of the memory of the gru network."""
    sharing: Literal["shared", "isolated"] | tuple[int, ...] | None = None
    """Who shares parameters: shared (all), isolated (nobody), or one policy index for each agent, such as 0 0 1.
    Without it, what the algorithm does: isolated for happo, hatrpo and teamtr, else shared."""
    agent_id: bool = False
    """Whether an agent's index is added to its observation."""

    # What is recorded.
    eval_every: Count = 0
    """Environment steps between evaluations (0: 20 evaluations in a run; -1: only at the end)."""
    eval_episodes: int = 32
    """Episodes of an evaluation, each from a fresh reset."""
    eval_greedy: bool = False
    """Whether evaluations take the likeliest action instead of sampling."""
    log_every: Count = 0
    """Environment steps between lines of metrics (0: at most 1,000 lines in a run)."""
    checkpoint_every: Count = 0
    """Environment steps between checkpoints (0: 10 checkpoints in a run; -1: only at the end)."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay on disk; the best one stays too."""

    # Where.
    num_devices: int = 0
    """Devices that share the environments of each seed (0: as many as can share them evenly; CPU cores count)."""
    out: Annotated[str, tyro.conf.arg(metavar="PATH")] = ""
    """Folder of the run; without it, runs/<preset>-<date and time>."""


# Fields that say what is recorded, and where: a run may be continued with other values of these.
RECORDING_FIELDS = (
    "eval_every",
    "eval_episodes",
    "eval_greedy",
    "log_every",
    "checkpoint_every",
    "keep_checkpoints",
    "num_devices",
    "out",
)
# Fields that the loop reads; all others are the learner's.
_LOOP_FIELDS = ("algorithm", "algorithm_args", "env", "env_args", "seed", "num_seeds", *RECORDING_FIELDS)
FIELDS = {field.name: field for field in dataclasses.fields(TrainConfig)}
_TYPES = typing.get_type_hints(TrainConfig)


def learner_settings(config: TrainConfig) -> dict[str, Any]:
    """Every field that is the learner's own, without `algorithm_args` and without what is left to the algorithm."""
    settings = {name: getattr(config, name) for name in FIELDS if name not in _LOOP_FIELDS}
    for name in ("normalize_value", "sharing"):
        if settings[name] is None:
            del settings[name]
    settings["total_steps"] = float(settings["total_steps"])
    return settings


def _convert(name: str, value: Any) -> Any:
    """A YAML value as the type of its field."""
    kind = _TYPES[name]
    wrong = UserError(f"field {name} cannot be {value!r}: see `jaxmarl-llm train --help` for what it takes")
    if name in ("env_args", "algorithm_args"):
        if not isinstance(value, Mapping):
            raise wrong
        return {str(key): _number_or_text(item) if isinstance(item, str) else item for key, item in value.items()}
    if name == "sharing" and value is None:
        return None
    if name in ("hidden_sizes", "sharing") and not isinstance(value, str):
        items = [value] if isinstance(value, int) else value
        if not isinstance(items, Sequence) or not all(type(item) is int for item in items):
            raise wrong
        return tuple(items)
    if name == "sharing":
        choices = typing.get_args(typing.get_args(kind)[0])
    else:
        choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    if choices:
        if value not in choices:
            raise unknown_name(name, str(value), choices)
        return value
    if isinstance(value, str) and kind is not str:
        value = parse_scalar(value)
    if kind in (float, float | None) and type(value) in (int, float):
        return float(value)
    if kind is int and type(value) in (int, float) and float(value).is_integer():
        return int(value)
    if kind is str and isinstance(value, str):
        return value
    if kind is bool and isinstance(value, bool):
        return value
    if value is None and type(None) in typing.get_args(kind):
        return value
    if name == "normalize_value" and isinstance(value, bool):
        return value
    raise wrong


def config_from_mapping(values: Mapping[str, Any], source: str, base: TrainConfig | None = None) -> TrainConfig:
    """A configuration from a mapping of field names to values.

    Args:
      values: what differs from `base`.
      source: where the values come from, for error messages.
      base: the defaults.

    Raises:
      UserError: a field does not exist, or does not take its value.
    """
    if not isinstance(values, Mapping):
        raise UserError(f"{source} must hold lines of the form `field: value`")
    for name in values:
        if name not in FIELDS:
            raise UserError(f"{source}: {unknown_name('field', str(name), FIELDS)}")
    try:
        converted = {name: _convert(name, value) for name, value in values.items()}
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    return dataclasses.replace(base or TrainConfig(), **converted)


def read_yaml(path: str | Path) -> Any:
    """What a YAML file holds.

    Raises:
      UserError: it cannot be read, is no YAML, or is empty.
    """
    try:
        values = parse_yaml(Path(path).read_bytes())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    if values is None:
        raise UserError(f"{path} is empty: write lines of the form `field: value`, or restore it from a copy")
    return values


def load_yaml(path: str | Path) -> TrainConfig:
    """Reads a preset or a run's `config.yaml`.

    Raises:
      UserError: it cannot be read, or holds something that is no configuration.
    """
    return config_from_mapping(read_yaml(path), str(path))


def to_mapping(config: Any) -> dict[str, Any]:
    """A configuration, of this kind or another, as YAML and JSON can hold it."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def dump_yaml(config: Any) -> str:
    """The whole configuration as YAML text, in the order of the fields."""
    return yaml.safe_dump(to_mapping(config), sort_keys=False, default_flow_style=None)


def preset_names(folder: Path = PRESET_FOLDER) -> tuple[str, ...]:
    """All names that `load_preset` accepts, sorted; with `FINETUNE_FOLDER` those of `finetune`."""
    return tuple(sorted(path.stem for path in folder.glob("*.yaml")))


def preset_description(name: str, folder: Path = PRESET_FOLDER) -> str:
    """The first comment of a preset: what it is, in one line."""
    for line in (folder / f"{name}.yaml").read_text().splitlines():
        if line.startswith("#"):
            return line.lstrip("# ").strip()
    return ""


def load_preset(name: str) -> TrainConfig:
    """Reads a preset by name, or any YAML file by path.

    Raises:
      UserError: no such preset.
    """
    if name.endswith((".yaml", ".yml")):
        return load_yaml(name)
    if name not in preset_names() and name in typing.get_args(Algorithm):
        raise UserError(
            f"'{name}' is an algorithm: choose one of its presets (`jaxmarl-llm presets` lists them), or give another "
            f"preset with --algorithm {name}"
        )
    if name not in preset_names():
        raise unknown_name("preset", name, preset_names())
    return load_yaml(PRESET_FOLDER / f"{name}.yaml")


def differences(old: Any, new: Any, *, ignore: Sequence[str] = RECORDING_FIELDS) -> list[str]:
    """What differs between two configurations of one kind, as `field: old -> new`, fields in `ignore` left out."""
    return [
        f"{name}: {getattr(old, name)} -> {getattr(new, name)}"
        for name in (field.name for field in dataclasses.fields(old))
        if name not in ignore and getattr(old, name) != getattr(new, name)
    ]


def has_schedule(config: TrainConfig) -> bool:
    """Whether a schedule runs over `total_steps`, so that another total makes another run from its first step on."""
    final = config.entropy_coefficient_final
    return config.learning_rate_schedule != "constant" or final not in (None, config.entropy_coefficient)
