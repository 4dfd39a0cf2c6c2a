"""What happened to a team: outcomes and failures of episodes, gradients of slots, distance from earlier policies.

Axes: R roles, K (call, copy) slots in the order of the calls, T rounds, B episodes, C copies, M tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.diagnostics import role_gradient_report
from jaxmarl_llm.algorithms.divergence import kl_estimate
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.graph import PROBLEM, Workflow
from jaxmarl_llm.workflows.loss import CallRows, sequence_sums
from jaxmarl_llm.workflows.messages import CORRECT, Verdict
from jaxmarl_llm.workflows.rollout import Episodes


def slot_names(workflow: Workflow) -> tuple[str, ...]:
    """Names of the K slots: `generator/0`, `generator/1`, `aggregator/0`, ..."""
    return tuple(f"{call.name}/{copy}" for call in workflow.calls for copy in range(call.copies))


def episode_metrics(bound: BoundWorkflow, episodes: Episodes) -> dict[str, jax.Array]:
    """How episodes went, over all devices.

    Args:
      bound: the workflow.
      episodes: of this device.

    Returns:
      `accuracy`, the mean outcome; `any_correct`, the share of episodes in which some solution was right;
      `selection_failure`, those in which one was and the answer is not; `generation_failure`, those in which none was.
      `[R]`, means over completions: `role_format_ok`, `role_own_score` (0 for roles without one), `role_length` in
      tokens; `role_asked`, completions an episode; `role_token_share`, share of all tokens. With an evaluator,
      `verdict_confusion` `[2, 2]`: shares of verdicts by truth (wrong, right) and what they say (incorrect, correct).
    """
    success = episodes.outcome >= 1
    rates = {
        "accuracy": episodes.outcome,
        "any_correct": episodes.any_correct,
        "selection_failure": episodes.any_correct & ~success,
        "generation_failure": ~episodes.any_correct,
    }
    sums = {name: jnp.sum(rate, dtype=jnp.float32) for name, rate in rates.items()}
    sums["episodes"] = jnp.asarray(episodes.outcome.shape[0], jnp.float32)
    calls = list(zip(bound.workflow.calls, episodes.calls, strict=True))

    def over_roles(value):
        """`[R]`, sums over the completions that were asked for."""
        return jnp.stack(
            [
                sum((jnp.sum(jnp.where(s.asked, value(s), 0.0)) for c, s in calls if c.role == role), jnp.zeros(()))
                for role in bound.workflow.roles
            ]
        )

    of_role = {
        "role_format_ok": over_roles(lambda samples: samples.format_ok),
        "role_own_score": over_roles(lambda samples: 0.0 if samples.own_score is None else samples.own_score),
        "role_length": over_roles(lambda samples: jnp.sum(samples.mask, axis=-1)),
        "role_asked": over_roles(lambda samples: 1.0),
    }
    confusion = [_confusion(bound, samples) for call, samples in calls if isinstance(call.writes, Verdict)]
    sums["verdict_confusion"] = sum(confusion, jnp.zeros((2, 2)))
    sums, of_role = mesh.sum_over_devices((sums, of_role))
    num_episodes, confusion_sum = sums.pop("episodes"), sums.pop("verdict_confusion")
    metrics = {name: total / num_episodes for name, total in sums.items()}
    tokens, asked = of_role["role_length"], of_role.pop("role_asked")
    metrics |= {name: total / jnp.maximum(asked, 1.0) for name, total in of_role.items()}
    metrics |= {"role_asked": asked / num_episodes, "role_token_share": tokens / jnp.maximum(jnp.sum(tokens), 1.0)}
    if confusion:
        metrics["verdict_confusion"] = confusion_sum / jnp.maximum(jnp.sum(confusion_sum), 1.0)
    return metrics


def _confusion(bound: BoundWorkflow, samples) -> jax.Array:
    """`[2, 2]`, numbers of well-formed verdicts by truth and by what they say."""
    says = samples.completion[..., 0] == bound.vocabulary.encode([CORRECT])[0]
    truth = says == (samples.own_score >= 1)
    counts = samples.asked & samples.format_ok
    kinds = (False, True)
    return jnp.stack(
        [jnp.stack([jnp.sum(counts & (truth == t) & (says == s), dtype=jnp.float32) for s in kinds]) for t in kinds]
    )


def prompt_tokens(bound: BoundWorkflow, episodes: Episodes) -> jax.Array:
    """How often each token occurs in all that a role read besides the problem, over all devices.

    Args:
      bound: the workflow.
      episodes: of this device.

    Returns:
      `[R, V]` float32, shares that add up to 1; 0 where a role read nothing.
    """
    counts = {role: jnp.zeros(len(bound.vocabulary)) for role in bound.workflow.roles}

    def occurrences(tokens, length, times):
        position = jax.lax.broadcasted_iota(jnp.int32, tokens.shape, tokens.ndim - 1)
        weight = jnp.where(position < length[..., None], times[..., None], 0)
        return jnp.zeros(len(bound.vocabulary)).at[tokens].add(weight.astype(jnp.float32))

    problem = episodes.problem
    for call, samples in zip(bound.workflow.calls, episodes.calls, strict=True):
        # Fresh problems would be most of what differs.
        times = jnp.sum(samples.asked, axis=(0, 2)) * call.prompt.count(PROBLEM)
        counts[call.role] += occurrences(samples.prompt, samples.prompt_length, samples.asked)
        counts[call.role] -= occurrences(problem.tokens, problem.length, times)
    total = mesh.sum_over_devices(jnp.stack(list(counts.values())))
    return total / jnp.maximum(jnp.sum(total, axis=1, keepdims=True), 1.0)


def total_variation(first: jax.Array, second: jax.Array) -> jax.Array:
    """Half the summed differences of two distributions `[..., V]`: the share that would have to be something else."""
    return 0.5 * jnp.sum(jnp.abs(first - second), axis=-1)


def few_episodes(rows: tuple[CallRows, ...], number: int) -> tuple[CallRows, ...]:
    """The rows of the first episodes: about `number` over all devices, at least one on each."""
    share = -(-number // mesh.num_devices())
    return jax.tree.map(lambda leaf: leaf[:, :share], rows)


def slot_gradient_metrics(learner, params: Any, rows: tuple[CallRows, ...], kl: jax.Array) -> dict[str, jax.Array]:
    """Gradients of every copy's own completions with respect to its policy.

    Args:
      learner: the configuration.
      params: `[P, ...]`.
      rows: of each call, of a few episodes.
      kl: `[R]`, weights of the anchors.

    Returns:
      `slot_gradient_norm` and `slot_gradient_share` (of the sum of norms) `[K]`, `slot_gradient_cosine` `[K, K]`, and
      `role_slot_cosine` `[R]`, the mean cosine between different slots of a role; 0 where it has one.
    """
    workflow, gradients, counts = learner.bound.workflow, [], []
    for call, call_rows in zip(workflow.calls, rows, strict=True):
        policy_params = learner.team.params_of(params, call.role)
        weights = learner.loss_weights(kl[workflow.roles.index(call.role)])

        def gradient(copy, call=call, policy_params=policy_params, weights=weights):
            one = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 2), copy)

            def loss(policy_params):
                sums = sequence_sums(learner.score(policy_params, call, one.samples), one, weights)
                return sums["loss"], sums["count"]

            found, count = jax.grad(loss, has_aux=True)(policy_params)
            return ravel_pytree(found)[0], count

        of_copies, count = jax.vmap(gradient, in_axes=2)(call_rows)
        gradients.append(of_copies)
        counts.append(count)
    total, count = mesh.sum_over_devices((jnp.concatenate(gradients), jnp.concatenate(counts)))
    report = role_gradient_report(total / jnp.maximum(count, 1.0)[:, None])
    role = [call.role for call in workflow.calls for _ in range(call.copies)]
    pairs = [
        [(i, j) for i in range(len(role)) for j in range(len(role)) if i != j and role[i] == role[j] == name]
        for name in workflow.roles
    ]
    same_role = [
        jnp.mean(report.cosine[tuple(jnp.asarray(of_role).T)]) if of_role else jnp.zeros(()) for of_role in pairs
    ]
    return {
        "slot_gradient_norm": report.norm,
        "slot_gradient_share": report.mass_share,
        "slot_gradient_cosine": report.cosine,
        "role_slot_cosine": jnp.stack(same_role),
    }


def drift_metrics(learner, params: Any, rows: tuple[CallRows, ...]) -> dict[str, jax.Array]:
    """How far the policies are from those that acted, after an update.

    Args:
      learner: the configuration.
      params: after the update, `[P, ...]`.
      rows: of each call, of a few episodes that were played before.

    Returns:
      `[R]`, means over tokens: `role_update_kl`, KL(acting || new) by k3, and `role_update_chi2`, the mean square of
      the ratio less 1.
    """
    workflow = learner.bound.workflow
    sums = {role: jnp.zeros(3) for role in workflow.roles}
    for call, call_rows in zip(workflow.calls, rows, strict=True):
        samples = call_rows.samples
        new = learner.score(learner.team.params_of(params, call.role), call, samples).log_prob
        divergence = kl_estimate(samples.log_prob, new)
        square = jnp.square(jnp.exp(new - samples.log_prob)) - 1.0
        values = jnp.stack([divergence, square, jnp.ones_like(new)])
        sums[call.role] += jnp.sum(jnp.where(samples.mask[None], values, 0.0), axis=(1, 2, 3, 4))
    total = mesh.sum_over_devices(jnp.stack(list(sums.values())))
    means = total[:, :2] / jnp.maximum(total[:, 2:], 1.0)
    return {"role_update_kl": means[:, 0], "role_update_chi2": means[:, 1]}
