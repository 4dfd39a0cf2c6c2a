"""Names of environments: `make`, `register`."""

from collections.abc import Callable

from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.registry import Registry

# Modules are imported on first use, so that listing names costs nothing.
BUILTIN = {
    "matrix_game": "jaxmarl_llm.envs.tabular.matrix_game:MatrixGame",
    "two_step": "jaxmarl_llm.envs.tabular.two_step:TwoStep",
    "grid_4x4": "jaxmarl_llm.envs.tabular.grid_4x4:Grid4x4",
    "grid_race": "jaxmarl_llm.envs.tabular.grid_race:GridRace",
    "switch_riddle": "jaxmarl_llm.envs.tabular.switch_riddle:SwitchRiddle",
    "overcooked": "jaxmarl_llm.envs.gridworld.overcooked:Overcooked",
    "escape_room": "jaxmarl_llm.envs.gridworld.escape_room:EscapeRoom",
    "foraging": "jaxmarl_llm.envs.gridworld.foraging:Foraging",
    "warehouse": "jaxmarl_llm.envs.gridworld.warehouse:Warehouse",
    "coin_game": "jaxmarl_llm.envs.gridworld.coin_game:CoinGame",
}
_ENVIRONMENTS: Registry[Environment] = Registry("environment", BUILTIN)


def environment_names() -> tuple[str, ...]:
    """All names that `make` accepts, sorted."""
    return _ENVIRONMENTS.names()


def register(name: str, factory: Callable[..., Environment]) -> None:
    """Adds an environment of your own to the names that `make` knows in this process.

    The command line is another process: there, name the class itself, `--env mymodule:MyEnvironment`.

    Args:
      name: a new name.
      factory: called as `factory(**kwargs)` by `make`; an `Environment` subclass is one.

    Raises:
      UserError: the name is taken by another factory.
    """
    _ENVIRONMENTS.register(name, factory)


def environment_factory(name: str) -> Callable[..., Environment]:
    """The factory behind a name.

    Raises:
      UserError: no such name.
    """
    return _ENVIRONMENTS.factory(name)


def make(name: str, **kwargs) -> Environment:
    """Builds an environment by name.

    Args:
      name: one of `environment_names()`.
      **kwargs: the environment's settings; see its class docstring.

    Raises:
      UserError: no such name, no such setting, or a setting that the environment refuses.
    """
    return _ENVIRONMENTS.make(name, **kwargs)
