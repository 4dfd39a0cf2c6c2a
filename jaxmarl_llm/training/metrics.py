"""Reads what a run wrote: `metrics.jsonl`, `config.yaml`. Axes: K lines, S seeds, E episodes, N agents."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.user_files import parse_json, parse_yaml


@dataclasses.dataclass(frozen=True)
class RunMetrics:
    """The lines of a `metrics.jsonl`, by kind and in the order of updates.

    Attributes:
      lines: kind (`"train"`, `"evaluation"`) to its lines.
      config: what `config.yaml` holds; empty when there is none.
    """

    lines: dict[str, list[dict[str, Any]]]
    config: dict[str, Any]

    def series(self, kind: str, name: str, over: str = "env_steps") -> tuple[np.ndarray, np.ndarray]:
        """One metric over environment steps or updates.

        Args:
          kind: `"train"` or `"evaluation"`.
          name: the metric.
          over: `"env_steps"` or `"update"`.

        Returns:
          `(over, values)`: `[K]` and `[K, ...]` float64, with `values` `[K, S]`, `[K, S, E]` or `[K, S, N]` as it
          was written. Lines without the metric, or with another shape than the last line's, are left out; K may be 0.
        """
        rows = [(line[over], _as_array(line[name])) for line in self.lines.get(kind, ()) if name in line]
        rows = [(place, value) for place, value in rows if value is not None]
        if not rows:
            return np.zeros(0), np.zeros((0, 1))
        shape = rows[-1][1].shape
        rows = [(place, value) for place, value in rows if value.shape == shape]
        return np.asarray([place for place, _ in rows], float), np.stack([value for _, value in rows])

    @property
    def num_seeds(self) -> int:
        """S, read from the last line that has a list; 1 when there is none."""
        for kind, name in (("evaluation", "return"), ("train", "episode_return"), ("train", "total_loss")):
            values = self.series(kind, name)[1]
            if len(values):
                return values.shape[1]
        return 1


def _as_array(value) -> np.ndarray | None:
    def number(leaf):
        if isinstance(leaf, list):
            return [number(item) for item in leaf]
        return np.nan if leaf is None else float(leaf)

    try:
        # A bare scalar counts as one seed.
        return np.atleast_1d(np.asarray(number(value), float))
    except (TypeError, ValueError):
        return None


def read_metrics(run_folder: str | Path) -> RunMetrics:
    """Reads a run's metrics, whatever state an interruption left them in.

    Lines that are not whole JSON objects (a write that was cut short) are skipped. Where a resumed run wrote an update
    a second time, the later line counts.

    Args:
      run_folder: a run's folder.

    Raises:
      UserError: there is no such folder.
    """
    folder = Path(run_folder)
    if not folder.is_dir():
        raise UserError(f"no run folder '{folder}': give the folder that `jaxmarl-llm train --out` wrote")
    by_update: dict[str, dict[float, dict]] = {}
    path = folder / "metrics.jsonl"
    if path.is_file():
        for text in path.read_text(errors="replace").splitlines():
            try:
                line = parse_json(text)
                kind, update, _ = line["kind"], line["update"], float(line["env_steps"])
            except (ValueError, KeyError, TypeError):
                continue
            if not (isinstance(kind, str) and type(update) is int):
                continue
            by_update.setdefault(kind, {})[update] = line
    lines = {kind: [found[update] for update in sorted(found)] for kind, found in by_update.items()}
    return RunMetrics(lines=lines, config=_read_config(folder / "config.yaml"))


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = parse_yaml(path.read_bytes())
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
