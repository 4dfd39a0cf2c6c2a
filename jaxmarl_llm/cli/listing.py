"""`jaxmarl-llm envs` and `jaxmarl-llm presets`."""

import dataclasses
from collections.abc import Sequence

from jaxmarl_llm.cli.options import parse_options


@dataclasses.dataclass(frozen=True)
class EnvsOptions:
    """List the environments, as they are with their default settings."""


@dataclasses.dataclass(frozen=True)
class PresetsOptions:
    """List the presets that `jaxmarl-llm train` accepts."""


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


def envs_command(arguments: Sequence[str]) -> int:
    """Prints the environments; returns the exit status."""
    parse_options(EnvsOptions, arguments, program="jaxmarl-llm envs")
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
        "\nSettings of an environment: jaxmarl-llm train --env overcooked --env-args layout=coord_ring max_steps=200"
        "\nYour own: jaxmarl-llm train --env mypackage.mymodule:MyEnvironment",
        highlight=False,
        soft_wrap=True,
    )
    return 0


def presets_command(arguments: Sequence[str]) -> int:
    """Prints the presets; returns the exit status."""
    parse_options(PresetsOptions, arguments, program="jaxmarl-llm presets")
    from rich.console import Console
    from rich.table import Table

    from jaxmarl_llm.training.config import preset_description, preset_names

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("preset", no_wrap=True)
    table.add_column("what it is")
    for name in preset_names():
        table.add_row(name, preset_description(name))
    console = Console()
    console.print(table, highlight=False)
    console.print("\nTrain one: jaxmarl-llm train demo", highlight=False)
    return 0
