"""Which protection this machine has: each kind is tried with a program that tries to break out."""

import functools
import logging
import os
import sys
import tempfile

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.text.sandbox.layers import LAYERS, SANDBOXES
from jaxmarl_llm.workflows.text.sandbox.process import run_in
from jaxmarl_llm.workflows.text.sandbox.program import Limits, Program

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
    for name in LAYERS if sandbox == "auto" else (sandbox,):
        reason = _what_is_missing(name)
        if not reason:
            return name
        reasons.append(f"{name}: {reason}")
    raise UserError(
        f"no sandbox can be set up here ({'; '.join(reasons)}), so code is not run: use Linux 5.13 or newer, "
        'allow user namespaces, or set sandbox="none" to run it without protection'
    )


@functools.cache
def _warn() -> None:
    _log.warning('sandbox="none": code runs with all rights of this user')


@functools.cache
def _what_is_missing(name: str) -> str:
    """The reason why a sandbox cannot be used here, "" where it can."""
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
