"""Tabular Q-learning of independent, hysteretic and joint-action learners; `jax.vmap` over keys trains many at once."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms.categorical import at_action, categorical_from_uniform, categorical_mode, masked_logits
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.envs.base import Environment


def q_learning_step(value, next_value, reward, terminated, *, discount=0.99, learning_rate=0.1, decrease_rate=None):
    """New value of the action that was taken (Watkins 1989; hysteretic: Matignon et al. 2007, eq. 5).

    Args:
      value: `[...]` float, value of the action before.
      next_value: `[...]` float, value of the best action after it.
      reward: `[...]` float.
      terminated: `[...]` bool, no value after the step.
      discount: discount factor.
      learning_rate: step size.
      decrease_rate: step size of what lowers the value; smaller than `learning_rate` for a hysteretic learner, which
        forgives what its teammates' exploration costs. `None`: the same.

    Returns:
      `[...]` float.
    """
    error = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    decrease = learning_rate if decrease_rate is None else decrease_rate
    return value + jnp.where(error < 0, decrease, learning_rate) * error


def tabular_q_learning(
    env: Environment,
    key: jax.Array,
    *,
    num_steps: int,
    num_states: int = 1,
    state_index: Callable | None = None,
    joint: bool = False,
    learning_rate: float = 0.1,
    decrease_rate: float | None = None,
    discount: float = 0.99,
    epsilon: float = 1.0,
    epsilon_final: float = 0.05,
    initial_value: float = 0.0,
) -> tuple[jax.Array, jax.Array]:
    """Learns one table an agent, or one for the joint action, while acting epsilon-greedily.

    A pure function, to be jitted and vmapped over `key` and the float settings.

    Args:
      env: the raw environment.
      key: consumed.
      num_steps: environment steps to learn from.
      num_states: S, rows of a table.
      state_index: from an observation (pytree of `[N, ...]`) to `[N]` int32 below S; `None` for one state.
      joint: one learner chooses for all agents (Claus and Boutilier 1998): it sees agent 0's state, earns the mean
        reward, and its table has a column for each of the `A ** N` joint actions, agent 0's the slowest to change.
      learning_rate, decrease_rate, discount: see `q_learning_step`.
      epsilon, epsilon_final: probability of a random legal action at the first and at the last step, linear in between.
      initial_value: of all entries.

    Returns:
      `(q, reward)`: tables `[N, S, A]` (`[1, S, A ** N]` if joint), and the team's mean reward of each step
      `[num_steps]` float32.
    """
    num_agents, num_actions = env.num_agents, env.num_actions
    num_learners, num_columns = (1, num_actions**num_agents) if joint else (num_agents, num_actions)
    strides = num_actions ** jnp.arange(num_agents - 1, -1, -1)

    def view(timestep):
        """Rows `[M]` and legal columns `[M, columns]` of each learner."""
        index = jnp.zeros((num_agents,), jnp.int32) if state_index is None else state_index(timestep.observation)
        if not joint:
            return index, timestep.action_mask
        each = jnp.arange(num_columns)[None, :] // strides[:, None] % num_actions
        return index[:1], jnp.all(jnp.take_along_axis(timestep.action_mask, each, axis=1), axis=0, keepdims=True)

    learner = jnp.arange(num_learners)

    def step(carry, inputs):
        q, timestep, env_state = carry
        uniform, key_step, key_reset, progress = inputs
        row, legal = view(timestep)
        values = q[learner, row]
        explore = uniform[0] < anneal(epsilon, epsilon_final, progress)
        anything = categorical_from_uniform(uniform[1], masked_logits(jnp.zeros_like(values), legal))
        column = jnp.where(explore, anything, categorical_mode(masked_logits(values, legal)))
        action = column[0] // strides % num_actions if joint else column
        after, env_state = env.step(key_step, env_state, action)
        next_row, next_legal = view(after)
        new = q_learning_step(
            at_action(values, column),
            jnp.max(masked_logits(q[learner, next_row], next_legal), axis=-1),
            after.reward.mean(keepdims=True) if joint else after.reward,
            jnp.all(after.terminated, keepdims=True) if joint else after.terminated,
            discount=discount,
            learning_rate=learning_rate,
            decrease_rate=decrease_rate,
        )
        # What a dead agent, or one that is not asked, meets teaches it nothing.
        learns = ~jnp.all(timestep.terminated, keepdims=True) if joint else timestep.active & ~timestep.terminated
        q = q.at[learner, row, column].set(jnp.where(learns, new, at_action(values, column)))

        def new_episode():
            first = env.next_episode(key_reset, env_state)
            return env.first_timestep(first), first

        return (q, *jax.lax.cond(after.done, new_episode, lambda: (after, env_state))), after.reward.mean()

    key_start, key_uniform, key_steps, key_resets = jax.random.split(key, 4)
    inputs = (
        jax.random.uniform(key_uniform, (num_steps, 2, num_learners)),
        jax.random.split(key_steps, num_steps),
        jax.random.split(key_resets, num_steps),
        jnp.arange(num_steps) / max(num_steps - 1, 1),
    )
    q = jnp.full((num_learners, num_states, num_columns), initial_value, jnp.float32)
    (q, *_), reward = jax.lax.scan(step, (q, *env.reset(key_start)), inputs)
    return q, reward
