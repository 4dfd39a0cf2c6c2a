"""Names of things that a user can add to: tasks and workflows."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from jaxmarl_llm.envs.registry import call_factory
from jaxmarl_llm.errors import UserError, unknown_name

Built = TypeVar("Built")


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
          UserError: the name is taken by another factory.
        """
        if name in self._builtin or self._registered.get(name, factory) is not factory:
            raise UserError(f"a {self._kind} named '{name}' exists already: register yours under another name")
        self._registered[name] = factory

    def make(self, name: str, **settings: Any) -> Built:
        """Builds what a name stands for.

        Raises:
          UserError: no such name, no such setting, or a setting that is refused.
        """
        factory = self._registered.get(name)
        if factory is None:
            if name not in self._builtin:
                raise unknown_name(self._kind, name, self.names())
            module, attribute = self._builtin[name].split(":")
            factory = getattr(importlib.import_module(module), attribute)
        return call_factory(name, factory, settings)  # pyright: ignore[reportArgumentType, reportReturnType]
