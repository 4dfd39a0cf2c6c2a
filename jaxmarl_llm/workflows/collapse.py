"""Teams that get worse: cliffs of learning curves, and signals of training that rise before the curve falls.

Axes: K evaluations, I iterations, S seeds.
"""

import dataclasses

import jax
import numpy as np

from jaxmarl_llm.algorithms.diagnostics import CliffReport, detect_cliff


def find_cliffs(accuracy: np.ndarray, *, window: int = 3, min_drop: float = 0.05) -> CliffReport:
    """Where each seed stands against its own peak; see `detect_cliff`.

    Args:
      accuracy: `[K, S]` float, one evaluation a point.
      window: points to average; all of them where there are fewer.
      min_drop: least fall that counts as a cliff.

    Returns:
      NumPy arrays `[S]`.
    """
    report = detect_cliff(np.asarray(accuracy, np.float32), window=min(window, len(accuracy)), min_drop=min_drop)
    return jax.tree.map(np.asarray, report)


def fall_index(accuracy: np.ndarray, report: CliffReport) -> np.ndarray:
    """The evaluation at which each seed's fall is half done.

    Args:
      accuracy: `[K, S]` float.
      report: of `find_cliffs`.

    Returns:
      `[S]` int, the first point after the peak that lies below the middle of peak and final; K where there is none, and
      for seeds that have no cliff.
    """
    index = np.arange(len(accuracy))[:, None]
    fallen = (index > report.peak_step) & (accuracy < (report.peak + report.final) / 2) & report.cliff
    return np.where(fallen.any(0), fallen.argmax(0), len(accuracy))


@dataclasses.dataclass(frozen=True)
class Warnings:
    """Alarms of S seeds.

    Attributes:
      alarm: `[S]` bool.
      iteration: `[S]` int, updates done when the alarm came; one more than all of them without an alarm.
    """

    alarm: np.ndarray
    iteration: np.ndarray


def early_warning(
    signal: np.ndarray, *, reference: int = 10, window: int = 3, factor: float = 3.0, level: float | None = None
) -> Warnings:
    """Raises an alarm where a signal of training leaves the level that it began with, or one that is given.

    Args:
      signal: `[I, S]` float, such as the divergence that an update causes, or a gradient norm.
      reference: updates whose median is the level; none of them raises an alarm.
      window: updates to average.
      factor: the alarm comes when the average exceeds the level so many times.
      level: known from other runs; then every full window can raise an alarm, and `reference` is not used.
    """
    num_iterations = len(signal)
    alarm = np.zeros(signal.shape, bool)
    first = reference if level is None else window - 1
    if num_iterations > first:
        limit = factor * (np.median(signal[:reference], axis=0) if level is None else level)
        for end in range(first, num_iterations):
            recent = signal[max(end + 1 - window, reference if level is None else 0) : end + 1]
            # What is no number any more is an alarm too.
            alarm[end] = ~(np.mean(recent, axis=0) <= limit)
    return Warnings(np.any(alarm, axis=0), np.where(alarm.any(0), alarm.argmax(0) + 1, num_iterations + 1))


def choose_level(
    signal: np.ndarray, cliff: np.ndarray, fall_iteration: np.ndarray, *, window: int = 3, num_candidates: int = 32
) -> float:
    """The level of a signal that tells runs that fall from others best: most hits over alarms and cliffs (F1).

    Judge it on other runs than these.

    Args:
      signal: `[I, S]` float.
      cliff, fall_iteration: `[S]`, as for `warning_quality`.
      window: updates to average.
      num_candidates: levels to try, spread evenly over the runs' largest averages.
    """
    means = np.stack([signal[start : start + window].mean(0) for start in range(len(signal) - window + 1)])
    candidates = np.quantile(np.nan_to_num(means.max(0), nan=np.inf), np.linspace(0, 1, num_candidates), method="lower")

    def score(level):
        warnings = early_warning(signal, window=window, factor=1.0, level=level)
        quality = warning_quality(warnings, cliff, fall_iteration)
        return 2.0 * quality.hits / max(quality.alarms + quality.cliffs, 1)

    # Of equals the highest: fewer alarms in runs that were not seen.
    return float(max(candidates[::-1], key=score))


@dataclasses.dataclass(frozen=True)
class WarningQuality:
    """How good alarms were.

    Attributes:
      alarms, cliffs: how many seeds had one.
      hits: seeds with a cliff whose alarm came before their fall.
      precision: share of the alarms that are hits; nan without an alarm.
      recall: share of the cliffs that are hits; nan without a cliff.
      lead: mean number of updates from alarm to fall over the hits; nan without one.
    """

    alarms: int
    cliffs: int
    hits: int
    precision: float
    recall: float
    lead: float


def warning_quality(warnings: Warnings, cliff: np.ndarray, fall_iteration: np.ndarray) -> WarningQuality:
    """Compares alarms with what came after them.

    Args:
      warnings: of S seeds.
      cliff: `[S]` bool.
      fall_iteration: `[S]`, updates done when the fall of a seed was half done; read where there is a cliff.
    """
    hit = warnings.alarm & cliff & (warnings.iteration < fall_iteration)
    alarms, cliffs, hits = int(warnings.alarm.sum()), int(cliff.sum()), int(hit.sum())
    return WarningQuality(
        alarms=alarms,
        cliffs=cliffs,
        hits=hits,
        precision=hits / alarms if alarms else float("nan"),
        recall=hits / cliffs if cliffs else float("nan"),
        lead=float(np.mean((fall_iteration - warnings.iteration)[hit])) if hits else float("nan"),
    )
