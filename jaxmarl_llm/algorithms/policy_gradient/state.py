"""What the policy-gradient learner carries and collects."""

from typing import Any

import jax
from flax import struct

from jaxmarl_llm.algorithms.rollout import ActingState
from jaxmarl_llm.algorithms.value_normalization import ValueStatistics
from jaxmarl_llm.networks.team_input import TeamInput


@struct.dataclass
class RolloutState(ActingState):
    """Where the B environments stand: after a reset where an episode just ended.

    Attributes (beside those of every `ActingState`):
      reset: `[B]` bool, this time step is the first of an episode.
    """

    reset: jax.Array


@struct.dataclass
class LearnerState:
    """Everything that training changes: saving it and loading it back resumes exactly.

    Attributes:
      params: pytree with a leading axis P (policies).
      optimizer_state: pytree with a leading axis P.
      value_statistics: `[P]`, running statistics of value targets.
      penalty: `[P]` float32, weight of the divergence from the policy before the update, where it is penalised.
      rollout: where the environments stand.
      key: the random key of the next update.
      update: `[]` int32, number of updates done.
    """

    params: Any
    optimizer_state: Any
    value_statistics: ValueStatistics
    penalty: jax.Array
    rollout: RolloutState
    key: jax.Array
    update: jax.Array


@struct.dataclass
class Trajectory:
    """One rollout, time-major: T steps of B environments with N agents.

    Attributes:
      inputs: what the networks read, leading axes `[T, B]`; `active` is alive and asked to act.
      action_mask: `[T, B, N, A]` bool.
      alive: `[T, B, N]` bool, the agent's episode had not ended before the step.
      action: `[T, B, N]` int32.
      log_prob: `[T, B, N]` float32, of the action when it was taken.
      value: `[T, B, N]` float32, in the critic's (normalised) units.
      reward: `[T, B, N]` float32, shaped reward included.
      terminated: `[T, B, N]` bool.
      boundary: `[T, B, N]` bool.
      done: `[T, B]` bool.
      final_value: `[T, B, N]` float32, value of the observation that a time limit cut off; 0 where none did.
      alternatives: `[T, B, N, A]` float32, the team's return had an agent done something else; `None` if not asked for.
    """

    inputs: TeamInput
    action_mask: jax.Array
    alive: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    boundary: jax.Array
    done: jax.Array
    final_value: jax.Array
    alternatives: jax.Array | None = None

    @property
    def acting(self) -> jax.Array:
        """`[T, B, N]` bool, the agent's action counts."""
        return self.inputs.active & self.alive


@struct.dataclass
class Samples:
    """What a gradient step reads: rows of a trajectory with their advantages. Leading axes `[T, B]` or `[1, rows]`.

    Attributes:
      trajectory: the rows.
      advantage: `[..., N]` float32.
      target: `[..., N]` float32, return to predict, in the critic's (normalised) units.
      factor: `[..., N]` float32, by which agents that were updated before changed the chance of the joint action
        (Kuba et al. 2022, HAPPO, eq. 12); `None` for 1.
    """

    trajectory: Trajectory
    advantage: jax.Array
    target: jax.Array
    factor: jax.Array | None = None
