"""What goes into the sandbox and what comes out."""

import dataclasses
from typing import Literal

from jaxmarl_llm.arguments import check_number, check_whole

Status = Literal["passed", "failed", "timeout", "memory", "killed", "output_limit"]


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one program may use. It is always one process with one thread: it can start no other.

    Attributes:
      seconds: wall time, from the start of the interpreter to the verdict.
      cpu_seconds: processor time, of the program and of its tests each; the system counts whole seconds.
      memory_bytes: address space, of the program and of its tests each.
      output_bytes: of standard output and error together; a program that writes more is ended.
      file_bytes: of all files in its folder.

    Raises:
      UserError: no positive number.
    """

    seconds: float = 5.0
    cpu_seconds: int = 5
    memory_bytes: int = 512 << 20
    output_bytes: int = 64 << 10
    file_bytes: int = 16 << 20

    def __post_init__(self):
        check_number("seconds", self.seconds, above=True)
        check_whole("cpu_seconds", self.cpu_seconds, at_least=1)
        check_whole("memory_bytes", self.memory_bytes, at_least=64 << 20)
        check_whole("output_bytes", self.output_bytes, at_least=0)
        check_whole("file_bytes", self.file_bytes, at_least=1 << 16)


@dataclasses.dataclass(frozen=True)
class Program:
    """Code and its tests.

    Attributes:
      code: Python text, not trusted.
      tests: Python texts; each holds if it raises nothing. What neither they nor `setup` define is the program's.
      setup: Python text that runs before the tests, in the judge, not in the program.
      names: functions that the tests take from the program although `setup` defines them too.
    """

    code: str
    tests: tuple[str, ...]
    setup: str = ""
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Result:
    """What became of a program.

    Attributes:
      status: "passed" if all tests hold.
      num_passed: tests that hold.
      output: what it wrote, up to the limit.
      detail: the first thing that went wrong.
      seconds: wall time.
    """

    status: Status
    num_passed: int
    output: str
    detail: str
    seconds: float
