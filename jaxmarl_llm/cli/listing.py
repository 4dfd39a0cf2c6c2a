"""`jaxmarl-llm envs` and `jaxmarl-llm presets`."""

import dataclasses
import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import tyro

from jaxmarl_llm.cli.options import parse_options
from jaxmarl_llm.errors import unknown_name
from jaxmarl_llm.training.config import FINETUNE_FOLDER, differences


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the environments, as they are with their default settings; or describe one, with all its settings."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """One environment, or the import path of your own."""


@dataclasses.dataclass(frozen=True)
class PresetsOptions:
    """List the presets of `jaxmarl-llm train` and `finetune`; or show one, with the settings of its algorithm."""

    name: Annotated[tyro.conf.Positional[str | None], tyro.conf.arg(metavar="NAME")] = None
    """One preset, a YAML file for train of your own, or an algorithm such as qmix."""


def _space(space) -> str:
    """A space in a few characters."""
    from jaxmarl_llm.envs import spaces

    if isinstance(space, spaces.Discrete):
        return f"0..{space.n - 1}"
    if isinstance(space, spaces.MultiDiscrete):
        return f"{len(space.sizes)} integers"
    if isinstance(space, spaces.Box):
        return " x ".join(map(str, space.shape)) or "1"
    import jax

    return ", ".join(_space(leaf) for leaf in jax.tree.leaves(space))


def _first_line(docstring: str | None) -> str:
    return (docstring or "").strip().split("\n")[0].rstrip(".")


def _meanings(sources: Iterable[Any]) -> dict[str, str]:
    """What docstrings say of the names that they list under "Args" and "Attributes"; the first one counts."""
    found: dict[str, str] = {}
    for source in sources:
        lines, names = inspect.cleandoc(source.__doc__ or "").split("\n"), []
        inside = False
        for line in lines:
            if re.match(r"\S", line):
                inside, names = line.startswith(("Args", "Attributes")), []
            entry = re.match(r"  (\w+(?:, \w+)*): (.*)", line)
            if inside and entry:
                names = [name for name in entry[1].split(", ") if name not in found]
                found |= dict.fromkeys(names, entry[2])
            elif inside:
                found |= {name: f"{found[name]} {line.strip()}" for name in names}
    return found


def _reflowed(text: str, width: int) -> str:
    """Paragraphs and items of a docstring, wrapped anew."""
    items: list[str] = []
    for line in text.rstrip().split("\n"):
        begins = not line or re.match(r"\s*(\* |[\w` ]+(\([^)]*\))?: )", line) or not (items and items[-1])
        if begins:
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    return "\n".join(textwrap.fill(item, width - 1, subsequent_indent="  ") if item else "" for item in items)


def _print_settings(console: Any, defaults: dict[str, Any], meanings: dict[str, str]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("setting", no_wrap=True)
    table.add_column("value", max_width=24)
    table.add_column("what it is")
    last = ""
    for name, value in defaults.items():
        meaning = meanings.get(name, "").strip()
        table.add_row(name, str(value), "the same" if meaning and meaning == last else meaning)
        last = meaning
    console.print(table, highlight=False, markup=False)


def _describe_environment(name: str) -> None:
    from rich.console import Console

    from jaxmarl_llm.envs.registry import environment_factory

    factory = environment_factory(name)
    console = Console()
    text = re.split(r"\n\s*(?:Args|Attributes)\b.*:\n", inspect.cleandoc(factory.__doc__ or ""))[0]
    console.print(f"{_reflowed(text, console.width)}\n", highlight=False, markup=False)
    parameters = inspect.signature(factory).parameters.values()
    defaults = {one.name: "" if one.default is one.empty else one.default for one in parameters}
    meanings = _meanings(factory.__mro__ if inspect.isclass(factory) else (factory,))
    _print_settings(console, defaults, {"max_steps": "steps of an episode."} | meanings)
    console.print(f"\nChange some: jaxmarl-llm train --env {name} --env-args NAME=VALUE ...", highlight=False)


def _describe_preset(name: str) -> None:
    from rich.console import Console

    from jaxmarl_llm.training.config import Algorithm, TrainConfig, load_preset, preset_names

    console = Console()
    if name in preset_names(FINETUNE_FOLDER):
        from jaxmarl_llm.cli.finetune import load_preset as load_finetune_preset
        from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig

        _print_differences(console, FinetuneConfig(), load_finetune_preset(name), "finetune")
        console.print(f"Change some: jaxmarl-llm finetune {name} --radius 0.05 ...", highlight=False)
        return
    if name in typing.get_args(Algorithm):
        config = TrainConfig(algorithm=name, env="two_step")  # pyright: ignore[reportArgumentType]
    elif name in preset_names() or name.endswith((".yaml", ".yml")):
        config = load_preset(name)
        _print_differences(console, TrainConfig(), config, "train")
    else:
        known = (*preset_names(), *preset_names(FINETUNE_FOLDER), *typing.get_args(Algorithm))
        raise unknown_name("preset or algorithm", name, known)

    from jaxmarl_llm.training.build import algorithm_settings

    defaults, sources = algorithm_settings(config)
    console.print(f"Settings of {config.algorithm}:\n", highlight=False)
    _print_settings(console, defaults, _meanings(sources))
    console.print(
        "\nChange some: jaxmarl-llm train "
        + (f"--algorithm {name} --env NAME" if name == config.algorithm else name)
        + " --algorithm-args NAME=VALUE ...",
        highlight=False,
    )


def _print_differences(console: Any, default: Any, config: Any, command: str) -> None:
    console.print(f"What it sets (field: default -> value); each is an option of {command}:\n", highlight=False)
    for line in differences(default, config, ignore=()):
        console.print(f"  {line}", highlight=False, markup=False)
    console.print()


def envs_command(arguments: Sequence[str]) -> int:
    """Prints the environments; returns the exit status."""
    options = parse_options(EnvsOptions, arguments, program="jaxmarl-llm envs")
    if options.name is not None:
        _describe_environment(options.name)
        return 0
    from rich.console import Console
    from rich.table import Table

    from jaxmarl_llm.envs.registry import environment_factory, environment_names, make

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("name", no_wrap=True)
    for name in ("agents", "actions"):
        table.add_column(name, justify="right")
    table.add_column("observation", no_wrap=True)
    table.add_column("what it is")
    for name in environment_names():
        env = make(name)
        sizes = str(env.num_agents), str(env.num_actions), _space(env.observation_space)
        table.add_row(name, *sizes, _first_line(environment_factory(name).__doc__))
    console = Console()
    console.print(table, highlight=False)
    console.print(
        "\nThe settings of one: jaxmarl-llm envs overcooked"
        "\nChange some: jaxmarl-llm train --env overcooked --env-args layout=coord_ring max_steps=200"
        "\nYour own: jaxmarl-llm train --env mypackage.mymodule:MyEnvironment",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def presets_command(arguments: Sequence[str]) -> int:
    """Prints the presets; returns the exit status."""
    options = parse_options(PresetsOptions, arguments, program="jaxmarl-llm presets")
    if options.name is not None:
        _describe_preset(options.name)
        return 0
    from rich.console import Console
    from rich.table import Table

    from jaxmarl_llm.training.config import PRESET_FOLDER, preset_description, preset_names

    console = Console()
    for command, folder in (("train", PRESET_FOLDER), ("finetune", FINETUNE_FOLDER)):
        table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
        table.add_column(f"preset of {command}", no_wrap=True, min_width=36)
        table.add_column("what it is")
        for name in preset_names(folder):
            table.add_row(name, preset_description(name, folder))
        console.print(table, highlight=False)
        console.print()
    console.print(
        "The settings of one: jaxmarl-llm presets demo\nUse one: jaxmarl-llm train demo, jaxmarl-llm finetune sums",
        highlight=False,
    )
    return 0
