"""Acting: T steps of B environments with the current policies."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms import mesh
from jaxmarl_llm.algorithms.categorical import (
    at_action,
    categorical_from_uniform,
    categorical_log_prob,
    categorical_mode,
    masked_logits,
)
from jaxmarl_llm.algorithms.episodes import StepRecord, add_step, init_totals
from jaxmarl_llm.algorithms.policy_gradient.state import RolloutState, Trajectory
from jaxmarl_llm.envs.base import Environment, TimeStep
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.envs.wrappers import reset_where_done
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.networks.team_input import TeamInput


def init_rollout(env: Environment, network: TeamNetwork, key: jax.Array, num_envs: int) -> RolloutState:
    """B environments at the start of an episode. The key is consumed."""
    timestep, env_state = jax.vmap(env.reset)(jax.random.split(key, num_envs))
    return RolloutState(
        env_state=env_state,
        timestep=timestep,
        memory=network.initial_memory((num_envs,)),
        reset=jnp.ones((num_envs,), bool),
        totals=init_totals(num_envs, env.num_agents),
    )


def evaluate_step(
    network: TeamNetwork,
    params: Any,
    memory: Any,
    timestep: TimeStep,
    global_state: jax.Array | None,
    reset: jax.Array | None = None,
) -> tuple[Any, jax.Array, Any]:
    """Network outputs of one step: `TeamNetwork.apply` without time axis; see `team_input`."""
    return apply_step(network, params, memory, team_input(timestep, global_state, reset))


def apply_step(network: TeamNetwork, params: Any, memory: Any, inputs: TeamInput) -> tuple[Any, jax.Array, Any]:
    """`TeamNetwork.apply` without time axis."""
    memory, logits, value = network.apply(params, memory, jax.tree.map(lambda leaf: leaf[None], inputs))
    return memory, logits[0], None if value is None else value[0]


def choose(logits: jax.Array, uniform: jax.Array | None) -> jax.Array:
    """Actions from masked logits and uniform random numbers `[...]`; the likeliest ones without numbers."""
    return categorical_mode(logits) if uniform is None else categorical_from_uniform(uniform, logits)


def decode(
    network: TeamNetwork, params: Any, memory: Any, inputs: TeamInput, action_mask: jax.Array, uniform: jax.Array | None
) -> tuple[Any, jax.Array, jax.Array, Any]:
    """As `decide`, for networks with a decoder: each agent knows the actions of those before it."""

    def choose_next(logits, agent):
        logits = masked_logits(logits, action_mask[None, ..., agent, :])
        return choose(logits, None if uniform is None else uniform[None, ..., agent])

    one_step = jax.tree.map(lambda leaf: leaf[None], inputs)
    memory, action, logits, value = network.sample(params, memory, one_step, choose_next)
    return memory, masked_logits(logits[0], action_mask), action[0], None if value is None else value[0]


def decide(
    network: TeamNetwork, params: Any, memory: Any, inputs: TeamInput, action_mask: jax.Array, uniform: jax.Array
) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
    """Samples the team's actions from uniform random numbers `[..., N]`: `(memory, masked logits, action, value)`.

    A critic of actions values the action that was sampled.
    """
    if network.module.decoder:
        return decode(network, params, memory, inputs, action_mask, uniform)
    after, logits, value = apply_step(network, params, memory, inputs)
    logits = masked_logits(logits, action_mask)
    action = choose(logits, uniform)
    if network.module.action_critic:
        after, _, q_values = apply_step(
            network, params, memory, dataclasses.replace(inputs, action=what_happens(inputs, action))
        )
        value = at_action(q_values, action)
    return after, logits, action, value


def what_happens(inputs: TeamInput, action: jax.Array) -> jax.Array:
    """`[..., N]` int32, the actions of the agents that act, -1 for the others."""
    return jnp.where(inputs.active, action, -1)


def team_input(timestep: TimeStep, global_state: jax.Array | None, reset: jax.Array | None = None) -> TeamInput:
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


def critic_state(env: Environment, network: TeamNetwork, env_state) -> jax.Array | None:
    """`[B, G]` float32 for a central critic, else `None`."""
    return jax.vmap(env.global_state)(env_state) if network.module.central_critic else None


def collect(
    env: Environment,
    network: TeamNetwork,
    params: Any,
    rollout: RolloutState,
    key: jax.Array,
    *,
    num_steps: int,
    shaped_weight: jax.Array,
    branch: Callable | None = None,
) -> tuple[RolloutState, Trajectory, StepRecord, jax.Array]:
    """Runs the policies for T steps; an episode that ends begins anew on the next step.

    Args:
      env: the raw environment.
      network: the team's networks.
      params: their parameters.
      rollout: where the B environments stand.
      key: consumed.
      num_steps: T.
      shaped_weight: `[]` float32, weight of the shaped reward.
      branch: see `credit.brancher`.

    Returns:
      `(rollout, trajectory, record, last_value)`; `last_value` `[B, N]` is the value of the time step after the last.
    """

    reads_actions = network.module.action_critic or network.module.decoder
    # Random numbers belong to an environment, whichever device it is on.
    index_of_env = mesh.global_index(rollout.reset.shape[0])
    keys_of_envs = jax.vmap(jax.random.fold_in, in_axes=(None, 0))

    def step(rollout: RolloutState, random):
        uniform, key_step, key_reset, key_branch = random
        now = rollout.timestep
        global_state = critic_state(env, network, rollout.env_state)
        inputs = team_input(now, global_state, rollout.reset)
        memory, logits, action, value = decide(network, params, rollout.memory, inputs, now.action_mask, uniform[:, 0])
        alive = alive_before(now, rollout.reset)
        alternatives = None
        if branch is not None:
            keys = keys_of_envs(key_branch, index_of_env)
            alternatives = jax.vmap(branch)(keys, now, rollout.env_state, action, alive)

        timestep, env_state = jax.vmap(env.step)(keys_of_envs(key_step, index_of_env), rollout.env_state, action)
        final_value = _final_value(env, network, params, memory, timestep, env_state, uniform[:, -1])
        totals, record = add_step(rollout.totals, timestep, True)

        trajectory = Trajectory(
            inputs=dataclasses.replace(inputs, action=what_happens(inputs, action) if reads_actions else None),
            action_mask=now.action_mask,
            alive=alive,
            action=action,
            log_prob=categorical_log_prob(logits, action),
            value=value,
            reward=timestep.reward + shaped_weight * record.shaped_reward,
            terminated=timestep.terminated,
            boundary=timestep.boundary,
            done=record.done,
            final_value=final_value,
            alternatives=alternatives,
        )
        begin = jax.vmap(lambda index, *after: reset_where_done(env, key_reset, *after, index=index))
        timestep, env_state = begin(index_of_env, timestep, env_state)
        rollout = RolloutState(
            env_state=env_state,
            timestep=timestep,
            memory=memory,
            reset=record.done,
            totals=totals,
        )
        return rollout, (trajectory, record)

    # Random numbers are drawn for all steps at once: the same work inside the loop costs more than a small network.
    key_action, key_step, key_reset, key_branch = jax.random.split(key, 4)
    # The second number of each step is for the value of an action critic where a time limit cuts the episode off.
    per_step = 2 if network.module.action_critic else 1
    draw = jax.vmap(lambda key: jax.random.uniform(key, (num_steps + 1, per_step, env.num_agents)), out_axes=1)
    uniform = draw(keys_of_envs(key_action, index_of_env))
    random = (
        uniform[:-1],
        jax.random.split(key_step, num_steps),
        jax.random.split(key_reset, num_steps),
        jax.random.split(key_branch, num_steps),
    )
    rollout, (trajectory, record) = jax.lax.scan(step, rollout, random)
    now = rollout.timestep
    inputs = team_input(now, critic_state(env, network, rollout.env_state), rollout.reset)
    last_value = decide(network, params, rollout.memory, inputs, now.action_mask, uniform[-1, :, 0])[-1]
    return rollout, trajectory, record, last_value


def _final_value(env, network, params, memory, timestep, env_state, uniform) -> jax.Array:
    """`[B, N]`, value of the observation where a time limit cut an episode off; computed only on steps with one."""
    cut_off = timestep.truncated[:, None] & ~timestep.terminated

    def evaluate(params, memory, timestep, env_state, uniform):
        inputs = team_input(timestep, critic_state(env, network, env_state))
        return decide(network, params, memory, inputs, timestep.action_mask, uniform)[-1]

    def skip(params, memory, timestep, env_state, uniform):
        del params, memory, timestep, env_state, uniform
        return jnp.zeros(cut_off.shape)

    value = cond_if_any(jnp.any(cut_off), evaluate, skip, params, memory, timestep, env_state, uniform)
    return jnp.where(cut_off, value, 0.0)


def next_values(trajectory: Trajectory, last_value: jax.Array) -> jax.Array:
    """`[T, B, N]`, value of each step's successor in the same episode."""
    following = jnp.concatenate([trajectory.value[1:], last_value[None]])
    return jnp.where(trajectory.done[..., None], trajectory.final_value, following)
