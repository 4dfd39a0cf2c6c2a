"""Packages whose names are loaded on first use, so that importing them costs nothing."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module functions `__getattr__` and `__dir__` (PEP 562) of a package.

    Args:
      package: its full name.
      homes: public name to the full name of the module that defines it; a submodule is its own home.

    Returns:
      `(__getattr__, __dir__)`; the first raises `AttributeError` for a name without a home.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        module = importlib.import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
