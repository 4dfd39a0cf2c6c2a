"""Training that goes back to its best parameters when accuracy falls, and on with smaller steps.

Everything is pure and of one seed: `vmap` it over seeds and settings. Axes: P policies.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.workflows.learner import WorkflowState


@struct.dataclass
class RollBackState:
    """A training state and what `RollBack` knows of its past.

    Attributes:
      training: of the learner.
      best_params: `[P, ...]`, the parameters at the best smoothed accuracy: what to keep in the end.
      best: `[]` float32, that accuracy.
      smooth: `[]` float32, running average of the accuracies since the start, or since the last return.
      scale: `[]` float32, factor on the learning rate.
      count: `[]` int32, how often training went back.
    """

    training: WorkflowState
    best_params: Any
    best: jax.Array
    smooth: jax.Array
    scale: jax.Array
    count: jax.Array


@struct.dataclass(kw_only=True)
class RollBack:
    """Watches held-out accuracy, and returns to the best parameters on an alarm; a frozen pytree.

    An alarm is a fall of the smoothed accuracy from its best by more than `limit`, or a parameter or an accuracy that
    is no number. Then the best parameters come back, the moments of the optimiser and the running averages of
    gradients are forgotten, and the learning rate is multiplied by `factor`; random numbers go on.

    Attributes:
      learner: trains, a `WorkflowLearner`.
      limit: largest fall without an alarm; well above the noise of the smoothed accuracy.
      factor: on the learning rate, at each return.
      most: returns that are allowed; after them training goes on as it will.
      memory: of the running average, 0 for the last accuracy alone; an accuracy has the weight `1 - memory`.
    """

    learner: Any
    limit: float = 0.1
    factor: float = 0.3
    most: int = 3
    memory: float = 0.5

    def init(self, training: WorkflowState, accuracy: jax.typing.ArrayLike) -> RollBackState:
        """The state before the first update.

        Args:
          training: of the learner.
          accuracy: `[]`, of its parameters.
        """
        accuracy = jnp.asarray(accuracy, jnp.float32)
        best_params = jax.tree.map(jnp.copy, training.params)
        return RollBackState(
            training, best_params, accuracy, jnp.copy(accuracy), jnp.ones(()), jnp.zeros((), jnp.int32)
        )

    def update(self, state: RollBackState) -> tuple[RollBackState, dict[str, jax.Array]]:
        """One update of the learner, with the present learning rate; may be donated."""
        learner = self.learner.replace(learning_rate=self.learner.learning_rate * state.scale)
        training, metrics = learner.update(state.training)
        return dataclasses.replace(state, training=training), metrics | {"roll_backs": state.count}

    def observe(self, state: RollBackState, accuracy: jax.typing.ArrayLike) -> tuple[RollBackState, jax.Array]:
        """Takes note of an evaluation, and goes back if there is reason to.

        Args:
          state: whose present parameters were evaluated.
          accuracy: `[]`, held out.

        Returns:
          `(state, alarm [] bool)`: whether it went back.
        """
        training, accuracy = state.training, jnp.asarray(accuracy, jnp.float32)
        finite = jnp.isfinite(accuracy)
        for leaf in jax.tree.leaves(training.params):
            finite &= jnp.all(jnp.isfinite(leaf))
        smooth = self.memory * state.smooth + (1.0 - self.memory) * accuracy
        alarm = (state.count < self.most) & ~(finite & (state.best - smooth <= self.limit))
        better = finite & (smooth > state.best)
        back = dataclasses.replace(
            training,
            params=state.best_params,
            # Moments and counts of all optimisers begin at 0.
            optimizer_state=jax.tree.map(jnp.zeros_like, training.optimizer_state),
            gradient_average=jnp.zeros_like(training.gradient_average),
            kl_coefficient=jnp.broadcast_to(
                jnp.asarray(self.learner.kl_coefficient, jnp.float32), training.kl_coefficient.shape
            ),
        )

        def choose(condition, yes, no):
            return jax.tree.map(lambda one, other: jnp.where(condition, one, other), yes, no)

        return RollBackState(
            # Typed keys go through `where` as well; the key is the same on both sides.
            training=choose(alarm, back, training),
            best_params=choose(better, training.params, state.best_params),
            best=jnp.where(better, smooth, state.best),
            smooth=jnp.where(alarm, state.best, jnp.where(finite, smooth, state.smooth)),
            scale=jnp.where(alarm, self.factor * state.scale, state.scale),
            count=state.count + alarm,
        ), alarm
