"""JSON files that hold a checksum of all that they say, and headers that know by which packages they were written."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.files import write_whole
from jaxmarl_llm.user_files import parse_json


def write_sealed(path: Path, stored: dict[str, Any]) -> None:
    """Writes what JSON can hold, with its checksum under `sha256`."""
    write_whole(path, json.dumps(stored | {"sha256": digest(stored)}, indent=2) + "\n")


def read_sealed(path: Path) -> dict[str, Any]:
    """What `write_sealed` wrote, lists for tuples.

    Raises:
      OSError: no such file.
      ValueError: it is not what was written.
    """
    stored = parse_json(path.read_bytes())
    if not isinstance(stored, dict) or stored.pop("sha256", None) != digest(stored):
        raise ValueError
    return stored


def digest(stored: Any) -> str:
    """SHA-256, in hexadecimal, of what JSON can hold, whatever the order of its keys."""
    # As JSON reads it, whose keys are texts.
    return hashlib.sha256(json.dumps(json.loads(json.dumps(stored)), sort_keys=True).encode()).hexdigest()


def write_header(path: Path, header: dict[str, Any], versions: dict[str, str]) -> None:
    """Writes the file that a folder begins with.

    Where it exists, it keeps the `versions` of the packages that began the folder, and notes others under
    `later_versions`.

    Args:
      path: of the file.
      header: what else it says.
      versions: of the packages that write into the folder now.
    """
    earlier = read_sealed(path) if path.exists() else {"versions": versions, "later_versions": []}
    first, later = earlier["versions"], earlier["later_versions"]
    later = later if versions in (first, *later) else [*later, versions]
    write_sealed(path, header | {"versions": first, "later_versions": later})


def check_subfolders(folder: Path, *names: str) -> None:
    """Raises `UserError` where something else stands in the place of a folder's subfolders."""
    for name in names:
        # A link to nothing does not exist, but is in the way.
        if os.path.lexists(folder / name) and not (folder / name).is_dir():
            raise UserError(f"{folder / name} is a file, where a folder belongs: move it away, or choose another --out")
