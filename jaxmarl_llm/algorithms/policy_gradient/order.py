"""One policy after the other: importance factor (HAPPO, HATRPO), stale samples, or fresh rollouts (TeamTR)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.categorical import categorical_kl, categorical_log_prob, masked_logits
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.policy_gradient.per_policy import policy_means
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState, Samples
from jaxmarl_llm.algorithms.trust_region import LineSearchResult, backtracking_line_search, natural_gradient
from jaxmarl_llm.networks.team import TeamNetwork


@struct.dataclass
class Batch:
    """A rollout ready to learn from.

    Attributes:
      memory: recurrent memory before its first step, pytree of `[B, N, H]`.
      samples: `[T, B]`.
      metrics: what the rollout says about the episodes and the critic.
    """

    memory: Any
    samples: Samples
    metrics: dict[str, jax.Array]


def policy_divergence(learner, params, new_params, batch: updates.Minibatch) -> jax.Array:
    """`[P]` float32, mean divergence in nats of the new policies from the old ones over the acting agents' steps."""
    divergence = categorical_kl(_logits(learner, params, batch), _logits(learner, new_params, batch))
    acting = batch.samples.trajectory.acting
    return policy_means(learner.network_module.policy_of_agent, divergence[None], acting[None])[0]


def _logits(learner, params, batch: updates.Minibatch) -> jax.Array:
    """`[T, B, N, A]`, masked, of the policies on a rollout."""
    trajectory = batch.samples.trajectory
    _, logits, _ = learner.network_module.apply(params, batch.memory, trajectory.inputs, batch.agent_index)
    return masked_logits(logits, trajectory.action_mask)


def take_turns(
    learner, state: LearnerState, fresh: Callable, key: jax.Array, coefficients: updates.Coefficients
) -> tuple[LearnerState, dict[str, jax.Array]]:
    """Updates every policy once, each in its turn.

    Args:
      learner: the configuration.
      state: before the update.
      fresh: `(state, key) -> (state, Batch)`, a rollout with the team's present policies.
      key: consumed.
      coefficients: of this update, `penalty` `[P]`.

    Returns:
      The state after all turns and the metrics, among them `policy_divergence` and `policy_proposed_divergence` `[P]`,
      that of the policies and that of what the gradient steps came to before any gate.
    """
    num_policies = learner.network_module.num_policies
    key_order, *keys = jax.random.split(key, 3)
    order = jnp.arange(num_policies)
    if learner.random_order:
        order = jax.random.permutation(key_order, num_policies)
    agents, member = _agents_of_policies(learner.network_module)

    def turn(carry, inputs):
        position, policy, key_rollout, key_update = inputs
        is_fresh = position % learner.turns_per_rollout == 0
        state, batch = jax.lax.cond(is_fresh, lambda state, _: fresh(state, key_rollout), lambda *old: old, *carry)
        state, batch, metrics = _update_policy(
            learner, state, batch, policy, agents[policy], member[policy][None, None], key_update, coefficients
        )
        return (state, batch), batch.metrics | metrics

    shapes = jax.eval_shape(fresh, state, keys[0])[1]
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    inputs = (
        jnp.arange(num_policies),
        order,
        jax.random.split(keys[0], num_policies),
        jax.random.split(keys[1], num_policies),
    )
    (state, _), metrics = jax.lax.scan(turn, (state, nothing), inputs)
    of_policies = {f"policy_{name}": metrics.pop(name) for name in ("divergence", "proposed_divergence")}
    finished = jnp.where(inputs[0] % learner.turns_per_rollout == 0, metrics.pop("episodes_finished"), 0.0)

    def over_episodes(value):
        weight = finished.reshape(-1, *(1,) * (value.ndim - 1))
        return jnp.sum(jnp.where(weight > 0, value * weight, 0.0), axis=0) / jnp.sum(finished)

    episodes = {name: over_episodes(metrics.pop(name)) for name in ("episode_return", "episode_length", "agent_return")}
    metrics = {name: jnp.nanmean(value, axis=0) for name, value in metrics.items()}
    metrics |= episodes | {"episodes_finished": jnp.sum(finished)}
    return state, metrics | {name: jnp.zeros_like(value).at[order].set(value) for name, value in of_policies.items()}


def _agents_of_policies(network: TeamNetwork) -> tuple[jax.Array, jax.Array]:
    """`[P, K]` int32, agents of each policy, filled up to the largest group; `[P, K]` bool, false for the filling.

    A network in which agents see each other reads all agents at each turn: each group is filled up to the team.
    """
    table = network.policy_of_agent
    if network.module.joint:
        member = jnp.arange(network.num_policies)[:, None] == jnp.asarray(table)[None]
        return jnp.broadcast_to(jnp.arange(len(table)), member.shape), member
    groups = [[agent for agent, policy in enumerate(table) if policy == p] for p in range(network.num_policies)]
    size = max(map(len, groups))
    filled = [group + group[:1] * (size - len(group)) for group in groups]
    return jnp.asarray(filled), jnp.asarray([[i < len(group) for i in range(size)] for group in groups])


def _update_policy(learner, state: LearnerState, batch: Batch, policy, agents, member, key, coefficients):
    """One policy's turn, as the learning problem of its K agents alone."""
    network = learner.network_module
    params, optimizer_state = jax.tree.map(lambda leaf: leaf[policy][None], (state.params, state.optimizer_state))
    of_policy = network.module.joint and network.num_policies > 1
    memory = jax.tree.map(lambda leaf: leaf[:, :, policy] if of_policy else leaf[:, agents], batch.memory)
    samples = _take_agents(batch.samples, agents, member)
    alone = learner.replace(network_module=TeamNetwork(network.module, (0,) * len(agents)))
    coefficients = dataclasses.replace(coefficients, penalty=coefficients.penalty[policy][None])
    whole = updates.whole_batch(alone, samples, memory, agents)

    new_params, accepted = params, jnp.ones((), bool)
    if learner.trust_region == "gate":
        found = _natural_step(alone, params, whole, coefficients)
        new_params, accepted = found.params, found.accepted
        coefficients = dataclasses.replace(coefficients, actor=0.0)
    new_params, new_optimizer_state, metrics = updates.run_epochs(
        alone, new_params, optimizer_state, memory, samples, key, coefficients, agents
    )
    proposed = divergence = policy_divergence(alone, params, new_params, whole)[0]
    if learner.trust_region == "penalty_and_gate":
        found = _gate(alone, params, new_params, whole)
        new_params, accepted, divergence = found.params, found.accepted, found.divergence
        new_optimizer_state = jax.tree.map(
            lambda new, old: jnp.where(found.accepted, new, old), new_optimizer_state, optimizer_state
        )
    metrics |= {"divergence": divergence, "proposed_divergence": proposed, "accepted": accepted.astype(jnp.float32)}
    if learner.reweighs:
        batch, metrics["effective_sample_size"] = _reweigh(alone, new_params, batch, whole)
    put = jax.tree.map(
        lambda every, one: every.at[policy].set(one[0]),
        (state.params, state.optimizer_state),
        (new_params, new_optimizer_state),
    )
    return dataclasses.replace(state, params=put[0], optimizer_state=put[1]), batch, metrics


def _take_agents(samples: Samples, agents, member) -> Samples:
    """Samples `[T, B]` of K agents; agents that only fill a group up count as dead."""
    taken = jax.tree.map(lambda leaf: leaf[:, :, agents] if leaf.ndim > 2 else leaf, samples)
    # What a critic reads is the whole team's.
    whole, trajectory = samples.trajectory.inputs, taken.trajectory
    inputs = dataclasses.replace(trajectory.inputs, global_state=whole.global_state, action=whole.action)
    trajectory = dataclasses.replace(trajectory, inputs=inputs, alive=trajectory.alive & member)
    return dataclasses.replace(taken, trajectory=trajectory)


def _natural_step(learner, params, batch: updates.Minibatch, coefficients) -> LineSearchResult:
    """Trust-region step of the policy (Kuba et al. 2022, HATRPO)."""
    unclipped = learner.replace(clip_low=jnp.inf, clip_high=jnp.inf, value_coefficient=0.0)

    def objective(params):
        return -updates.surrogate_loss(unclipped, params, batch, coefficients)[0]

    def divergence(new_params):
        return policy_divergence(learner, params, new_params, batch)[0]

    gradient = jax.grad(objective)(params)
    step, expected = natural_gradient(
        divergence, params, gradient, radius=learner.kl_radius, damping=learner.fisher_damping
    )
    return backtracking_line_search(
        lambda params: (objective(params), divergence(params)),
        params,
        step,
        radius=learner.kl_radius,
        expected_improvement=expected,
    )


def _gate(learner, params, new_params, batch: updates.Minibatch) -> LineSearchResult:
    """The longest part of the way to new parameters that stays within the radius."""
    return backtracking_line_search(
        lambda new: (jnp.zeros(()), policy_divergence(learner, params, new, batch)[0]),
        params,
        jax.tree.map(jnp.subtract, new_params, params),
        radius=learner.kl_radius,
        accept_ratio=None,
    )


def _reweigh(learner, params, batch: Batch, whole: updates.Minibatch) -> tuple[Batch, jax.Array]:
    """The batch with the factor of one more policy's change (HAPPO, eq. 12), and the factor's effective sample size."""
    trajectory = whole.samples.trajectory
    log_prob = categorical_log_prob(_logits(learner, params, whole), trajectory.action)
    log_ratio = jnp.where(trajectory.acting, log_prob - trajectory.log_prob, 0.0)
    assert batch.samples.factor is not None
    factor = batch.samples.factor * jnp.exp(jnp.sum(log_ratio, axis=-1, keepdims=True))
    weight = factor[..., 0]
    first, second = mesh.sum_over_devices((jnp.sum(weight), jnp.sum(jnp.square(weight))))
    size = jnp.square(first) / (second * weight.size * mesh.num_devices())
    return dataclasses.replace(batch, samples=dataclasses.replace(batch.samples, factor=factor)), size
