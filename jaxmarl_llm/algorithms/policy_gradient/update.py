"""Learning: epochs of minibatches over one rollout."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.flatten_util import ravel_pytree

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.categorical import at_action, categorical_entropy, categorical_log_prob, masked_logits
from jaxmarl_llm.algorithms.learner import agent_gradient_metrics
from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss, clipped_value_loss
from jaxmarl_llm.algorithms.policy_gradient.per_policy import mean_weights, standardize
from jaxmarl_llm.algorithms.policy_gradient.state import Samples

# Trust regions with a penalty on the divergence in the loss.
PENALISED = ("penalty", "penalty_and_gate")


@struct.dataclass
class Minibatch:
    """What one gradient step reads; leading axes `[T, B]` or `[1, rows]`.

    Attributes:
      samples: the rows.
      advantage: `[..., N]` float32, of the samples, standardised where the learner says so.
      acting_weight: `[..., N]` float32; a sum with these weights is the sum over policies of means over acting agents.
      alive_weight: `[..., N]` float32, likewise over agents alive.
      memory: recurrent memory before the first step, pytree of `[B, N, H]`.
      agent_index: `[N]` int32, which agents of the team these are; `None` for all.
    """

    samples: Samples
    advantage: jax.Array
    acting_weight: jax.Array
    alive_weight: jax.Array
    memory: Any
    agent_index: jax.Array | None


@struct.dataclass
class Coefficients:
    """Numbers of one update.

    Attributes:
      learning_rate: `[]`, Adam's step size.
      entropy: `[]`, weight of the entropy bonus.
      penalty: `[P]`, weight of the divergence from the policy before the update.
      actor: weight of everything that concerns the policy; 0 trains the critic alone.
    """

    learning_rate: jax.Array
    entropy: jax.Array | float
    penalty: jax.Array
    actor: float = 1.0


def surrogate_loss(learner, params, batch: Minibatch, coefficients: Coefficients) -> tuple[jax.Array, dict]:
    """Policy loss, divergence penalty, value loss and entropy bonus: means within each policy, summed over policies.

    Args:
      learner: the configuration.
      params: pytree with a leading axis P.
      batch: the rows.
      coefficients: of this update.

    Returns:
      The loss, and its parts as a flat dict; on several devices, each device's share of the sums.
    """
    network, samples, trajectory = learner.network_module, batch.samples, batch.samples.trajectory
    _, logits, value = network.apply(params, batch.memory, trajectory.inputs, batch.agent_index)
    value = at_action(value, trajectory.action) if network.module.action_critic else value
    logits = masked_logits(logits, trajectory.action_mask)
    log_prob = categorical_log_prob(logits, trajectory.action)
    entropy = categorical_entropy(logits)

    advantage = batch.advantage if samples.factor is None else batch.advantage * samples.factor
    policy_loss = clipped_surrogate_loss(
        log_prob, trajectory.log_prob, advantage, clip_low=learner.clip_low, clip_high=learner.clip_high
    )
    # A clip of 0 or less means none; an infinite one is the same loss, and keeps the hyper-parameter a traced number.
    clip = jnp.where(jnp.asarray(learner.value_clip) > 0, learner.value_clip, jnp.inf)
    value_loss = clipped_value_loss(value, trajectory.value, samples.target, clip=clip)

    log_ratio = log_prob - trajectory.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = (ratio < 1.0 - learner.clip_low) | (ratio > 1.0 + learner.clip_high)
    divergence = ratio - 1.0 - log_ratio
    if learner.trust_region in PENALISED:
        policy_loss += coefficients.penalty[jnp.asarray(network.policy_of_agent)][None, None] * divergence
    of_actor = jnp.stack([policy_loss, entropy, divergence, clipped.astype(jnp.float32)])
    policy_loss, entropy, approximate_kl, clip_fraction = _weighted_sums(of_actor, batch.acting_weight)
    (value_loss,) = _weighted_sums(value_loss[None], batch.alive_weight)
    loss = coefficients.actor * (policy_loss - coefficients.entropy * entropy)
    loss += learner.value_coefficient * value_loss
    parts = {
        "total_loss": loss,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "approximate_kl": approximate_kl,
        "clip_fraction": clip_fraction,
    }
    return loss, {name: part / network.num_policies for name, part in parts.items()}


def _weighted_sums(values, weight):
    """`[K, ...]` to `[K]`; what has no weight may be infinite."""
    return jax.vmap(lambda value: jnp.sum(jnp.where(weight > 0, value, 0.0) * weight))(values)


def run_epochs(
    learner,
    params: Any,
    optimizer_state: Any,
    memory: Any,
    samples: Samples,
    key: jax.Array,
    coefficients: Coefficients,
    agent_index: jax.Array | None = None,
) -> tuple[Any, Any, dict]:
    """Epochs of minibatch gradient steps over one rollout.

    Feed-forward networks draw minibatches from all T x B rows; recurrent ones from the B sequences, each whole and
    from its stored first memory, so that the first epoch sees ratios of one.

    Args:
      learner: the configuration.
      params, optimizer_state: pytrees with a leading axis P.
      memory: memory before the rollout's first step, pytree of `[B, N, H]`.
      samples: leading axes `[T, B]`.
      key: consumed.
      coefficients: of this update.
      agent_index: `[N]` int32, which agents of the team these are; all of them by default.

    Returns:
      `(params, optimizer_state, metrics)`, metrics averaged over all steps.
    """
    num_steps, num_envs = samples.advantage.shape[:2]
    recurrent = learner.network_module.recurrent
    if not recurrent:
        samples = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), samples)
    optimizer = learner.make_optimizer()
    unflatten = unflattener(params)

    def minibatch_step(carry, minibatch):
        params, optimizer_state = carry
        columns, weighed = minibatch
        part = jax.tree.map(lambda leaf: jnp.take(leaf, columns, axis=1, unique_indices=True), samples)
        of_columns = jax.tree.map(lambda leaf: leaf[columns], memory)
        batch = Minibatch(samples=part, memory=of_columns, agent_index=agent_index, **weighed)

        def loss(params):
            return surrogate_loss(learner, params, batch, coefficients)

        gradient, metrics = jax.grad(loss, has_aux=True)(unflatten(params))
        gradient = mesh.sum_over_devices(flatten(gradient))
        metrics["gradient_norm"] = jnp.mean(jnp.linalg.norm(gradient, axis=-1)) / mesh.num_devices()
        updates: Any
        updates, optimizer_state = jax.vmap(optimizer.update)(gradient, optimizer_state)
        return (params - coefficients.learning_rate * updates, optimizer_state), metrics

    # All draws at once: one sort, and one message between devices instead of one an epoch.
    draw = jax.vmap(lambda key: minibatch_columns(learner, key, num_envs, 1 if recurrent else num_steps))
    columns = draw(jax.random.split(key, learner.num_epochs))
    columns = columns.reshape(-1, columns.shape[-1])
    # What depends on a whole minibatch, for all M of all epochs at once: `[M, T, columns, N]` (T is 1 for rows).
    weighed = _weigh(learner, samples, lambda leaf: jnp.moveaxis(jnp.take(leaf, columns, axis=1), 1, 0))
    carry = flatten(params), optimizer_state
    (params, optimizer_state), metrics = jax.lax.scan(minibatch_step, carry, (columns, weighed))
    return unflatten(params), optimizer_state, mesh.sum_over_devices(jax.tree.map(jnp.mean, metrics))


def flatten(params: Any) -> jax.Array:
    """`[P, F]`: the parameters of each policy in one vector.

    Optimisers and messages between devices work on it: a few operations, where a dozen small arrays would take a dozen
    times as many.
    """
    return jax.vmap(lambda params: ravel_pytree(params)[0])(params)


def unflattener(params: Any) -> Callable[[jax.Array], Any]:
    """The inverse of `flatten` for parameters of the same structure."""
    shapes = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), params)
    return jax.vmap(ravel_pytree(shapes)[1])


def minibatch_columns(learner, key: jax.Array, num_envs: int, columns_per_env: int) -> jax.Array:
    """Draws the columns of each minibatch: `[M, columns]` int32, every column once, each group's share the same.

    Args:
      learner: the configuration.
      key: consumed.
      num_envs: B on this device.
      columns_per_env: T where every time step is a column `t * B + b`, 1 where an environment is one.
    """
    num_groups = learner.env_groups // mesh.num_devices()
    group_envs = num_envs // num_groups
    # One sort of random numbers; `jax.random.permutation` sorts several times, which shows at small batches.
    bits = jax.vmap(lambda key: jax.random.bits(key, (columns_per_env * group_envs,)))(mesh.local_keys(key, num_groups))
    step, env = jnp.divmod(jnp.argsort(bits), group_envs)
    columns = step * num_envs + env + group_envs * jnp.arange(num_groups)[:, None]
    columns = columns.reshape(num_groups, learner.num_minibatches, -1)
    return columns.swapaxes(0, 1).reshape(learner.num_minibatches, -1)


def whole_batch(learner, samples: Samples, memory: Any, agent_index: jax.Array | None = None) -> Minibatch:
    """A rollout as one minibatch."""
    weighed = jax.tree.map(lambda leaf: leaf[0], _weigh(learner, samples, lambda leaf: leaf[None]))
    return Minibatch(samples=samples, memory=memory, agent_index=agent_index, **weighed)


def _weigh(learner, samples: Samples, draw: Callable) -> dict[str, jax.Array]:
    """Advantages and weights of `Minibatch`, `[M, ...]`, of the M minibatches that `draw` makes of an array."""
    table = learner.network_module.policy_of_agent
    advantage, acting, alive = map(draw, (samples.advantage, samples.trajectory.acting, samples.trajectory.alive))
    acting_weight, alive_weight = mean_weights(table, jnp.concatenate([acting, alive])).reshape(2, *acting.shape)
    if learner.normalize_advantage:
        advantage = standardize(table, advantage, acting_weight)
    return {"advantage": advantage, "acting_weight": acting_weight, "alive_weight": alive_weight}


def agent_gradients(
    learner, params: Any, memory: Any, samples: Samples, coefficients: Coefficients
) -> dict[str, jax.Array]:
    """Statistics of the agents' gradients on a small part of a rollout, before it is learned from.

    An agent's gradient is that of its own terms of the loss with respect to its own policy's parameters.

    Args:
      learner: the configuration; about `role_gradient_rows` rows are read.
      params, memory: of the rollout.
      samples: leading axes `[T, B]`.
      coefficients: of this update.

    Returns:
      Metrics, see `agent_gradient_metrics`; none where no rows are to be read.
    """
    if not learner.role_gradient_rows:
        return {}
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
    batch = whole_batch(learner, samples, memory)

    def gradient(agent):
        own = agent[None, None]
        weights = {"acting_weight": batch.acting_weight * own, "alive_weight": batch.alive_weight * own}
        part = dataclasses.replace(batch, **weights)
        return jax.grad(lambda params: surrogate_loss(learner, params, part, coefficients)[0])(params)

    return agent_gradient_metrics(gradient, learner.network_module.num_agents)
