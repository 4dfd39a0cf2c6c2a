"""Learning: targets, losses and gradient steps of the value family."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.categorical import at_action, categorical_mode, masked_logits
from jaxmarl_llm.algorithms.learner import agent_gradient_metrics
from jaxmarl_llm.algorithms.masking import masked_mean
from jaxmarl_llm.algorithms.mixing import vdn_mix
from jaxmarl_llm.algorithms.returns import td_lambda
from jaxmarl_llm.algorithms.value.acting import action_values
from jaxmarl_llm.algorithms.value.state import Sequences


def counting_agents(sequences: Sequences) -> jax.Array:
    """`[T + 1, K, N]` bool, agents whose values are mixed: those asked to act, or all alive ones where none is."""
    anyone = jnp.any(sequences.active, axis=-1, keepdims=True)
    return jnp.where(anyone, sequences.active, ~sequences.terminated)


def mix(learner, params: Any, q: jax.Array, counts: jax.Array, global_state: jax.Array | None) -> jax.Array:
    """Values that are trained together.

    Args:
      learner: the configuration.
      params: all parameters.
      q: `[..., N]` float32, values of the agents' own actions.
      counts: `[..., N]` bool; the others contribute 0 to a mixed value.
      global_state: `[..., G]` float32, or `None` where the mixer does not read it.

    Returns:
      `[..., N]` without a mixer, else `[..., 1]`, the team's value.
    """
    if learner.mixer == "none":
        return q
    q = jnp.where(counts, q, 0.0)
    if learner.mixer == "sum":
        return vdn_mix(q)[..., None]
    own = jax.tree.map(lambda leaf: leaf[0], params["mixer"])
    return learner.mixer_module.apply({"params": own}, q, global_state)[..., None]


def central_value(learner, params: Any, action: jax.Array, counts: jax.Array, global_state) -> jax.Array:
    """`[..., 1]`, unrestricted value of the joint action `[..., N]`."""
    own = jax.tree.map(lambda leaf: leaf[0], params["central"])
    return learner.central_module.apply({"params": own}, action, counts, global_state)[..., None]


def targets(learner, target_params: Any, sequences: Sequences, online_q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Lambda-returns along sequences.

    The value of a step's successor is that of its best legal actions: chosen by the online network with `double_q`
    (van Hasselt et al. 2016, eq. 4), else by the target network, and valued by the target network. A step that ended
    the agent's episode by termination is not bootstrapped; one that a time limit cut off is, from the observation it
    led to.

    Args:
      learner: the configuration.
      target_params: parameters of the target networks.
      sequences: `[T + 1, K, ...]`.
      online_q: `[T + 1, K, N, A]`, the online network's values.

    Returns:
      `(target, counted)`: `[T, K, N]` without a mixer, else `[T, K, 1]`; `counted` bool, whether there was such a step
      and an agent alive to take it.
    """
    target_q = action_values(learner.network_module, target_params["agents"], sequences)
    best = categorical_mode(masked_logits(online_q if learner.double_q else target_q, sequences.action_mask))
    # Only successors of a step are valued.
    best, counts = best[1:], counting_agents(sequences)[1:]
    state = None if sequences.global_state is None else sequences.global_state[1:]
    if learner.mixer == "weighted":
        value = central_value(learner, target_params, best, counts, state)
    else:
        value = mix(learner, target_params, at_action(target_q[1:], best), counts, state)
    reward, terminated = sequences.reward[1:], sequences.terminated[1:]
    alive = ~sequences.terminated[:-1] & ~sequences.done[:-1, :, None]
    if learner.mixer != "none":
        reward = jnp.mean(reward, axis=-1, keepdims=True)
        terminated = jnp.all(terminated, axis=-1, keepdims=True)
        alive = jnp.any(alive, axis=-1, keepdims=True)
    target = td_lambda(
        reward,
        value,
        terminated,
        terminated | sequences.done[1:, :, None],
        discount=learner.discount,
        td_lambda=learner.td_lambda,
    )
    return target, alive


def td_loss(
    learner,
    params: Any,
    target_params: Any,
    sequences: Sequences,
    weight: jax.Array,
    learns: jax.Array | bool = True,
) -> tuple[jax.Array, tuple[jax.Array, dict[str, jax.Array]]]:
    """Squared temporal-difference errors, summed over the steps that count.

    Args:
      learner: the configuration.
      params, target_params: online and target parameters.
      sequences: `[T + 1, K, ...]`.
      weight: `[K]` float32, importance weights of the sequences.
      learns: `[N]` bool, agents whose values a gradient reaches.

    Returns:
      `(loss, (size, sums))`: `size` `[K]` is the mean absolute error of each sequence, `sums` are of metrics, and
      `count` of the steps: summed over devices and divided by the count they are means.
    """
    q = action_values(learner.network_module, params["agents"], sequences)
    q = jnp.where(jnp.asarray(learns)[..., None], q, jax.lax.stop_gradient(q))
    target, counted = targets(learner, target_params, sequences, jax.lax.stop_gradient(q))
    target = jax.lax.stop_gradient(target)

    def total(value):
        return jnp.sum(jnp.where(counted, value, 0.0))

    action, counts = sequences.action, counting_agents(sequences)[:-1]
    state = None if sequences.global_state is None else sequences.global_state[:-1]
    chosen = mix(learner, params, at_action(q[:-1], action), counts, state)
    error = chosen - target
    loss = jnp.square(error)
    if learner.mixer == "weighted":
        central = central_value(learner, params, action, counts, state)
        loss = loss * _monotonic_weight(learner, params, q[:-1], chosen, target, sequences, counts, state)
        loss = loss + jnp.square(central - target)
    loss = total(loss * weight[None, :, None])
    size = masked_mean(jnp.abs(jax.lax.stop_gradient(error)), counted, axis=(0, 2))
    sums = {
        "count": jnp.sum(counted, dtype=jnp.float32),
        "total_loss": loss,
        "value_mean": total(chosen),
        "target_mean": total(target),
        "td_error": total(jnp.abs(error)),
    }
    return loss, (size, sums)


def _monotonic_weight(learner, params, q, chosen, target, sequences, counts, state) -> jax.Array:
    """`[T, K, 1]`, weight of each joint action in the monotonic value's loss (Rashid et al. 2020, eqs. 8 and 10)."""
    if learner.weighting == "optimistic":
        full = chosen < target
    else:
        best = categorical_mode(masked_logits(q, sequences.action_mask[:-1]))
        is_best = jnp.all((sequences.action == best) | ~counts, axis=-1, keepdims=True)
        full = is_best | (target > central_value(learner, params, best, counts, state))
    return jax.lax.stop_gradient(jnp.where(full, 1.0, learner.weight_floor))


def learn(
    learner, networks: tuple[Any, Any, Any], batches: tuple[Sequences, jax.Array], update: jax.Array, rate, others: Any
) -> tuple[tuple[Any, Any, Any], jax.Array, dict, Any]:
    """The gradient steps of one update.

    Args:
      learner: the configuration.
      networks: `(params, target_params, optimizer_state)`, dicts as in `ValueState`.
      batches: what each of G gradient steps reads: sequences of leaves `[G, T + 1, K, ...]` (memory `[G, K, ...]`), and
        importance weights `[G, K]`.
      update: `[]` int32, number of updates done.
      rate: `[]` float32, learning rate.
      others: pytree of floats that are to be summed over the devices; they go along with the gradients.

    Returns:
      `(networks, size, metrics, others)`: mean absolute error of each sequence `[G, K]`, metrics averaged over the
      steps, and the sums.
    """
    optimizer = learner.make_optimizer()

    def gradient_step(networks, inputs):
        params, target_params, optimizer_state = networks
        (sequences, weight), number = inputs

        def loss(params):
            return td_loss(learner, params, target_params, sequences, weight)

        # Sums become means after the devices have met, so that they meet once.
        gradient, (size, sums) = jax.grad(loss, has_aux=True)(params)
        gradient, sums, summed = mesh.sum_over_devices((gradient, sums, others))
        count = jnp.maximum(sums.pop("count"), 1.0)
        gradient, metrics = jax.tree.map(lambda leaf: leaf / count, (gradient, sums))
        norms = {name: jax.vmap(optax.tree.norm)(tree) for name, tree in gradient.items()}
        metrics["gradient_norm"] = jnp.sqrt(sum(jnp.sum(jnp.square(norm)) for norm in norms.values()))
        stepped = {name: jax.vmap(optimizer.update)(gradient[name], optimizer_state[name]) for name in params}
        params = {
            name: jax.tree.map(lambda param, step: param - rate * step, params[name], stepped[name][0])
            for name in params
        }
        optimizer_state = {name: stepped[name][1] for name in params}
        share = jnp.where(number % learner.target_update_interval == 0, learner.target_update_rate, 0.0)
        target_params = jax.tree.map(
            # At a rate of 1 the target becomes the online parameters bit by bit.
            lambda old, new: jnp.where(share >= 1.0, new, old + share * (new - old)),
            target_params,
            params,
        )
        return (params, target_params, optimizer_state), (size, metrics, summed)

    of_agents = agent_gradients(learner, networks, jax.tree.map(lambda leaf: leaf[0], batches))
    numbers = update * learner.gradient_steps + 1 + jnp.arange(learner.gradient_steps)
    networks, (size, metrics, summed) = jax.lax.scan(gradient_step, networks, (batches, numbers))
    metrics = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), metrics) | of_agents
    return networks, size, metrics, jax.tree.map(lambda leaf: leaf[0], summed)


def agent_gradients(learner, networks: tuple[Any, Any, Any], batch: tuple[Sequences, jax.Array]) -> dict:
    """Statistics of the agents' gradients on a small part of a batch, before it is learned from.

    An agent's gradient is the part of its network's that comes through its own values.

    Args:
      learner: the configuration; about `role_gradient_rows` time steps are read.
      networks: as in `learn`.
      batch: `[T + 1, K, ...]` (memory `[K, ...]`), and weights `[K]`.

    Returns:
      Metrics, see `agent_gradient_metrics`; none where no rows are to be read.
    """
    if not learner.role_gradient_rows:
        return {}
    params, target_params, _ = networks
    sequences, weight = batch
    few = slice(math.ceil(learner.role_gradient_rows / learner.rollout_length / mesh.num_devices()))
    memory = jax.tree.map(lambda leaf: leaf[few], sequences.memory)
    part = jax.tree.map(lambda leaf: leaf[:, few], dataclasses.replace(sequences, memory=()))
    part = dataclasses.replace(part, memory=memory)

    def gradient(learns):
        def loss(agents):
            loss, (_, sums) = td_loss(learner, params | {"agents": agents}, target_params, part, weight[few], learns)
            return loss, sums["count"]

        gradient, count = jax.grad(loss, has_aux=True)(params["agents"])
        count = jnp.maximum(mesh.sum_over_devices(count), 1.0)
        return jax.tree.map(lambda leaf: leaf / count, gradient)

    return agent_gradient_metrics(gradient, learner.env.num_agents)
