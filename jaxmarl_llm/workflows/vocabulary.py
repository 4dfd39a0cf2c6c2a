"""Named tokens to ids and back."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping

from jaxmarl_llm.arguments import elements
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.workflows.ragged import PAD

END = 1
PAD_NAME = "<pad>"
END_NAME = "<end>"
# Symbols follow in the order given, those of a task first, so that a task knows its own ids.
FIRST_SYMBOL = 2


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Names of tokens; the id of a token is its place.

    `<pad>` is 0, `<end>` is 1, the symbols follow in their order.

    Attributes:
      symbols: different names, without blanks; no longer name may be spelled by one-letter names ("12" beside "1" and
        "2"), since text could then be read in two ways.

    Raises:
      UserError: a name is empty, has blanks, occurs twice, or can be spelled by others.
    """

    symbols: tuple[str, ...]

    def __post_init__(self):
        object.__setattr__(self, "symbols", elements("the symbols of a vocabulary", self.symbols, str))
        letters = {name for name in self.names if len(name) == 1}
        for place, name in enumerate(self.names):
            if not name or name.split() != [name]:
                raise UserError(f"a token's name must be a word without blanks, got {name!r}")
            if name in self.names[:place]:
                raise UserError(f"token '{name}' occurs twice: names of tokens must differ")
            if len(name) > 1 and set(name) <= letters:
                raise UserError(f"token '{name}' could also be read as {' '.join(name)}: give it another name")

    @property
    def names(self) -> tuple[str, ...]:
        """All names, by id."""
        return (PAD_NAME, END_NAME, *self.symbols)

    @property
    def pad(self) -> int:
        """Id of the padding, 0."""
        return PAD

    @property
    def end(self) -> int:
        """Id of the token that ends a completion, 1."""
        return END

    def __len__(self) -> int:
        return len(self.names)

    def encode(self, text: str | Iterable[str]) -> tuple[int, ...]:
        """Ids of a text or of names of tokens.

        Args:
          text: names of tokens; or one string, in which each word is read from the left, longest name first.

        Raises:
          UserError: something that is no token.
        """
        ids = _ids(self)
        if not isinstance(text, str):
            text = list(text)
            for name in text:
                if name not in ids:
                    raise unknown_name("token", name, ids)
            return tuple(ids[name] for name in text)
        encoded = []
        for word in text.split():
            place = 0
            while place < len(word):
                found = _pattern(self).match(word, place)
                if found is None:
                    raise unknown_name("token", word[place:], ids)
                encoded.append(ids[found.group()])
                place = found.end()
        return tuple(encoded)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, which `encode` reads back; padding is left out.

        Raises:
          ValueError: an id that is no token's.
        """
        text = ""
        previous = ""
        for index in map(int, ids):
            if not 0 <= index < len(self):
                raise ValueError(f"{index} is no token: ids run from 0 to {len(self) - 1}")
            if index == PAD:
                continue
            name = self.names[index]
            text += (" " if previous and len(previous) + len(name) > 2 else "") + name
            previous = name
        return text


@functools.cache
def _ids(vocabulary: Vocabulary) -> Mapping[str, int]:
    return {name: index for index, name in enumerate(vocabulary.names)}


@functools.cache
def _pattern(vocabulary: Vocabulary) -> re.Pattern:
    longest_first = sorted(vocabulary.names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)))
