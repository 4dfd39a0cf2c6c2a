"""Packages of the extra `llm`, imported where they are used."""

import importlib
from typing import Any

from jaxmarl_llm.errors import UserError


def import_extra(module: str) -> Any:
    """Imports a module of a package that only the extra `llm` installs.

    Raises:
      UserError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.partition(".")[0]
        if error.name is None or error.name.partition(".")[0] != package:
            raise
        raise UserError(f"{package} is not installed, which real models need: pip install 'jaxmarl-llm[llm]'") from None
