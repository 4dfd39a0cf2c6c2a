"""What the value learner carries and replays."""

from typing import Any

import jax
from flax import struct

from jaxmarl_llm.algorithms.rollout import ActingState


@struct.dataclass
class Sequences:
    """Streams of time steps as the agents met them, T steps and the time step after them.

    A stream shows the observation that ended an episode before the first one of the next episode, so that the successor
    of a step is always the next entry, in the same episode. Nothing happens between those two: there is no step from a
    time step that is `done`.

    Axes here are time-major, `[T + 1, K, ...]` with K sequences; in the replay they are `[B, C, T + 1, ...]`.

    Attributes:
      observation: pytree of `[T + 1, K, N, ...]`.
      global_state: `[T + 1, K, G]` float32 for mixers that read it, else `None`.
      action_mask: `[T + 1, K, N, A]` bool.
      active: `[T + 1, K, N]` bool, alive and asked to act.
      reward: `[T + 1, K, N]` float32, shaped reward included, of the step that led to this time step.
      terminated: `[T + 1, K, N]` bool.
      done: `[T + 1, K]` bool, this time step ended an episode.
      action: `[T, K, N]` int32, the action after each time step.
      memory: memory before the first time step, pytree of `[K, N, ...]`.
    """

    observation: Any
    global_state: Any
    action_mask: jax.Array
    active: jax.Array
    reward: jax.Array
    terminated: jax.Array
    done: jax.Array
    action: jax.Array
    memory: Any


@struct.dataclass
class Replay:
    """The newest C sequences of each of B environments, a ring.

    Attributes:
      sequences: leaves `[B, C, ...]`, zeros where nothing was stored yet.
      priority: `[B, C]` float32, 0 where nothing was stored yet.
    """

    sequences: Sequences
    priority: jax.Array


@struct.dataclass
class RolloutState:
    """The environments and what they have brought; every array has a leading axis B.

    Attributes:
      acting: where the environments stand; its time step is the one that ended an episode if it is `done`.
      replay: what they have brought.
    """

    acting: ActingState
    replay: Replay


@struct.dataclass
class ValueState:
    """Everything that training changes: saving it and loading it back resumes exactly.

    Attributes:
      params: dict of pytrees: `"agents"` with a leading axis P (policies), `"mixer"` and `"central"`, where the mixer
        has them, with a leading axis of size 1.
      target_params: the same, older.
      optimizer_state: a dict likewise.
      rollout: the environments and the replay.
      key: the random key of the next update.
      update: `[]` int32, number of updates done.
    """

    params: Any
    target_params: Any
    optimizer_state: Any
    rollout: RolloutState
    key: jax.Array
    update: jax.Array
