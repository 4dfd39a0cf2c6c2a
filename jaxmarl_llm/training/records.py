"""What a run writes while it trains: `metrics.jsonl` and TensorBoard events.

Axes: S seeds, E episodes, N agents.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.training.files import write_whole
from jaxmarl_llm.user_files import parse_json


def plain(value: Any) -> Any:
    """Dicts, lists and numbers for JSON; what is not finite becomes null, as JSON has no NaN."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _to_json(value: np.ndarray) -> Any:
    value = np.asarray(value)
    if value.dtype == np.float32:
        # The shortest decimal that reads back as the same float32: half the size of the double's.
        return plain(np.reshape([float(str(item)) for item in value.ravel()], value.shape).tolist())
    return plain(value.tolist())


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """`(update, line)` of every sound line of a metrics file, which need not exist."""
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            update = parse_json(line)["update"]
        except (ValueError, KeyError, TypeError):
            continue
        if type(update) is int:
            yield update, line


def last_update(path: Path) -> int:
    """The latest update that a metrics file tells of; 0 where it tells of none, or does not exist."""
    return max((update for update, _ in _lines(path)), default=0)


def keep_lines(path: Path, last_update: int | None) -> None:
    """Drops the lines of a metrics file that a resumed run will write again, and damaged ones, such as a torn last one.

    A file without a sound line is renamed to `<name>.damaged`.

    Args:
      path: the file; need not exist.
      last_update: lines up to this update stay; None drops all.
    """
    if not path.exists():
        return
    if last_update is not None and path.stat().st_size and not any(True for _ in _lines(path)):
        # Not one line is sound: something else than a killed process has been at it, and the user may want it back.
        path.replace(path.with_name(f"{path.name}.damaged"))
        return
    kept = [line + "\n" for update, line in _lines(path) if last_update is not None and update <= last_update]
    write_whole(path, "".join(kept))


def combine(records: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Metrics of several updates as those of one longer one.

    Args:
      records: name to `[S]` or `[S, N]`, at least one record.

    Returns:
      Means over the records; for statistics of finished episodes (`episode_*`, `agent_return`) the mean over episodes,
      nan where none finished; `episodes_finished` is the sum.
    """
    if len(records) == 1:
        return records[0]
    finished = np.stack([record["episodes_finished"] for record in records])  # [updates, S]
    total = finished.sum(0)
    combined = {}
    for name in records[0]:
        values = np.stack([record[name] for record in records]).astype(np.float64)
        if name == "episodes_finished":
            mean = total
        elif name.startswith("episode_") or name == "agent_return":
            extra = (1,) * (values.ndim - 2)
            weight = finished.reshape(*finished.shape, *extra)
            weighted = np.where(weight > 0, values, 0.0) * weight
            count = total.reshape(*total.shape, *extra)
            mean = np.where(count > 0, weighted.sum(0) / np.maximum(count, 1), np.nan)
        else:
            mean = values.mean(0)
        combined[name] = np.asarray(mean, np.float32)
    return combined


class Records:
    """Appends to a run's `metrics.jsonl` and `tensorboard/`."""

    def __init__(self, folder: Path, last_update: int | None, last_env_steps: int):
        """Opens the files, after dropping what a resumed run will write again.

        Args:
          folder: the run's folder.
          last_update: the update that the run resumes from; None for a new run.
          last_env_steps: environment steps at that update.
        """
        from tensorboardX import SummaryWriter

        path = folder / "metrics.jsonl"
        keep_lines(path, last_update)
        self._lines = path.open("a")
        # TensorBoard hides what a former life of the run wrote from here on.
        purge = 0 if last_update is None else last_env_steps + 1
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=purge, flush_secs=10)

    def write(self, kind: str, update: int, env_steps: int, times: dict[str, float], values: dict[str, Any]) -> None:
        """Writes one line.

        Args:
          kind: `"train"` or `"evaluation"`.
          update: updates so far.
          env_steps: environment steps so far, of each seed.
          times: scalars that differ from run to run, such as seconds.
          values: name to an array with a leading axis S.
        """
        line = {"kind": kind, "update": update, "env_steps": env_steps}
        line |= {name: round(value, 3) for name, value in times.items()}
        line |= {name: _to_json(value) for name, value in values.items()}
        self._lines.write(json.dumps(line) + "\n")
        self._lines.flush()
        for name, value in times.items():
            self._board.add_scalar(f"time/{name}", value, env_steps)
        for name, value in values.items():
            self._write_board(f"{kind}/{name}", np.asarray(value, float), name, env_steps)

    def _write_board(self, tag: str, value: np.ndarray, name: str, env_steps: int) -> None:
        def add(tag, values):
            if np.isfinite(values).any():
                self._board.add_scalar(tag, float(np.mean(values[np.isfinite(values)])), env_steps)

        if name.startswith("agent_"):
            for agent in range(value.shape[1]):
                add(f"{tag}/{agent}", value[:, agent])
            return
        add(tag, value)
        if len(value) > 1 and name in ("return", "episode_return"):
            for seed in range(len(value)):
                add(f"{tag}_by_seed/{seed}", value[seed])

    def flush(self) -> None:
        """Makes everything written so far survive the end of this process."""
        self._lines.flush()
        self._board.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        self._lines.close()
        self._board.close()


class NoRecords:
    """The records of a process that writes no files."""

    def write(self, *_) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""
