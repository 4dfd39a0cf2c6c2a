"""Names of environments: `make`, `register`."""

import importlib
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.errors import UserError, unknown_name

# Modules are imported on first use, so that listing names costs nothing.
_BUILTIN = {
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
_REGISTERED: dict[str, Callable[..., Environment]] = {}
# Whole numbers are int32 on a device.
_LARGEST = 2**31 - 1
_MEANING = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def environment_names() -> tuple[str, ...]:
    """All names that `make` accepts, sorted."""
    return tuple(sorted({*_BUILTIN, *_REGISTERED}))


def register(name: str, factory: Callable[..., Environment]) -> None:
    """Adds an environment of your own to the names that `make` knows in this process.

    The command line is another process: there, name the class itself, `--env mymodule:MyEnvironment`.

    Args:
      name: a new name.
      factory: called as `factory(**kwargs)` by `make`; an `Environment` subclass is one.

    Raises:
      UserError: the name is taken by another factory.
    """
    if name in _BUILTIN or _REGISTERED.get(name, factory) is not factory:
        raise UserError(f"an environment named '{name}' exists already: register yours under another name")
    _REGISTERED[name] = factory


def environment_factory(name: str) -> Callable[..., Environment]:
    """The factory behind a name.

    Raises:
      UserError: no such name.
    """
    if name in _REGISTERED:
        return _REGISTERED[name]
    if name not in _BUILTIN:
        raise unknown_name("environment", name, environment_names())
    module, attribute = _BUILTIN[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def make(name: str, **kwargs) -> Environment:
    """Builds an environment by name.

    Args:
      name: one of `environment_names()`.
      **kwargs: the environment's settings; see its class docstring.

    Raises:
      UserError: no such name, no such setting, or a setting that the environment refuses.
    """
    return call_factory(name, environment_factory(name), kwargs)


def call_factory(name: str, factory: Callable[..., Environment], settings: Mapping[str, Any]) -> Environment:
    """Builds an environment with settings that its factory knows.

    Args:
      name: of the environment, for messages.
      factory: called as `factory(**settings)`.
      settings: name to value.

    Raises:
      UserError: no such setting, or a setting that the environment refuses.
    """
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        for key in settings:
            if key not in parameters:
                raise unknown_name(f"setting of {name}", key, parameters)
    hints = _hints(factory)
    converted = dict(settings)
    for key, value in settings.items():
        if key in hints and key in parameters and value is not parameters[key].default:
            converted[key] = _convert(f"setting {key} of {name}", value, hints[key])
    return factory(**converted)


def _hints(factory: Callable[..., Environment]) -> dict[str, Any]:
    """The types that a factory's settings are declared with; nothing where they cannot be told."""
    if not (inspect.isclass(factory) or inspect.isfunction(factory)):
        return {}
    try:
        return typing.get_type_hints(factory)
    except (NameError, TypeError):
        return {}


def _convert(what: str, value: Any, hint: Any) -> Any:
    """A plain value as the type that a setting was declared with; a whole number may be written as 1e3.

    Other values, and settings of other types, are for the environment to judge.
    """
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if int in kinds and type(value) in (int, float) and abs(value) > _LARGEST and float not in kinds:
        raise UserError(f"{what} must be a whole number of at most {_LARGEST}, got {value}")
    judged = set(kinds) <= {*_MEANING, type(None)} and type(value) in (*_MEANING, tuple, list, type(None))
    if not judged or type(value) in kinds:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) is float and int in kinds and value.is_integer():
        return int(value)
    meaning = " or ".join(_MEANING[kind] for kind in kinds if kind in _MEANING)
    raise UserError(f"{what} must be {meaning}, got {value!r}")
