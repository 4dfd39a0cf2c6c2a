"""What is to be learned from episodes: rewards, advantages, the base policy's opinion, the critic's targets.

Axes: B episodes, R roles; T rounds of a call, C copies, M tokens.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.masking import masked_mean
from jaxmarl_llm.algorithms.returns import gae
from jaxmarl_llm.workflows.grouping import group_advantages, row_groups
from jaxmarl_llm.workflows.loss import CallRows
from jaxmarl_llm.workflows.rewards import assign_rewards
from jaxmarl_llm.workflows.rollout import CallSamples, Episodes

CREDITS = ("group", "leave_one_out", "value")


def assess(learner, state, episodes: Episodes) -> tuple[tuple[CallRows, ...], dict[str, jax.Array]]:
    """What is to be learned from episodes of this device.

    Args:
      learner: the configuration.
      state: whose policies played them.
      episodes: `B`, a multiple of the group size.

    Returns:
      The rows of each call, and metrics `[R]`: `role_reward`, its mean, and `role_advantage_square`, the mean square of
      the advantages: with the scale `"std"` the share of completions whose group differs, times what pooling with
      other kinds of completions inflates it by.
    """
    workflow, samples = learner.bound.workflow, episodes.calls
    rewards = assign_rewards(
        learner.bound, episodes, learner.reward, own_weight=learner.own_weight, format_weight=learner.format_weight
    )
    base = [
        learner.score(learner.team.params_of(state.base_params, call.role), call, of_call).log_prob
        for call, of_call in zip(workflow.calls, samples, strict=True)
    ]
    if learner.credit == "value":
        critic = [
            _value_targets(learner, learner.team.params_of(state.params, call.role), call, of_call, reward)
            for call, of_call, reward in zip(workflow.calls, samples, rewards, strict=True)
        ]
        values, advantages, targets = zip(*critic, strict=True)
        advantages = _standardize(workflow, samples, advantages)
    else:
        groups, num_groups = row_groups(
            workflow, episodes.outcome.shape[0] // learner.group_size, learner.group_size, learner.grouping
        )
        asked = [of_call.asked for of_call in samples]
        settings = {"credit": learner.credit, "scale": learner.advantage_scale}
        per_row = group_advantages(rewards, asked, groups, num_groups, learner.group_size, **settings)
        advantages = [advantage[..., None] for advantage in per_row]
        values = targets = [None] * len(samples)
    square = [
        masked_mean(jnp.square(jnp.broadcast_to(advantage, of_call.mask.shape)), of_call.mask, axis=-1)
        for advantage, of_call in zip(advantages, samples, strict=True)
    ]
    metrics = {
        "role_reward": _role_means(workflow, rewards, [of_call.asked for of_call in samples]),
        "role_advantage_square": _role_means(workflow, square, [of_call.asked for of_call in samples]),
    }
    return tuple(map(CallRows, samples, advantages, base, values, targets)), metrics


def _value_targets(learner, policy_params, call, samples: CallSamples, reward):
    """`(value, advantage, target)`, `[T, B, C, M]` each; the reward comes with the last token."""
    value = learner.score(policy_params, call, samples).value
    assert value is not None

    def next_token(array):
        return jnp.pad(array[..., 1:], [(0, 0)] * (array.ndim - 1) + [(0, 1)])

    last = samples.mask & ~next_token(samples.mask)
    token_reward = jnp.where(last, reward[..., None], 0.0)
    by_time = [jnp.moveaxis(array, -1, 0) for array in (token_reward, value, next_token(value), last, last)]
    advantage, target = gae(*by_time, discount=1.0, gae_lambda=learner.gae_lambda)
    return value, jnp.moveaxis(advantage, 0, -1), jnp.moveaxis(target, 0, -1)


def _standardize(workflow, samples: Sequence[CallSamples], advantages: Sequence[jax.Array]) -> list[jax.Array]:
    """Mean 0 and deviation 1 over the tokens of each role."""
    masks = [of_call.mask for of_call in samples]
    role = [workflow.roles.index(call.role) for call in workflow.calls]
    mean = _role_means(workflow, advantages, masks)
    centered = [advantage - mean[index] for advantage, index in zip(advantages, role, strict=True)]
    deviation = jnp.sqrt(_role_means(workflow, [jnp.square(part) for part in centered], masks)) + 1e-8
    return [part / deviation[index] for part, index in zip(centered, role, strict=True)]


def _role_means(workflow, values: Sequence[jax.Array], masks: Sequence[jax.Array]) -> jax.Array:
    """`[R]`, means over the masked elements of each role's calls, of all devices."""
    sums = [jnp.zeros(2)] * len(workflow.roles)
    for call, value, mask in zip(workflow.calls, values, masks, strict=True):
        index = workflow.roles.index(call.role)
        total = jnp.sum(jnp.where(mask, value, 0.0))
        sums[index] = sums[index] + jnp.stack([total, jnp.sum(mask, dtype=jnp.float32)])
    total, count = mesh.sum_over_devices(jnp.stack(sums)).T
    return total / jnp.maximum(count, 1.0)
