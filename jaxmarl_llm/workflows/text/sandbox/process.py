"""Runs one program in the sandbox of a given name, in a fresh interpreter, and watches it."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from typing import Literal

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.text.sandbox.child.runner import LARGEST_MESSAGE
from jaxmarl_llm.workflows.text.sandbox.child.values import decode, encode
from jaxmarl_llm.workflows.text.sandbox.layers import can_drop_user, layers, readable_folders
from jaxmarl_llm.workflows.text.sandbox.program import Limits, Program, Result

_HERE = os.path.dirname(os.path.abspath(__file__))
_GRACE = 0.5


def run_in(name: str, program: Program, limits: Limits) -> Result:
    """Runs one program in the sandbox of this name.

    Raises:
      UserError: it cannot be set up.
    """
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="jaxmarl-llm-", ignore_cleanup_errors=True) as folder:
        folder = os.path.realpath(folder)
        job = {
            "code": program.code,
            "layers": layers(name),
            "readable": readable_folders(),
            "folder": folder,
            "drop_user": can_drop_user(name),
            "memory": limits.memory_bytes,
            "cpu": limits.cpu_seconds,
            "files": limits.file_bytes,
        }
        tests = {"setup": program.setup, "tests": program.tests, "names": program.names}
        messages = [encode(part, str) for part in (job, tests)]
        if max(map(len, messages)) > LARGEST_MESSAGE:
            return Result("failed", 0, "", "the program is longer than 4 MiB", time.monotonic() - start)
        python = os.path.realpath(sys.executable)
        process = subprocess.Popen(
            [python, "-I", "-S", "-u", os.path.join(_HERE, "child", "main.py"), _HERE, str(limits.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env={},
            start_new_session=True,
            bufsize=0,
        )
        with process:
            try:
                with contextlib.suppress(BrokenPipeError):
                    for message in messages:
                        _write(process, len(message).to_bytes(8, "big") + message)
                verdict, output, reason = _watch(process, folder, limits, start + limits.seconds + _GRACE)
                if reason:
                    _ask_to_stop(process)
            finally:
                # The judge is waited for last: until then its number, which names the group, is nobody else's.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    output = output[: limits.output_bytes].decode(errors="replace")
    seconds = time.monotonic() - start
    if reason:
        return Result(reason, 0, output, f"over the limit: {reason}", seconds)
    try:
        judged = decode(verdict, str)
        if judged["status"] == "setup":
            raise UserError(f"the sandbox {name} cannot be set up, so code is not run: {judged['detail']}")
        return Result(judged["status"], judged["passed"], output, judged["detail"], seconds)
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        return Result("killed", 0, output, "the judge ended without a verdict", seconds)


def _write(process: subprocess.Popen, data: bytes) -> None:
    while data and process.stdin is not None:
        data = data[process.stdin.write(data[:65536]) :]


def _watch(
    process: subprocess.Popen, folder: str, limits: Limits, deadline: float
) -> tuple[bytes, bytes, Literal["", "timeout", "output_limit"]]:
    """Reads the verdict and the output until the judge ends, or a limit does.

    Returns:
      `(verdict, output, status)`, the status "" where the verdict tells it.
    """
    assert process.stdout is not None and process.stderr is not None
    verdict, output = process.stdout.fileno(), process.stderr.fileno()
    read = {verdict: b"", output: b""}
    with selectors.DefaultSelector() as selector:
        for file in read:
            selector.register(file, selectors.EVENT_READ)
        while verdict in selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                return b"", read[output], "timeout"
            for key, _ in selector.select(min(left, 0.05)):
                part = os.read(key.fd, 65536)
                read[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
            if len(read[output]) > limits.output_bytes or _num_bytes(folder) > limits.file_bytes:
                return b"", read[output], "output_limit"
    return read[verdict], read[output], ""


def _num_bytes(folder: str) -> int:
    """What the files of a folder take; a sandboxed program cannot make folders in it."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                total += 4096 + entry.stat(follow_symlinks=False).st_blocks * 512
    return total


def _ask_to_stop(process: subprocess.Popen) -> None:
    """Lets the judge end its program and wait for it, so that no dead process is left to the machine's first one."""
    os.kill(process.pid, signal.SIGTERM)
    deadline = time.monotonic() + _GRACE
    while time.monotonic() < deadline:
        if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.002)
