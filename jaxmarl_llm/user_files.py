"""Files and folders that a user names: read, or refused in one line that names them. Imports no JAX."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from jaxmarl_llm.errors import UserError

TOO_LONG = f"a number has more than {sys.get_int_max_str_digits()} digits"
_NO_YAML = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError)


def user_path(path: str | os.PathLike, what: str = "a path") -> Path:
    """A path whose `~` stands for a home folder.

    Args:
      path: as the user wrote it.
      what: names it, for messages.

    Raises:
      UserError: no text, or one that can be no path.
    """
    from jaxmarl_llm.arguments import check_kind, shown

    check_kind(what, path, str, os.PathLike)
    text = os.fsdecode(path)
    if not text or "\0" in text:
        raise UserError(f"{what} must be the name of a file or folder, got {shown(text)}")
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise UserError(f"there is no user of the name that {text} begins with: write the folder out") from None


def absolute_path(path: str | os.PathLike) -> str:
    """A path that is found from any working folder.

    Raises:
      UserError: as `user_path`.
    """
    return str(user_path(path).absolute())


def file_bytes(path: str | os.PathLike, what: str) -> bytes:
    """The content of a file.

    Args:
      path: of the file.
      what: names what it holds, such as `"problems"`, for messages.

    Raises:
      UserError: it cannot be read.
    """
    found = user_path(path, f"the path of {what}")
    try:
        return found.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {what} from {found}: {error.strerror or error}") from None


def is_long_number(error: Exception) -> bool:
    """Whether an error is about a number of more digits than Python reads, with advice for who wrote the program."""
    return "set_int_max_str_digits" in str(error) or "huge integer literals" in str(error)


def parse_json(text: str | bytes) -> Any:
    """What a JSON text holds.

    Raises:
      ValueError: it is none, lists or objects lie in one another too deep, or a number is too long.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        if is_long_number(error):
            raise ValueError(TOO_LONG) from None
        raise


class _Loader(yaml.SafeLoader):
    """Refuses what YAML calls an error and the library lets pass: of two equal keys the first one would be lost."""

    def compose_mapping_node(self, anchor):
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ValueError(f"'{key.value}' is there twice, again in line {key.start_mark.line + 1}")
                seen.add((key.tag, key.value))
        return node


def parse_yaml(text: str | bytes) -> Any:
    """What a YAML text holds.

    Raises:
      ValueError: it is none, in one line; a mapping has a key twice; or lists or mappings lie in one another too deep.
    """
    try:
        return yaml.load(text, _Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except _NO_YAML as error:
        if is_long_number(error):
            raise ValueError(TOO_LONG) from None
        raise ValueError(" ".join(str(error).split())) from None


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds.

    Raises:
      UserError: it cannot be read, is no valid JSON, or holds something else.
    """
    try:
        found = parse_json(file_bytes(path, "JSON"))
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{path} is damaged: it is no valid JSON ({error}); download it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} is damaged: it must hold an object, in braces; download it again")
    return found
