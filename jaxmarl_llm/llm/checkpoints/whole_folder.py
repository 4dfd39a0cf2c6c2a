"""Folders that are written whole or not at all."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.user_files import user_path

_PARTIAL = ".partial"


@contextlib.contextmanager
def whole_folder(target: str | os.PathLike, files: Sequence[str]) -> Iterator[Path]:
    """A folder to write into that takes the place of another one once everything is in it.

    Args:
      target: the folder; one that is there stays as it is until then.
      files: patterns of the names that are written; a folder with others in it is refused.

    Yields:
      The folder to write into, empty.

    Raises:
      UserError: it cannot be written, for example because the disk is full, or there are other files.
    """
    target = user_path(target, "the folder to write").resolve()
    partial, old = (target.with_name(f"{target.name}{end}") for end in (_PARTIAL, f".old{_PARTIAL}"))
    _put_back(old, target)
    others = [target] if target.is_file() else []
    if target.is_dir():
        others = [path for path in target.iterdir() if not any(path.match(pattern) for pattern in files)]
    if others:
        raise UserError(f"{target} holds {others[0].name}, which was not saved here: choose another folder")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        yield partial
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
            target.rename(old)
        partial.rename(target)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        _put_back(old, target)
        reason = error.strerror or " ".join(str(error).split())
        kept = ": what was there is as it was" if target.exists() else ""
        raise UserError(f"cannot write {target} ({reason}){kept}; make room, or choose another folder") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_back(old: Path, target: Path) -> None:
    """Restores the folder that was there, where it had been taken away and nothing took its place."""
    if old.exists() and not target.exists():
        with contextlib.suppress(OSError):
            old.rename(target)
