"""What a fine-tuning run is: `FinetuneConfig`. Imports neither JAX nor Flax, so that help is instant."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.settings import check_choices, check_counts, check_finite, check_numbers
from jaxmarl_llm.training.config import RoleSharing, Settings, read_yaml
from jaxmarl_llm.user_files import absolute_path, user_path

TRUST_REGIONS = ("teamtr", "ppo", "grpo")
RESAMPLE = ("every", "every_k", "never", "importance")
# Messages of an iteration.
LARGEST_ITERATION = 10**7
ORDERS = ("fixed", "random")


@dataclasses.dataclass(frozen=True)
class FinetuneConfig:
    """Everything that decides a fine-tuning run; two runs of one configuration are the same run."""

    # What is trained.
    model: str = "smollm2"
    """The base model: a Hugging Face folder or name, a .gguf file, or smollm2 (the packaged SmolLM2-135M)."""
    dtype: str = "float32"
    """float32 or bfloat16, of the body; adapters are float32."""
    workflow: str = "eval_opt"
    """Who is asked for what, by name."""
    workflow_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the workflow, such as rounds=2."""
    task: str = "arithmetic_words"
    """The problems: a name, or a JSONL file."""
    task_args: Settings = dataclasses.field(default_factory=dict)
    """Settings of the task, such as digits=2."""
    formats: str = ""
    """The roles' prompts: a YAML file of your own, or one that ships: plain (formats.yaml, the default; every workflow)
    or brief (a short system message; checkers and aggregators write one of the given words or numbers and nothing else;
    single, eval_opt and voting only)."""
    sharing: RoleSharing = "isolated"
    """shared (SP, one adapter for all roles), isolated (IP, one a role), or the policy of each role: a number, or a
    name that several may have; frozen for roles that the base model plays throughout."""
    lora_rank: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16.0
    """What an adapter adds is multiplied by lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = ("query", "key", "value", "attention_output", "gate", "up", "down")
    """Projections that have an adapter."""
    trained_layers: int = 0
    """How many of the last layers have adapters, 0 for all; the backward pass ends below them."""

    # How it is trained.
    trust_region: Literal["teamtr", "ppo", "grpo"] = "teamtr"
    """teamtr (policies one after the other, each within a divergence), or all at once by clipped ratios: ppo (with a
    critic), grpo (compared with the other episodes of the problem)."""
    order: Literal["fixed", "random"] = "fixed"
    """teamtr: the order of the policies in a stage."""
    resample: Literal["every", "every_k", "never", "importance"] = "every"
    """teamtr: when a stage plays new episodes: after every accepted update, after every resample_every of them, never,
    or never but with samples weighted by what the earlier updates of the stage make of them."""
    resample_every: int = 2
    """teamtr: of resample=every_k."""
    radius: float = 0.02
    """teamtr: the most that an update may change a message, in nats: mean over messages of the sum over tokens."""
    line_search: int = 8
    """teamtr: steps that are tried, each half of the one before, until one lies within the radius."""
    discount: float = 0.9
    """teamtr: of the bound on the drift and the certificate, which are monitors only."""
    kl_coefficient: float = 0.0
    """Weight of the divergence in the loss at the start: from the acting policy a message (teamtr), from the base
    model a token (ppo, grpo)."""
    kl_target: float = 0.0
    """ppo, grpo: the weight is adapted to this divergence; 0 leaves it. teamtr adapts it to the radius."""
    credit: str = ""
    """group (over the group's mean), leave_one_out (over the others' mean) or value (a critic, token by token); by
    default value for ppo, else group."""
    grouping: str = "slot"
    """Which completions are compared: slot, turn, agent, role, problem, episode."""
    advantage_scale: str = "std"
    """std, sample_std or none."""
    advantage_clip: float = 0.0
    """Advantages are clipped to it; 0 for none."""
    role_weighting: str = "sequences"
    """How roles share a policy: sequences, equal, equal_mass."""
    clip_low: float = 0.2
    """Ratios are clipped to 1 less this,"""
    clip_high: float = 0.28
    """and to 1 and this."""
    epochs: int = 1
    """Passes over the episodes of an update."""
    minibatches: int = 1
    """Gradient steps of a pass; each has its own problems."""
    learning_rate: float = 1e-4
    """Step size of Adam."""
    learning_rate_schedule: str = "constant"
    """constant, linear or cosine, down to 0 at the end."""
    warmup: int = 0
    """Iterations over which the learning rate rises."""
    max_grad_norm: float = 1.0
    """Gradients of a policy are scaled down to this norm."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus at the start,"""
    entropy_final: float = 0.0
    """and at the end,"""
    entropy_schedule: str = "linear"
    """on this way: constant, linear, cosine."""
    gae_lambda: float = 1.0
    """Of credit=value."""
    value_coefficient: float = 0.5
    """Of credit=value: weight of the critic's loss."""

    # What is rewarded.
    reward: str = "outcome"
    """Who is rewarded for what: outcome, own, mixed, votes, solo."""
    own_weight: float = 0.5
    """Share of a completion's own score in mixed; weight of the gain in solo."""
    format_weight: float = 0.0
    """Taken off a completion that is not in its format."""
    length_weight: float = 0.0
    """Taken off a completion of full length; less for shorter ones."""
    repetition_weight: float = 0.0
    """Taken off in proportion to what a completion repeats."""

    # What is played.
    num_problems: int = 16
    """Problems of an iteration."""
    group_size: int = 8
    """Episodes of each problem."""
    max_new_tokens: int = 32
    """The longest completion, in tokens."""
    max_length: int = 512
    """The longest prompt with its completion, in tokens."""
    require_end: bool = True
    """A completion that is cut off for want of room is worth nothing."""
    temperature: float = 1.0
    """Of the sampling."""
    top_k: int = 0
    """Only the k likeliest tokens are drawn; 0 for all."""
    top_p: float = 1.0
    """Only the fewest likeliest tokens with this probability together are drawn; 1 for all."""
    replay_capacity: int = 0
    """Messages of successful episodes that are kept, those of rarely solved problems first; ppo and grpo only."""
    replay_weight: float = 0.0
    """Weight of imitating them, in every step."""
    replay_messages: int = 16
    """How many of them a step sees."""
    warm_start: str = ""
    """JSONL with transcripts that are imitated first, one message a line."""
    warm_start_updates: int = 0
    """Gradient steps of the imitation."""

    # How long, and how it is judged.
    iterations: int = 40
    """Updates of all policies; of teamtr, stages."""
    evaluate_every: int = 10
    """Iterations between evaluations on held-out problems; the base and the end are evaluated always."""
    evaluation_problems: int = 64
    """Held-out problems of an evaluation, the same ones every time."""
    checkpoint_every: int = 5
    """Iterations between checkpoints."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints stay; the best adapters stay too."""
    pack_tokens: int = 2048
    """The most tokens of a micro-batch of the gradient, with padding: less needs less memory."""
    num_devices: int = 1
    """Devices that share the model, each with a part of every matrix; 0 for all. For models too large for one."""
    seed: int = 0
    """Of everything that is drawn."""

    def __post_init__(self):
        if not self.credit:
            object.__setattr__(self, "credit", "value" if self.trust_region == "ppo" else "group")
        targets = self.lora_targets
        if isinstance(targets, list | str):
            object.__setattr__(self, "lora_targets", (targets,) if isinstance(targets, str) else tuple(targets))

    @property
    def sampling(self) -> dict[str, Any]:
        """What decides the distribution that tokens are drawn from."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    @property
    def is_limited(self) -> bool:
        """Not all tokens may be drawn."""
        return self.top_k > 0 or self.top_p < 1

    @property
    def has_schedule(self) -> bool:
        """A schedule runs over `iterations`, so that another number makes another run from the first on."""
        moves = self.entropy_schedule != "constant" and self.entropy_coefficient != self.entropy_final
        return self.learning_rate_schedule != "constant" or moves

    @property
    def is_sequential(self) -> bool:
        """Policies are updated one after the other."""
        return self.trust_region == "teamtr"

    @property
    def idle_settings(self) -> dict[str, str]:
        """Settings that change nothing beside the others: by name, what they are for."""
        found = {}
        if not self.is_sequential:
            names = ("order", "resample", "resample_every", "radius", "line_search", "discount")
            found |= dict.fromkeys(names, "trust_region=teamtr")
        elif self.resample != "every_k":
            found["resample_every"] = "resample=every_k"
        if self.is_sequential:
            found["kl_target"] = "trust_region=ppo or grpo"
        elif not self.kl_coefficient:
            found["kl_target"] = "a kl_coefficient above 0"
        if self.credit != "value":
            found |= dict.fromkeys(("gae_lambda", "value_coefficient"), "credit=value")
        if self.reward not in ("mixed", "solo"):
            found["own_weight"] = "reward=mixed or solo"
        if not self.replay_weight and not self.warm_start:
            found["replay_messages"] = "replay_weight and warm_start"
        return found

    def with_absolute_paths(self) -> "FinetuneConfig":
        """The same run, whose files are found from any working folder."""
        from jaxmarl_llm.workflows.text.formats import NAMED
        from jaxmarl_llm.workflows.text.tasks import names_file

        changes: dict[str, Any] = {}
        for name, is_file in (
            ("model", bool(self.model) and user_path(self.model).exists()),
            ("formats", self.formats and self.formats not in NAMED),
            ("task", names_file(self.task)),
            ("warm_start", self.warm_start),
        ):
            if is_file:
                changes[name] = absolute_path(getattr(self, name))
        held_out = self.task_args.get("held_out_path")
        if names_file(self.task) and held_out and isinstance(held_out, str):
            changes["task_args"] = {**self.task_args, "held_out_path": absolute_path(held_out)}
        return dataclasses.replace(self, **changes)

    def check(self) -> None:
        """Raises `UserError` where a setting is wrong, or does not go with others."""
        from jaxmarl_llm.algorithms.group_advantage import GROUP_SCALES
        from jaxmarl_llm.algorithms.schedules import SCHEDULES
        from jaxmarl_llm.arguments import check_kind, elements
        from jaxmarl_llm.llm.config import DTYPES, LORA_TARGETS
        from jaxmarl_llm.workflows.assessment import CREDITS
        from jaxmarl_llm.workflows.gradients import ROLE_WEIGHTINGS
        from jaxmarl_llm.workflows.grouping import GROUPINGS
        from jaxmarl_llm.workflows.rewards import REWARDS

        check_kind("sharing", self.sharing, str, Mapping)
        for name, default in vars(FinetuneConfig()).items():
            for kind in (bool, str, Mapping):
                if isinstance(default, kind) and name != "sharing":
                    check_kind(name, getattr(self, name), kind)
        elements("lora_targets", self.lora_targets, str)
        check_choices(
            self,
            trust_region=TRUST_REGIONS,
            order=ORDERS,
            resample=RESAMPLE,
            credit=CREDITS,
            grouping=GROUPINGS,
            advantage_scale=GROUP_SCALES,
            role_weighting=ROLE_WEIGHTINGS,
            learning_rate_schedule=SCHEDULES,
            entropy_schedule=SCHEDULES,
            reward=REWARDS,
            dtype=DTYPES,
        )
        for target in self.lora_targets:
            if target not in LORA_TARGETS:
                raise unknown_name("target of an adapter", target, LORA_TARGETS)
        if not self.lora_targets or len({*self.lora_targets}) < len(self.lora_targets):
            raise UserError("lora_targets must be different projections, at least one: name them, or leave it out")
        check_counts(self, "lora_rank", "resample_every", "line_search", "epochs", "minibatches", "num_problems")
        check_counts(self, "group_size", "max_new_tokens", "max_length", "iterations", "evaluate_every")
        check_counts(self, "evaluation_problems", "checkpoint_every", "keep_checkpoints", "pack_tokens")
        check_counts(self, "replay_messages")
        check_counts(self, "trained_layers", "warmup", "top_k", "replay_capacity", "warm_start_updates", at_least=0)
        check_counts(self, "num_devices", at_least=0)
        check_counts(self, "seed", at_least=0)
        check_finite(self)
        check_numbers(self, "clip_low", "own_weight", "gae_lambda", "top_p")
        check_numbers(self, "radius", "learning_rate", "max_grad_norm", "temperature", "top_p", "lora_alpha", above=0.0)
        if not 0 <= self.discount < 1:
            raise UserError(f"discount must be at least 0 and below 1, got {self.discount}")
        self.check_size(1)
        if self.minibatches > self.num_problems:
            raise UserError(f"minibatches {self.minibatches} must be at most num_problems, {self.num_problems}")
        if self.credit != "value" and self.group_size < 2 and self.grouping in ("slot", "turn"):
            raise UserError(
                f"grouping='{self.grouping}' compares episodes of one problem: set group_size to at least 2, or "
                "credit='value'"
            )
        if self.dtype != "float32" and self.is_limited:
            raise UserError(
                f"rounding in {self.dtype} changes which tokens top_k and top_p leave: set dtype to float32, or top_k "
                "to 0 and top_p to 1"
            )
        if self.kl_coefficient and not self.is_sequential and self.is_limited:
            raise UserError(
                "top_k and top_p leave out tokens of the base model, from which the divergence is then infinite: set "
                "kl_coefficient to 0, or top_k to 0 and top_p to 1"
            )
        if self.replay_weight and not self.replay_capacity:
            raise UserError("replay_weight needs messages to replay: set replay_capacity")
        if self.replay_weight and self.is_sequential:
            raise UserError(
                "replayed messages are not those of the present team, which teamtr asks for: set replay_weight to 0, "
                "or trust_region to grpo"
            )
        if bool(self.warm_start) != bool(self.warm_start_updates):
            raise UserError("a warm start needs both: transcripts in warm_start, and warm_start_updates")

    def check_size(self, replies: int) -> None:
        """Refuses an iteration of more messages than any machine can learn from.

        Args:
          replies: of an episode.

        Raises:
          UserError: says how many they are.
        """
        messages = self.num_problems * self.group_size * replies
        if messages > LARGEST_ITERATION:
            raise UserError(
                f"num_problems {self.num_problems} times group_size {self.group_size} are too many for an iteration: "
                f"{messages} messages, at most {LARGEST_ITERATION} can be; ask for fewer"
            )


def load_finetune_config(path: str | Path) -> FinetuneConfig:
    """Reads a configuration; fields that are missing have their defaults.

    Raises:
      UserError: it cannot be read, or holds something that is no configuration.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold lines of the form `field: value`")
    return finetune_config(values, str(path))


def finetune_config(values: Mapping[str, Any], source: str) -> FinetuneConfig:
    """A configuration of the fields that are given; the others have their defaults.

    Args:
      values: of the fields.
      source: where they are from, for messages.

    Raises:
      UserError: one is no field, or does not take its value.
    """
    defaults = vars(FinetuneConfig())
    found = dict(values)
    for name, value in values.items():
        if name not in defaults:
            raise UserError(f"{source}: {unknown_name('field', str(name), defaults)}")
        default = defaults[name]
        if isinstance(default, float) and isinstance(value, int | str) and not isinstance(value, bool):
            try:
                # YAML 1.1 takes 1e-4 for text.
                found[name] = float(value)
            except ValueError:
                raise UserError(f"{source}: {name} must be a number, got '{value}'") from None
        elif isinstance(default, tuple) and isinstance(value, list):
            found[name] = tuple(value)
        elif name != "sharing" and type(value) is not type(default):
            raise UserError(f"{source}: {name} cannot be {value!r}, it is {default!r} by default")
    return FinetuneConfig(**found)
