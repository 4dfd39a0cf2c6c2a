import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time

import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.text import sandbox
from jaxmarl_llm.workflows.text.sandbox import Limits, Program, probe, run, run_many
from jaxmarl_llm.workflows.text.sandbox.child.values import decode, encode

from . import hostile

HIDDEN = ("assert answer(3) == 'secret-sauce'",)
PATIENT = Limits(seconds=120.0)
RIGHT = Program("def answer(x):\n    return 'secret-sauce'", HIDDEN)


def sandboxes():
    if not sys.platform.startswith("linux"):
        return []
    first, *others = (name for name in sandbox.SANDBOXES if name not in ("auto", "none"))
    return [first, *(pytest.param(name, marks=pytest.mark.slow) for name in others)]


@pytest.fixture(params=sandboxes())
def name(request):
    missing = probe._what_is_missing(request.param)
    if missing:
        pytest.skip(missing)
    return request.param


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXMARL_SECRET", "hunter2")
    os.chmod(tmp_path, 0o777)
    file = tmp_path / "victim"
    file.write_text("hunter2")
    file.chmod(0o666)
    with socket.socket() as listener, socket.socket(socket.AF_UNIX) as local:
        listener.bind(("127.0.0.1", 0))
        local.bind(str(tmp_path / "socket"))
        (tmp_path / "socket").chmod(0o777)
        for one in (listener, local):
            one.listen()
            one.setblocking(False)
        yield {"FILE": file, "SOCKET": tmp_path / "socket", "PORT": listener.getsockname()[1], "PARENT": os.getpid()}
        for one in (listener, local):
            with pytest.raises(BlockingIOError):
                one.accept()
    assert file.read_text() == "hunter2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["socket", "victim"]


@pytest.fixture
def protected():
    try:
        sandbox.sandbox_name()
    except UserError as error:
        pytest.skip(str(error))


def judge(name, places, bodies, limits):
    programs = [Program(hostile.code(body, **places), HIDDEN) for body in bodies]
    results = run_many(programs, workers=4, limits=limits, sandbox=name)
    assert run(RIGHT, PATIENT, sandbox=name).status == "passed"
    for result in results:
        assert "ESCAPED" not in result.output, result
        assert "hunter2" not in result.output + result.detail
        assert len(result.output) <= limits.output_bytes
        assert result.num_passed == 0
    return results


def own_seconds(seconds):
    """A time limit of about `seconds` that no other process asks for: it stands in the sandbox's command lines."""
    return seconds + os.getpid() * 2.0**-24


def processes_with(seconds):
    """The processes whose command line has the time limit among its arguments."""
    text, found = f"\0{seconds}\0", []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline") as file:
                    found += [entry] * (text in file.read())
            except OSError:
                continue
    return found


def test_what_is_refused(name, places):
    results = judge(name, places, hostile.REFUSED.values(), PATIENT)
    for title, result in zip(hostile.REFUSED, results, strict=True):
        assert result.status == "failed", (title, result)
        assert result.detail.startswith("AssertionError"), (title, result)
        assert "refused" in result.output, (title, result)


def test_wrong_programs_and_forged_verdicts(name, places):
    cases = {**hostile.WRONG, **hostile.BOMBS}
    limits = Limits(seconds=120.0, memory_bytes=256 << 20, output_bytes=5000)
    results = judge(name, places, [body for body, _ in cases.values()], limits)
    for (title, (_, status)), result in zip(cases.items(), results, strict=True):
        assert result.status in (status if isinstance(status, tuple) else (status,)), (title, result)


def test_endless_programs_end_and_leave_nothing_behind(name, places):
    limits = Limits(seconds=own_seconds(1.0))
    start = time.monotonic()
    results = judge(name, places, hostile.ENDLESS.values(), limits)
    assert time.monotonic() - start < 15
    assert {result.status for result in results} == {"timeout"}, results
    assert not processes_with(limits.seconds)


def test_processor_time(name):
    result = run(Program("while True:\n    pass", HIDDEN), Limits(seconds=600.0, cpu_seconds=1), sandbox=name)
    assert (result.status, result.detail) == ("timeout", "the processor time was up")


@pytest.mark.slow
def test_ends_with_its_parent(name, tmp_path):
    seconds = own_seconds(59.0)
    code = (
        "from jaxmarl_llm.workflows.text.sandbox import *\n"
        f"print(run(Program('', ('1',)), sandbox={name!r}).status, flush=True)\n"
        f"run(Program('while True: pass', ('1',)), Limits(seconds={seconds}, cpu_seconds=30), sandbox={name!r})"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    with parent:
        assert parent.stdout.readline() == b"passed\n"
        while len(processes_with(seconds)) < 2:
            time.sleep(0.05)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 5
    while processes_with(seconds) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not processes_with(seconds)


@pytest.mark.usefixtures("protected")
def test_judging():
    code = """
import collections
class Pair:
    def __init__(self, a, b):
        self.a, self.b = a, b
def total(pairs, *, start=0):
    return sum((p.a for p in pairs), start)
def adder(n):
    return lambda x: x + n
def numbers():
    return (i for i in range(3))
def counted(text):
    return collections.Counter(text)
def fails(x):
    raise ValueError(f"no {x}")
def limit():
    return -1
print("said")
"""
    tests = (
        "assert total([Pair(1, 2), Pair(3, 4)], start=5) == 9",
        "assert adder(2)(3) == 5",
        "assert list(numbers()) == [0, 1, 2] and numbers() != [0, 1, 2]",
        "assert counted('aab') == {'a': 2, 'b': 1}",
        "try:\n    fails(7)\nexcept ValueError as error:\n    assert str(error) == 'no 7'\nelse:\n    assert False",
        "assert limit() == 10",
        "assert undefined(1) == 1",
        "assert math.isclose(total([]), 0.0)",
    )
    result = run(Program(code, tests, "import math\ndef limit():\n    return 10", ("limit",)), PATIENT)
    assert (result.status, result.num_passed, result.output) == ("failed", len(tests) - 2, "said\n")
    assert result.detail.startswith("AssertionError")


@pytest.mark.usefixtures("protected")
def test_tests_that_are_not_right():
    good = "def answer(x):\n    return x"
    programs = [
        Program(good, ("import sys\nsys.exit(0)",)),
        Program(good, ("assert answer(1) ==",)),
        Program(good, ("assert answer(1) == 1",), setup="import no_such_module"),
        Program(good + "#" * (5 << 20), ("assert answer(1) == 1",)),
        Program(good, ("assert answer(1) == 1",)),
    ]
    results = run_many(programs, limits=PATIENT)
    assert [result.status for result in results] == ["failed", "failed", "failed", "failed", "passed"]
    assert run(Program(good, ("while True:\n    pass",)), Limits(seconds=0.5)).status == "timeout"


def test_no_sandbox_no_run(monkeypatch):
    monkeypatch.setattr(probe, "_what_is_missing", lambda name: "not allowed")
    with pytest.raises(UserError, match=r'code is not run.*sandbox="none"'):
        run(RIGHT)
    assert run(RIGHT, PATIENT, sandbox="none").status == "passed"
    assert run(Program("def answer(x):\n    return 1", HIDDEN), sandbox="none").status == "failed"


def test_bad_input():
    with pytest.raises(UserError, match="unknown sandbox 'non': did you mean none"):
        run(RIGHT, sandbox="non")
    with pytest.raises(UserError, match="workers must be at least 1"):
        run_many([RIGHT], workers=-1)
    with pytest.raises(UserError, match="seconds must be above 0"):
        Limits(seconds=0.0)
    assert run_many([]) == []


def random_value(source, depth=0):
    kind = source.randrange(8 if depth > 3 else 14)
    make = [
        lambda: None,
        lambda: source.random() < 0.5,
        lambda: source.randrange(-(10 ** source.randrange(1, 40)), 10**20),
        lambda: source.gauss(0, 10.0 ** source.randrange(-300, 300)),
        lambda: complex(source.random(), float("inf")),
        lambda: "".join(chr(source.randrange(0x11000)) for _ in range(source.randrange(5))),
        lambda: source.randbytes(source.randrange(5)),
        lambda: source.randbytes(3).decode("latin-1"),
    ]
    if kind < 8:
        return make[kind]()
    items = [random_value(source, depth + 1) for _ in range(source.randrange(4))]
    if kind < 10:
        return items if kind == 8 else tuple(items)
    plain = [repr(item) for item in items]
    return {10: set(plain), 11: frozenset(plain), 12: dict(zip(plain, items, strict=True)), 13: {}}[kind]


def test_values_come_back_exactly_and_bad_bytes_are_refused():
    source = random.Random(7)

    def same(one, other):
        if type(one) is not type(other):
            return False
        if isinstance(one, list | tuple):
            return len(one) == len(other) and all(map(same, one, other))
        return one == other

    for _ in range(300):
        value = random_value(source)
        data = encode(value, str)
        assert same(decode(data, str), value)
        place = source.randrange(len(data))
        for broken in (data[:place], data + b"N0:", data[:place] + source.randbytes(2) + data[place + 1 :]):
            with contextlib.suppress(ValueError):
                decode(broken, str)
    assert decode(encode(-(10**5000), str), str) == -(10**5000)
    with pytest.raises(ValueError, match="not a value"):
        decode(b"l1:" * 100_000, str)
