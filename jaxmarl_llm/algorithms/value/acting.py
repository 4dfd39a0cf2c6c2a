"""Acting: T steps of B environments with epsilon-greedy policies."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.categorical import categorical_from_uniform, categorical_mode, masked_logits
from jaxmarl_llm.algorithms.rollout import ActingState, draw_uniform, step_keys, team_input
from jaxmarl_llm.algorithms.value.state import Sequences
from jaxmarl_llm.envs.base import TimeStep
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.envs.episodes import StepRecord, add_step, shaped_reward
from jaxmarl_llm.networks.q_network import QNetwork
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.networks.team_input import TeamInput


def initial_memory(network: TeamNetwork, batch_shape: tuple[int, ...]) -> dict[str, jax.Array]:
    """Memory at the start of an episode: what the network remembers, and the last action where it is told."""
    memory = network.initial_memory(batch_shape)
    if isinstance(network.module, QNetwork) and network.module.last_action:
        memory["last_action"] = jnp.full((*batch_shape, network.num_agents), -1, jnp.int32)
    return memory


def action_values(network: TeamNetwork, params: Any, sequences: Sequences) -> jax.Array:
    """`[T + 1, K, N, A]`, values of every action along sequences, from their stored first memory."""
    done = sequences.done
    reset = jnp.concatenate([jnp.zeros_like(done[:1]), done[:-1]])
    reset = jnp.broadcast_to(reset[..., None], sequences.active.shape)
    memory = dict(sequences.memory)
    observation = sequences.observation
    if "last_action" in memory:
        last_action = jnp.concatenate([memory.pop("last_action")[None], sequences.action])
        observation = (observation, jnp.where(reset, -1, last_action))
    inputs = TeamInput(observation=observation, global_state=None, reset=reset, active=sequences.active)
    return network.apply(params, memory, inputs)[1]


def choose(
    network: TeamNetwork, params: Any, timestep: TimeStep, memory: Any, uniform: jax.Array | None, epsilon
) -> tuple[jax.Array, Any]:
    """Epsilon-greedy actions.

    Args:
      network, params: the team's action values.
      timestep: any leading batch axes.
      memory: of the same axes.
      uniform: `[2, ..., N]` random numbers; `None` for greedy actions.
      epsilon: probability of a random legal action.

    Returns:
      `(action [..., N] int32, memory)`.
    """
    memory, inputs = dict(memory), team_input(timestep)
    if "last_action" in memory:
        inputs = dataclasses.replace(inputs, observation=(inputs.observation, memory.pop("last_action")))
    memory, q, _ = network.apply_step(params, memory, inputs)
    action = categorical_mode(masked_logits(q, timestep.action_mask))
    if uniform is not None:
        legal = masked_logits(jnp.zeros_like(q), timestep.action_mask)
        action = jnp.where(uniform[0] < epsilon, categorical_from_uniform(uniform[1], legal), action)
    if "last_action" in initial_memory(network, ()):
        memory = {**memory, "last_action": action}
    return action, memory


def collect(
    learner, params: Any, acting: ActingState, key: jax.Array, *, epsilon, shaped_weight
) -> tuple[ActingState, Sequences, StepRecord]:
    """Acts for T steps. Where an episode is over, a step begins the next one and nothing else.

    Args:
      learner: the configuration.
      params: all parameters.
      acting: where the B environments stand.
      key: consumed.
      epsilon: `[]` float32, probability of a random legal action.
      shaped_weight: `[]` float32, weight of the shaped reward.

    Returns:
      `(acting, sequences, record)`: sequences with leaves `[B, T + 1, ...]`, the record with `[T, B, ...]`.
    """
    env, network, num_steps = learner.env, learner.network_module, learner.rollout_length
    num_envs, first_memory = acting.timestep.done.shape[0], acting.memory

    def entry(acting):
        now = acting.timestep
        return {
            "observation": now.observation,
            "global_state": jax.vmap(env.global_state)(acting.env_state) if learner.mixer_module is not None else None,
            "action_mask": now.action_mask,
            "active": now.active & ~now.terminated,
            "reward": now.reward + shaped_weight * shaped_reward(now),
            "terminated": now.terminated,
            "done": now.done,
        }

    def new_episode(key, index, ended, *moved):
        del moved
        env_state = env.next_episode(jax.random.fold_in(key, index), ended)
        return env.first_timestep(env_state), env_state

    def same_episode(key, index, ended, *moved):
        del key, index, ended
        return moved

    def step(acting: ActingState, random):
        uniform, keys_step, key_reset = random
        over = acting.timestep.done
        action, memory = choose(network, params["agents"], acting.timestep, acting.memory, uniform, epsilon)
        moved = jax.vmap(env.step)(keys_step, acting.env_state, action)

        def begin_where_over(index, over, ended, *moved):
            return cond_if_any(over, new_episode, same_episode, key_reset, index, ended, *moved)

        timestep, env_state = jax.vmap(begin_where_over)(mesh.global_index(num_envs), over, acting.env_state, *moved)
        totals, record = add_step(acting.totals, timestep, ~over)
        memory = jax.tree.map(
            lambda leaf, first: jnp.where(over.reshape(-1, *(1,) * (leaf.ndim - 1)), first, leaf),
            memory,
            initial_memory(network, (num_envs,)),
        )
        return ActingState(env_state, timestep, memory, totals), (entry(acting), action, record)

    key_action, key_step, key_reset = jax.random.split(key, 3)
    random = (
        draw_uniform(key_action, num_steps, num_envs, (2, env.num_agents)),
        step_keys(key_step, num_steps, num_envs),
        jax.random.split(key_reset, num_steps),
    )
    acting, (entries, action, record) = jax.lax.scan(step, acting, random)
    entries = jax.tree.map(lambda leaf, last: jnp.concatenate([leaf, last[None]]), entries, entry(acting))
    batch_major = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), {**entries, "action": action})
    return acting, Sequences(**batch_major, memory=first_memory), record
