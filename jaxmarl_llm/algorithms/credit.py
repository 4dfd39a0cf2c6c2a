"""Who earned the team's reward: baselines, differences, Shapley values. Shapes that differ raise `ValueError`."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.algorithms.categorical import at_action, masked_logits
from jaxmarl_llm.arguments import of_batch_shape, of_one_shape


def counterfactual_baseline(q_values, policy_logits, *, action_mask=None):
    """What the agent's own policy would earn, all else fixed (Foerster et al. 2018, COMA, the sum of eq. 4).

    Args:
      q_values: `[..., A]` float, value of each of the agent's own actions with the other agents' actions fixed.
      policy_logits: `[..., A]` float, the agent's policy.
      action_mask: `[..., A]` bool, legal actions; `None` for all. Values of illegal actions are not read.

    Returns:
      `[...]` float; it does not depend on which action the agent took.
    """
    of_one_shape(q_values=q_values, policy_logits=policy_logits)
    probs = jax.nn.softmax(masked_logits(policy_logits, action_mask), axis=-1)
    return jnp.sum(jnp.where(probs > 0, probs * q_values, 0.0), axis=-1)


def counterfactual_advantage(q_values, policy_logits, action, *, action_mask=None):
    """Value of the action that was taken over the counterfactual baseline (Foerster et al. 2018, COMA, eq. 4).

    Args:
      q_values, policy_logits, action_mask: as in `counterfactual_baseline`.
      action: `[...]` int, legal.

    Returns:
      `[...]` float, of mean zero under the policy.
    """
    return at_action(q_values, action) - counterfactual_baseline(q_values, policy_logits, action_mask=action_mask)


def difference_reward(team_reward, counterfactual_reward):
    """What the team loses when an agent is replaced by a fixed default (Wolpert and Tumer 2001).

    Args:
      team_reward: `[...]` float, what the team got.
      counterfactual_reward: `[..., N]` float, what it gets with agent i's action replaced, the others' kept.

    Returns:
      `[..., N]` float.

    Raises:
      ValueError: the shapes do not match.
    """
    of_batch_shape(1, team_reward=team_reward, counterfactual_reward=counterfactual_reward)
    return jnp.expand_dims(team_reward, -1) - counterfactual_reward


def aristocrat_utility(team_reward, alternative_reward, policy_probs):
    """What the team got over what it gets on average when the agent draws its action anew (Wolpert and Tumer 2001).

    With exact action values it equals `counterfactual_advantage`.

    Args:
      team_reward: `[...]` float.
      alternative_reward: `[..., N, A]` float, the team's reward with agent i's action replaced by each of its own.
      policy_probs: `[..., N, A]` float, probabilities of those actions; a reward of probability 0 is not read.

    Returns:
      `[..., N]` float.

    Raises:
      ValueError: the shapes do not match.
    """
    of_batch_shape(2, team_reward=team_reward, alternative_reward=alternative_reward)
    of_one_shape(alternative_reward=alternative_reward, policy_probs=policy_probs)
    weighted = jnp.where(policy_probs > 0, policy_probs * alternative_reward, 0.0)
    return difference_reward(team_reward, jnp.sum(weighted, axis=-1))


def shapley_values(coalition_value):
    """Exact Shapley values (Shapley 1953).

    Args:
      coalition_value: `[..., 2**n]` float, worth of each coalition; bit i of the index is set when agent i is in it.

    Returns:
      `[..., n]` float; they sum to the worth of all agents less that of none.

    Raises:
      ValueError: the last axis is not a power of two of at least 2, or holds more than 16 agents.
    """
    size = jnp.shape(coalition_value)[-1]
    num_agents = size.bit_length() - 1
    if size != 1 << num_agents or not 1 <= num_agents <= 16:
        raise ValueError(
            f"coalition_value has a last axis of {size}: it must be 2**n for n of 1 to 16 agents; "
            "use sampled_shapley_values for more"
        )
    member = (np.arange(size)[:, None] >> np.arange(num_agents)) & 1
    others = member.sum(-1, keepdims=True) - member
    weight = 1.0 / (num_agents * np.asarray([math.comb(num_agents - 1, k) for k in range(num_agents)]))
    signed = np.where(member, 1.0, -1.0) * weight[others]
    return jnp.matmul(jnp.asarray(coalition_value, float), jnp.asarray(signed, float), precision="highest")


def sampled_shapley_values(coalition_value_fn, key, *, num_agents, num_permutations):
    """Shapley values estimated from random orders of arrival (Castro et al. 2009); unbiased, error as 1/sqrt(samples).

    Args:
      coalition_value_fn: from `[N]` bool (who is in the coalition) to its worth, `[...]` float.
      key: consumed.
      num_agents: N.
      num_permutations: orders drawn; each costs N + 1 evaluations, all in one vmap.

    Returns:
      `[..., N]` float; they sum to the worth of all agents less that of none, whatever was drawn.

    Raises:
      ValueError: `num_agents` or `num_permutations` is below 1.
    """
    if num_agents < 1 or num_permutations < 1:
        raise ValueError(f"num_agents and num_permutations must be 1 or more, got {num_agents} and {num_permutations}")

    def one_order(key):
        arrival = jax.random.permutation(key, num_agents)
        coalitions = arrival[None, :] < jnp.arange(num_agents + 1)[:, None]
        return jnp.diff(jax.vmap(coalition_value_fn)(coalitions), axis=0)[arrival]

    marginal = jax.vmap(one_order)(jax.random.split(key, num_permutations))
    return jnp.moveaxis(jnp.mean(marginal, axis=0), 0, -1)


def leave_one_out_advantage(reward, *, axis, mask=None):
    """Advantage of each sample over the mean of its siblings (Ahmadian et al. 2024, eq. 6).

    Args:
      reward: `[..., G, ...]` float, one return per sample of a group.
      axis: the group axis G; at least two samples.
      mask: bool like `reward`, the samples that count; `None` for all.

    Returns:
      `reward - (sum over siblings) / (G - 1)`, same shape as `reward`; sums to zero over `axis`. 0 for samples that do
      not count or have no sibling that does.

    Raises:
      ValueError: G is 1, where no sibling exists, or shapes that differ.
    """
    size = jnp.shape(reward)[axis]
    if size < 2:
        raise ValueError("leave_one_out_advantage needs at least two samples along axis, got one: no sibling exists")
    if mask is None:
        return (reward - jnp.mean(reward, axis=axis, keepdims=True)) * (size / (size - 1))
    of_one_shape(reward=reward, mask=mask)
    count = jnp.sum(mask, axis=axis, keepdims=True)
    others = jnp.sum(jnp.where(mask, reward, 0.0), axis=axis, keepdims=True) - reward
    return jnp.where(mask & (count > 1), reward - others / jnp.maximum(count - 1, 1), 0.0)
