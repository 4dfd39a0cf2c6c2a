"""Estimators of an agent's credit for one decision of the team, all of one shape, so that they can be compared.

Axes: B decisions, N agents, A actions, G alternatives.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.algorithms.categorical import categorical_sample, masked_logits
from jaxmarl_llm.algorithms.counterfactual import alternative_actions, replay
from jaxmarl_llm.algorithms.credit import (
    counterfactual_advantage,
    difference_reward,
    leave_one_out_advantage,
    shapley_values,
)

Estimator = Callable[["Decision", jax.Array], tuple[jax.Array, jax.Array]]
MOST_AGENTS_FOR_SHAPLEY = 8


@struct.dataclass
class Decision:
    """A state in which the team acted; any leading axes.

    Attributes:
      timestep: what the agents saw. After an automatic reset `terminated` is of the episode before: replace it.
      state: the environment's state.
      memory: the policy's memory after this time step; `None` for a policy without.
      logits: `[N, A]` float, the policy's, not masked.
      action: `[N]` int32, what they did.
    """

    timestep: Any
    state: Any
    memory: Any
    logits: jax.Array
    action: jax.Array


def sampling_policy(policy: Callable) -> Callable:
    """From logits to actions.

    Args:
      policy: `policy(timestep) -> logits [N, A]`, or `policy(timestep, memory) -> (logits, memory)`.

    Returns:
      The policy that `replay` takes: the same arguments and a key, sampled actions in place of logits.
    """

    def act(timestep, *memory_and_key):
        *memory, key = memory_and_key
        out = policy(timestep, *memory)
        logits, *memory = out if memory else (out,)
        action = categorical_sample(key, masked_logits(logits, timestep.action_mask))
        return (action, *memory) if memory else action

    return act


def visited_decisions(
    env: Any, policy: Callable, key: jax.Array, num_decisions: int, *, memory: Any = None
) -> Decision:
    """Decisions that the team comes to by itself: one from each of B episodes, uniform over the episode's steps.

    Args:
      env: a raw environment.
      policy: as in `sampling_policy`.
      key: consumed.
      num_decisions: B.
      memory: the policy's memory at the start of an episode; `None` for a policy without.

    Returns:
      `Decision` with a leading axis B.
    """

    def decide(key, timestep, state, memory):
        out = policy(timestep) if memory is None else policy(timestep, memory)
        logits, memory = (out, None) if memory is None else out
        action = categorical_sample(key, masked_logits(logits, timestep.action_mask))
        return Decision(timestep=timestep, state=state, memory=memory, logits=logits, action=action)

    def step(carry, inputs):
        (timestep, state, memory, running, kept), (time, key) = carry, inputs
        key_action, key_keep, key_step = jax.random.split(key, 3)
        decision = decide(key_action, timestep, state, memory)
        # Reservoir sampling: each of the decisions so far is the one kept with equal probability.
        keep = running & (jax.random.uniform(key_keep) * (time + 1) < 1)
        kept = jax.tree.map(lambda new, old: jnp.where(keep, new, old), decision, kept)
        timestep, state = env.step(key_step, state, decision.action)
        return (timestep, state, decision.memory, running & ~timestep.done, kept), None

    def episode(key):
        key_reset, key_first, key_steps = jax.random.split(key, 3)
        timestep, state = env.reset(key_reset)
        first = decide(key_first, timestep, state, memory)
        steps = (jnp.arange(env.max_steps), jax.random.split(key_steps, env.max_steps))
        carry, _ = jax.lax.scan(step, (timestep, state, memory, jnp.ones((), bool), first), steps)
        return carry[-1]

    return jax.vmap(episode)(jax.random.split(key, num_decisions))


class _TemporalDifferences:
    """The same environment paying each agent the temporal difference of a value: their decayed sum is GAE."""

    def __init__(self, env, value, discount, reward):
        self.env, self.value, self.discount, self.reward = env, value, discount, reward

    def step(self, key, state, action):
        state, value = state
        timestep, state = self.env.step(key, state, action)
        next_value = self.value(timestep, state)
        bootstrap = self.discount * jnp.where(timestep.terminated, 0.0, next_value)
        return timestep.replace(reward=self.reward(timestep) + bootstrap - value), (state, next_value)


def credit_estimators(
    env: Any,
    policy: Callable,
    *,
    horizon: int,
    discount=0.99,
    gae_lambda=0.95,
    value: Callable | None = None,
    q_values: Callable | None = None,
    default_action: int | tuple[int, ...] = 0,
    num_replays: int = 1,
    num_alternatives: int = 4,
    reward: Callable | None = None,
) -> dict[str, Estimator]:
    """The usual estimators of credit, by name.

    `shared_return`: the team's return, the same for all. `gae`: generalised advantage estimation on one rollout, with
    `value`. `coma`: `counterfactual_advantage` of a critic's `q_values`, without a rollout. `counterfactual`: the same
    of replayed returns. `leave_one_out`: the return over the mean of those with the agent's action drawn anew.
    `difference`: the return less that with the agent's default action. `shapley`: Shapley values of the coalitions that
    do as they did while the others take their default action; up to 8 agents.

    Args:
      env: a raw environment.
      policy: as in `sampling_policy`.
      horizon: steps played after the decision; `env.max_steps - 1` is to the end.
      discount: discount factor.
      gae_lambda: of `gae`.
      value: `value(timestep, state) -> [N]`; without it there is no `gae`.
      q_values: `q_values(timestep, state, action) -> [N, A]`, values of each agent's own actions with the others'
        fixed; without it there is no `coma`.
      default_action: one for all agents or one each; an agent for which it is illegal keeps its own.
      num_replays: rollouts an estimate averages over, for all but `coma`.
      num_alternatives: G of `leave_one_out`, the action that was taken not counted.
      reward: from a time step to `[N]` float; `timestep.reward` by default.

    Returns:
      Name to `estimator(decision, key) -> (credit [N] float32, steps [] int32)`, for one decision; `steps` are the
      environment steps it took.
    """
    act = sampling_policy(policy)
    settings = {"horizon": horizon, "discount": discount, "num_replays": num_replays, "reward": reward}

    def team_returns(decision, key, actions):
        """`[K]`, and the steps."""
        replays = replay(env, act, key, decision.timestep, decision.state, actions, memory=decision.memory, **settings)
        return jnp.mean(replays.returns, axis=(0, 2)), replays.steps

    def with_default(decision):
        """`[N, N]`: row i has agent i's action replaced by its default."""
        joint = alternative_actions(decision.timestep, decision.action)
        agents = np.arange(joint.shape[0])
        return joint[agents, np.broadcast_to(np.asarray(default_action), agents.shape)]

    def shared_return(decision, key):
        returns, steps = team_returns(decision, key, decision.action[None])
        return jnp.broadcast_to(returns, decision.action.shape), steps

    def gae(decision, key):
        paid = _TemporalDifferences(env, value, discount, reward or (lambda timestep: timestep.reward))
        state = (decision.state, value(decision.timestep, decision.state))  # pyright: ignore[reportOptionalCall]
        changed = {**settings, "discount": discount * gae_lambda, "reward": None}
        replays = replay(
            paid, act, key, decision.timestep, state, decision.action[None], memory=decision.memory, **changed
        )
        return jnp.mean(replays.returns, axis=(0, 1)), replays.steps

    def advantage(decision, values):
        return counterfactual_advantage(
            values, decision.logits, decision.action, action_mask=decision.timestep.action_mask
        )

    def coma(decision, key):
        del key
        values = q_values(decision.timestep, decision.state, decision.action)  # pyright: ignore[reportOptionalCall]
        return advantage(decision, values), jnp.zeros((), jnp.int32)

    def counterfactual(decision, key):
        joint = alternative_actions(decision.timestep, decision.action)
        returns, steps = team_returns(decision, key, joint.reshape(-1, joint.shape[-1]))
        return advantage(decision, returns.reshape(joint.shape[:2])), steps

    def leave_one_out(decision, key):
        key_alternatives, key = jax.random.split(key)
        logits = masked_logits(decision.logits, decision.timestep.action_mask)
        drawn = categorical_sample(key_alternatives, jnp.broadcast_to(logits, (num_alternatives, *logits.shape)))
        joint = alternative_actions(decision.timestep, decision.action)
        num_agents = joint.shape[0]
        siblings = joint[np.arange(num_agents)[None, :], drawn].reshape(-1, num_agents)
        returns, steps = team_returns(decision, key, jnp.concatenate([decision.action[None], siblings]))
        own = jnp.broadcast_to(returns[:1], (1, num_agents))
        samples = jnp.concatenate([own, returns[1:].reshape(num_alternatives, num_agents)])
        return leave_one_out_advantage(samples, axis=0)[0], steps

    def difference(decision, key):
        actions = jnp.concatenate([decision.action[None], with_default(decision)])
        returns, steps = team_returns(decision, key, actions)
        return difference_reward(returns[0], returns[1:]), steps

    def shapley(decision, key):
        num_agents = decision.action.shape[0]
        member = (np.arange(2**num_agents)[:, None] >> np.arange(num_agents)) & 1
        absent = jnp.diagonal(with_default(decision))
        returns, steps = team_returns(decision, key, jnp.where(member, decision.action[None], absent[None]))
        return shapley_values(returns), steps

    estimators: dict[str, Estimator] = {"shared_return": shared_return}
    if value is not None:
        estimators["gae"] = gae
    if q_values is not None:
        estimators["coma"] = coma
    estimators |= {"counterfactual": counterfactual, "leave_one_out": leave_one_out, "difference": difference}
    if env.num_agents <= MOST_AGENTS_FOR_SHAPLEY:
        estimators["shapley"] = shapley
    return estimators
