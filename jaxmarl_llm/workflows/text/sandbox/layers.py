"""The layers of protection that sandboxes are made of, and what they need of this machine."""

import functools
import os
import pathlib
import sys
import sysconfig

from jaxmarl_llm.workflows.text.sandbox.child.isolation import NOBODY

LAYERS = {
    "namespaces+landlock+seccomp": ("namespaces", "landlock", "seccomp"),
    "namespaces+seccomp": ("namespaces", "seccomp"),
    "landlock+seccomp": ("landlock", "seccomp"),
}
SANDBOXES = ("auto", *LAYERS, "none")
# CAP_CHOWN, CAP_SETGID and CAP_SETUID.
_USER_RIGHTS = 1 << 0 | 1 << 6 | 1 << 7


def layers(name: str) -> tuple[str, ...]:
    """The layers of a sandbox, by its name."""
    return LAYERS.get(name, ())


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
