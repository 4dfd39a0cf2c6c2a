"""How long an ablation has to go, from what its parts have taken so far."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

from jaxmarl_llm.workflows.ablation.matrix import Cell

# Seconds on two CPU cores at the smallest size. Only their proportions count, and only until a part has been measured.
# A base policy's own program is compiled in `preparing`.
PHASES = {"preparing": 25.0, "pretraining": 20.0, "compiling": 20.0, "training": 15.0}
# The same for fine-tuning a language model; the model itself is evaluated once for each task and workflow.
MODEL_PHASES = {"evaluating the model": 60.0, "training": 900.0}
_ONCE_FOR = {
    "preparing": ("task", "size"),
    "pretraining": ("task", "size"),
    "compiling": ("task", "size", "workflow"),
    "evaluating the model": ("task", "size", "workflow"),
    "training": ("task", "size", "workflow", "sharing"),
}
_UNIT = tuple[str, tuple[str, ...]]


@dataclasses.dataclass
class Forecast:
    """The parts that cells are made of, and the time that they take.

    A base policy is made once for each task and size, a program once for each task, size and workflow.

    Attributes:
      cells: those that are to be trained.
      clock: seconds that went by.
      phases: of each cell in order, with what they take.
    """

    cells: Sequence[Cell]
    clock: Callable[[], float] = time.monotonic
    phases: Mapping[str, float] = dataclasses.field(default_factory=PHASES.copy)

    def __post_init__(self):
        self._done: dict[_UNIT, float] = {unit: 0.0 for cell in self.cells for unit in self._units(cell)}
        self._seconds = dict.fromkeys(self.phases, 0.0)
        self._found: dict[Cell, float] = {}
        self._last = self.clock()

    @property
    def done(self) -> float:
        """Share of the work that is done, by the proportions of `phases`."""
        total = sum(self.phases[phase] for phase, _ in self._done)
        return sum(self.phases[phase] * share for (phase, _), share in self._done.items()) / total if total else 1.0

    def advance(self, cell: Cell, phase: str, share: float) -> None:
        """Notes that a share of a cell's phase is done, and the phases before it."""
        now = self.clock()
        if phase == list(self.phases)[-1]:
            # What an earlier process has left of it took no time now.
            self._found.setdefault(cell, share)
        for unit in self._units(cell):
            if unit[0] == phase:
                self._done[unit] = share
                break
            self._done[unit] = 1.0
        self._seconds[phase] += now - self._last
        self._last = now

    @property
    def left(self) -> float:
        """Seconds to go; infinite as long as nothing is done."""
        work = dict.fromkeys(self.phases, 0.0)
        for (phase, _), share in self._done.items():
            work[phase] += share
        work[list(self.phases)[-1]] -= sum(self._found.values())
        measured = [phase for phase in self.phases if work[phase] > 0]
        expected = sum(self.phases[phase] * work[phase] for phase in measured)
        slowness = sum(self._seconds[phase] for phase in measured) / expected if expected else math.inf
        left = 0.0
        for (phase, _), share in self._done.items():
            if share < 1:
                each = self._seconds[phase] / work[phase] if work[phase] > 0 else self.phases[phase] * slowness
                left += each * (1 - share)
        return left

    def _units(self, cell: Cell) -> list[_UNIT]:
        """A cell's phases in order, each with what it is done once for."""
        return [(phase, tuple(getattr(cell, name) for name in _ONCE_FOR[phase])) for phase in self.phases]
