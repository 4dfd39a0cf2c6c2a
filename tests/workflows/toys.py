"""Teams of tabular policies, learned with the same groups, losses and weights of roles as language models are."""

import jax
import jax.numpy as jnp

from jaxmarl_llm.workflows.gradients import combine_roles
from jaxmarl_llm.workflows.grouping import group_advantages, row_groups
from jaxmarl_llm.workflows.loss import LossWeights, token_losses


def train(
    workflow,
    table,
    params,
    key,
    *,
    logits,
    reward,
    num_contexts,
    num_problems,
    group_size,
    learning_rate,
    iterations,
    weighting="sequences",
    per_copy=False,
):
    """GRPO by slots with plain gradient descent.

    Args:
      workflow: calls outside loops, one for each role.
      table: policy of each role.
      params: `[P, F]`.
      logits: from one policy's `[F]` and a role's index to `[X, A]`.
      reward: from the actions `[B, C]` of every call and the contexts `[B]` to rewards `[B, C]` of every call.
      per_copy: a step for each copy, one after the other, instead of one for their mean.

    Returns:
      `(params [P, F], mass [iterations])`: the summed norms of the gradients of all steps.
    """
    calls = workflow.calls
    groups, num_groups = row_groups(workflow, num_problems, group_size, "slot")
    context = jnp.repeat(jnp.arange(num_problems) % num_contexts, group_size)
    copies = max(call.copies for call in calls)

    def log_probs(policy, role, action):
        every = jax.nn.log_softmax(logits(policy, role))[context]
        return jnp.take_along_axis(every, action, axis=1)

    def iterate(params, key):
        keys = jax.random.split(key, len(calls))
        actions = []
        for role, (call, key) in enumerate(zip(calls, keys, strict=True)):
            every = logits(params[table[role]], role)[context]
            actions.append(jax.random.categorical(key, every, shape=(call.copies, len(context))).T)
        rewards = [part[None].astype(jnp.float32) for part in reward(actions, context)]
        asked = [jnp.ones(part.shape, bool) for part in rewards]
        advantages = group_advantages(rewards, asked, groups, num_groups, group_size)
        old = [log_probs(params[table[role]], role, action) for role, action in enumerate(actions)]

        def step(params, chosen):
            def loss(policy, role):
                new = log_probs(policy, role, actions[role])
                parts = token_losses(
                    new, jnp.zeros(new.shape), old[role], old[role], advantages[role][0], LossWeights()
                )
                weight = chosen[: calls[role].copies]
                return jnp.sum(parts["loss"].mean(0) * weight) / jnp.maximum(jnp.sum(weight), 1.0)

            gradients = [jax.grad(loss)(params[table[role]], role) for role in range(len(calls))]
            count = jnp.stack([jnp.sum(chosen[: call.copies]) for call in calls])
            gradient, _ = combine_roles(jnp.stack(gradients), count, table, weighting=weighting)
            return params - learning_rate * gradient, jnp.linalg.norm(gradient)

        params, norms = jax.lax.scan(step, params, jnp.eye(copies) if per_copy else jnp.ones((1, copies)))
        return params, norms.sum()

    return jax.lax.scan(iterate, params, jax.random.split(key, iterations))
