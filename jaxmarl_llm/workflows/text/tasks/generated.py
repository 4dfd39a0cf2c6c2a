"""Tasks whose problems are drawn from a seed."""

import abc
import dataclasses
import functools
import random

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.text.tasks.base import TextProblem, TextTask, is_held_out

_IDLE_DRAWS = 500


@dataclasses.dataclass(frozen=True, kw_only=True)
class GeneratedTask(TextTask):
    """Implement `draw`; which problems are held out depends neither on the seed nor on the numbers of problems.

    Attributes:
      num_train: the most problems for training; fewer where there are not that many different ones.
      num_held_out: the most held-out problems.
      seed: of the problems.

    Raises:
      UserError: a number below 1.
    """

    num_train: int = 1024
    num_held_out: int = 128
    seed: int = 0

    def __post_init__(self):
        check_whole("num_train", self.num_train, at_least=1)
        check_whole("num_held_out", self.num_held_out, at_least=1)
        check_whole("seed", self.seed)

    @abc.abstractmethod
    def draw(self, chance: random.Random) -> tuple[str, TextProblem]:
        """Any problem, and what makes it the same as another one; its name is given later."""

    @property
    def train(self) -> tuple[TextProblem, ...]:
        return self._parts[0]

    @property
    def held_out(self) -> tuple[TextProblem, ...]:
        return self._parts[1]

    @functools.cached_property
    def _parts(self) -> tuple[tuple[TextProblem, ...], tuple[TextProblem, ...]]:
        chance = random.Random(self.seed)
        sizes = (self.num_train, self.num_held_out)
        found: tuple[dict[str, TextProblem], dict[str, TextProblem]] = ({}, {})
        idle = 0
        while idle < _IDLE_DRAWS and any(len(part) < size for part, size in zip(found, sizes, strict=True)):
            identity, problem = self.draw(chance)
            side = is_held_out(identity)
            idle += 1
            if identity not in found[side] and len(found[side]) < sizes[side]:
                name = f"{type(self).__name__}/{('train', 'held_out')[side]}/{len(found[side])}"
                found[side][identity] = dataclasses.replace(problem, name=name)
                idle = 0
        if not all(found):
            raise UserError(
                f"{type(self).__name__} has too few problems with these settings: give it more digits or steps"
            )
        return tuple(found[0].values()), tuple(found[1].values())
