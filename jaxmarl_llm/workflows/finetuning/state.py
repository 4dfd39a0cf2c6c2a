"""Everything that fine-tuning changes. Axes: P policies, F parameters of an adapter in one vector."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from jaxmarl_llm.algorithms.policy_gradient.update import flatten
from jaxmarl_llm.llm.devices import replicate
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.model import AdaptedModel


@struct.dataclass
class FinetuneState:
    """What a resumed run needs to go on as if it had never stopped, but for messages that are kept for replay.

    Attributes:
      adapters: of the trained layers, pytree of `[P, ...]`.
      optimizer_state: pytree of `[P, ...]`.
      kl_coefficient: `[P]` float32.
      versions: `[P]` int32, accepted updates of each policy.
      key: of the next iteration.
      iteration: `[]` int32, iterations done.
      episodes: `[]` int32, episodes played in training so far.
    """

    adapters: Any
    optimizer_state: Any
    kl_coefficient: jax.Array
    versions: jax.Array
    key: jax.Array
    iteration: jax.Array
    episodes: jax.Array

    @property
    def version_vector(self) -> tuple[int, ...]:
        """`[P]` ints, what every sample of the present team is stamped with."""
        return tuple(int(version) for version in np.asarray(self.versions))

    def policy(self, index: int) -> Any:
        """The adapter of one policy."""
        return policy_of(self.adapters, index)


@jax.jit
def policy_of(tree: Any, index: int) -> Any:
    """One policy's part of a tree `[P, ...]`."""
    return jax.tree.map(lambda leaf: leaf[index], tree)


@jax.jit
def with_policy(tree: Any, index: int, part: Any) -> Any:
    """A tree `[P, ...]` with another part for one policy."""
    return jax.tree.map(lambda leaf, one: leaf.at[index].set(one), tree, part)


@dataclasses.dataclass(frozen=True)
class Stepper:
    """How policies step: hashable, a static argument of jit."""

    max_grad_norm: float
    role_weighting: str

    def make_optimizer(self) -> optax.GradientTransformation:
        """Of one policy's parameters as one vector, without the learning rate."""
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), optax.scale_by_adam())


def stepper(config: FinetuneConfig) -> Stepper:
    """The steps of a configuration."""
    return Stepper(config.max_grad_norm, config.role_weighting)


def init_state(config: FinetuneConfig, model: AdaptedModel) -> FinetuneState:
    """The state before the first iteration: the base model for all policies."""
    key_adapters, key = jax.random.split(jax.random.key(config.seed))
    adapters = model.init(key_adapters)
    num_policies = model.config.num_adapters
    state = FinetuneState(
        adapters=adapters,
        optimizer_state=_init_optimizer(stepper(config), adapters),
        kl_coefficient=jnp.full(num_policies, config.kl_coefficient, jnp.float32),
        versions=jnp.zeros(num_policies, jnp.int32),
        key=key,
        iteration=jnp.zeros((), jnp.int32),
        episodes=jnp.zeros((), jnp.int32),
    )
    return replicate(state, model.body)


@functools.partial(jax.jit, static_argnums=0)
def _init_optimizer(steps: Stepper, adapters: Any) -> Any:
    return jax.vmap(steps.make_optimizer().init)(flatten(adapters))
