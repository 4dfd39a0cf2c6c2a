"""Credit: from a rollout to each agent's advantage and the critic's target."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms.categorical import at_action, categorical_sample
from jaxmarl_llm.algorithms.counterfactual import counterfactual_returns
from jaxmarl_llm.algorithms.credit import counterfactual_advantage, leave_one_out_advantage
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState, Trajectory
from jaxmarl_llm.algorithms.returns import gae, td_lambda
from jaxmarl_llm.algorithms.rollout import team_input
from jaxmarl_llm.algorithms.value_normalization import denormalize_value
from jaxmarl_llm.envs.episodes import shaped_reward

CREDITS = ("gae", "coma", "counterfactual", "difference", "leave_one_out")
# Those that try each agent's other actions in the environment.
BRANCHING = ("counterfactual", "difference")


def brancher(learner, state: LearnerState, shaped_weight) -> Callable | None:
    """What `collect` asks at each step of each environment: the team's return had an agent done something else.

    Args:
      learner: the configuration.
      state: parameters and the critic's statistics are read.
      shaped_weight: `[]` float32, weight of the shaped reward.

    Returns:
      `(key, timestep, env_state, action, alive) -> [N, A]` float32, or `None` where the credit needs none of it.
    """
    if learner.credit not in BRANCHING:
        return None
    env, network, params = learner.env, learner.network_module, state.params
    statistics = jax.tree.map(lambda leaf: leaf[jnp.asarray(network.policy_of_agent)], state.value_statistics)

    def policy(timestep, key):
        return categorical_sample(key, learner.logits(params, timestep, {})[0])

    def reward(timestep):
        return timestep.reward + shaped_weight * shaped_reward(timestep)

    def value(timestep, state):
        global_state = env.global_state(state) if network.module.central_critic else None
        value = network.apply_step(params, {}, team_input(timestep, global_state))[2]
        return denormalize_value(statistics, value) if learner.normalize_value else value

    def branch(key, timestep, env_state, action, alive):
        settings: dict[str, Any] = {"horizon": 0, "num_replays": learner.counterfactual_replays}
        if learner.credit == "counterfactual":
            settings |= {"horizon": learner.counterfactual_horizon, "bootstrap": value}
        return counterfactual_returns(
            env, policy, key, timestep, env_state, action, discount=learner.discount, alive=alive, reward=reward,
            **settings,
        )  # fmt: skip

    return branch


def assign_credit(learner, trajectory: Trajectory, value, next_value, alternatives, logits) -> tuple[Any, Any]:
    """Advantages and targets of a rollout, all `[T, B, N]`, in units of rewards.

    Args:
      learner: the configuration.
      trajectory: the rollout.
      value, next_value: `[T, B, N]` float32, of the steps and of their successors in the same episode.
      alternatives: `[T, B, N, A]` float32 where the credit compares actions: the critic's action values (COMA), or the
        returns that `brancher` found.
      logits: `[T, B, N, A]` float32 of the policy, where alternatives are given.

    Returns:
      `(advantage, target)`.
    """
    reward = trajectory.reward
    if learner.credit == "difference":
        reward = at_action(alternatives, trajectory.action) - alternatives[..., learner.default_action]
    ends = trajectory.terminated, trajectory.boundary
    advantage, target = gae(reward, value, next_value, *ends, discount=learner.discount, gae_lambda=learner.gae_lambda)
    if learner.credit == "leave_one_out":
        returns = td_lambda(reward, next_value, *ends, discount=learner.discount, td_lambda=1.0)
        advantage = leave_one_out_advantage(returns, axis=1, mask=trajectory.alive)
    elif learner.credit in ("coma", "counterfactual"):
        advantage = counterfactual_advantage(
            alternatives, logits, trajectory.action, action_mask=trajectory.action_mask
        )
    return advantage, target
