"""Learning: epochs of minibatches over one rollout."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm.algorithms import mesh
from jaxmarl_llm.algorithms.categorical import categorical_entropy, categorical_log_prob, masked_logits
from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss, clipped_value_loss
from jaxmarl_llm.algorithms.masking import masked_mean, masked_standardize
from jaxmarl_llm.algorithms.policy_gradient.state import Samples


def make_optimizer(learner) -> optax.GradientTransformation:
    """Gradient clipping and Adam, without the learning rate, for the parameters of one policy."""
    steps = optax.chain(optax.clip_by_global_norm(learner.max_grad_norm), optax.scale_by_adam(eps=learner.adam_epsilon))
    # On one flat vector: a few operations, where a dozen small arrays would take a dozen times as many.
    return optax.flatten(steps)


def surrogate_loss(learner, params, memory, samples: Samples, entropy_coefficient) -> tuple[jax.Array, dict]:
    """Clipped policy loss, value loss and entropy bonus, averaged within each policy and summed over policies.

    Args:
      learner: the configuration.
      params: pytree with a leading axis P.
      memory: recurrent memory before the first step, pytree of `[B, N, H]`.
      samples: leading axes `[T, B]`.
      entropy_coefficient: `[]` float32.

    Returns:
      The loss, and its parts as a flat dict.
    """
    network, trajectory = learner.network_module, samples.trajectory
    acting = trajectory.inputs.active
    _, logits, value = network.apply(params, memory, trajectory.inputs)
    logits = masked_logits(logits, trajectory.action_mask)
    log_prob = categorical_log_prob(logits, trajectory.action)
    entropy = categorical_entropy(logits)

    advantage = samples.advantage
    if learner.normalize_advantage:
        advantage = per_policy(network, masked_standardize, advantage, acting)
    policy_loss = clipped_surrogate_loss(
        log_prob, trajectory.log_prob, advantage, clip_low=learner.clip_low, clip_high=learner.clip_high
    )
    # A clip of 0 or less means none; an infinite one is the same loss, and keeps the hyper-parameter a traced number.
    clip = jnp.where(jnp.asarray(learner.value_clip) > 0, learner.value_clip, jnp.inf)
    value_loss = clipped_value_loss(value, trajectory.value, samples.target, clip=clip)

    log_ratio = log_prob - trajectory.log_prob
    ratio = jnp.exp(log_ratio)
    clipped = (ratio < 1.0 - learner.clip_low) | (ratio > 1.0 + learner.clip_high)
    of_actor = jnp.stack([policy_loss, entropy, ratio - 1.0 - log_ratio, clipped.astype(jnp.float32)])
    policy_loss, entropy, approximate_kl, clip_fraction = policy_means(network, of_actor, acting)
    (value_loss,) = policy_means(network, value_loss[None], trajectory.alive)
    loss = policy_loss + learner.value_coefficient * value_loss - entropy_coefficient * entropy
    parts = {
        "total_loss": loss.mean(),
        "policy_loss": policy_loss.mean(),
        "value_loss": value_loss.mean(),
        "entropy": entropy.mean(),
        "approximate_kl": approximate_kl.mean(),
        "clip_fraction": clip_fraction.mean(),
    }
    return loss.sum(), parts


def policy_membership(network) -> jax.Array:
    """`[P, N]` bool, which agents use which policy."""
    return jnp.arange(network.num_policies)[:, None] == jnp.asarray(network.policy_of_agent)[None, :]


def policy_means(network, values, mask) -> jax.Array:
    """Means over the masked elements of each policy's agents.

    Args:
      network: the team's networks.
      values: `[K, ..., N]` float32, K quantities.
      mask: `[..., N]` bool.

    Returns:
      `[K, P]` float32.
    """

    def means(mask):
        return jax.vmap(masked_mean, in_axes=(0, None))(values, mask)

    if network.num_policies == 1:
        return means(mask)[:, None]
    return jax.vmap(lambda member: means(mask & _expand(member, mask.ndim)), out_axes=1)(policy_membership(network))


def policy_counts(network, mask) -> jax.Array:
    """`[P]` float32: how many masked elements `[..., N]` belong to each policy's agents."""
    count = jnp.sum(mask, axis=tuple(range(mask.ndim - 1)), dtype=jnp.float32)
    return jnp.sum(jnp.where(policy_membership(network), count[None, :], 0.0), axis=-1)


def per_policy(network, transform, values, mask) -> jax.Array:
    """Applies `transform(values, mask)` within each policy's agents; shapes `[..., N]`."""
    if network.num_policies == 1:
        return transform(values, mask)
    out = jnp.zeros_like(values)
    for member in policy_membership(network):
        member = _expand(member, mask.ndim)
        out = jnp.where(member, transform(values, mask & member), out)
    return out


def _expand(member, ndim):
    return member.reshape((1,) * (ndim - 1) + member.shape)


def run_epochs(
    learner, params: Any, optimizer_state: Any, memory: Any, samples: Samples, key: jax.Array, learning_rate, entropy
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
      learning_rate, entropy: `[]` float32, of this update.

    Returns:
      `(params, optimizer_state, metrics)`, metrics averaged over all steps.
    """
    recurrent = learner.network_module.module.memory_size > 0
    if not recurrent:
        samples = jax.tree.map(lambda leaf: leaf.reshape(1, -1, *leaf.shape[2:]), samples)
    num_columns = samples.advantage.shape[1]
    # Rows of a minibatch come from anywhere, so on a mesh the rollout is gathered once, and each minibatch split.
    samples, memory = mesh.replicate((samples, memory))
    optimizer = make_optimizer(learner)

    def minibatch_step(carry, columns):
        params, optimizer_state = carry
        part = jax.tree.map(lambda leaf: jnp.take(leaf, columns, axis=1, unique_indices=True), samples)
        part_memory = jax.tree.map(lambda leaf: leaf[columns], memory)
        part, part_memory = mesh.split(part, axis=1), mesh.split(part_memory, axis=0)

        def loss(params):
            return surrogate_loss(learner, params, part_memory, part, entropy)

        gradient, metrics = jax.grad(loss, has_aux=True)(params)
        metrics["gradient_norm"] = jnp.mean(jax.vmap(optax.tree.norm)(gradient))
        updates, optimizer_state = jax.vmap(optimizer.update)(gradient, optimizer_state)
        params = jax.tree.map(lambda param, update: param - learning_rate * update, params, updates)
        return (params, optimizer_state), metrics

    def epoch(carry, key):
        # One sort of random numbers; `jax.random.permutation` sorts several times, which shows at small batches.
        columns = jnp.argsort(jax.random.bits(key, (num_columns,))).reshape(learner.num_minibatches, -1)
        return jax.lax.scan(minibatch_step, carry, columns)

    carry, metrics = jax.lax.scan(epoch, (params, optimizer_state), jax.random.split(key, learner.num_epochs))
    return *carry, jax.tree.map(jnp.mean, metrics)
