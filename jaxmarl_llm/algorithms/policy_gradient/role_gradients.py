"""What each agent asks of the parameters: gradient norms, shares and agreement, under any sharing."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms import mesh
from jaxmarl_llm.algorithms.diagnostics import agent_gradient_metrics
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.policy_gradient.state import Samples


def agent_gradients(
    learner, params: Any, memory: Any, samples: Samples, coefficients: updates.Coefficients
) -> dict[str, jax.Array]:
    """Statistics of the agents' gradients on a small part of a rollout, before it is learned from.

    An agent's gradient is that of its own terms of the loss with respect to its own policy's parameters.

    Args:
      learner: the configuration; about `role_gradient_rows` rows are read.
      params, memory: of the rollout.
      samples: leading axes `[T, B]`.
      coefficients: of this update.

    Returns:
      Metrics, see `diagnostics.agent_gradient_metrics`.
    """
    num_steps, num_envs = samples.advantage.shape[:2]
    rows = math.ceil(learner.role_gradient_rows / mesh.num_devices())
    if learner.network_module.recurrent:
        # Memory is known at the start only: whole sequences of a few environments.
        few = slice(max(1, rows // num_steps))
        samples = jax.tree.map(lambda leaf: leaf[:, few], samples)
        memory = jax.tree.map(lambda leaf: leaf[few], memory)
    else:
        stride = math.ceil(num_steps * num_envs / max(rows, num_envs))
        samples = jax.tree.map(lambda leaf: leaf[::stride], samples)
    batch = updates.whole_batch(learner, samples, memory)
    num_agents = learner.network_module.num_agents

    def gradient(agent):
        own = (jnp.arange(num_agents) == agent)[None, None]
        part = dataclasses.replace(
            batch, acting_weight=batch.acting_weight * own, alive_weight=batch.alive_weight * own
        )
        loss = jax.grad(lambda params: updates.surrogate_loss(learner, params, part, coefficients)[0])(params)
        # Other policies' gradients are zero.
        return updates.flatten(loss).sum(0)

    return agent_gradient_metrics(jax.vmap(gradient)(jnp.arange(num_agents)))
