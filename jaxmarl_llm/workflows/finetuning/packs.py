"""Completions of ragged lengths, packed into micro-batches of few shapes. Axes as in `llm.packing`; S samples."""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.llm.automata import TokenConstraint, constrain_rows
from jaxmarl_llm.llm.packing import Pack
from jaxmarl_llm.workflows.finetuning.model import AdaptedModel

# Few shapes, since each is compiled: lengths are multiples of these, and a micro-batch is a whole one or such a part.
_PROMPT_MULTIPLE, _COMPLETION_MULTIPLE = 32, 16
_PARTS = (16, 4, 1)


class Text(Protocol):
    """What was read and written, as tokens."""

    @property
    def prompt(self) -> np.ndarray:
        """`[L]` int32."""
        ...

    @property
    def completion(self) -> np.ndarray:
        """`[M]` int32, with its stop token."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """A micro-batch and where its completions come from.

    Attributes:
      index: `[B, C]` int, numbers of samples; -1 where there is none.
      pack: the tokens.
      trunk: `[B, S, E]` or None, see `AdaptedModel.trunk`.
    """

    index: np.ndarray
    pack: Pack
    trunk: Any

    def fill(self, values: Any, default: float = 0.0) -> jnp.ndarray:
        """Numbers of samples as those of the pack.

        Args:
          values: `[S]`, or S arrays `[M]` of ragged lengths.
          default: where there is no sample, or no token.

        Returns:
          `[B, C]` or `[B, C, M]` float32.
        """
        ragged = np.ndim(values[0]) == 1
        filled = np.full(self.pack.completion.shape if ragged else self.index.shape, default, np.float32)
        for row, column in np.argwhere(self.index >= 0):
            value = values[self.index[row, column]]
            if ragged:
                filled[row, column, : len(value)] = value
            else:
                filled[row, column] = value
        return jnp.asarray(filled)

    def spread(self, values: Any, target: list[Any]) -> None:
        """The inverse of `fill` for `[B, C, M]`: writes each sample's part into `target` at its number."""
        values, mask = np.asarray(values), np.asarray(self.pack.mask)
        for row, column in np.argwhere(self.index >= 0):
            target[self.index[row, column]] = values[row, column, : mask[row, column].sum()]


def pack_samples(
    model: AdaptedModel,
    texts: Sequence[Text],
    which: Iterable[int],
    *,
    group: int,
    max_tokens: int,
    limited: bool = False,
    beside: Iterable[Packed] = (),
) -> list[Packed]:
    """Packs samples; those of one prompt lie behind one copy of it.

    Args:
      model: computes the trunks.
      texts: S samples; those that were held to something have it as their `constraint`.
      which: numbers of those to pack.
      group: the most completions behind one prompt.
      max_tokens: of a micro-batch, with padding; one row may have more.
      limited: as of `AdaptedModel.check_fits`.
      beside: micro-batches that are kept meanwhile.

    Returns:
      Micro-batches, long ones last.

    Raises:
      UserError: their gradients do not fit into memory; nothing has been computed then.
    """
    # Those that were held to something have packs of their own, in which few tokens need a logit.
    by_prompt: dict[tuple[bool, bytes], list[int]] = {}
    for number in which:
        if len(texts[number].completion):
            prompt = np.asarray(texts[number].prompt, np.int32).tobytes()
            by_prompt.setdefault((_constraint(texts[number]) is not None, prompt), []).append(number)
    rows: dict[tuple[int, int, bool], list[list[int]]] = {}
    for (is_held, _), numbers in by_prompt.items():
        copies = group if len(numbers) > 1 else 1
        length = _padded(len(texts[numbers[0]].prompt), _PROMPT_MULTIPLE)
        for start in range(0, len(numbers), copies):
            rows.setdefault((length, copies, is_held), []).append(numbers[start : start + copies])
    longest = max((len(texts[number].completion) for numbers in by_prompt.values() for number in numbers), default=1)
    steps = _padded(longest, _COMPLETION_MULTIPLE)
    held = [number for (is_held, _), numbers in by_prompt.items() if is_held for number in numbers]
    constraints = constrain_rows([_constraint(texts[number]) for number in held])
    place = {number: index for index, number in enumerate(held)}
    planned = []
    for (length, copies, is_held), found in sorted(rows.items()):
        tokens = length + copies * (steps - 1)
        size = 1 << max(0, (max_tokens // tokens).bit_length() - 1)
        for start in range(0, len(found), size):
            part = found[start : start + size]
            room = next(size // share for share in _PARTS if len(part) <= size // share)
            planned.append((part, (room, length, copies, steps), is_held))
    trunks = model.trunk_bytes(
        sum(room * (length + copies * (steps - 1)) for _, (room, length, copies, _), _ in planned)
    )
    trunks += sum(packed.trunk.nbytes for packed in beside if packed.trunk is not None)
    ways = 0 if constraints is None else constraints.automaton.tokens.shape[1]
    for _, sizes, is_held in planned:
        # Those that are held to few tokens have few logits, whatever else limits them.
        held_to = {"candidates": ways} if is_held else {"limited": limited}
        model.check_fits(*sizes, trunks=trunks, **held_to)
    packs = []
    for part, (room, length, copies, _), is_held in planned:
        packed = _pack(model, texts, part, length, copies, steps, room)
        if is_held and constraints is not None:
            # A place without a sample is as any other, and not read.
            at = np.vectorize(lambda number: place.get(int(number), 0))(packed.index)
            pack = dataclasses.replace(packed.pack, constraint=constraints.at(at))
            packed = dataclasses.replace(packed, pack=pack)
        packs.append(packed)
    return packs


def _padded(length: int, multiple: int) -> int:
    return -(-max(length, 1) // multiple) * multiple


def _constraint(text: Text) -> TokenConstraint | None:
    """What a sample was held to; examples have none."""
    return getattr(text, "constraint", None)


def _pack(model, texts, rows, length, copies, steps, size) -> Packed:
    index = np.full((size, copies), -1)
    prompt, prompt_length = np.zeros((size, length), np.int32), np.ones(size, np.int32)
    completion, mask = np.zeros((size, copies, steps), np.int32), np.zeros((size, copies, steps), bool)
    for row, numbers in enumerate(rows):
        read = texts[numbers[0]].prompt
        prompt[row, : len(read)], prompt_length[row] = read, len(read)
        for column, number in enumerate(numbers):
            written = texts[number].completion
            index[row, column] = number
            completion[row, column, : len(written)], mask[row, column, : len(written)] = written, True
    pack = Pack(jnp.asarray(prompt), jnp.asarray(prompt_length), jnp.asarray(completion), jnp.asarray(mask))
    return Packed(index, pack, model.trunk(pack))
