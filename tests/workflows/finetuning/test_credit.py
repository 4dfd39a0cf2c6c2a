"""Who is paid for what in words, against values by hand."""

import types

import numpy as np
import pytest
from workflows.finetuning.toy_finetuning import relay

from jaxmarl_llm.workflows import make_workflow
from jaxmarl_llm.workflows.finetuning.credit import (
    repetition,
    sample_advantages,
    sample_rewards,
    value_advantages,
)


def sample(call, episode, text="1", *, own=None, ok=True, copy=0, number=0, tokens=3):
    return types.SimpleNamespace(
        call=call,
        role=call,
        episode=episode,
        round=number,
        copy=copy,
        text=text,
        own_score=own,
        format_ok=ok,
        completion=np.arange(tokens, dtype=np.int32),
    )


def episodes_of(samples, outcome, num_problems):
    return types.SimpleNamespace(
        samples=samples,
        outcome=np.asarray(outcome, np.float32),
        any_correct=np.asarray(outcome) >= 1,
        num_problems=num_problems,
        group_size=len(outcome) // num_problems,
    )


def test_rewards_and_what_regularises_them():
    samples = [
        sample("solver", 0, own=1.0, tokens=1),
        sample("finisher", 0, own=0.0),
        sample("solver", 1, own=0.0, ok=False),
        sample("finisher", 1, own=1.0, tokens=5),
    ]
    episodes = episodes_of(samples, [0.0, 1.0], 1)
    np.testing.assert_array_equal(sample_rewards(relay(), episodes), [0, 0, 1, 1])
    np.testing.assert_array_equal(sample_rewards(relay(), episodes, "own"), [1, 0, 0, 1])
    found = sample_rewards(
        relay(), episodes, "mixed", own_weight=0.25, format_weight=2.0, length_weight=0.5, max_new_tokens=5
    )
    np.testing.assert_allclose(found, [0.25 - 0.1, -0.3, 0.75 - 2 - 0.3, 1 - 0.5], atol=1e-6)


def test_votes_are_counted_by_answers():
    workflow = make_workflow("voting", n=3)
    texts = ("It is 4", "4", "5")
    generators = [
        sample("generator", 0, text, own=own, copy=copy)
        for copy, (text, own) in enumerate(zip(texts, (1.0, 1.0, 0.0), strict=True))
    ]
    episodes = episodes_of([*generators, sample("aggregator", 0, own=1.0)], [1.0], 1)
    as_read = sample_rewards(workflow, episodes, "votes")
    by_answer = sample_rewards(workflow, episodes, "votes", answer=lambda text: text[-1])
    # Without the second vote for 4 the first still wins a tie; three different texts are three votes.
    np.testing.assert_array_equal(by_answer, [0, 0, 0, 1])
    np.testing.assert_array_equal(as_read, [0, 0, 0, 1])


def test_nobody_who_was_not_asked_has_a_score():
    workflow = make_workflow("orch_workers", n=2)
    calls = {call.name: call for call in workflow.calls}
    lead, worker, last = calls
    # In the second episode one of two workers is asked, in the third none; the last sample of all is right.
    samples = [
        *(sample(lead, episode) for episode in range(3)),
        *(sample(worker, episode, own=0.0, copy=copy) for episode, copy in ((0, 0), (0, 1), (1, 0))),
        *(sample(last, episode, own=1.0) for episode in range(3)),
    ]
    found = sample_rewards(workflow, episodes_of(samples, [1.0, 1.0, 1.0], 1), "solo", own_weight=1.0)
    np.testing.assert_array_equal(found, [2, 2, 2, 1, 1, 1, 2, 2, 2])
    # Where nobody of a call was asked, it has nobody to reward.
    unasked = episodes_of([sample(lead, 0), sample(last, 0, own=1.0)], [1.0], 1)
    for kind in ("votes", "solo"):
        assert len(sample_rewards(workflow, unasked, kind)) == 2


def test_repetition_is_the_share_of_threes_that_come_again():
    assert repetition(np.asarray([1, 2])) == 0.0
    assert repetition(np.asarray([1, 2, 3, 1, 2, 3])) == pytest.approx(0.25)
    assert repetition(np.asarray([7] * 7)) == pytest.approx(0.8)


def test_advantages_compare_a_slot_over_the_episodes_of_a_problem():
    samples = [sample(call, episode) for episode in range(6) for call in ("solver", "finisher")]
    # The finisher of the last episode was not asked.
    samples.pop()
    reward = np.asarray([1, 0, 0, 0, 0, 3, 5, 5, 5, 6, 5], np.float32)
    found = sample_advantages(
        relay(), episodes_of(samples, [0] * 6, 2), reward, grouping="slot", credit="group", scale="none"
    )
    expected = [2 / 3, -1, -1 / 3, -1, -1 / 3, 2, 0, -0.5, 0, 0.5, 0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    clipped = sample_advantages(
        relay(), episodes_of(samples, [0] * 6, 2), reward, grouping="slot", credit="group", scale="none", clip=0.6
    )
    np.testing.assert_allclose(clipped, np.clip(expected, -0.6, 0.6), atol=1e-6)


def test_the_critic_learns_the_reward_and_the_advantage_is_standardised_by_role():
    values = [np.asarray([0.5, 0.25], np.float32), np.asarray([1.0], np.float32), np.asarray([0.0, 0.0], np.float32)]
    reward = np.asarray([1.0, 0.0, 2.0], np.float32)
    advantage, target = value_advantages(reward, values, ["a", "b", "a"], gae_lambda=1.0)
    for found, expected in zip(target, ([1, 1], [0], [2, 2]), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    raw = np.asarray([0.5, 0.75, 2.0, 2.0])
    standard = (raw - raw.mean()) / raw.std()
    np.testing.assert_allclose(np.concatenate([advantage[0], advantage[2]]), standard, atol=1e-5)
    np.testing.assert_allclose(advantage[1], 0.0, atol=1e-6)
    clipped, _ = value_advantages(reward, values, ["a", "b", "a"], gae_lambda=1.0, clip=0.9)
    np.testing.assert_allclose(np.concatenate([clipped[0], clipped[2]]), np.clip(standard, -0.9, 0.9), atol=1e-5)
