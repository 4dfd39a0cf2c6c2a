"""Evaluation of given parameters: first episodes from exact resets.

Averaging over the episodes that happen to finish within a window favours short episodes; here each of E environments
plays exactly one. Axes: E episodes, N agents.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.training.statistics import bootstrap_interval


@struct.dataclass
class EvaluationResult:
    """What E episodes brought.

    Attributes:
      episode_return: `[E]` float32, mean over agents of their sums of rewards.
      agent_return: `[E, N]` float32, sum of each agent's rewards.
      length: `[E]` int32, number of steps.
    """

    episode_return: jax.Array
    agent_return: jax.Array
    length: jax.Array


def evaluate(learner, params, key: jax.Array, num_episodes: int, greedy: bool = False) -> EvaluationResult:
    """Plays E episodes with fixed parameters, each from its own reset, without learning and without shaped rewards.

    A pure function: call it under `jax.jit` with `learner`, `num_episodes` and `greedy` fixed.

    Args:
      learner: has `env`, `act(params, timestep, memory, key, greedy=)` and `initial_memory(batch_shape)`.
      params: the learner's parameters.
      key: consumed.
      num_episodes: E.
      greedy: takes the likeliest action instead of sampling.

    Returns:
      The first episode of each environment, complete.
    """
    env = learner.env
    key_reset, key_run = jax.random.split(key)
    timestep, env_state = jax.vmap(env.reset)(jax.random.split(key_reset, num_episodes))
    agent_return = jnp.zeros((num_episodes, env.num_agents), jnp.float32)
    length = jnp.zeros((num_episodes,), jnp.int32)
    running = jnp.ones((num_episodes,), bool)

    def step(carry):
        timestep, env_state, memory, running, agent_return, length, key = carry
        key, key_act, key_step = jax.random.split(key, 3)
        action, memory = learner.act(params, timestep, memory, key_act, greedy=greedy)
        # An environment whose episode is over goes on unseen, on its own last state, until all are done.
        timestep, env_state = jax.vmap(env.step)(jax.random.split(key_step, num_episodes), env_state, action)
        agent_return += jnp.where(running[:, None], timestep.reward, 0.0)
        length += running
        return timestep, env_state, memory, running & ~timestep.done, agent_return, length, key

    memory = learner.initial_memory((num_episodes,))
    carry = (timestep, env_state, memory, running, agent_return, length, key_run)
    *_, agent_return, length, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[3]), step, carry)
    return EvaluationResult(episode_return=agent_return.mean(-1), agent_return=agent_return, length=length)


def mean_with_interval(episode_return: np.ndarray) -> tuple[float, float, float]:
    """Mean return and its 95 % bootstrap interval.

    With several seeds the interval is over seeds (do other seeds do as well?), with one seed over episodes (would other
    episodes go as well?).

    Args:
      episode_return: `[S, E]` float.

    Returns:
      `(mean, low, high)`.
    """
    samples = np.asarray(episode_return, float)
    samples = samples.mean(1) if samples.shape[0] > 1 else samples[0]
    low, high = bootstrap_interval(samples[None])
    return float(samples.mean()), float(low[0]), float(high[0])


def describe(result: EvaluationResult) -> dict[str, Any]:
    """An evaluation in a few numbers, for JSON.

    Args:
      result: arrays with a leading axis S (seeds): `[S, E]`, `[S, E, N]`, `[S, E]`.

    Returns:
      `return` and its `interval`, `return_by_seed` and `return_by_agent`.
    """
    mean, low, high = mean_with_interval(np.asarray(result.episode_return))
    return {
        "return": mean,
        "interval": [low, high],
        "return_by_seed": np.asarray(result.episode_return, float).mean(1).tolist(),
        "return_by_agent": np.asarray(result.agent_return, float).mean((0, 1)).tolist(),
    }
