"""What the rollouts of all learners have in common: T steps of B environments, and what the networks read in them."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.envs.base import Environment, EnvState, TimeStep
from jaxmarl_llm.envs.episodes import EpisodeTotals, init_totals
from jaxmarl_llm.networks.team_input import TeamInput


@struct.dataclass
class ActingState:
    """Where the B environments stand; every array has a leading axis B.

    Attributes:
      env_state: states of the raw environments.
      timestep: what the agents see now.
      memory: the networks' memory before this time step, pytree of `[B, N, ...]`.
      totals: sums over the running episodes.
    """

    env_state: EnvState
    timestep: TimeStep
    memory: Any
    totals: EpisodeTotals


def begin_episodes(env: Environment, memory: Any, key: jax.Array, num_envs: int) -> ActingState:
    """B environments at the start of an episode, with the networks' memory there. The key is consumed."""
    timestep, env_state = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    return ActingState(env_state, timestep, memory, init_totals(num_envs, env.num_agents))


def example_of(env: Environment, acting: ActingState) -> tuple[Any, jax.Array]:
    """The observation and the global state of one environment, from which networks are built."""
    observation, env_state = jax.tree.map(lambda leaf: leaf[0], (acting.timestep.observation, acting.env_state))
    return observation, env.global_state(env_state)


def draw_uniform(key: jax.Array, num_steps: int, num_envs: int, shape: tuple[int, int]) -> jax.Array:
    """Random numbers of every step of a rollout, drawn at once: in its loop they would cost more than a small network.

    Args:
      key: consumed.
      num_steps: T.
      num_envs: B on this device; the numbers belong to an environment, whichever device it is on.
      shape: `(K, N)`, what a step of an environment needs.

    Returns:
      `[T, K, B, N]` float32 in `[0, 1)`.
    """
    draw = jax.vmap(lambda key: jax.random.uniform(key, (num_steps, *shape)), out_axes=2)
    return draw(mesh.local_keys(key, num_envs))


def step_keys(key: jax.Array, num_steps: int, num_envs: int) -> jax.Array:
    """`[T, B]` keys, one for each step of each environment on this device; made at once for the same reason."""
    return jax.vmap(lambda key: mesh.local_keys(key, num_envs))(jax.random.split(key, num_steps))


def team_input(timestep: TimeStep, global_state: jax.Array | None = None, reset: jax.Array | None = None) -> TeamInput:
    """What the networks read of one step; `reset` `[...]` says where it begins an episode (nowhere by default)."""
    alive = alive_before(timestep, reset)
    return TeamInput(
        observation=timestep.observation,
        global_state=global_state,
        reset=jnp.zeros_like(alive) if reset is None else jnp.broadcast_to(reset[..., None], alive.shape),
        active=alive & timestep.active,
    )


def alive_before(timestep: TimeStep, reset: jax.Array | None = None) -> jax.Array:
    """`[..., N]` bool: agents whose episode has not ended; all of them where `reset` `[...]` begins a new one."""
    return ~timestep.terminated if reset is None else reset[..., None] | ~timestep.terminated
