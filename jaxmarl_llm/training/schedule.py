"""When a run logs, evaluates and saves, counted in updates."""

import dataclasses
import math

from jaxmarl_llm.training.config import TrainConfig


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Intervals in updates; everything is also due after the last update.

    Attributes:
      total: updates of the whole run.
      log: between lines of metrics.
      evaluation: between evaluations.
      checkpoint: between checkpoints.
    """

    total: int
    log: int
    evaluation: int
    checkpoint: int

    @property
    def first_checkpoint(self) -> int:
        """The update after which the first checkpoint is due."""
        return min(self.checkpoint, self.total)

    def due(self, interval: int, update: int) -> bool:
        """Whether what comes at every `interval` comes after this update."""
        return update % interval == 0 or update == self.total

    def any_due(self, update: int) -> bool:
        """Whether anything comes after this update."""
        return any(self.due(interval, update) for interval in (self.log, self.evaluation, self.checkpoint))


def make_schedule(config: TrainConfig, steps_per_update: int) -> Schedule:
    """Turns a configuration's environment steps into updates; the last update may pass `total_steps`.

    Args:
      config: the run.
      steps_per_update: environment steps of an update.
    """
    total = math.ceil(config.total_steps / steps_per_update)

    def interval(steps: int, default_count: int) -> int:
        if steps < 0:
            return total
        if steps == 0:
            return math.ceil(total / default_count)
        return max(1, round(steps / steps_per_update))

    return Schedule(
        total,
        log=interval(config.log_every, 1000),
        evaluation=interval(config.eval_every, 20),
        checkpoint=interval(config.checkpoint_every, 10),
    )
