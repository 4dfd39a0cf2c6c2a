"""Acting: T steps of B environments with the current policies."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.categorical import (
    at_action,
    categorical_from_uniform,
    categorical_log_prob,
    categorical_mode,
    masked_logits,
)
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState, RolloutState, Trajectory
from jaxmarl_llm.algorithms.rollout import alive_before, begin_episodes, draw_uniform, step_keys, team_input
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.envs.episodes import StepRecord, add_step
from jaxmarl_llm.envs.wrappers import reset_where_done
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.networks.team_input import TeamInput


def init_rollout(env: Environment, network: TeamNetwork, key: jax.Array, num_envs: int) -> RolloutState:
    """B environments at the start of an episode. The key is consumed."""
    start = begin_episodes(env, network.initial_memory((num_envs,)), key, num_envs)
    return RolloutState(**vars(start), reset=jnp.ones((num_envs,), bool))


def decide(
    network: TeamNetwork, params: Any, memory: Any, inputs: TeamInput, action_mask: jax.Array, uniform: jax.Array | None
) -> tuple[Any, jax.Array, jax.Array, Any]:
    """Chooses the team's actions; with a decoder, each agent knows the actions of those before it.

    Args:
      network, params: the team's policies.
      memory, inputs: of one step, any batch axes, see `TeamNetwork.apply_step`.
      action_mask: `[..., N, A]` bool.
      uniform: `[..., N]` random numbers; `None` for the likeliest actions.

    Returns:
      `(memory, masked logits [..., N, A], action [..., N] int32, value)`; the value is the network's.
    """

    def choose(logits, uniform):
        return categorical_mode(logits) if uniform is None else categorical_from_uniform(uniform, logits)

    def choose_next(logits, agent):
        logits = masked_logits(logits, action_mask[None, ..., agent, :])
        return choose(logits, None if uniform is None else uniform[None, ..., agent])

    if not network.module.decoder:
        memory, logits, value = network.apply_step(params, memory, inputs)
        logits = masked_logits(logits, action_mask)
        return memory, logits, choose(logits, uniform), value
    one_step = jax.tree.map(lambda leaf: leaf[None], inputs)
    memory, action, logits, value = network.sample(params, memory, one_step, choose_next)
    return memory, masked_logits(logits[0], action_mask), action[0], None if value is None else value[0]


def decide_and_value(
    env: Environment, network: TeamNetwork, params: Any, now: RolloutState, uniform: jax.Array
) -> tuple[TeamInput, Any, jax.Array, jax.Array, jax.Array]:
    """Samples the team's actions from uniform random numbers `[B, N]`, and values them.

    Returns:
      `(inputs, memory, masked logits, action, value)`; the value of a critic of actions is that of the action. Where a
      critic or a decoder reads actions, the inputs hold those of the agents that act, -1 for the others.
    """
    inputs = team_input(now.timestep, critic_state(env, network, now.env_state), now.reset)
    memory, logits, action, value = decide(network, params, now.memory, inputs, now.timestep.action_mask, uniform)
    if network.module.decoder or network.module.action_critic:
        inputs = dataclasses.replace(inputs, action=jnp.where(inputs.active, action, -1))
    if network.module.action_critic:
        memory, _, q_values = network.apply_step(params, now.memory, inputs)
        value = at_action(q_values, action)
    return inputs, memory, logits, action, value


def critic_state(env: Environment, network: TeamNetwork, env_state) -> jax.Array | None:
    """`[B, G]` float32 for a central critic, else `None`."""
    return jax.vmap(env.global_state)(env_state) if network.module.central_critic else None


def collect(
    learner, state: LearnerState, key: jax.Array, *, shaped_weight: jax.Array | float, branch: Callable | None = None
) -> tuple[RolloutState, Trajectory, StepRecord, jax.Array]:
    """Runs the policies for T steps; an episode that ends begins anew on the next step.

    Args:
      learner: the configuration.
      state: parameters, and where the B environments stand.
      key: consumed.
      shaped_weight: `[]` float32, weight of the shaped reward.
      branch: what to compute for `Trajectory.alternatives`, see `credit.brancher`.

    Returns:
      `(rollout, trajectory, record, last_value)`; the record is of the episodes, `last_value` `[B, N]` the value of the
      time step after the last one.
    """
    env, network, params, num_steps = learner.env, learner.network_module, state.params, learner.rollout_length
    num_envs = state.rollout.reset.shape[0]

    def step(rollout: RolloutState, random):
        uniform, keys_step, key_reset, key_branch = random
        now = rollout.timestep
        inputs, memory, logits, action, value = decide_and_value(env, network, params, rollout, uniform[0])
        alive = alive_before(now, rollout.reset)
        alternatives = None
        if branch is not None:
            keys = mesh.local_keys(key_branch, num_envs)
            alternatives = jax.vmap(branch)(keys, now, rollout.env_state, action, alive)

        timestep, env_state = jax.vmap(env.step)(keys_step, rollout.env_state, action)
        totals, record = add_step(rollout.totals, timestep, True)
        after = RolloutState(env_state, timestep, memory, totals, reset=jnp.zeros_like(rollout.reset))

        trajectory = Trajectory(
            inputs=inputs,
            action_mask=now.action_mask,
            alive=alive,
            action=action,
            log_prob=categorical_log_prob(logits, action),
            value=value,
            reward=timestep.reward + shaped_weight * record.shaped_reward,
            terminated=timestep.terminated,
            boundary=timestep.boundary,
            done=record.done,
            final_value=_final_value(env, network, params, after, uniform[-1]),
            alternatives=alternatives,
        )
        begin = jax.vmap(lambda index, *after: reset_where_done(env, key_reset, *after, index=index))
        timestep, env_state = begin(mesh.global_index(num_envs), timestep, env_state)
        following = dataclasses.replace(after, env_state=env_state, timestep=timestep, reset=record.done)
        return following, (trajectory, record)

    key_action, key_step, *keys = jax.random.split(key, 4)
    # The second number of each step is for the value of an action critic where a time limit cuts the episode off.
    per_step = 2 if network.module.action_critic else 1
    uniform = draw_uniform(key_action, num_steps + 1, num_envs, (per_step, env.num_agents))
    keys = (step_keys(key_step, num_steps, num_envs), *(jax.random.split(key, num_steps) for key in keys))
    random = (uniform[:-1], *keys)
    rollout, (trajectory, record) = jax.lax.scan(step, state.rollout, random)
    last_value = decide_and_value(env, network, params, rollout, uniform[-1, 0])[-1]
    return rollout, trajectory, record, last_value


def _final_value(env, network, params, after: RolloutState, uniform) -> jax.Array:
    """`[B, N]`, value of the observation where a time limit cut an episode off; computed only on steps with one."""
    cut_off = after.timestep.truncated[:, None] & ~after.timestep.terminated

    def evaluate(params, after, uniform):
        return decide_and_value(env, network, params, after, uniform)[-1]

    value = cond_if_any(jnp.any(cut_off), evaluate, lambda *_: jnp.zeros(cut_off.shape), params, after, uniform)
    return jnp.where(cut_off, value, 0.0)


def next_values(trajectory: Trajectory, last_value: jax.Array) -> jax.Array:
    """`[T, B, N]`, value of each step's successor in the same episode."""
    following = jnp.concatenate([trajectory.value[1:], last_value[None]])
    return jnp.where(trajectory.done[..., None], trajectory.final_value, following)
