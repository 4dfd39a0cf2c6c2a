"""Workflows in which one role tells others what to do; who is told may be frozen, see `workflows.sharing`."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.graph import PROBLEM, Call, Last, Loop, Slot, Workflow
from jaxmarl_llm.workflows.instructions import Instructions
from jaxmarl_llm.workflows.messages import Solution, Synthesis

_SETTINGS = tuple(field.name for field in dataclasses.fields(Instructions) if field.name != "number")
_WAYS = {
    "templates": ("solve it by {item}", "check it by {item}"),
    "items": ("counting", "small steps", "working backwards"),
}


def coordinator(n: int = 3, rounds: int = 2, answerer: str = "answerer", **actions: Any) -> Workflow:
    """A coordinator that instructs workers, each of whom sees the problem and its own instruction.

    From the second round on, the coordinator reads what the workers wrote in the round before. A worker without
    instruction is not asked.

    Args:
      n: N, workers.
      rounds: of instructions and work.
      answerer: the role that reads all workers and answers; `worker` if it is to be theirs.
      **actions: `templates`, `items`, `goals`, `amounts`, `budget` and so on, see `Instructions`; ways to solve a
        problem, if not given.
    """
    coordinator = Call(
        "coordinator",
        prompt=(PROBLEM, Slot("worker", numbered=True), "<coordinator>"),
        writes=_instructions(n, actions),
    )
    loop = Loop((coordinator, _worker("coordinator", n)), rounds=rounds)
    return Workflow("coordinator", (loop, _answerer(answerer)), answer=Last("answerer"))


def hierarchy(
    teams: int = 2,
    n: int = 2,
    rounds: int = 1,
    answerer: str = "answerer",
    strategy: Mapping[str, Any] | None = None,
    **actions: Any,
) -> Workflow:
    """A strategist that instructs tacticians, each of whom instructs its own workers.

    From the second round on, the strategist reads what all workers wrote in the round before. A tactician without
    instruction is not asked, and its workers go on with what it told them last, or are not asked either.

    Args:
      teams: tacticians.
      n: N, workers of each.
      rounds: of strategy, tactics and work.
      answerer: as for `coordinator`.
      strategy: what the strategist may say, settings of `Instructions`; a goal by default.
      **actions: what tacticians may say, as for `coordinator`.
    """
    default = {"goals": ("be quick", "be careful", "find another way")}
    strategist = Call(
        "strategist",
        prompt=(PROBLEM, Slot("worker", numbered=True), "<strategist>"),
        writes=_instructions(teams, strategy or default),
    )
    tactician = Call(
        "tactician",
        prompt=(PROBLEM, Slot("strategist", part=True), "<tactician>"),
        writes=_instructions(n, actions),
        copies=teams,
    )
    loop = Loop((strategist, tactician, _worker("tactician", teams * n)), rounds=rounds)
    return Workflow("hierarchy", (loop, _answerer(answerer)), answer=Last("answerer"))


def _instructions(number: int, settings: Mapping[str, Any]) -> Instructions:
    if not isinstance(settings, Mapping):
        raise UserError(f"strategy must hold settings by name ({', '.join(_SETTINGS)}), got {settings!r}")
    for name in settings:
        if name not in _SETTINGS:
            raise unknown_name("setting of instructions", name, _SETTINGS)
    return Instructions(number, **(settings or _WAYS))


def _worker(leader: str, copies: int) -> Call:
    return Call("worker", prompt=(PROBLEM, Slot(leader, part=True), "<worker>"), writes=Solution(), copies=copies)


def _answerer(role: str) -> Call:
    prompt = (PROBLEM, Slot("worker", numbered=True), "<answerer>")
    return Call(role, prompt=prompt, writes=Synthesis("worker"), name="answerer")
