"""How a Linux process gives up rights for good: Landlock (files, TCP, signals) and seccomp (system calls)."""

from __future__ import annotations

import ctypes
import posix
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

libc = ctypes.CDLL(None, use_errno=True)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

# Landlock's bits: execute, write, read, list, remove a folder, remove a file, make a device, folder, file, socket,
# pipe, block device, link, move between folders, truncate, device controls.
_READ = 1 << 2 | 1 << 3
_WORK = _READ | 1 << 1 | 1 << 5 | 1 << 8 | 1 << 14


def check(result: int, what: str) -> int:
    """The result of a C function.

    Raises:
      OSError: it is negative.
    """
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {posix.strerror(error)}")
    return result


def no_new_privileges() -> None:
    """Gives up all rights that running another program could add; both filters ask for this."""
    check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "no_new_privs")


def landlock(readable: Iterable[str], writable: str, *, may_signal: bool) -> None:
    """Leaves some folders to read and one to write, and no TCP where the kernel knows it.

    Args:
      readable: folders.
      writable: a folder.
      may_signal: leaves signals to others; the kernel asks for this to end a child with its parent, too.

    Raises:
      OSError: no Landlock in this kernel.
    """
    version = check(libc.syscall(_CREATE_RULESET, None, 0, 1), "Landlock")
    files = (1 << 13) - 1 | (1 << 13) * (version >= 2) | (1 << 14) * (version >= 3) | (1 << 15) * (version >= 5)
    attributes = struct.pack("QQQ", files, 3, 1 if may_signal else 3)[: 8 + 8 * (version >= 4) + 8 * (version >= 6)]
    ruleset = check(libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0), "Landlock")
    for path, rights in [*((path, _READ) for path in readable), (writable, _WORK)]:
        folder = posix.open(path, posix.O_PATH | posix.O_CLOEXEC)  # pyright: ignore[reportAttributeAccessIssue]
        rule = struct.pack("=Qi", rights & files, folder)
        check(libc.syscall(_ADD_RULE, ruleset, 1, rule, 0), f"Landlock: {path}")
        posix.close(folder)
    check(libc.syscall(_RESTRICT_SELF, ruleset, 0), "Landlock")
    posix.close(ruleset)


# Calls that a program may make, by their numbers on x86-64 and on 64-bit ARM (-1: it has none). All else is refused:
# processes, threads, other programs, sockets, signals, ptrace, mounts, sessions, keys, BPF, io_uring, shared memory,
# new folders and links.
_ALLOWED = """
read 0 63 write 1 64 open 2 -1 close 3 57 stat 4 -1 fstat 5 80 lstat 6 -1 poll 7 -1 lseek 8 62 mmap 9 222
mprotect 10 226 munmap 11 215 brk 12 214 rt_sigaction 13 134 rt_sigprocmask 14 135 rt_sigreturn 15 139 pread64 17 67
pwrite64 18 68 readv 19 65 writev 20 66 access 21 -1 pipe 22 -1 select 23 -1 sched_yield 24 124 mremap 25 216
madvise 28 233 dup 32 23 dup2 33 -1 nanosleep 35 101 getpid 39 172 exit 60 93 wait4 61 260 uname 63 160 flock 73 32
fsync 74 82 fdatasync 75 83 truncate 76 45 ftruncate 77 46 getdents 78 -1 getcwd 79 17 chdir 80 49 fchdir 81 50
rename 82 -1 creat 85 -1 unlink 87 -1 readlink 89 -1 umask 95 166 gettimeofday 96 169 getrlimit 97 163
getrusage 98 165 sysinfo 99 179 times 100 153 getuid 102 174 getgid 104 176 geteuid 107 175 getegid 108 177
getppid 110 173 getpgrp 111 -1 getgroups 115 158 getresuid 118 148 getresgid 120 150 getpgid 121 155 getsid 124 156
rt_sigpending 127 136 sigaltstack 131 132 gettid 186 178 time 201 -1 futex 202 98 sched_getaffinity 204 123
getdents64 217 61 restart_syscall 219 128 fadvise64 221 223 clock_gettime 228 113 clock_getres 229 114
clock_nanosleep 230 115 exit_group 231 94 openat 257 56 newfstatat 262 79 unlinkat 263 35 renameat 264 38
readlinkat 267 78 faccessat 269 48 pselect6 270 72 ppoll 271 73 utimensat 280 88 dup3 292 24 pipe2 293 59
renameat2 316 276 getrandom 318 278 copy_file_range 326 285 statx 332 291 faccessat2 439 439 close_range 436 436
"""
# Only with these values of one argument: terminal questions and flags of descriptors, not owners of signals; limits are
# read, not set.
_CONDITIONAL = {
    "ioctl": ((16, 29), 1, (0x5401, 0x5450, 0x5451, 0x541B)),
    "fcntl": ((72, 25), 1, (0, 1, 2, 3, 4, 5, 6, 7, 1030)),
    "prlimit64": ((302, 261), 2, (0,)),
}
_KILL_CALL = (62, 129)
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_ALLOW, _REFUSE, _KILL_PROCESS = 0x7FFF0000, 0x00050000 | 1, 0x80000000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06


def seccomp(*, may_kill: int | None = None) -> None:
    """Leaves the calls that a computation needs; all others fail with 'Operation not permitted'.

    Args:
      may_kill: the one process that this one may send signals to.

    Raises:
      OSError: no seccomp filter in this kernel, or another kind of processor.
    """
    machine = posix.uname().machine
    if machine not in _MACHINES:
        raise OSError(0, f"seccomp: no table of calls for {machine}")
    column, architecture = _MACHINES[machine]
    calls = [int(number) for number in _ALLOWED.split()[1 + column :: 3]]
    program = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL_PROCESS), (_LOAD, 0, 0, 0)]
    for call in calls:
        if call >= 0:
            program += [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ALLOW)]
    conditional = [(numbers[column], argument, values) for numbers, argument, values in _CONDITIONAL.values()]
    if may_kill is not None:
        conditional.append((_KILL_CALL[column], 0, (may_kill,)))
    for call, argument, values in conditional:
        program += _if_argument(call, argument, values)
    program.append((_RETURN, 0, 0, _REFUSE))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in program))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    check(libc.prctl(_SET_SECCOMP, _FILTER_MODE, header, 0, 0), "seccomp")


def _if_argument(call: int, argument: int, values: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Allows a call where an argument (from 0) is one of some numbers below 2^32."""
    low = 16 + 8 * argument
    tests = [(_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    body = [
        (_LOAD, 0, 0, low + 4),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, low),
        *tests,
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return [(_EQUAL, 0, len(body), call), *body]
