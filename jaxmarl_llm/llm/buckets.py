"""Lengths that arrays are padded to, so that few programs are compiled."""

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError

_SHORTEST = 16


def length_bucket(length: int, *, at_most: int | None = None) -> int:
    """The padded length: the least of 16, 24, 32, 48, 64, 96, ... that holds so many tokens.

    Powers of two and their halfway marks: at most a third of a padded array is padding, and all lengths up to 8,192
    share 19 programs.

    Args:
      length: number of tokens, at least 1.
      at_most: the longest that may be, such as what a decoder's `max_length` leaves; it replaces a longer bucket.

    Raises:
      UserError: no token, or more than `at_most`.
    """
    check_whole("length", length, at_least=1)
    if at_most is not None and length > at_most:
        raise UserError(f"{length} tokens are more than the {at_most} that fit: shorten the prompts")
    bucket = _SHORTEST
    while bucket < length:
        # From a power of two to its halfway mark, and from there to the next power.
        bucket = bucket * 3 // 2 if bucket & (bucket - 1) == 0 else bucket * 4 // 3
    return bucket if at_most is None else min(bucket, at_most)
