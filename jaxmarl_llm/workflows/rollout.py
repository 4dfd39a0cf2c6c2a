"""Language models play whole episodes of a workflow, inside one jit.

Axes: B episodes, T rounds of a call (1 outside loops), C copies, L tokens of a prompt, M tokens of a completion.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.llm import generate
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.graph import Call, Loop, Turn
from jaxmarl_llm.workflows.messages import Solution
from jaxmarl_llm.workflows.tasks.base import Problem
from jaxmarl_llm.workflows.team import TeamPolicy
from jaxmarl_llm.workflows.transcript import Transcript


@struct.dataclass
class CallSamples:
    """What the copies of one call read and wrote in all rounds; where `asked` does not hold, the rest means nothing.

    Attributes:
      prompt, prompt_length: `[T, B, C, L]` and `[T, B, C]` int32.
      completion: `[T, B, C, M]` int32, right-padded.
      mask: `[T, B, C, M]` bool, the tokens that were drawn, with `end`; none where not asked.
      log_prob: `[T, B, C, M]` float32, of the distribution that each token was drawn from.
      asked: `[T, B, C]` bool.
      format_ok: `[T, B, C]` bool.
      own_score: `[T, B, C]` float32 in [0, 1]; None for messages without a score of their own.
    """

    prompt: jax.Array
    prompt_length: jax.Array
    completion: jax.Array
    mask: jax.Array
    log_prob: jax.Array
    asked: jax.Array
    format_ok: jax.Array
    own_score: jax.Array | None


@struct.dataclass
class Episodes:
    """B episodes.

    Attributes:
      calls: the samples of each of `workflow.calls`.
      problem: with a leading axis B.
      outcome: `[B]` float32 in [0, 1], the task's score of the final answer.
      any_correct: `[B]` bool, whether any solution that was written in the episode is right.
    """

    calls: tuple[CallSamples, ...]
    problem: Problem
    outcome: jax.Array
    any_correct: jax.Array


def play(
    team: TeamPolicy,
    params: Any,
    bound: BoundWorkflow,
    key: jax.Array,
    problems: Problem,
    *,
    group_size: int = 1,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    constrained: bool = True,
    early_stop: bool = True,
    episode: jax.Array | None = None,
) -> Episodes:
    """Plays episodes; to be called inside `jax.jit`.

    Random numbers belong to an episode: they depend on `key` and its number among all, so that episodes shared by
    several devices are those of one.

    Args:
      team: who plays.
      params: of its policies, `[P, ...]`.
      bound: the workflow at work on its task.
      key: of the whole batch, the same on every device; consumed.
      problems: `[Q]`, those of this device.
      group_size: G, how often each is played; the `B = Q * G` episodes of a problem lie one after the other.
      temperature, top_k: of the sampling; temperature 0 for the likeliest tokens.
      constrained: only tokens of a call's format (and `end`) are drawn.
      early_stop: see `llm.generate`; False is better under `vmap`.
      episode: `[B]` int32, the episodes' numbers among all; by default `0 ... B - 1`, or what follows from the device.

    Returns:
      The episodes. `llm.score` with the same settings gives the same log-probabilities.

    Raises:
      UserError: the team does not fit the workflow.
    """
    team.check_fits(bound)
    problems = jax.tree.map(lambda leaf: jnp.repeat(leaf, group_size, axis=0), problems)
    num_episodes = problems.length.shape[0]
    episode = mesh.global_index(num_episodes) if episode is None else episode
    sampling = {"temperature": temperature, "top_k": top_k, "constrained": constrained, "early_stop": early_stop}
    transcript = jax.vmap(bound.begin)(problems)
    calls: list[CallSamples] = []
    for step in bound.workflow.steps:
        asked_calls, rounds, until = (
            (step.calls, step.rounds, step.until) if isinstance(step, Loop) else ((step,), 1, None)
        )
        first = len(calls)

        def play_round(transcript, number, asked_calls=asked_calls, until=until, first=first):
            samples = []
            for index, call in enumerate(asked_calls, first):
                call_key = jax.random.fold_in(jax.random.fold_in(key, index), number)
                turn = Turn(call, 0, until)
                of_call = ask(team, params, bound, transcript, turn, call_key, episode, **sampling)
                transcript = record(bound, transcript, call, of_call, of_call.asked)
                samples.append(judge(bound, transcript, call, of_call))
            return transcript, samples

        # All rounds are one program: they differ in what has been written before.
        transcript, samples = jax.lax.scan(play_round, transcript, jnp.arange(rounds))
        calls += samples
    correct = [
        jnp.any((samples.own_score >= 1) & samples.asked, axis=(0, 2))
        for call, samples in zip(bound.workflow.calls, calls, strict=True)
        if isinstance(call.writes, Solution) and samples.own_score is not None
    ]
    return Episodes(
        calls=tuple(calls),
        problem=problems,
        outcome=jax.vmap(bound.outcome)(transcript),
        any_correct=jnp.any(jnp.stack([*correct, jnp.zeros(num_episodes, bool)]), axis=0),
    )


def ask(
    team: TeamPolicy,
    params: Any,
    bound: BoundWorkflow,
    transcript: Transcript,
    turn: Turn,
    key: jax.Array,
    episode: jax.Array,
    *,
    temperature: jax.typing.ArrayLike = 1.0,
    top_k: int = 0,
    constrained: bool = True,
    early_stop: bool = True,
) -> CallSamples:
    """What the copies of a call write in one turn; not yet judged.

    Args:
      team, params, bound: as in `play`.
      transcript: of B episodes, before the turn.
      turn: of the workflow.
      key: consumed.
      episode: `[B]` int32, the episodes' numbers among all.
      temperature, top_k, constrained, early_stop: as in `play`.

    Returns:
      Samples without the axis T.
    """
    call = turn.call
    prompt, length, asked = jax.vmap(lambda one: bound.prompt(one, turn))(transcript)
    length = jnp.maximum(length, 1)
    drawn = generate(
        team.decoder,
        team.params_of(params, call.role),
        prompt.reshape(-1, prompt.shape[-1]),
        length.reshape(-1),
        key,
        max_new_tokens=bound.max_new_tokens(call),
        temperature=temperature,
        top_k=top_k,
        allowed=allowed_mask(bound, call, constrained),
        stop_tokens=(bound.vocabulary.end,),
        pad_token=bound.vocabulary.pad,
        row=(episode[:, None] * call.copies + jnp.arange(call.copies)[None]).reshape(-1),
        early_stop=early_stop,
    )
    drawn = jax.tree.map(lambda leaf: leaf.reshape(*asked.shape, *leaf.shape[1:]), drawn)
    mask = drawn.mask & asked[..., None]
    return CallSamples(prompt, length, drawn.tokens, mask, drawn.log_prob, asked, jnp.zeros(asked.shape, bool), None)


def record(
    bound: BoundWorkflow, transcript: Transcript, call: Call, samples: CallSamples, asked: jax.Array
) -> Transcript:
    """The transcripts of B episodes after the copies `asked` `[B, C]` of a call wrote samples without the axis T."""
    length = jnp.sum(samples.mask, axis=-1, dtype=jnp.int32)
    write = jax.vmap(lambda transcript, *one: bound.record(transcript, call, *one))
    return write(transcript, samples.completion, length, asked)


def judge(bound: BoundWorkflow, transcript: Transcript, call: Call, samples: CallSamples) -> CallSamples:
    """Samples without the axis T with their format and their own score, as the transcript after them has it."""
    own_score = jax.vmap(lambda one: bound.own_score(one, call))(transcript) if call.writes.has_own_score else None
    format_ok = jax.vmap(lambda one: bound.format_ok(one, call))(transcript)
    return dataclasses.replace(samples, format_ok=format_ok, own_score=own_score)


def allowed_mask(bound: BoundWorkflow, call: Call, constrained: bool) -> jax.Array | None:
    """`[V]` bool, tokens that a call may draw; None for all of them."""
    return jnp.asarray(bound.allowed_tokens(call)) if constrained else None
