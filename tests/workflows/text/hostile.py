"""Programs that try to break out of the sandbox, to exhaust the machine or to pass without being right.

Each is a text in which FILE is a file of the test, SOCKET a socket of the test, PORT a listener, PARENT the test's
process and EXPECTED what the hidden test expects. `attempt` prints "refused" or "ESCAPED". None can do much harm even
without a sandbox, but the ones in `ENDLESS` and `BOMBS`.
"""

_PRELUDE = """
import os, sys

def answer(x):
    return None

def attempt(*acts):
    for act in acts:
        try:
            act()
        except (OSError, RuntimeError, ValueError) as error:
            print("refused", type(error).__name__)
        else:
            print("ESCAPED")

def call(*arguments):
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "")

"""

REFUSED = {
    "fork bomb": "attempt(*[os.fork] * 6)",
    "double fork": """
def daemon():
    if not os.fork():
        os.setsid()
        if os.fork():
            os._exit(0)
attempt(daemon, os.setsid, lambda: os.setpgid(0, 0))
""",
    "other program": """
attempt(lambda: os.execv("/bin/sh", ["sh", "-c", "echo ESCAPED"]))
attempt(lambda: os.posix_spawn("/bin/true", ["true"], {}))
""",
    "subprocess": 'import subprocess\nattempt(lambda: subprocess.run(["/bin/true"]))',
    "threads": "import threading\nattempt(*[threading.Thread(target=print).start] * 20)",
    "mapped memory": """
import mmap
attempt(lambda: mmap.mmap(-1, 1 << 40), lambda: [mmap.mmap(-1, 1 << 26) for _ in range(64)])
""",
    "write outside": 'attempt(lambda: open("FILE", "w"), lambda: os.unlink("FILE"), lambda: open("/mark", "w"))',
    "read outside": 'attempt(lambda: open("FILE"), lambda: open("/etc/passwd"), lambda: open("/etc/shadow"))',
    "symlink": """
def follow():
    os.symlink("FILE", "link")
    open("link")
def hard():
    os.link("FILE", "hard")
    open("hard")
attempt(follow, hard, lambda: open("../" * 20 + "FILE"))
""",
    "parent in /proc": """
attempt(lambda: open("/proc/PARENT/environ"), lambda: os.listdir("/proc"))
attempt(lambda: open(f"/proc/{os.getppid()}/mem", "r+b"), lambda: open("/proc/1/environ"))
""",
    "connect": """
import socket
attempt(lambda: socket.create_connection(("127.0.0.1", PORT), 1))
""",
    "bind": """
import socket
attempt(lambda: socket.socket().bind(("127.0.0.1", 0)))
attempt(lambda: socket.socket(type=socket.SOCK_DGRAM).bind(("127.0.0.1", 0)))
""",
    "unix socket": 'import socket\nattempt(lambda: socket.socket(socket.AF_UNIX).connect("SOCKET"), socket.socketpair)',
    "signals": """
import signal
victims = [os.getppid(), PARENT, 0, -1]
attempt(*[lambda pid=pid, n=n: os.kill(pid, n) for pid in victims for n in (signal.SIGTERM, signal.SIGKILL)])
attempt(lambda: os.killpg(os.getpgid(0), 9))
""",
    "signals by descriptors": """
import fcntl
attempt(lambda: fcntl.fcntl(0, fcntl.F_SETOWN, PARENT), lambda: fcntl.fcntl(0, 10, 9))
""",
    "ptrace": """
attempt(lambda: call(101, 16, PARENT, 0, 0), lambda: call(101, 0, 0, 0, 0))
attempt(lambda: call(310, PARENT, 0, 0, 0, 0, 0))
""",
    "kernel calls": """
# unshare, setns, mount, chroot, bpf, keyctl, io_uring_setup, userfaultfd, perf_event_open, memfd_create, shmget, prctl
attempt(*[lambda n=n: call(n, 0, 0, 0, 0, 0) for n in (272, 308, 165, 161, 321, 250, 425, 323, 298, 319, 29, 157)])
""",
    "limits": """
import resource
attempt(lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1)))
attempt(lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)))
""",
    "user": "attempt(lambda: call(105, 0), lambda: os.chmod('.', 0o777), lambda: os.chroot('.'))",
    "open files": 'attempt(lambda: [open("many", "w") for _ in range(100)])',
}

# What the program ends as, and the statuses that are right.
WRONG = {
    "exit": ('print("passed")\nos._exit(0)', "failed"),
    "system exit": ('print("2 passed")\nraise SystemExit(0)', "failed"),
    "exit when called": ("def answer(x):\n    print('passed')\n    os._exit(0)", "failed"),
    "always equal": (
        """
class Any(int):
    def __eq__(self, other):
        return True
    __ne__ = __hash__ = lambda *_: False
def answer(x):
    return Any(1)
""",
        "failed",
    ),
    "always equal object": ("class Any:\n    __eq__ = lambda *_: True\ndef answer(x):\n    return Any()", "failed"),
    "other builtins": (
        """
import builtins
class Quiet(Exception):
    def __new__(cls, *_):
        os._exit(0)
builtins.AssertionError = builtins.Exception = Quiet
builtins.exec = builtins.compile = builtins.isinstance = builtins.len = lambda *_: True
""",
        "failed",
    ),
    "forged verdict": (
        """
for file in range(64):
    for text in (b"d6:s6:statuss6:passeds6:passedi1:1s6:details0:", b"passed", bytes(7) + bytes([9])):
        try:
            os.write(file, text)
        except OSError:
            pass
""",
        "failed",
    ),
    "huge reply": ("os.write(61, (1 << 50).to_bytes(8, 'big') + bytes(100))", "failed"),
    "endless value": ("def answer(x):\n    while True:\n        yield x", "failed"),
    "nested value": ("def answer(x):\n    x = []\n    x.append(x)\n    return x", "failed"),
    "raises the judge's exceptions": ("def answer(x):\n    raise KeyboardInterrupt", "failed"),
    "closed descriptors": ("os.closerange(0, 64)", "failed"),
    "other objects of the process": (
        """
import gc
seen = [frame for frame in sys._current_frames().values()]
while seen[-1].f_back:
    seen.append(seen[-1].f_back)
found = repr([frame.f_locals for frame in seen]) + repr([o for o in gc.get_objects() if isinstance(o, (dict, tuple))])
print("ESCAPED" if "-".join(["secret", "sauce"]) in found else "refused")
""",
        "failed",
    ),
    "errors of the runner": (
        """
class setup(Exception):
    pass
class Verdict(BaseException):
    pass
def answer(x):
    raise setup("passed")
""",
        "failed",
    ),
    "errors of the runner at once": ("class setup(Exception):\n    pass\nraise setup('')", "failed"),
    "environment": ('print(dict(os.environ), os.environ.get("JAXMARL_SECRET"))', "failed"),
    "does not compile": ("def answer(x) return 1", "failed"),
    "crash": ("import ctypes\nctypes.string_at(0)", "killed"),
    "null bytes": ("\\0", "failed"),
}
BOMBS = {
    "memory bomb": ("kept = []\nwhile True:\n    kept.append(bytearray(1 << 24))", "memory"),
    "one large list": ("[0] * (1 << 40)", "memory"),
    "deep recursion": (
        "sys.setrecursionlimit(1 << 30)\ndef deep(x):\n    return [deep([x])]\ndeep(0)",
        ("memory", "killed", "failed"),
    ),
    "endless output": ('while True:\n    print("x" * 10000)', "output_limit"),
    "endless errors": ('while True:\n    sys.stderr.write("x" * 10000)', "output_limit"),
    "huge file": (
        """
def fill():
    with open("huge", "wb") as file:
        while True:
            file.write(bytes(1 << 20))
attempt(fill)
""",
        ("failed", "output_limit"),
    ),
    "many files": (
        """
try:
    for number in range(1 << 22):
        with open(f"file {number}", "w") as file:
            file.write("x" * 4096)
    print("ESCAPED")
except OSError:
    pass
""",
        ("failed", "output_limit"),
    ),
}
ENDLESS = {
    "loop": "while True:\n    pass",
    "loop when called": "def answer(x):\n    while True:\n        pass",
    "uninterruptible": "9 ** 9 ** 9 % 2",
    "sleep": "import time\ntime.sleep(3600)",
    "ignored signals": """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    "swallowed exceptions": """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    "never answers": "def answer(x):\n    os.read(60, 1)",
}


def code(body: str, **places) -> str:
    """A program with the places of the test filled in."""
    for name, value in places.items():
        body = body.replace(name, str(value))
    return _PRELUDE + body
