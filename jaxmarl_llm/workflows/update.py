"""Gradient steps on episodes: each role's gradient, what is done to it, and the steps of the policies.

Axes: R roles, P policies, F parameters of a policy, S steps, K (call, copy) slots; T, B, C of rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.diagnostics import role_gradient_report
from jaxmarl_llm.algorithms.policy_gradient.update import flatten, minibatch_columns, unflattener
from jaxmarl_llm.workflows.body import own_mask
from jaxmarl_llm.workflows.gradients import clip_each, combine_roles, damp_coherent
from jaxmarl_llm.workflows.loss import CallRows, sequence_sums


def step_schedule(learner) -> tuple[np.ndarray, np.ndarray]:
    """Which roles have a part in each step of an iteration.

    Returns:
      `(slot [S] int32, active [S, R] bool)`: the copy that a step learns from, where the copies of a role come one
      after the other, and who has such a copy; with `normalize_by_copies` all copies are in every step.
    """
    copies = np.asarray(learner.copies_of_role)
    slots = np.arange(1 if learner.normalize_by_copies else copies.max())
    slot = np.tile(slots, learner.num_epochs * learner.num_minibatches).astype(np.int32)
    return slot, slot[:, None] < copies[None]


def run_steps(
    learner,
    params: Any,
    optimizer_state: Any,
    gradient_average: jax.Array,
    rows: tuple[CallRows, ...],
    key: jax.Array,
    learning_rate: jax.Array,
    kl: jax.Array,
    coherence_strength: jax.Array,
) -> tuple[Any, Any, jax.Array, dict[str, jax.Array]]:
    """All gradient steps of one iteration.

    Args:
      learner: the configuration.
      params: pytree with a leading axis P.
      optimizer_state: see `WorkflowState`.
      gradient_average: `[R, F]`, see `damp_coherent`; `[R, 0]` where it is not used.
      rows: of each call.
      key: consumed.
      learning_rate: of these steps.
      kl: `[R]`, weights of the anchors.
      coherence_strength: of these steps.

    Returns:
      `(params, optimizer_state, gradient_average, metrics)`: metrics `[R]` and `[R, R]`, means over the steps that a
      role has a part in.
    """
    team = learner.team
    unflatten = unflattener(params)
    learns = jnp.asarray([policy not in team.frozen for policy in team.policy_of_role], jnp.float32)
    num_episodes = rows[0].samples.asked.shape[1]
    slot, active = step_schedule(learner)
    tied = jnp.arange(team.num_policies) if learner.tied is None else jnp.asarray(learner.tied)
    table = tied[jnp.asarray(team.policy_of_role)]
    is_own = own_mask(params)[None] if learner.body == "joint" else None

    def step(carry, now):
        flat, optimizer_state, average = carry
        columns, slot = now
        part = rows
        if columns is not None:
            part = jax.tree.map(lambda leaf: jnp.take(leaf, columns, axis=1, unique_indices=True), part)
        if not learner.normalize_by_copies:
            part = tuple(of_slot(call_rows, slot) for call_rows in part)
        gradients, sums = mesh.sum_over_devices(role_gradients(learner, unflatten(flat), part, kl))
        count = sums["count"] * learns
        gradients = gradients / jnp.maximum(count, 1.0)[:, None]
        report = role_gradient_report(gradients)
        cosine = jnp.zeros_like(count)
        if learner.coherence:
            gradients, average, cosine = damp_coherent(
                gradients,
                average,
                strength=coherence_strength,
                floor=learner.coherence_floor,
                window=learner.coherence_window,
            )
        if learner.clip_roles:
            gradients = clip_each(gradients, learner.role_max_grad_norm)
        if is_own is None:
            flat, optimizer_state, weight = step_policies(
                learner, flat, optimizer_state, gradients, count, table, tied, learning_rate
            )
        else:
            # Where a part has no gradient it takes no step, so that the steps of the two do not meet.
            own, body = jnp.where(is_own, gradients, 0.0), jnp.where(is_own, 0.0, gradients)
            of_own, of_body = optimizer_state
            flat, of_own, _ = step_policies(learner, flat, of_own, own, count, table, tied, learning_rate)
            flat, of_body, weight = step_policies(
                learner, flat, of_body, body, count, jnp.zeros_like(table), jnp.zeros_like(tied[:1]), learning_rate
            )
            optimizer_state = of_own, of_body
        metrics = {
            "gradient_norm": report.norm,
            "gradient_share": share_of(weight * jnp.linalg.norm(gradients, axis=-1)),
            "gradient_cosine": report.cosine,
            "weight": weight,
            "coherence": cosine,
        }
        return (flat, optimizer_state, average), (metrics, sums)

    columns = None
    if learner.num_minibatches > 1:
        draws = jax.random.split(key, learner.num_epochs)
        columns = jax.vmap(lambda key: minibatch_columns(learner, key, num_episodes, 1))(draws)
        columns = jnp.repeat(
            columns.reshape(-1, columns.shape[-1]), len(slot) // columns.shape[1] // len(draws), axis=0
        )
    carry = flatten(params), optimizer_state, gradient_average
    carry, (metrics, sums) = jax.lax.scan(step, carry, (columns, jnp.asarray(slot)))
    flat, optimizer_state, gradient_average = carry
    took_part = jnp.asarray(active, jnp.float32)

    def mean_over_steps(leaf):
        weight = took_part.reshape(*took_part.shape, *(1,) * (leaf.ndim - 2))
        return jnp.sum(leaf * weight, axis=0) / jnp.maximum(jnp.sum(weight, axis=0), 1.0)

    totals = {name: jnp.sum(part, axis=0) for name, part in sums.items()}
    count = jnp.maximum(totals.pop("count"), 1.0)
    metrics = jax.tree.map(mean_over_steps, metrics) | {name: part / count for name, part in totals.items()}
    return unflatten(flat), optimizer_state, gradient_average, metrics


def step_policies(
    learner,
    flat: jax.Array,
    optimizer_state: Any,
    gradients: jax.Array,
    count: jax.Array,
    table: jax.Array,
    tied: jax.Array,
    learning_rate: jax.Array,
) -> tuple[jax.Array, Any, jax.Array]:
    """One step of policies in the direction of their roles' gradients.

    Args:
      learner: the configuration.
      flat: `[P, F]`, the parameters.
      optimizer_state: pytree with the leading axis of `tied`.
      gradients: `[R, F]`, one a role.
      count: `[R]`, how many completions each role has.
      table: `[R]` int32, the step that a role has a part in.
      tied: `[P]` int32, the step that each policy takes, or `[1]` for one step that all take.
      learning_rate: of this step.

    Returns:
      `(flat, optimizer_state, weight [R])`, see `combine_roles`.
    """
    optimizer, num_steps = learner.make_optimizer(), len(tied)
    gradient, weight = combine_roles(gradients, count, table, weighting=learner.role_weighting, num_policies=num_steps)
    # Without samples a policy stays where it is, its momentum too.
    moves = (jax.ops.segment_sum(count, table, num_steps) > 0)[tied]
    updates: Any
    updates, stepped = jax.vmap(optimizer.update)(gradient[tied], optimizer_state)

    def keep(new, old):
        return jnp.where(moves.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return keep(flat - learning_rate * updates, flat), jax.tree.map(keep, stepped, optimizer_state), weight


def role_gradients(
    learner, params: Any, rows: tuple[CallRows, ...], kl: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Gradients of the roles' summed losses, each with respect to its own policy.

    Args:
      learner: the configuration.
      params: `[P, ...]`.
      rows: of each call, any episodes of this device.
      kl: `[R]`, weights of the anchors.

    Returns:
      `(gradients [R, F], sums)`; the sums of `sequence_sums` are `[R]`. Both are to be divided by `sums["count"]`. The
      gradients of roles that never learn are 0 and not computed.
    """
    gradients, sums = [], []
    for index, role in enumerate(learner.team.roles):

        def loss(policy_params, role=role, index=index):
            parts = role_sums(learner, policy_params, role, rows, kl[index])
            return parts["loss"], parts

        policy = learner.team.params_of(params, role)
        if learner.team.policy_of(role) in learner.team.frozen:
            gradient, parts = jax.tree.map(jnp.zeros_like, policy), loss(policy)[1]
        else:
            gradient, parts = jax.grad(loss, has_aux=True)(policy)
        gradients.append(ravel_pytree(gradient)[0])
        sums.append(parts)
    return jnp.stack(gradients), jax.tree.map(lambda *leaves: jnp.stack(leaves), *sums)


def role_sums(
    learner, policy_params: Any, role: str, rows: tuple[CallRows, ...], kl: jax.typing.ArrayLike
) -> dict[str, jax.Array]:
    """`sequence_sums` of a role's completions in all its calls, under one policy."""
    sums = []
    for call, call_rows in zip(learner.bound.workflow.calls, rows, strict=True):
        if call.role == role:
            scored = learner.score(policy_params, call, call_rows.samples)
            sums.append(sequence_sums(scored, call_rows, learner.loss_weights(kl)))
    return jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *sums)


def of_slot(rows: CallRows, slot: jax.Array) -> CallRows:
    """The rows of one copy, `C = 1`; none are asked where a call has no copy of that number."""
    copies = rows.samples.asked.shape[2]
    index = jnp.minimum(slot, copies - 1)
    rows = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, index, 1, axis=2), rows)
    samples, there = rows.samples, slot < copies
    samples = dataclasses.replace(samples, asked=samples.asked & there, mask=samples.mask & there)
    return dataclasses.replace(rows, samples=samples)


def share_of(amount: jax.Array) -> jax.Array:
    """Amounts over their sum; 0 where all are."""
    total = jnp.sum(amount)
    return amount / jnp.where(total > 0, total, 1.0)
