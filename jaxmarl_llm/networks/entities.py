"""A first layer for observations that list entities."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jaxmarl_llm.networks.dense import dense
from jaxmarl_llm.networks.initializers import orthogonal

_SQRT2 = math.sqrt(2.0)


class EntityInput(nn.Module):
    """One token an entity, for an observation vector that is a list of groups of entities.

    Each group has one dense layer of its own, the same for all its members. No parameter depends on how many there
    are, and their order within a group has no influence, so that the parameters fit teams and maps of other sizes
    where a dense layer on the whole vector does not. `foraging` with M foods and N agents has the groups
    `((M, 3), (1, 3), (N - 1, 3))`: foods, the agent itself, the others; each is a row, a column and a level.

    Attributes:
      features: `(E,)`, width of a token.
      groups: `(count, width)` of each group, in the order of the observation; a count of 0 keeps the parameters.
    """

    features: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]

    @nn.compact
    def __call__(self, observation: Any) -> tuple[jax.Array, jax.Array]:
        """Splits an observation.

        Args:
          observation: `[..., sum(count * width)]`.

        Returns:
          `(token [..., E], entities [..., M, E])`: the sum over groups of the mean of their embeddings, and the
          embeddings of all M entities.

        Raises:
          ValueError: the groups do not add up to the observation's length.
        """
        (features,) = self.features
        length = sum(count * width for count, width in self.groups)
        if observation.shape[-1] != length:
            raise ValueError(f"groups {self.groups} make {length} numbers, the observation has {observation.shape[-1]}")
        tokens, entities, start = [], [], 0
        for index, (count, width) in enumerate(self.groups):
            rows = observation[..., start : start + count * width].astype(jnp.float32)
            start += count * width
            rows = rows.reshape(*rows.shape[:-1], count, width)
            embedded = dense(features, orthogonal(_SQRT2), name=f"group_{index}")(rows)
            tokens.append(embedded.sum(-2) / max(count, 1))
            entities.append(embedded)
        return jnp.stack(tokens).sum(0), jnp.concatenate(entities, axis=-2)
