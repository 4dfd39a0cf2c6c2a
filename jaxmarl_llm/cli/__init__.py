"""The command line: `jaxmarl-llm COMMAND`. Commands import what they need when they run, so that help is instant."""

import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from jaxmarl_llm import user_code
from jaxmarl_llm.errors import UserError, printable, unknown_name

_COMMANDS = {
    "train": ("train", "train a team: jaxmarl-llm train PRESET [--option value ...]"),
    "finetune": ("finetune", "fine-tune a team of language-model roles: finetune PRESET [--option value ...]"),
    "evaluate": ("evaluate", "play held-out problems with a fine-tuned team and print its accuracy"),
    "chat": ("chat", "talk to a role of a fine-tuned team, or to a model: chat smollm2"),
    "export": ("export", "write what a fine-tuned team has learned, in PEFT's or Hugging Face's format"),
    "eval": ("inspect", "play episodes with a trained team and print its return"),
    "render": ("inspect", "write a GIF of an episode of a trained team"),
    "envs": ("listing", "list the environments; envs NAME: the settings of one"),
    "presets": ("listing", "list what train accepts; presets NAME: the settings of a preset, or of an algorithm"),
    "ablate": (
        "ablate",
        "compare shared with isolated policies of language-model teams: ablate quick|full|phase, or --model MODEL",
    ),
    "bench": ("bench", "measure environment and training speed"),
}

# Exit status: 0 done, 1 training diverged, 2 bad input, 130 stopped by Ctrl-C, 141 the reader of the output has gone,
# 143 stopped by SIGTERM.
BAD_INPUT, DIVERGED, INTERRUPTED, NO_READER = 2, 1, 130, 141


def _usage() -> str:
    width = max(map(len, _COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in _COMMANDS.items()]
    return "\n".join(
        [
            "usage: jaxmarl-llm COMMAND [options]",
            "",
            "Multi-agent reinforcement learning in JAX.",
            "",
            *lines,
            "",
            "`jaxmarl-llm COMMAND --help` shows a command's options. Start with: jaxmarl-llm train demo",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
      argv: the arguments after the program's name; those of the process unless given.

    Returns:
      The exit status: 0 done, 1 training diverged, 2 bad input, 130 stopped by Ctrl-C, 141 the reader of the output has
        gone, 143 stopped by SIGTERM.
    """
    is_program = argv is None
    argv = list(sys.argv[1:] if argv is None else argv)
    command, *arguments = argv or ["help"]
    try:
        status = _run(command, arguments)
        sys.stdout.flush()
        if is_program and command in ("ablate", "finetune") and status:
            _leave_threads(status)
        return status
    except UserError as error:
        return _refused(error, str(error))
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or f"{command} was interrupted", file=sys.stderr)
        if is_program:
            _leave_threads(INTERRUPTED)
        return INTERRUPTED
    except (Exception, SystemExit) as error:
        if _lost_reader(error):
            if is_program:
                # Python must not complain at its end either.
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                _leave_threads(NO_READER)
            return NO_READER
        line = one_line(error, command)
        if line is None:
            raise
        return _refused(error, line)


def _run(command: str, arguments: list[str]) -> int:
    """Runs a command and returns its status."""
    if command in ("-h", "--help", "help"):
        print(_usage())
        return 0
    if command == "--version":
        from jaxmarl_llm import __version__

        print(f"jaxmarl-llm {__version__}")
        return 0
    if command not in _COMMANDS:
        raise unknown_name("command", command, _COMMANDS)
    module = importlib.import_module(f"jaxmarl_llm.cli.{_COMMANDS[command][0]}")
    return getattr(module, f"{command}_command")(arguments)


def _lost_reader(error: BaseException) -> bool:
    """Whether what reads our output, such as head or a pager, has gone; rich makes an exit of it."""
    broken = error.__context__ if isinstance(error, SystemExit) else error
    return isinstance(broken, BrokenPipeError) and user_code.place(error) is None


def _leave_threads(status: int) -> None:
    """Ends the program at once: threads that compile would delay its end, or crash as Python comes apart under them."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# What of a command's settings takes memory.
_TO_LOWER = {
    "train": "--num-envs",
    "bench": "--num-envs",
    "ablate": "--num-problems or --group-size, or num_episodes in --pretraining-args",
}


def one_line(error: BaseException, command: str = "") -> str | None:
    """What to say of an exception that is no fault of this package; None of one that is."""
    if user_code.place(error) is not None:
        return user_code.with_advice(user_code.describe(error))
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        such_as = f", such as {_TO_LOWER[command]}" if command in _TO_LOWER else ""
        return f"out of memory: choose smaller settings{such_as} ({user_code.describe(error)})"
    if isinstance(error, OverflowError):
        return f"a setting is too large a number ({user_code.describe(error)}): choose a smaller one"
    if isinstance(error, OSError):
        where = f" {error.filename}" if error.filename else ""
        reason = error.strerror or " ".join(str(error).split())
        return f"cannot read or write{where} ({reason}): choose another path, or make room"
    return None


def _refused(error: BaseException, line: str) -> int:
    if user_code.wants_traceback():
        traceback.print_exception(error)
    print(f"error: {printable(line)}", file=sys.stderr)
    return BAD_INPUT
