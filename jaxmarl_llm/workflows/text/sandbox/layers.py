"""Which protection this machine has: each kind is tried with a program that tries to break out."""

import functools
import logging
import os
import pathlib
import sys
import sysconfig
import tempfile

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.text.sandbox.child.isolation import NOBODY
from jaxmarl_llm.workflows.text.sandbox.program import Limits, Program

_LAYERS = {
    "namespaces+landlock+seccomp": ("namespaces", "landlock", "seccomp"),
    "namespaces+seccomp": ("namespaces", "seccomp"),
    "landlock+seccomp": ("landlock", "seccomp"),
}
SANDBOXES = ("auto", *_LAYERS, "none")
_ESCAPES = """
import posix, _socket

def escapes(secret):
    found = []
    for name, attempt in (
        ("process", posix.fork),
        ("socket", _socket.socket),
        ("reading", lambda: posix.open(secret, posix.O_RDONLY)),
        ("writing", lambda: posix.open(secret, posix.O_WRONLY)),
        ("signal", lambda: posix.kill(posix.getppid(), 0)),
    ):
        try:
            attempt()
        except OSError:
            continue
        found.append(name)
    return found
"""
# CAP_CHOWN, CAP_SETGID and CAP_SETUID.
_USER_RIGHTS = 1 << 0 | 1 << 6 | 1 << 7
_log = logging.getLogger(__name__)


def sandbox_name(sandbox: str = "auto") -> str:
    """The name of the protection that code runs in here, the strongest one if not told which.

    Args:
      sandbox: "auto", one of the others in `SANDBOXES`, or "none": code then runs with the rights of the user.

    Returns:
      One of `SANDBOXES`, never "auto".

    Raises:
      UserError: no such name, or no protection can be set up here.
    """
    if sandbox not in SANDBOXES:
        raise unknown_name("sandbox", sandbox, SANDBOXES)
    if sandbox == "none":
        _warn()
        return sandbox
    reasons = []
    for name in _LAYERS if sandbox == "auto" else (sandbox,):
        reason = _what_is_missing(name)
        if not reason:
            return name
        reasons.append(f"{name}: {reason}")
    raise UserError(
        f"no sandbox can be set up here ({'; '.join(reasons)}), so code is not run: use Linux 5.13 or newer, "
        'allow user namespaces, or set sandbox="none" to run it without protection'
    )


def layers(name: str) -> tuple[str, ...]:
    """The layers of a sandbox, by its name."""
    return _LAYERS.get(name, ())


@functools.cache
def readable_folders() -> tuple[str, ...]:
    """Python's own library and the system's shared ones: all that a program may read."""
    paths = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})]
    if sys.base_prefix not in ("/usr", "/"):
        paths.append(f"{sys.base_prefix}/lib")
    found = [os.path.realpath(path) for path in (*paths, "/usr/lib", "/usr/lib64", "/lib", "/lib64")]
    unique = sorted({path for path in found if os.path.isdir(path)})
    return tuple(path for path in unique if not any(path.startswith(f"{other}/") for other in unique))


@functools.cache
def can_drop_user(name: str) -> bool:
    """Whether a program can run as a user without rights: root starts it, and that user can read Python's library."""
    if os.geteuid() or not _can_change_user():
        return False
    if "namespaces" in layers(name):
        return True
    places = [place for path in map(pathlib.Path, readable_folders()) for place in (path, *path.parents)]
    return all(place.stat().st_mode & 0o001 for place in places)


def _can_change_user() -> bool:
    """Whether root may give files away and become somebody else, who exists here: not so in all containers."""
    status, users = pathlib.Path("/proc/self/status"), pathlib.Path("/proc/self/uid_map")
    if not status.exists() or not users.exists():
        return False
    rights = int(status.read_text().partition("CapEff:")[2].split()[0], 16)
    ranges = [[int(number) for number in line.split()] for line in users.read_text().splitlines()]
    return rights & _USER_RIGHTS == _USER_RIGHTS and any(first <= NOBODY < first + size for first, _, size in ranges)


@functools.cache
def _warn() -> None:
    _log.warning('sandbox="none": code runs with all rights of this user')


@functools.cache
def _what_is_missing(name: str) -> str:
    """The reason why a sandbox cannot be used here, "" where it can."""
    from jaxmarl_llm.workflows.text.sandbox.host import run_in

    if not sys.platform.startswith("linux"):
        return "not Linux"
    with tempfile.NamedTemporaryFile(prefix="jaxmarl-llm-secret-") as secret:
        os.chmod(secret.name, 0o666)
        probe = Program(_ESCAPES, (f"found = escapes({secret.name!r})\nassert not found, found",))
        try:
            result = run_in(name, probe, Limits(seconds=20.0, cpu_seconds=20))
        except UserError as error:
            return str(error).partition("not run: ")[2]
    if result.status == "passed":
        _log.info("code runs in the sandbox %s", name)
        return ""
    return result.detail or result.status
