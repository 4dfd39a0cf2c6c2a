"""Running statistics of value targets, so that one critic learning rate fits any scale of reward (Yu et al. 2022)."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class ValueStatistics:
    """Exponential averages of targets, not yet debiased; all `[...]` float32.

    Attributes:
      mean: average of targets times `weight`.
      mean_square: average of squared targets times `weight`.
      weight: sum of the weights, 0 before the first update and 1 in the limit.
    """

    mean: jax.Array
    mean_square: jax.Array
    weight: jax.Array


_MIN_VARIANCE = 1e-2


def init_value_statistics(shape=()) -> ValueStatistics:
    """Empty statistics: `normalize_value` and `denormalize_value` change nothing until the first update."""
    return ValueStatistics(jnp.zeros(shape), jnp.zeros(shape), jnp.zeros(shape))


def update_value_statistics(statistics, mean, mean_square, count, *, decay=0.99) -> ValueStatistics:
    """Adds one batch.

    Args:
      statistics: of shape `[...]`.
      mean, mean_square: `[...]` float, averages over the batch.
      count: `[...]`, number of elements in them; a batch of none changes nothing.
      decay: weight of the past, once a batch.

    Returns:
      New statistics.
    """
    decay = jnp.where(count > 0, decay, 1.0)
    return ValueStatistics(
        mean=decay * statistics.mean + (1 - decay) * mean,
        mean_square=decay * statistics.mean_square + (1 - decay) * mean_square,
        weight=decay * statistics.weight + (1 - decay),
    )


def _location_scale(statistics):
    seen = statistics.weight > 0
    weight = jnp.where(seen, statistics.weight, 1.0)
    mean = statistics.mean / weight
    variance = jnp.maximum(statistics.mean_square / weight - jnp.square(mean), _MIN_VARIANCE)
    return jnp.where(seen, mean, 0.0), jnp.where(seen, jnp.sqrt(variance), 1.0)


def normalize_value(statistics, value):
    """`(value - mean) / deviation`; the statistics broadcast against `value`."""
    mean, deviation = _location_scale(statistics)
    return (value - mean) / deviation


def denormalize_value(statistics, value):
    """`value * deviation + mean`, the inverse of `normalize_value`."""
    mean, deviation = _location_scale(statistics)
    return value * deviation + mean


def preserve_outputs(statistics, new_statistics, kernel, bias):
    """The last layer of a critic, changed so that new statistics leave its values alone (van Hasselt et al. 2016, POP).

    Args:
      statistics, new_statistics: before and after an update, of shape `[]`, or `[F]` for one per output.
      kernel: `[D, F]` float, of the layer that predicts normalised values.
      bias: `[F]` float.

    Returns:
      `(kernel, bias)` with `denormalize_value(new_statistics, ...)` of their outputs equal to
      `denormalize_value(statistics, ...)` of the old ones'.
    """
    mean, deviation = _location_scale(statistics)
    new_mean, new_deviation = _location_scale(new_statistics)
    ratio = jnp.broadcast_to(deviation / new_deviation, bias.shape)
    return kernel * ratio[None, :], bias * ratio + (mean - new_mean) / new_deviation
