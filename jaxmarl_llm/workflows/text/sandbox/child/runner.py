"""One program and its judge: two processes, between which only plain values travel.

The program runs in the child. The judge, its parent, runs the tests, in which the program's functions are stand-ins
that ask the child. The tests reach the judge after the fork: the program can read neither them nor what they expect,
and cannot reach the pipe on which the verdict leaves. To end early, to print, to change its own builtins: no help.
"""

from __future__ import annotations

import _signal  # pyright: ignore[reportMissingImports]
import builtins
import posix
import sys

from . import isolation
from .values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType
    from typing import Any

LARGEST_MESSAGE = 4 << 20


class Stop(BaseException):
    """The time is up, or the host says so."""


class Verdict(BaseException):
    """Nothing more can be judged: status and reason."""


class ProgramError(Exception):
    """An exception of the program that is no built-in one."""


class Remote:
    """Stands for something of the program, by its name or by its number; called, it asks the program.

    Args:
      target: the name or the number.
      ask: sends a request and waits for the reply.
    """

    def __init__(self, target: str, ask: Callable[..., Any]):
        self._target = target
        self._ask = ask

    def __call__(self, *args, **kwargs):
        return self._ask(self._target, args, kwargs)


def send(file: int, data: bytes) -> None:
    """Writes one message."""
    data = len(data).to_bytes(8, "big") + data
    while data:
        data = data[posix.write(file, data[:65536]) :]


def receive(file: int) -> bytes:
    """Reads one message, and not a byte more.

    Raises:
      EOFError: the other side is gone.
      ValueError: a message that is too long.
    """
    size = int.from_bytes(_exactly(file, 8), "big")
    if size > LARGEST_MESSAGE:
        raise ValueError("a value of over 4 MiB")
    return _exactly(file, size)


def _exactly(file: int, size: int) -> bytes:
    parts = []
    while size:
        part = posix.read(file, min(size, 65536))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def main(seconds: float) -> None:
    """Reads a job and its tests from descriptor 0 and writes the verdict to descriptor 1.

    Args:
      seconds: time for all of it.
    """
    for number in (_signal.SIGALRM, _signal.SIGTERM):
        _signal.signal(number, _stop)
    out, child, verdict = 1, None, {"status": "timeout", "passed": 0, "detail": "the time was up"}
    try:
        _signal.setitimer(_signal.ITIMER_REAL, seconds)
        job = decode(receive(0), str)
        try:
            if "namespaces" in job["layers"]:
                isolation.enter_namespaces(job)
                job["folder"] = isolation.WORK
            elif job["drop_user"]:
                posix.chown(job["folder"], isolation.NOBODY, isolation.NOBODY)
            ask_end, request = posix.pipe()
            reply, answer_end = posix.pipe()
            child = posix.fork()
            if not child:
                _program(job, ask_end, answer_end)
            posix.close(ask_end)
            posix.close(answer_end)
            tests = decode(receive(0), str)
            out = posix.dup(1)
            posix.dup2(2, 1)
            isolation.confine(job, may_kill=child)
        except OSError as error:
            return _finish(out, child, {"status": "setup", "passed": 0, "detail": str(error)})
        verdict = _judge(tests, child, request, reply, job["cpu"])
        child = None if verdict.pop("reaped") else child
    except Stop:
        pass
    _finish(out, child, verdict)


def _stop(number, frame):
    raise Stop


def _finish(out: int, child: int | None, verdict: dict[str, Any]) -> None:
    for number in (_signal.SIGALRM, _signal.SIGTERM):
        _signal.signal(number, _signal.SIG_IGN)
    if child:
        try:
            posix.kill(child, _signal.SIGKILL)
            posix.waitpid(child, 0)
        except OSError:
            pass  # It ended by itself, or has not given up its rights yet: the host ends the whole group.
    posix.write(out, encode(verdict, str))
    posix._exit(0)


def _judge(tests: dict[str, Any], child: int, request: int, reply: int, cpu: float) -> dict[str, Any]:
    """Runs the tests one after another; `passed` counts those that hold."""
    state = {"status": "passed", "passed": 0, "detail": "", "reaped": False}

    def remote(text):
        return Remote(text, ask)

    def handle(value):
        if isinstance(value, Remote):
            return value._target
        raise TypeError(f"a test cannot give the program a {type(value).__name__}")

    def ask(*message):
        try:
            if message:
                send(request, encode(message, handle))
            kind, value = decode(receive(reply), remote)
        except (EOFError, BrokenPipeError):
            _, ended, used = posix.wait4(child, 0)
            state["reaped"] = True
            # The system counts ticks where it ends a program, and something finer here.
            raise Verdict(*_death(ended, used.ru_utime + used.ru_stime >= 0.5 * cpu)) from None
        if kind == "value":
            return value
        name, text = value
        if name == "MemoryError":
            raise Verdict("memory", "the memory was used up")
        error: Any = getattr(builtins, name, None)
        known = isinstance(error, type) and issubclass(error, Exception)
        raise (error if known else ProgramError)(text if known else f"{name}: {text}")

    try:
        # Sent before the program runs: later it could say anything.
        missing = ask()
        if missing:
            raise Verdict("setup", missing)
        ask()
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(compile(tests["setup"], "<setup>", "exec"), namespace)
        compiled = [compile(test, "<test>", "exec") for test in tests["tests"]]
        unknown = {name for code in compiled for name in _names(code) if not hasattr(builtins, name)} - {*namespace}
        namespace.update({name: Remote(name, ask) for name in (*unknown, *tests["names"])})
        for code in compiled:
            try:
                exec(code, namespace)
                state["passed"] += 1
            except Exception as error:
                state["status"] = "failed"
                state["detail"] = state["detail"] or f"{type(error).__name__}: {error}"[:500]
    except Verdict as verdict:
        state["status"], state["detail"] = verdict.args
    except Exception as error:
        state["status"], state["detail"] = "failed", f"{type(error).__name__}: {error}"[:500]
    except SystemExit:
        state["status"], state["detail"] = "failed", "a test ended the judge"
    return state


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, type(code)):
            yield from _names(constant)


def _death(ended: int, out_of_cpu: bool) -> tuple[str, str]:
    if posix.WIFSIGNALED(ended):
        number = posix.WTERMSIG(ended)
        if out_of_cpu and number in (_signal.SIGKILL, _signal.SIGXCPU):
            return "timeout", "the processor time was up"
        return "killed", f"ended by signal {number}"
    return "failed", f"exited with status {posix.WEXITSTATUS(ended)} before the tests were done"


def _program(job: dict[str, Any], requests: int, replies: int) -> None:
    """Runs the program, then answers calls; never returns."""
    try:
        for number in (_signal.SIGALRM, _signal.SIGTERM):
            _signal.signal(number, _signal.SIG_DFL)
        null = posix.open("/dev/null", posix.O_RDONLY) if not job["layers"] else posix.pipe()[0]
        posix.dup2(null, 0)
        posix.dup2(2, 1)
        requests, replies = posix.dup2(requests, 60), posix.dup2(replies, 61)
        posix.closerange(3, 60)
        posix.chdir(job["folder"])
        isolation.confine(job)
    except OSError as error:
        send(replies, encode(("value", str(error)), str))
        posix._exit(1)
    send(replies, encode(("value", ""), str))
    sys.argv = [""]
    kept: list[Any] = []
    namespace: dict[str, Any] = {"__name__": "program"}

    def handle(value):
        kept.append(value)
        return str(len(kept) - 1)

    def find(text):
        return kept[int(text)] if text.isdigit() else namespace[text]

    def reply(compute):
        try:
            message = encode(("value", compute()), handle)
        except BaseException as error:
            message = encode(("raised", (type(error).__name__, str(error)[:1000])), str)
        send(replies, message)

    def answer():
        target, args, kwargs = decode(receive(requests), find)
        return find(target)(*args, **kwargs)

    try:
        reply(lambda: exec(compile(job["code"], "<program>", "exec"), namespace))
        while True:
            reply(answer)
    finally:
        posix._exit(0)
