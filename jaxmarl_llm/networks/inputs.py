"""First layers: from what an agent observes to a vector of features, before the first nonlinearity."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import blockwise_orthogonal, orthogonal

_SQRT2 = math.sqrt(2.0)


class DenseInput(nn.Module):
    """A dense layer on the flattened, concatenated leaves of an observation.

    Attributes:
      features: width of each of the parallel layers; their outputs are concatenated. Two networks that read the same
        observation share one matrix product this way, and stay two networks.
      event_ndims: number of trailing axes of each leaf that belong to one observation, in tree order.
    """

    features: tuple[int, ...]
    event_ndims: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: Any) -> jax.Array:
        leaves = jax.tree.leaves(observation)
        flat = [
            leaf.reshape(*leaf.shape[: leaf.ndim - ndim], -1).astype(jnp.float32)
            for leaf, ndim in zip(leaves, self.event_ndims, strict=True)
        ]
        x = flat[0] if len(flat) == 1 else jnp.concatenate(flat, axis=-1)
        return dense(sum(self.features), blockwise_orthogonal(self.features, _SQRT2))(x)


class FactoredInput(nn.Module):
    """Sum of one embedding a factor: equals a dense layer on the concatenated one-hot vectors of F integers.

    Attributes:
      sizes: number of values of each factor.
      features: as in `DenseInput`.
    """

    sizes: tuple[int, ...]
    features: tuple[int, ...]

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        x = one_hot_factors(observation, self.sizes)
        return dense(sum(self.features), blockwise_orthogonal(self.features, _SQRT2))(x)


def one_hot_factors(observation: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Concatenated one-hot vectors of F integers.

    Args:
      observation: `[..., F]` int.
      sizes: number of values of each factor.

    Returns:
      `[..., sum(sizes)]` float32.
    """
    # A product with this matrix beats gathering and summing rows on a CPU: a little forward, and by far backward,
    # where a gather turns into a scatter. The columns are static, so two operations build them all.
    factor = np.repeat(np.arange(len(sizes)), sizes)
    value = np.concatenate([np.arange(size) for size in sizes])
    value = jnp.asarray(value, observation.dtype).reshape((1,) * (observation.ndim - 1) + value.shape)
    return (observation[..., factor] == value).astype(jnp.float32)


class ConvolutionInput(nn.Module):
    """Three 3x3 convolutions over `[..., height, width, channels]`, then a dense layer.

    Attributes:
      features: as in `DenseInput`.
      channels: channels of each convolution.
    """

    features: tuple[int, ...]
    channels: tuple[int, ...] = (32, 32, 32)

    @nn.compact
    def __call__(self, observation: jax.Array) -> jax.Array:
        batch_shape = observation.shape[:-3]
        x = observation.reshape(-1, *observation.shape[-3:]).astype(jnp.float32)
        for channels in self.channels:
            x = nn.relu(nn.Conv(channels, (3, 3), kernel_init=orthogonal(_SQRT2))(x))
        x = x.reshape(*batch_shape, -1)
        return dense(sum(self.features), blockwise_orthogonal(self.features, _SQRT2))(x)


@dataclasses.dataclass(frozen=True)
class InputLayer:
    """Which first layer a network has; calling it with widths builds the module. Compares by value, unlike a partial.

    Attributes:
      kind: the module class.
      settings: its attributes other than `features`.
    """

    kind: type[nn.Module]
    settings: tuple[tuple[str, Any], ...] = ()

    def __call__(self, features: tuple[int, ...]) -> nn.Module:
        return self.kind(features=features, **dict(self.settings))
