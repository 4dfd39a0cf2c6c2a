"""Gradient steps on a batch: role by role over micro-batches, then one step of each policy that has a part in it.

Axes: R roles, P policies, F parameters of an adapter in one vector.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.algorithms.diagnostics import RoleGradientReport, role_gradient_report
from jaxmarl_llm.algorithms.policy_gradient.update import flatten, unflattener
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.gradients import pack_gradient
from jaxmarl_llm.workflows.finetuning.monitors import mean_where
from jaxmarl_llm.workflows.finetuning.packs import Packed
from jaxmarl_llm.workflows.finetuning.state import Stepper, policy_of, stepper
from jaxmarl_llm.workflows.finetuning.trainer import Batch, Trainer
from jaxmarl_llm.workflows.loss import LossWeights
from jaxmarl_llm.workflows.update import step_policies

RolePacks = dict[str, list[Packed]]


def rates(config: FinetuneConfig, iteration: int) -> tuple[float, float]:
    """The learning rate and the weight of the entropy bonus of an iteration, counted from 0."""
    progress = iteration / max(config.iterations, 1)
    rate = anneal(config.learning_rate, 0.0, jnp.asarray(progress), schedule=config.learning_rate_schedule)
    entropy = anneal(
        config.entropy_coefficient, config.entropy_final, jnp.asarray(progress), schedule=config.entropy_schedule
    )
    return float(rate) * min(1.0, (iteration + 1) / max(config.warmup, 1)), float(entropy)


def learned_from(config: FinetuneConfig, batch: Batch, entropy: float) -> list[bool]:
    """`[S]`, samples that a gradient needs to see.

    A completion without an advantage has a gradient of exactly 0, unless it is held to the base model or its entropy is
    rewarded. In teamtr the penalty of the loss is left out for these; the gate sees all of them.
    """
    anchored = entropy or (config.kl_coefficient and not config.is_sequential) or config.credit == "value"
    return [
        bool(len(advantage))
        and bool(imitation > 0 or (weight > 0 and (anchored or np.any(np.asarray(advantage) != 0))))
        for advantage, weight, imitation in zip(batch.advantage, batch.weight, batch.imitation, strict=True)
    ]


def pack_roles(trainer: Trainer, batch: Batch, which: Iterable[int], beside: Iterable[Packed] = ()) -> RolePacks:
    """Micro-batches of each role's samples among `which`; `beside` are others that are kept meanwhile.

    Where `top_k` or `top_p` limit what is drawn, imitated messages have packs of their own, see `role_gradients`.
    """
    chosen, kept = list(which), list(beside)
    packs = {}
    for role in trainer.roles:
        own = [number for number in chosen if batch.samples[number].role == role]
        parts = [own]
        if trainer.config.is_limited:
            drawn = [number for number in own if not batch.imitation[number]]
            parts = [drawn, [number for number in own if batch.imitation[number]]]
        packs[role] = []
        for part in parts:
            found = trainer.pack(batch.samples, part, kept)
            packs[role] += found
            kept += found
    return packs


def _scoring(config: FinetuneConfig, batch: Batch, packed: Packed) -> dict[str, Any]:
    """The distribution that a pack's tokens are scored under."""
    if config.is_limited and np.any(batch.imitation[packed.index[packed.index >= 0]]):
        return config.sampling | {"top_k": 0, "top_p": 1.0}
    return config.sampling


def role_gradients(
    trainer: Trainer, adapters: Any, batch: Batch, packs: RolePacks, penalty: np.ndarray, entropy: float
) -> tuple[jax.Array, dict[str, np.ndarray]]:
    """Gradients of the roles' summed losses, each with respect to its own policy.

    Drawn messages are scored under the distribution that they were drawn from, imitated ones among all tokens: outside
    the `top_k` or `top_p` of a policy that has yet to learn them they would have no gradient.

    Args:
      trainer: the run.
      adapters: `[P, ...]`.
      batch: the samples.
      packs: of each role.
      penalty: `[P]`, weights of the divergence.
      entropy: weight of the entropy bonus.

    Returns:
      `(gradients [R, F], sums)`; the sums of `pack_gradient` are `[R]`.
    """
    config, model = trainer.config, trainer.model
    size = flatten(adapters).shape[1]
    gradients, sums = [], []
    for role, policy in zip(trainer.roles, trainer.policy_of_role, strict=True):
        adapter = policy_of(adapters, policy)
        anchor = 0.0 if config.is_sequential else float(penalty[policy])
        weights = LossWeights(config.clip_low, config.clip_high, anchor, entropy, config.value_coefficient)
        total, of_role = jnp.zeros(size), {}
        for packed in packs[role]:
            gradient, found = pack_gradient(
                model.part,
                model.upper,
                adapter,
                packed.trunk,
                packed.pack,
                batch.lessons(packed),
                weights,
                float(penalty[policy]) if config.is_sequential else 0.0,
                ratio="message" if config.is_sequential else "token",
                **_scoring(config, batch, packed),
            )
            total = total + gradient
            of_role = jax.tree.map(jnp.add, of_role, found) if of_role else found
        gradients.append(total)
        sums.append(of_role)
    names = sorted({name for of_role in sums for name in of_role})
    stacked = {name: np.asarray([float(of_role.get(name, 0.0)) for of_role in sums]) for name in names}
    return jnp.stack(gradients), stacked


@functools.partial(jax.jit, static_argnums=(0, 1))
def _step(steps: Stepper, table: tuple[int, ...], adapters, optimizer_state, gradients, count, learning_rate):
    # Roles without samples have a sum of 0.
    means = gradients / jnp.maximum(count, 1.0)[:, None]
    policies = jnp.arange(max(table) + 1)
    flat, optimizer_state, _ = step_policies(
        steps,
        flatten(adapters),
        optimizer_state,
        means,
        count,
        jnp.asarray(table),
        policies,
        learning_rate,
    )
    return unflattener(adapters)(flat), optimizer_state, role_gradient_report(means)


def optimise(
    trainer: Trainer,
    adapters: Any,
    optimizer_state: Any,
    batch: Batch,
    minibatches: Sequence[tuple[Sequence[int], Sequence[int]]],
    penalty: np.ndarray,
    learning_rate: float,
    entropy: float,
    *,
    epochs: int,
    stop: Callable[[Any], bool] = lambda adapters: False,
    beside: Iterable[Packed] = (),
) -> tuple[Any, Any, dict[str, np.ndarray]]:
    """All gradient steps on a batch.

    Args:
      trainer: the run.
      adapters, optimizer_state: `[P, ...]`.
      batch: the samples.
      minibatches: of each step of a pass, the samples that count, and those of them that a gradient needs to see. What
        frozen roles wrote is left out.
      penalty: `[P]`, see `role_gradients`.
      learning_rate, entropy: of these steps.
      epochs: passes.
      stop: asked between two passes with the adapters so far; ends the learning.
      beside: micro-batches that are kept meanwhile.

    Returns:
      `(adapters, optimizer_state, metrics)`: metrics `[R]` and `[R, R]`, means over the messages, or over the steps
      with a gradient; nan for a role without any. `gradient_norm` and `learned_messages` are then 0.
    """
    roles = [sample.role for sample in batch.samples]
    learning = trainer.learning_roles
    minibatches = [
        (
            [number for number in all_ if roles[number] in learning],
            [number for number in seen if roles[number] in learning],
        )
        for all_, seen in minibatches
    ]
    packs, kept = [], list(beside)
    for _, seen in minibatches:
        packs.append(pack_roles(trainer, batch, seen, kept))
        kept += [packed for of_role in packs[-1].values() for packed in of_role]
    counts = [
        np.asarray([sum(roles[number] == role for number in all_) for role in trainer.roles], np.float32)
        for all_, _ in minibatches
    ]
    totals: dict[str, np.ndarray] = {}
    reports: list[RoleGradientReport] = []
    for epoch in range(epochs):
        if epoch and stop(adapters):
            break
        for part, count in zip(packs, counts, strict=True):
            gradients, sums = role_gradients(trainer, adapters, batch, part, penalty, entropy)
            adapters, optimizer_state, report = _step(
                stepper(trainer.config),
                trainer.policy_of_role,
                adapters,
                optimizer_state,
                gradients,
                jnp.asarray(count),
                learning_rate,
            )
            reports.append(jax.tree.map(np.asarray, report))
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
    nothing = np.zeros(len(trainer.roles))
    learned, imitated = totals.pop("learned", nothing), totals.pop("imitated", nothing)
    if trainer.config.is_sequential or not trainer.config.kl_coefficient:
        # Nobody has asked the base model.
        totals.pop("base_kl", None)
    metrics = {}
    for name, value in totals.items():
        count = imitated if name == "imitation_loss" else learned
        metrics[name] = np.where(count > 0, value / np.maximum(count, 1.0), np.nan)
    if not imitated.any():
        metrics.pop("imitation_loss", None)
    return adapters, optimizer_state, metrics | _compared(reports, learned + imitated) | {"learned_messages": learned}


def _compared(reports: Sequence[RoleGradientReport], messages: np.ndarray) -> dict[str, np.ndarray]:
    """The roles' gradients, means over the steps; nan where there is nothing to compare.

    Args:
      reports: of the steps.
      messages: `[R]`, how many each role has learned from.
    """
    norm, share, cosine = (
        np.stack([getattr(report, name) for report in reports]) for name in ("norm", "mass_share", "cosine")
    )
    has_gradient = norm > 0
    both = has_gradient[:, :, None] & has_gradient[:, None, :]
    return {
        "gradient_norm": norm.mean(0),
        "gradient_share": mean_where(share, has_gradient.any(1, keepdims=True) & (messages > 0)),
        "gradient_cosine": mean_where(cosine, both),
    }
