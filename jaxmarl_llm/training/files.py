"""Folders that one process writes into, and files that are whole or not there."""

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

from jaxmarl_llm.errors import UserError

_LOCK_FILE = ".lock"
_PARTIAL = ".partial"


def write_whole(path: Path, content: bytes | str) -> None:
    """Writes a file in one piece or not at all.

    Raises:
      OSError: names the file, or the folder in its place; nothing of it is left.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    partial = path.with_name(f"{path.name}{_PARTIAL}")
    partial.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(partial, path)


def holds_earlier(folder: Path, header: str, owner: str) -> bool:
    """Whether a folder holds what an earlier process of the same kind wrote.

    It does not where there is no folder, or no more in it than what a process left that was killed while it began.

    Args:
      folder: need not exist.
      header: name of the file that is written into it first.
      owner: whose files they are, such as `a run's`.

    Raises:
      UserError: it holds other files, or is one.
    """
    if not folder.exists():
        return False
    if not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a folder with --out")
    if {path.name for path in folder.iterdir()} <= {_LOCK_FILE, f"{header}{_PARTIAL}"}:
        return False
    if not (folder / header).is_file():
        raise UserError(f"folder {folder} holds other files than {owner}: choose another --out")
    return True


def lock_folder(folder: Path) -> Any:
    """Keeps a second process from writing into a run's folder; the lock goes with the process.

    Returns:
      The lock, released by its `close`, or with its file by `unlock_folder`.

    Raises:
      UserError: another process trains there now.
    """
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / _LOCK_FILE).open("w")
    except OSError as error:
        raise UserError(f"cannot write to {folder} ({error.strerror}): choose another --out") from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have taken the file away, with its lock, since it was opened.
        if not os.path.samestat(os.fstat(file.fileno()), (folder / _LOCK_FILE).stat()):
            raise BlockingIOError
    except (BlockingIOError, FileNotFoundError):
        file.close()
        raise UserError(f"another process is training in {folder}: wait for it, or choose another --out") from None
    return file


def unlock_folder(folder: Path, lock: Any) -> None:
    """Releases a lock and leaves nothing of it, nor of a folder that holds nothing else."""
    with contextlib.suppress(OSError):
        (folder / _LOCK_FILE).unlink()
        folder.rmdir()
    lock.close()
