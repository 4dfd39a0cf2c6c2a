"""Names of things that a user can add to: environments, tasks, workflows."""

import importlib
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.limits import LARGEST
from jaxmarl_llm.user_code import import_factory

Built = TypeVar("Built")
# Names become those of files.
_NAME = re.compile(r"\w[\w-]{0,99}", re.ASCII)
_MEANING = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


class Registry(Generic[Built]):
    """Factories by name.

    Args:
      kind: what is named, for messages.
      builtin: name to "module:attribute", imported on first use.
    """

    def __init__(self, kind: str, builtin: Mapping[str, str]):
        self._kind = kind
        self._builtin = dict(builtin)
        self._registered: dict[str, Callable[..., Built]] = {}

    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted({*self._builtin, *self._registered}))

    def register(self, name: str, factory: Callable[..., Built]) -> None:
        """Adds a factory under a new name.

        Raises:
          UserError: the name is taken by another factory or is none, or the factory is nothing that can be called.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UserError(
                f"a {self._kind} needs a name to be registered under, of at most 100 letters, digits, _ and -, got "
                f"{name!r:.120}"
            )
        if not callable(factory):
            raise UserError(
                f"{self._kind} '{name}' must be registered with what builds it, a class or a function, got {factory!r}"
            )
        if name in self._builtin or self._registered.get(name, factory) is not factory:
            raise UserError(f"{self._kind} '{name}' exists already: register yours under another name")
        self._registered[name] = factory

    def factory(self, name: str) -> Callable[..., Built]:
        """What builds the thing of a name, or of an import path such as `mymodule:MyTask`.

        Raises:
          UserError: no such name, or nothing that can be imported.
        """
        if ":" in name:
            return import_factory(name, self._kind)
        if name in self._registered:
            return self._registered[name]
        if name not in self._builtin:
            raise unknown_name(self._kind, name, self.names())
        module, attribute = self._builtin[name].split(":")
        return getattr(importlib.import_module(module), attribute)

    def make(self, name: str, **settings: Any) -> Built:
        """Builds what a name stands for.

        Raises:
          UserError: no such name, no such setting, or a setting that is refused.
        """
        return call_factory(name, self.factory(name), settings)


def call_factory(name: str, factory: Callable[..., Built], settings: Mapping[str, Any]) -> Built:
    """Builds something with settings that its factory knows.

    Args:
      name: for messages.
      factory: called as `factory(**settings)`.
      settings: name to value.

    Raises:
      UserError: no such setting, or a setting that is refused.
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


def _hints(factory: Callable[..., Any]) -> dict[str, Any]:
    """The types that a factory's settings are declared with; nothing where they cannot be told."""
    if not (inspect.isclass(factory) or inspect.isfunction(factory)):
        return {}
    try:
        return typing.get_type_hints(factory)
    except (NameError, TypeError):
        return {}


def _convert(what: str, value: Any, hint: Any) -> Any:
    """A plain value as the type that a setting was declared with; a whole number may be written as 1e3.

    Other values, and settings of other types, are for the factory to judge.
    """
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if int in kinds and type(value) in (int, float) and abs(value) > LARGEST and float not in kinds:
        raise UserError(f"{what} must be a whole number of at most {LARGEST}, got {value}")
    judged = set(kinds) <= {*_MEANING, type(None)} and type(value) in (*_MEANING, tuple, list, type(None))
    if not judged or type(value) in kinds:
        return value
    if type(value) is int and float in kinds:
        return float(value)
    if type(value) is float and int in kinds and value.is_integer():
        return int(value)
    meaning = " or ".join(_MEANING[kind] for kind in kinds if kind in _MEANING)
    raise UserError(f"{what} must be {meaning}, got {value!r}")
