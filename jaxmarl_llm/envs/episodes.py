"""Statistics of the episodes of B environments that step together, on one device or several."""

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.envs.base import TimeStep


@struct.dataclass
class EpisodeTotals:
    """Sums over the running episodes of B environments.

    Attributes:
      episode_return: `[B, N]` float32, rewards so far, without shaped ones.
      episode_length: `[B]` int32, steps so far.
    """

    episode_return: jax.Array
    episode_length: jax.Array


@struct.dataclass
class StepRecord:
    """What a step adds to the episode statistics; `[T, B, ...]`.

    Attributes:
      done: `[T, B]` bool, an episode ended on the step.
      episode_return: `[T, B, N]` float32, return of the episode that ended on the step, else 0.
      episode_length: `[T, B]` int32, likewise.
      shaped_reward: `[T, B, N]` float32, before its weight; 0 where the step was none.
      counted: `[T, B]` bool, false where the step was none.
    """

    done: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array
    shaped_reward: jax.Array
    counted: jax.Array


def init_totals(num_envs: int, num_agents: int) -> EpisodeTotals:
    """Sums of episodes that have not begun."""
    return EpisodeTotals(jnp.zeros((num_envs, num_agents)), jnp.zeros((num_envs,), jnp.int32))


def add_step(totals: EpisodeTotals, timestep: TimeStep, counted: jax.Array | bool) -> tuple[EpisodeTotals, StepRecord]:
    """Adds one step of B environments; sums of episodes that it ends go into the record.

    Args:
      totals: sums before the step.
      timestep: what the step returned, before any reset.
      counted: `[B]` bool; where false the step was none, such as the first time step of an episode.
    """
    done = timestep.done & counted
    episode_return = totals.episode_return + timestep.reward
    episode_length = totals.episode_length + jnp.asarray(counted, jnp.int32)
    record = StepRecord(
        done=done,
        episode_return=jnp.where(done[:, None], episode_return, 0.0),
        episode_length=jnp.where(done, episode_length, 0),
        shaped_reward=jnp.where(jnp.broadcast_to(counted, done.shape)[:, None], shaped_reward(timestep), 0.0),
        counted=jnp.broadcast_to(counted, done.shape),
    )
    totals = EpisodeTotals(
        episode_return=jnp.where(done[:, None], 0.0, episode_return),
        episode_length=jnp.where(done, 0, episode_length),
    )
    return totals, record


def episode_sums(record: StepRecord) -> tuple[jax.Array, ...]:
    """What `episode_metrics` needs of T steps: float32 sums over this device's environments.

    Args:
      record: `[T, B, ...]`.
    """
    return (
        jnp.sum(record.done.astype(jnp.float32)),
        jnp.sum(record.episode_return, axis=(0, 1)),
        jnp.sum(record.episode_length.astype(jnp.float32)),
        jnp.sum(record.shaped_reward, axis=(0, 1)),
        jnp.sum(record.counted.astype(jnp.float32)),
    )


def episode_metrics(sums: tuple[jax.Array, ...]) -> dict[str, jax.Array]:
    """Statistics of the episodes that ended within T steps; not a number where none did.

    Args:
      sums: of `episode_sums`, over all devices (`mesh.sum_over_devices`).

    Returns:
      Float32 scalars, and `[N]` arrays under names that begin with `agent_`.
    """
    finished, total_return, total_length, total_shaped, steps = sums
    agent_return = total_return / finished
    return {
        "episode_return": agent_return.mean(),
        "episode_length": total_length / finished,
        "episodes_finished": finished,
        "agent_return": agent_return,
        "agent_shaped_reward": total_shaped / steps,
    }


def shaped_reward(timestep: TimeStep) -> jax.Array:
    """`[..., N]` float32, the environment's shaped reward, zeros where it has none."""
    if isinstance(timestep.info, dict) and "shaped_reward" in timestep.info:
        return timestep.info["shaped_reward"]
    return jnp.zeros_like(timestep.reward)
