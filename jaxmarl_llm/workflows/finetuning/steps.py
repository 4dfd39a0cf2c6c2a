"""One iteration in which all policies learn at once, from the same episodes (PPO, GRPO). Axes: P policies, R roles."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.algorithms.trust_region import adapt_penalty
from jaxmarl_llm.workflows.finetuning.monitors import episode_metrics
from jaxmarl_llm.workflows.finetuning.optimise import learned_from, optimise, rates
from jaxmarl_llm.workflows.finetuning.replay import Example, draw, remember, with_examples
from jaxmarl_llm.workflows.finetuning.state import FinetuneState
from jaxmarl_llm.workflows.finetuning.trainer import Batch, Trainer
from jaxmarl_llm.workflows.text.coordination import instruction_metrics

SECONDS = ("rollout", "credit", "gradient", "gate")


@dataclasses.dataclass(frozen=True, eq=False)
class Iteration:
    """What an iteration came to.

    Attributes:
      state: after it.
      metrics: names to scalars, `[R]` or `[R, R]`; nan where nothing was measured.
      seconds: of its parts, `SECONDS`.
      tokens: that were generated in it.
      memory: the messages kept for replay.
    """

    state: FinetuneState
    metrics: dict[str, Any]
    seconds: dict[str, float]
    tokens: int
    memory: list[Example]


def split_problems(problems: np.ndarray, count: int, key: jax.Array) -> list[list[int]]:
    """Numbers of the samples of each minibatch; the samples of a problem stay together.

    Args:
      problems: `[S]` int, the problem of each sample.
      count: of the minibatches.
      key: consumed.
    """
    names = np.unique(problems)
    parts = np.array_split(np.asarray(jax.random.permutation(key, names)), count)
    return [np.nonzero(np.isin(problems, part))[0].tolist() for part in parts]


def plan(trainer: Trainer, batch: Batch, key: jax.Array, entropy: float) -> list[tuple[list[int], list[int]]]:
    """The minibatches of `optimise`; what is imitated is in each of them. The key is consumed."""
    played = [number for number, sample in enumerate(batch.samples) if hasattr(sample, "problem")]
    examples = list(range(len(played), len(batch.samples)))
    problems = np.asarray([batch.samples[number].problem for number in played])
    seen = learned_from(trainer.config, batch, entropy)
    parts = split_problems(problems, trainer.config.minibatches, key)
    whole = [[*part, *examples] for part in parts]
    return [(part, [number for number in part if seen[number]]) for part in whole]


def next_penalty(trainer: Trainer, penalty: np.ndarray, base_kl: np.ndarray, learned: np.ndarray) -> np.ndarray:
    """The weights of the divergence from the base model in the next iteration.

    Args:
      trainer: the run.
      penalty: `[P]`, so far.
      base_kl: `[R]`, divergences, means over messages; nan without any.
      learned: `[R]`, how many messages these are; without any, the weight of a policy stays.

    Returns:
      `[P]` float32.
    """
    member = np.asarray(trainer.policy_of_role)[None] == np.arange(trainer.num_policies)[:, None]
    count = (member * learned).sum(1)
    divergence = (member * learned * np.where(learned > 0, base_kl, 0.0)).sum(1) / np.maximum(count, 1.0)
    adapted = adapt_penalty(penalty, divergence, target=trainer.config.kl_target)
    return np.where(count > 0, adapted, penalty).astype(np.float32)


def update_all(
    trainer: Trainer, state: FinetuneState, problems: Sequence[Any], memory: Sequence[Example] = ()
) -> Iteration:
    """Plays problems and learns from them.

    Args:
      trainer: the run.
      state: before.
      problems: Q of them.
      memory: messages kept for replay.
    """
    config, iteration = trainer.config, int(state.iteration)
    key_play, key_steps, key = jax.random.split(state.key, 3)
    start = time.perf_counter()
    episodes = trainer.play(state, problems, key_play)
    played = time.perf_counter()
    batch = trainer.assess(state, episodes)
    metrics = episode_metrics(trainer.roles, episodes, batch.reward) | instruction_metrics(trainer.bound, episodes)
    if config.replay_weight:
        # Other numbers than those that the problems were drawn by.
        random = np.random.default_rng([config.seed, iteration, 1])
        examples = draw(memory, config.replay_messages, random)
        batch = with_examples(batch, examples, config.replay_weight)
        metrics["replayed"] = len(examples)
    assessed = time.perf_counter()
    rate, entropy = rates(config, iteration)
    penalty = np.asarray(state.kl_coefficient)
    adapters, optimizer_state, steps = optimise(
        trainer,
        state.adapters,
        state.optimizer_state,
        batch,
        plan(trainer, batch, key_steps, entropy),
        penalty,
        rate,
        entropy,
        epochs=config.epochs,
    )
    if config.epochs * config.minibatches == 1:
        # Before the only step no policy has moved: what is left of these is rounding.
        for name in ("message_kl", "message_log_ratio"):
            steps.pop(name, None)
    if config.kl_coefficient and config.kl_target and "base_kl" in steps:
        penalty = next_penalty(trainer, penalty, steps["base_kl"], steps["learned_messages"])
    moved = np.asarray(
        [
            policy in trainer.learning and any(sample.policy == policy for sample in episodes.samples)
            for policy in range(trainer.num_policies)
        ]
    )
    state = dataclasses.replace(
        state,
        adapters=adapters,
        optimizer_state=optimizer_state,
        kl_coefficient=jax.numpy.asarray(penalty),
        versions=state.versions + moved.astype(np.int32),
        key=key,
        iteration=state.iteration + 1,
        episodes=state.episodes + len(episodes.outcome),
    )
    seconds = {
        "rollout": played - start,
        "credit": assessed - played,
        "gradient": time.perf_counter() - assessed,
    }
    roles = trainer.learning_roles
    memory = remember(memory, episodes, config.replay_capacity, roles) if config.replay_weight else []
    tokens = sum(len(sample.completion) for sample in episodes.samples)
    return Iteration(state, metrics | steps | {"learning_rate": rate}, seconds, tokens, memory)
