"""How long an ablation has to go, from what its parts have taken so far."""

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence

from jaxmarl_llm.workflows.ablation.matrix import Cell, Matrix
from jaxmarl_llm.workflows.ablation.model_matrix import ModelAblation

# Seconds on two CPU cores at the smallest size, for 40 updates: two seeds of `ablate quick`. Only their proportions
# count, and only for the bar. A base policy's own program is compiled in `preparing`.
PHASES = {"preparing": 25.0, "pretraining": 20.0, "compiling": 20.0, "training": 15.0}
_UPDATES = 40
# The same for fine-tuning a language model, 24 updates; the model itself is evaluated once for each task and workflow.
MODEL_PHASES = {"evaluating the model": 60.0, "training": 900.0}
_MODEL_UPDATES = 24
_ONCE_FOR = {
    "preparing": ("task", "size"),
    "pretraining": ("task", "size"),
    "compiling": ("task", "size", "workflow"),
    "evaluating the model": ("task", "size", "workflow"),
    "training": ("task", "size", "workflow", "sharing"),
}
_UNIT = tuple[str, tuple[str, ...]]


def phases_of(config: Matrix) -> dict[str, float]:
    """`PHASES` or `MODEL_PHASES`, with training as long as its updates are many."""
    phases, updates = (MODEL_PHASES, _MODEL_UPDATES) if isinstance(config, ModelAblation) else (PHASES, _UPDATES)
    return phases | {"training": phases["training"] * config.iterations * config.num_seeds / updates}


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
        spent_on = phase
        if phase == self._last_phase and cell not in self._found:
            # What an earlier process has left of it took no time now, nor does the way to its begin say how long it is.
            self._found[cell] = share
            spent_on = list(self.phases)[-2]
        for unit in self._units(cell):
            if unit[0] == phase:
                self._done[unit] = share
                break
            self._done[unit] = 1.0
        self._seconds[spent_on] += now - self._last
        self._last = now

    @property
    def left(self) -> float:
        """Seconds to go; infinite until some training was measured, since nothing else tells how long it takes."""
        work = dict.fromkeys(self.phases, 0.0)
        for (phase, _), share in self._done.items():
            work[phase] += share
        work[self._last_phase] -= sum(self._found.values())
        left = 0.0
        for (phase, _), share in self._done.items():
            if share < 1:
                left += self._seconds[phase] / work[phase] * (1 - share) if work[phase] > 0 else math.inf
        return left

    @property
    def _last_phase(self) -> str:
        return list(self.phases)[-1]

    def _units(self, cell: Cell) -> list[_UNIT]:
        """A cell's phases in order, each with what it is done once for."""
        return [(phase, tuple(getattr(cell, name) for name in _ONCE_FOR[phase])) for phase in self.phases]
