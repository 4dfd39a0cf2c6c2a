"""Episodes as JSON lines: one line an episode, for reading and for learning from what was written."""

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxmarl_llm.arguments import check_number, shown
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.user_files import file_bytes, parse_json, user_path
from jaxmarl_llm.workflows.text.bound import TextWorkflow
from jaxmarl_llm.workflows.text.rollout import TextEpisodes

_FAULTS = (KeyError, TypeError, ValueError, AttributeError)


@dataclasses.dataclass(frozen=True)
class StepRecord:
    """One reply of an episode.

    Attributes:
      role: who wrote.
      messages: what was read, `{"role", "content"}` each.
      reply: what was written, without the end.
      reward: of the reply; None where it is not known.
      call, round, copy: where in the workflow; the role's name and 0 by default.
      format_ok, own_score: see `TextSample`; None where they are not known.
    """

    role: str
    messages: tuple[Mapping[str, str], ...]
    reply: str
    reward: float | None = None
    call: str = ""
    round: int = 0
    copy: int = 0
    format_ok: bool | None = None
    own_score: float | None = None


@dataclasses.dataclass(frozen=True)
class EpisodeRecord:
    """One episode.

    Attributes:
      workflow, problem: names.
      outcome: score of the final answer; None where it is not known.
      steps: in order.
    """

    steps: tuple[StepRecord, ...]
    workflow: str = ""
    problem: str = ""
    outcome: float | None = None


def episode_records(
    bound: TextWorkflow, episodes: TextEpisodes, rewards: Sequence[float] | None = None
) -> list[EpisodeRecord]:
    """Episodes as records.

    Args:
      bound: the workflow that was played.
      episodes: B of them.
      rewards: of each of `episodes.samples`; the outcome of its episode by default.

    Raises:
      ValueError: another number of rewards than samples.
    """
    if rewards is None:
        rewards = [float(episodes.outcome[sample.episode]) for sample in episodes.samples]
    steps: list[list[StepRecord]] = [[] for _ in episodes.outcome]
    for sample, reward in zip(episodes.samples, rewards, strict=True):
        same = {name: getattr(sample, name) for name in ("role", "call", "round", "copy", "format_ok", "own_score")}
        step = StepRecord(messages=tuple(sample.messages), reply=sample.text, reward=float(reward), **same)
        steps[sample.episode].append(step)
    return [
        EpisodeRecord(
            tuple(of_episode),
            workflow=bound.workflow.name,
            problem=episodes.problems[index // episodes.group_size].name,
            outcome=float(episodes.outcome[index]),
        )
        for index, of_episode in enumerate(steps)
    ]


def write_transcripts(path: str | Path, records: Iterable[EpisodeRecord], *, append: bool = False) -> None:
    """Writes records, one a line.

    Args:
      path: of the file; its folder is made where it does not exist.
      records: of `episode_records`, for example.
      append: behind what the file has already.

    Raises:
      UserError: it cannot be written.
    """
    path = user_path(path, "the path of transcripts")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Half of a surrogate pair, which no file can hold, becomes the escape that JSON has for it.
        with path.open("a" if append else "w", encoding="utf-8", errors="backslashreplace") as file:
            for record in records:
                file.write(json.dumps(_plain(record), ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError(f"cannot write transcripts to {path}: {error.strerror}") from None


def read_transcripts(path: str | Path, *, skip_malformed: bool = False) -> list[EpisodeRecord]:
    """Reads records; a line needs `steps`, and each of these `role`, `messages` and `reply`.

    Args:
      path: of a file that `write_transcripts` wrote, or one like it. Empty lines are passed over.
      skip_malformed: pass over lines that are no record, where some are.

    Raises:
      UserError: it cannot be read, or a line is no record.
    """
    lines = file_bytes(path, "transcripts").splitlines()
    return list(_records(Path(path), lines, skip_malformed))


def _records(path: Path, lines: list[bytes], skip_malformed: bool) -> Iterator[EpisodeRecord]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _record(parse_json(line))
        except _FAULTS as error:
            if skip_malformed:
                continue
            fault = f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise UserError(f"line {number} of {path} is no episode: {fault}") from None


def _record(fields: Any) -> EpisodeRecord:
    known = _known(EpisodeRecord, fields)
    return EpisodeRecord(**{**known, "steps": tuple(map(_step, fields["steps"]))})


def _step(fields: Any) -> StepRecord:
    known = _known(StepRecord, fields)
    messages = tuple({"role": _text(one["role"]), "content": _text(one["content"])} for one in fields["messages"])
    if not messages:
        raise ValueError("a step has no messages")
    reward = fields.get("reward")
    if reward is not None:
        check_number("reward", reward, at_least=-math.inf)
    required = {"role": _text(fields["role"]), "reply": _text(fields["reply"]), "messages": messages}
    return StepRecord(**{"call": required["role"], **known, **required})


def _known(kind: type, fields: Any) -> dict[str, Any]:
    """What a record of a kind keeps of a line's fields; others may stand there too."""
    if not isinstance(fields, dict):
        raise ValueError(f"an object is needed, got {shown(fields)}")
    return {field.name: fields[field.name] for field in dataclasses.fields(kind) if field.name in fields}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text is needed, got {shown(value)}")
    return value


def _plain(record: EpisodeRecord) -> dict[str, Any]:
    plain = dataclasses.asdict(record)
    return {name: plain[name] for name in ("workflow", "problem", "outcome", "steps")}
