"""Packages of the `llm` extra, imported where they are needed."""

import importlib
from typing import Any

from jaxmarl_llm.errors import UserError


def extra_module(name: str) -> Any:
    """Imports a module that comes with the `llm` extra.

    Args:
      name: of the module, for example `"tokenizers.models"`.

    Raises:
      UserError: its package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        raise UserError(
            f"the package '{error.name}' is needed for language models: pip install 'jaxmarl-llm[llm]'"
        ) from error
