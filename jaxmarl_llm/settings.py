"""Settings of learners: the fields of a configuration as keyword arguments of the function that builds it; checks."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.arguments import shown
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.limits import LARGEST, LARGEST_FLOAT, SMALLEST_FLOAT

LARGEST_WIDTH = 2**16


def takes_settings_of(configuration: type, *builders: Callable, without: tuple[str, ...] = ()) -> Callable:
    """Decorator of a function that passes its `**settings` on: its signature then names them, others are refused.

    Args:
      configuration: a dataclass; its fields with a default are settings.
      builders: functions whose keyword arguments are settings too, see `split_settings`.
      without: names that are none.
    """
    settings = [parameter for builder in builders for parameter in _keywords(builder)]
    settings += [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
        for field in dataclasses.fields(configuration)
        if field.default is not dataclasses.MISSING
    ]
    settings = [parameter for parameter in settings if parameter.name not in without]

    def decorate(build: Callable) -> Callable:
        signature = inspect.signature(build)
        own = [parameter for parameter in signature.parameters.values() if parameter.kind is not parameter.VAR_KEYWORD]
        signature = signature.replace(parameters=own + settings)

        @functools.wraps(build)
        def checked(*arguments, **given):
            for name in given:
                if name not in signature.parameters:
                    raise unknown_name("setting", name, signature.parameters)
            return build(*arguments, **given)

        checked.__signature__ = signature  # pyright: ignore[reportAttributeAccessIssue]
        checked.__annotations__ |= {parameter.name: parameter.annotation for parameter in settings}
        return checked

    return decorate


def split_settings(
    settings: dict[str, Any], *builders: Callable, without: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that are keyword arguments of the builders, but for those `without`; and the others."""
    names = {parameter.name for builder in builders for parameter in _keywords(builder)} - set(without)
    return (
        {name: value for name, value in settings.items() if name in names},
        {name: value for name, value in settings.items() if name not in names},
    )


def _keywords(function: Callable) -> list[inspect.Parameter]:
    parameters = inspect.signature(function).parameters.values()
    return [parameter for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


def check_choices(learner: Any, **choices: Iterable[str]) -> None:
    """Raises `UserError` where an attribute of the learner is none of the choices given under its name."""
    for name, known in choices.items():
        if getattr(learner, name) not in known:
            raise unknown_name(name, getattr(learner, name), known)


def check_counts(learner: Any, *names: str, at_least: int = 1, at_most: int = LARGEST) -> None:
    """Raises `UserError` where an attribute of the learner is no whole number or is out of range."""
    for name in names:
        count = getattr(learner, name)
        if not _is_whole(count) or not at_least <= count <= at_most:
            raise UserError(
                f"{name} must be a whole number of at least {at_least} and at most {at_most}, got {shown(count)}"
            )


def _is_whole(number: Any) -> bool:
    return isinstance(number, int | np.integer) and not isinstance(number, bool)


def check_widths(name: str, widths: Any) -> tuple[int, ...]:
    """The widths of layers as a tuple; raises `UserError` where they are no list of positive whole numbers."""
    if not isinstance(widths, list | tuple) or not widths:
        raise UserError(f"{name} must be a list of whole numbers, such as [64, 64], got {widths!r}")
    for width in widths:
        if not _is_whole(width) or not 1 <= width <= LARGEST_WIDTH:
            raise UserError(f"{name} must be whole numbers from 1 to {LARGEST_WIDTH}, got {widths!r}")
    return tuple(widths)


def check_finite(learner: Any, *, signed: Iterable[str] = ()) -> None:
    """Raises `UserError` where a number of the learner is none, not finite or, but for those that are signed, negative.

    Whole numbers must also fit into 32 bits. Arrays, as under `vmap`, are not judged.
    """
    for field in dataclasses.fields(learner):
        number, default = getattr(learner, field.name), field.default
        if isinstance(default, float):
            number = _number(field.name, number)
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        low, most = (-LARGEST_FLOAT if field.name in signed else 0), LARGEST_FLOAT
        if not low <= number <= most:
            least = "" if field.name in signed else " and at least 0"
            raise UserError(f"{field.name} must be finite{least}, got {number}")
        if isinstance(number, int) and number > LARGEST:
            hint = f", or a float: write {float(number)}" if isinstance(default, float) else ""
            raise UserError(f"{field.name} must be at most {LARGEST}{hint}, got {number}")


def check_flags(learner: Any) -> None:
    """Raises `UserError` where an attribute of the learner whose default is True or False is neither."""
    for field in dataclasses.fields(learner):
        if isinstance(field.default, bool) and not isinstance(getattr(learner, field.name), bool | np.bool_):
            raise UserError(f"{field.name} must be true or false, got {shown(getattr(learner, field.name))}")


def check_numbers(learner: Any, *names: str, above: float | None = None) -> None:
    """Raises `UserError` where an attribute is no number or not above `above`, or without it, not between 0 and 1.

    Arrays, as under `vmap`, are not judged.
    """
    for name in names:
        number = _number(name, getattr(learner, name))
        if number is None:
            continue
        if above is None and not 0 <= number <= 1:
            raise UserError(f"{name} must lie between 0 and 1, got {number}")
        vanishes = 0 < number < SMALLEST_FLOAT
        if above is not None and (vanishes or not number > above):
            raise UserError(f"{name} must be above {above:g}{' in 32 bits' if vanishes else ''}, got {number}")


def _number(name: str, value: Any) -> int | float | None:
    """A number of Python or NumPy as Python's; None for an array; raises `UserError` for anything else."""
    if isinstance(value, np.number):
        return value.item()
    if isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"{name} must be a number, got {shown(value)}")
    return value
