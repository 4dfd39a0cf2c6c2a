"""One stage of TeamTR (arXiv 2605.15207, algorithm 1): policies one after the other, each within a divergence.

After each accepted update the team plays anew, so that the next policy learns from what it will meet. A step whose
divergence on the policy's own messages is above the radius is halved until it is not, or refused. Axes: P policies,
B episodes, S samples.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.algorithms.trust_region import adapt_penalty, effective_sample_size, occupancy_drift_bound
from jaxmarl_llm.workflows.finetuning.monitors import episode_log_ratio, episode_metrics, mean_where, message_divergence
from jaxmarl_llm.workflows.finetuning.optimise import learned_from, optimise, rates
from jaxmarl_llm.workflows.finetuning.packs import Packed
from jaxmarl_llm.workflows.finetuning.state import FinetuneState, policy_of, with_policy
from jaxmarl_llm.workflows.finetuning.steps import SECONDS, Iteration, split_problems
from jaxmarl_llm.workflows.finetuning.trainer import Batch, Trainer
from jaxmarl_llm.workflows.text.coordination import instruction_metrics
from jaxmarl_llm.workflows.text.rollout import TextEpisodes


@dataclasses.dataclass(frozen=True, eq=False)
class Gate:
    """How far a step may go, and how far it went.

    Attributes:
      adapter: of the policy after it; the very one it had before where the step was refused.
      fraction: of the whole step; 0 where it was refused.
      divergence, divergence_k3: of what was accepted, see `message_divergence`; 0 where nothing was.
      tried: divergence of the whole step, the larger of both estimates.
      log_prob: S arrays, of what was accepted; None where a sample is another policy's, or the step was refused.
      has_step: False where there was nothing to accept or refuse: the policy wrote nothing, or learned nothing.
    """

    adapter: Any
    fraction: float
    divergence: float
    divergence_k3: float
    tried: float
    log_prob: list[Any]
    has_step: bool = True


def line_search(
    trainer: Trainer, old: Any, new: Any, packs: Sequence[Packed], old_log_prob: Sequence[Any], radius: float
) -> Gate:
    """The longest of the steps 1, 1/2, 1/4, ... from one adapter to another that lies within the radius.

    Both estimates of the divergence must, since the unbiased one is negative for any step that makes what was written
    likelier.

    Args:
      trainer: the run; its `line_search` says how many are tried.
      old, new: adapters of one policy.
      packs: all its messages.
      old_log_prob: S arrays.
      radius: in nats a message.
    """
    tried, refused = 0.0, Gate(old, 0.0, 0.0, 0.0, 0.0, [None] * len(old_log_prob))
    if not packs or not _differ(old, new):
        return dataclasses.replace(refused, has_step=False)
    for trial in range(trainer.config.line_search):
        fraction = 0.5**trial
        candidate = _between(old, new, fraction) if trial else new
        log_prob, _ = trainer.score(candidate, packs, len(old_log_prob))
        divergence, positive = message_divergence(old_log_prob, log_prob)
        largest = max(divergence, positive)
        tried = tried if trial else largest
        # What is no number is not within the radius.
        if largest <= radius:
            return Gate(candidate, fraction, divergence, positive, tried, log_prob)
    return dataclasses.replace(refused, tried=tried)


@jax.jit
def _differ(old: Any, new: Any) -> jax.Array:
    return jnp.any(jnp.stack(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.any(a != b), old, new))))


@jax.jit
def _between(old: Any, new: Any, fraction: float) -> Any:
    return jax.tree.map(lambda a, b: a + fraction * (b - a), old, new)


@dataclasses.dataclass(eq=False)
class _Stage:
    """What a stage knows on its way."""

    seconds: dict[str, float]
    episodes: TextEpisodes
    batch: Batch
    # Accepted updates since the last episodes were played.
    age: int = 0
    tokens: int = 0
    played: int = 0

    def spend(self, part: str, start: float) -> float:
        now = time.perf_counter()
        self.seconds[part] += now - start
        return now


def update_stage(trainer: Trainer, state: FinetuneState, problems: Sequence[Any]) -> Iteration:
    """Updates every policy once.

    Args:
      trainer: the run.
      state: before.
      problems: Q of them, which all episodes of the stage are about.

    Returns:
      Metrics of the first episodes, those of `optimise`, and by policy, `[P]`, under names that begin with `policy_`:
      `divergence`, `divergence_k3`, `tried_divergence`, `fraction`, `accepted`, `kl_coefficient`, `fresh` (every sample
      that it learned from was drawn by the team as it then was), `drift` (how far the episodes' distribution had moved
      since the stage began, L1, estimated) and `stale_gap` (what that moved the policy's surrogate by), `surrogate`,
      `certificate` (a lower bound on what the update gains, theorem 3.4) and `effective_samples` (importance weights;
      as a share); what is about a step is nan for a policy without one. Scalars: `accepted`, the share of the steps;
      `fresh`, `radius`, `sum_sqrt_radius` of accepted updates, `drift_bound`.
    """
    config, policies = trainer.config, trainer.num_policies
    learning = np.asarray(trainer.learning)
    key_order, key_steps, key_play, key = jax.random.split(state.key, 4)
    order = learning
    if config.order == "random":
        order = np.asarray(jax.random.permutation(key_order, learning))
    seconds: dict[str, float] = dict.fromkeys(SECONDS, 0.0)
    stage = _play(trainer, state, problems, jax.random.fold_in(key_play, 0), seconds)
    first, log_ratio = stage, np.zeros(len(stage.episodes.outcome))
    metrics = episode_metrics(trainer.roles, stage.episodes, stage.batch.reward)
    metrics |= instruction_metrics(trainer.bound, stage.episodes)
    by_policy: dict[str, np.ndarray] = {}
    learned: dict[str, Any] = {}
    tokens, episodes = stage.tokens, stage.played
    for place, policy in enumerate(int(policy) for policy in order):
        if stage.age >= {"every": 1, "every_k": config.resample_every}.get(config.resample, policies + 1):
            stage = _play(trainer, state, problems, jax.random.fold_in(key_play, place), seconds)
            tokens, episodes = tokens + stage.tokens, episodes + stage.played
        state, found, steps, gate = _update_policy(
            trainer, state, stage, policy, log_ratio, jax.random.fold_in(key_steps, place)
        )
        start = time.perf_counter()
        found |= _staleness(trainer, first, policy, log_ratio)
        if gate.fraction and place + 1 < len(order):
            log_ratio = log_ratio + _moved(trainer, first, stage, policy, gate)
        stage.spend("gate", start)
        stage.age += bool(gate.fraction)
        for name, value in found.items():
            by_policy.setdefault(f"policy_{name}", np.full(policies, np.nan))[policy] = value
        for name, value in steps.items():
            own = np.asarray(trainer.policy_of_role) == policy
            # What is between two roles is known where they share the policy.
            keep = own if np.ndim(value) == 1 else own[:, None] & own[None]
            # Frozen roles are known to have none.
            unknown = 0.0 if name in ("gradient_norm", "learned_messages") else np.nan
            learned[name] = np.where(keep, value, learned.get(name, unknown))
    accepted = by_policy["policy_accepted"][learning]
    radii = np.where(accepted > 0, config.radius, 0.0)
    metrics |= learned | by_policy
    metrics |= {
        "accepted": mean_where(accepted, ~np.isnan(accepted)),
        "fresh": by_policy["policy_fresh"][learning].min(),
        "radius": config.radius,
        "sum_sqrt_radius": np.sqrt(radii).sum(),
        "drift_bound": float(occupancy_drift_bound(jnp.asarray(radii), discount=config.discount)),
        "learning_rate": rates(config, int(state.iteration))[0],
    }
    state = dataclasses.replace(state, key=key, iteration=state.iteration + 1, episodes=state.episodes + episodes)
    return Iteration(state, metrics, seconds, tokens, [])


def _play(trainer: Trainer, state: FinetuneState, problems, key, seconds) -> _Stage:
    start = time.perf_counter()
    episodes = trainer.play(state, problems, key)
    seconds["rollout"] += time.perf_counter() - start
    start = time.perf_counter()
    stage = _Stage(seconds, episodes, trainer.assess(state, episodes))
    stage.tokens, stage.played = sum(len(sample.completion) for sample in episodes.samples), len(episodes.outcome)
    stage.spend("credit", start)
    return stage


def _update_policy(
    trainer: Trainer, state: FinetuneState, stage: _Stage, policy: int, log_ratio: np.ndarray, key: jax.Array
) -> tuple[FinetuneState, dict[str, float], dict[str, np.ndarray], Gate]:
    """The update of one policy on the episodes at hand."""
    config, batch, start = trainer.config, stage.batch, time.perf_counter()
    own = trainer.samples_of(batch.samples, policy)
    fresh = all(batch.samples[number].versions == state.version_vector for number in own)
    share = 1.0
    if config.resample == "importance":
        batch, share = _weighted(batch, log_ratio)
    rate, entropy = rates(config, int(state.iteration))
    seen = learned_from(config, batch, entropy)
    problems = np.asarray([batch.samples[number].problem for number in own])
    parts = [[own[index] for index in part] for part in split_problems(problems, config.minibatches, key)]
    minibatches = [(part, [number for number in part if seen[number]]) for part in parts]
    packs = trainer.pack(batch.samples, own)
    old_log_prob: list[Any] = [None] * len(batch.samples)
    for number in own:
        old_log_prob[number] = batch.old_log_prob[number]
    old = state.policy(policy)

    def divergence(adapters) -> float:
        log_prob, _ = trainer.score(policy_of(adapters, policy), packs, len(old_log_prob))
        return max(message_divergence(old_log_prob, log_prob))

    adapters, optimizer_state, steps = optimise(
        trainer,
        state.adapters,
        state.optimizer_state,
        batch,
        minibatches,
        np.asarray(state.kl_coefficient),
        rate,
        entropy,
        epochs=config.epochs,
        stop=lambda adapters: not divergence(adapters) <= config.radius,
        beside=packs,
    )
    start = stage.spend("gradient", start)
    gate = line_search(
        trainer,
        old,
        policy_of(adapters, policy),
        packs,
        old_log_prob,
        config.radius,
    )
    accepted = gate.fraction > 0
    coefficient = state.kl_coefficient
    # Where it wrote nothing, nothing is known of its divergence.
    if config.kl_coefficient and own:
        adapted = adapt_penalty(coefficient[policy], gate.tried, target=config.radius)
        coefficient = coefficient.at[policy].set(adapted)
    surrogate, largest = _surrogate(batch, own, gate)
    drift = float(occupancy_drift_bound(jnp.asarray([max(gate.divergence_k3, 0.0)]), discount=config.discount))
    of_step = {
        "divergence": gate.divergence,
        "divergence_k3": gate.divergence_k3,
        "tried_divergence": gate.tried,
        "fraction": gate.fraction,
        "accepted": float(accepted),
        "surrogate": surrogate,
        "certificate": (surrogate - drift * largest) / (1.0 - config.discount),
    }
    found = of_step if gate.has_step else dict.fromkeys(of_step, np.nan)
    found |= {"kl_coefficient": float(coefficient[policy]), "fresh": float(fresh), "effective_samples": share}
    state = dataclasses.replace(state, kl_coefficient=coefficient)
    if accepted:
        state = dataclasses.replace(
            state,
            adapters=with_policy(state.adapters, policy, gate.adapter),
            optimizer_state=optimizer_state,
            versions=state.versions.at[policy].add(1),
        )
    stage.spend("gate", start)
    return state, found, steps, gate


def _weighted(batch: Batch, log_ratio: np.ndarray) -> tuple[Batch, float]:
    """The batch with each episode's importance weight, of mean 1, and the share of samples that it is worth."""
    weight = np.exp(log_ratio - log_ratio.max())
    weight = weight / weight.mean()
    share = float(effective_sample_size(jnp.asarray(log_ratio))) / len(log_ratio)
    of_sample = np.asarray([weight[sample.episode] for sample in batch.samples], np.float32)
    return dataclasses.replace(batch, weight=batch.weight * of_sample), share


def _surrogate(batch: Batch, own: Sequence[int], gate: Gate) -> tuple[float, float]:
    """What the update gains on its samples, and the largest advantage."""
    if not own:
        return 0.0, 0.0
    advantage = np.asarray([float(np.mean(batch.advantage[number])) for number in own])
    gain = 0.0
    if gate.fraction:
        ratio = [np.exp(np.sum(gate.log_prob[number] - np.asarray(batch.old_log_prob[number]))) for number in own]
        gain = float(np.mean((np.asarray(ratio) - 1.0) * advantage))
    return gain, float(np.max(np.abs(advantage)))


def _staleness(trainer: Trainer, first: _Stage, policy: int, log_ratio: np.ndarray) -> dict[str, float]:
    """How far the present team's episodes are from the stage's first, and what that does to a policy's surrogate."""
    weight = np.exp(log_ratio)
    own = trainer.samples_of(first.batch.samples, policy)
    gap = [
        (weight[first.batch.samples[number].episode] - 1.0) * float(np.mean(first.batch.advantage[number]))
        for number in own
    ]
    return {"drift": float(np.mean(np.abs(weight - 1.0))), "stale_gap": abs(float(np.mean(gap))) if gap else np.nan}


def _moved(trainer: Trainer, first: _Stage, stage: _Stage, policy: int, gate: Gate) -> np.ndarray:
    """`[B]`, what an accepted update changes the log-probabilities of the stage's first episodes by."""
    samples = first.batch.samples
    new = gate.log_prob
    if stage is not first:
        own = trainer.samples_of(samples, policy)
        new, _ = trainer.score(gate.adapter, trainer.pack(samples, own), len(samples))
    return episode_log_ratio(samples, first.batch.old_log_prob, new, len(first.episodes.outcome))
