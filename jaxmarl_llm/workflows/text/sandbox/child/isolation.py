"""A process leaves the machine: namespaces with a file tree of their own, limits, another user, no capabilities."""

from __future__ import annotations

import posix
import resource
import struct

from . import filters
from .filters import check, libc

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAMESPACES = 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # mounts, processes, network, IPC, name
_NEW_USER = 0x10000000
_READ_ONLY, _NO_SETUID, _NO_DEVICES, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_DETACH, _PARENT_DEATH_SIGNAL, _DUMPABLE = 2, 1, 4
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
NOBODY = 65534
WORK = "/tmp"


def enter_namespaces(job: dict[str, Any]) -> None:
    """Leaves the machine's mounts, network, processes (the next child is the first one) and names.

    The new file tree lives in memory, holds the folders to read and an empty `/tmp`, and goes with the process.

    Args:
      job: `folder`, an empty one where the tree is put together; `readable`, the folders that are kept; `files`, the
        most bytes in `/tmp`; and `drop_user`.

    Raises:
      OSError: not allowed here.
    """
    folder = job["folder"]
    user, group = posix.geteuid(), posix.getegid()
    check(libc.unshare(_NAMESPACES | (_NEW_USER if user else 0)), "namespaces")
    if user:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            _write_file(f"/proc/self/{name}", text)
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("tmpfs", folder, "tmpfs", _NO_SETUID | _NO_DEVICES, f"size={job['files']},nr_inodes=1000,mode=755")
    for path in job["readable"]:
        target = folder + path
        _make_folders(target)
        _mount(path, target, None, _BIND | _RECURSIVE)
        kept = posix.statvfs(path).f_flag
        kept = kept & (8 | 1024 | 2048) | (1 << 21 if kept & 4096 else 0)
        _mount(None, target, None, _REMOUNT | _BIND | _READ_ONLY | _NO_SETUID | _NO_DEVICES | kept)
    posix.mkdir(folder + WORK, 0o700)
    if job["drop_user"]:
        posix.chown(folder + WORK, NOBODY, NOBODY)
    posix.chdir(folder)
    check(libc.syscall(_PIVOT_ROOT[posix.uname().machine], b".", b"."), "pivot_root")
    check(libc.umount2(b".", _DETACH), "umount")
    posix.chdir(WORK)


def confine(job: dict[str, Any], *, may_kill: int | None = None) -> None:
    """Gives up all that a computation does not need, for good.

    Args:
      job: `layers`, `readable`, `folder` (the one that may be written), and limits in bytes and seconds.
      may_kill: the one process that this one may end.

    Raises:
      OSError: a layer that the job asks for cannot be set up.
    """
    limits = {
        resource.RLIMIT_AS: job["memory"],
        resource.RLIMIT_CPU: job["cpu"],
        resource.RLIMIT_FSIZE: job["files"],
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if job["layers"]:
        # Without another layer the user's other processes would count too.
        limits[resource.RLIMIT_NPROC] = 0
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))
    if job["layers"]:
        filters.no_new_privileges()
        if "landlock" in job["layers"]:
            # Before the user changes, who may not be able to reach the folder by its path.
            filters.landlock(job["readable"], job["folder"], may_signal=may_kill is not None)
        if job["drop_user"]:
            posix.setgroups([])
            posix.setresgid(NOBODY, NOBODY, NOBODY)
            posix.setresuid(NOBODY, NOBODY, NOBODY)
        check(libc.capset(struct.pack("Ii", 0x20080522, 0), bytes(24)), "capset")
        check(libc.prctl(_DUMPABLE, 0, 0, 0, 0), "prctl")
        # The kernel forgets it when the user changes.
        check(libc.prctl(_PARENT_DEATH_SIGNAL, 9, 0, 0, 0), "prctl")
    if "seccomp" in job["layers"]:
        filters.seccomp(may_kill=may_kill)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind, options)]
    source_, target_, kind_, options_ = arguments
    check(libc.mount(source_, target_, kind_, filters.ctypes.c_ulong(flags), options_), f"mount {target}")


def _make_folders(path: str) -> None:
    place = ""
    for part in path.split("/")[1:]:
        place += f"/{part}"
        if not _exists(place):
            posix.mkdir(place, 0o755)


def _exists(path: str) -> bool:
    try:
        posix.stat(path)
    except FileNotFoundError:
        return False
    return True


def _write_file(path: str, text: str) -> None:
    file = posix.open(path, posix.O_WRONLY)
    posix.write(file, text.encode())
    posix.close(file)
