"""What the networks of a team read."""

from typing import Any

import jax
from flax import struct


@struct.dataclass
class TeamInput:
    """What a team's networks read in T steps; `...` any batch axes.

    Attributes:
      observation: pytree of `[T, ..., N, ...]`.
      global_state: `[T, ..., G]` float32 for a central critic; `None` leaves a central critic out.
      reset: `[T, ..., N]` bool, the step is the first of an episode.
      active: `[T, ..., N]` bool, the agent is alive and asked to act.
      action: `[T, ..., N]` int32, what the agents do, for a critic of actions or a decoder; `None` leaves such a part
        of a network out.
    """

    observation: Any
    global_state: jax.Array | None
    reset: jax.Array
    active: jax.Array
    action: jax.Array | None = None


def check_team_size(num_agents: int, largest: int) -> None:
    """Raises `ValueError` where there are more agents than vectors that tell them apart."""
    if num_agents > largest:
        raise ValueError(f"agent_id tells {largest} agents apart, got {num_agents}: set num_agents")
