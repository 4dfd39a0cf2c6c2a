"""Checks of what a caller passes: each refuses in one line that names the argument."""

import math
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.errors import UserError

_NAMES = {str: "text", bool: "True or False", int: "whole number", np.integer: "whole number"}


def shown(value: Any) -> str:
    """A value in one short line, for messages."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def check_kind(what: str, value: Any, *kinds: type) -> None:
    """Raises `UserError` where a value is of none of the kinds."""
    if not isinstance(value, kinds):
        meaning = _meaning(kinds)
        hint = f": write {value.__name__}(...)" if isinstance(value, type) and issubclass(value, kinds) else ""
        raise UserError(f"{what} must be {meaning}, got {shown(value)}{hint}")


def check_kinds(what: str, kind: type, **values: Any) -> None:
    """Raises `UserError` where a value is not of a kind; its name and `what` name it."""
    for name, value in values.items():
        check_kind(f"{name} of {what}", value, kind)


def _meaning(kinds: tuple[type, ...]) -> str:
    return " or ".join(dict.fromkeys(_NAMES.get(kind, kind.__name__) for kind in kinds))


def elements(what: str, value: Any, *kinds: type) -> tuple:
    """A tuple of values of these kinds; one value alone, as after a forgotten comma, counts as a tuple of one.

    Raises:
      UserError: something else.
    """
    if isinstance(value, kinds):
        return (value,)
    if not isinstance(value, tuple | list):
        raise UserError(f"{what} must be a tuple ({_meaning(kinds)} each), got {shown(value)}")
    for one in value:
        check_kind(f"{what}: each", one, *kinds)
    return tuple(value)


def check_whole(what: str, value: Any, *, at_least: int | None = None, at_most: int | None = None) -> None:
    """Raises `UserError` where a value is no whole number, such as 4.0 or True, or is out of range."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise UserError(f"{what} must be a whole number, got {shown(value)}")
    if at_least is not None and value < at_least:
        raise UserError(f"{what} must be at least {at_least}, got {value}")
    if at_most is not None and value > at_most:
        raise UserError(f"{what} must be at most {at_most}, got {value}")


def check_number(
    what: str, value: Any, *, at_least: float = 0.0, at_most: float = math.inf, above: bool = False
) -> None:
    """Raises `UserError` where a value is no finite number in its range; what is traced is not judged.

    Args:
      what: names the value.
      value: a number, or an array of shape `[]`.
      at_least, at_most: the range.
      above: `at_least` itself is too small.
    """
    number = np.asarray(None) if isinstance(value, list | tuple) else concrete(value)
    if number is None:
        return
    if number.ndim or not any(jnp.issubdtype(number.dtype, kind) for kind in (jnp.integer, jnp.floating)):
        raise UserError(f"{what} must be a number, got {shown(value)}")
    if not at_least <= number <= at_most or (above and number == at_least) or not np.isfinite(number):
        between = f"lie between {at_least:g} and {at_most:g}"
        below = f"be above {at_least:g}" if above else f"be at least {at_least:g}"
        raise UserError(f"{what} must {below if at_most == math.inf else between}, and finite, got {shown(value)}")


def check_not_negative(what: str, value: Any) -> None:
    """Raises `ValueError` where a number, or one in an array, is negative; what is traced is not judged."""
    numbers = concrete(value)
    if numbers is not None and np.any(numbers < 0):
        raise ValueError(f"{what} must not be negative, got {value}")


def concrete(value: Any) -> np.ndarray | None:
    """The numbers of an array; None where they are not known here, since it is traced or lies on other machines."""
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):
        return None
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:
        return None


def as_array(what: str, value: Any, kind: Any) -> jax.Array:
    """An array, or a list of rows of one length, as an array of whole numbers or booleans.

    Args:
      what: names the value.
      value: the array.
      kind: `jnp.integer` or `jnp.bool_`.

    Raises:
      UserError: no array, or of another kind.
    """
    meaning = "booleans" if kind is jnp.bool_ else "integers"
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError):
        raise UserError(f"{what} must be an array of {meaning}, its rows of one length, got {shown(value)}") from None
    if not jnp.issubdtype(array.dtype, kind):
        raise UserError(f"{what} must hold {meaning}, got {array.dtype}")
    return array


def of_one_shape(**arrays) -> list[jax.Array]:
    """Arrays of one shape, in the order given: silent broadcasting is how axes get mixed up.

    Args:
      **arrays: array-likes, by the names to call them in an error.

    Raises:
      ValueError: shapes that differ; names the first two that disagree.
    """
    found = {name: jnp.asarray(array) for name, array in arrays.items()}
    (first, example), *others = found.items()
    for name, array in others:
        if array.shape != example.shape:
            raise ValueError(
                f"{first} has shape {list(example.shape)} and {name} {list(array.shape)}: {', '.join(found)} must have "
                "one shape"
            )
    return list(found.values())


def steps_of_one_shape(**arrays) -> list[jax.Array]:
    """Arrays `[T, ...]` of one shape, as `of_one_shape`, with a time axis of at least one step.

    Raises:
      ValueError: shapes that differ, or no time axis, or no step.
    """
    found = of_one_shape(**arrays)
    shape = found[0].shape
    if not shape or shape[0] == 0:
        raise ValueError(f"{next(iter(arrays))} needs a time axis of at least one step, got shape {list(shape)}")
    return found


def of_batch_shape(num_axes: int, **arrays) -> None:
    """Refuses arrays that have not the shape of the first one and `num_axes` axes more.

    Args:
      num_axes: how many axes follow.
      **arrays: array-likes, by the names to call them in an error.

    Raises:
      ValueError: another shape.
    """
    (first, batch), *others = ((name, jnp.shape(array)) for name, array in arrays.items())
    for name, shape in others:
        if len(shape) != len(batch) + num_axes or shape[: len(batch)] != batch:
            raise ValueError(
                f"{name} must have the axes of {first}, which has shape {list(batch)}, and {num_axes} more, got shape "
                f"{list(shape)}"
            )
