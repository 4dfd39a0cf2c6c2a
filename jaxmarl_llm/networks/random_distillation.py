"""Random network distillation: a fixed random network, and one that learns to predict it where it has been."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class _Features(nn.Module):
    hidden_sizes: tuple[int, ...]
    features: int

    @nn.compact
    def __call__(self, x):
        for size in self.hidden_sizes:
            x = nn.relu(nn.Dense(size)(x))
        return nn.Dense(self.features)(x)


class RandomDistillation(nn.Module):
    """Features of an observation from both networks (Burda et al. 2019); `novelty_reward` compares them.

    Attributes:
      hidden_sizes: widths of the hidden layers of both.
      features: F.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    features: int = 32

    @nn.compact
    def __call__(self, observation: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From `[..., D]` observations to `(prediction, target)`, each `[..., F]`; the target gets no gradient."""
        observation = observation.astype(jnp.float32)
        target = _Features(self.hidden_sizes, self.features, name="target")(observation)
        prediction = _Features(self.hidden_sizes, self.features, name="predictor")(observation)
        return prediction, jax.lax.stop_gradient(target)
