"""Imperfect teachers in all roles: formats, frequencies, and what pretraining reads."""

import jax
import numpy as np
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import bind, make_task, make_workflow, teach

EPISODES = 2003


def episodes(workflow, skill, task=None):
    bound = bind(workflow, task or make_task("arithmetic"))

    @jax.jit
    @jax.vmap
    def play(key):
        problem_key, key = jax.random.split(key)
        exchanges, transcript = teach(bound, key, bound.task.sample(problem_key), skill)
        formats = [bound.format_ok(transcript, call) for call in workflow.calls]
        scores = [bound.own_score(transcript, call) for call in workflow.calls if call.writes.has_own_score]
        return exchanges, formats, scores, bound.outcome(transcript)

    exchanges, formats, scores, outcome = jax.tree.map(np.asarray, play(jax.random.split(jax.random.key(0), EPISODES)))
    assert all(asked.all() for asked in formats)
    for turn, exchange in zip(workflow.turns, exchanges, strict=True):
        assert exchange.prompt.shape == (EPISODES, turn.call.copies, bound.prompt_length(turn.call))
        assert exchange.completion.shape == (EPISODES, turn.call.copies, bound.max_new_tokens(turn.call))
        last = np.take_along_axis(exchange.completion, exchange.completion_length[..., None] - 1, -1)
        assert (last == bound.vocabulary.end).all()
    return bound, exchanges, scores, outcome


def near(values, expected):
    """Whether a mean of chances is what it should be, within four standard errors."""
    error = np.sqrt(expected * (1 - expected) / values.size)
    assert abs(values.mean() - expected) < 4 * error + 1e-9, (values.mean(), expected, error)


def test_eval_opt():
    workflow = make_workflow("eval_opt", rounds=3)
    bound, exchanges, _, outcome = episodes(workflow, {"generator": 0.4, "evaluator": 0.8})
    correct = bound.vocabulary.encode("correct")[0]
    says_correct = [exchange.completion[:, 0, 0] == correct for exchange in exchanges[1::2]]
    asked = [exchange.asked[:, 0] for exchange in exchanges]
    assert asked[0].all() and (asked[2] == ~says_correct[0]).all() and (asked[4] == asked[2] & ~says_correct[1]).all()
    near(says_correct[0], 0.4 * 0.8 + 0.6 * 0.2)
    # Satisfied with a right answer in the first, the second or the third round, or right at the end without it.
    again = 0.4 * 0.2 + 0.6 * 0.8
    near(outcome, 0.32 * (1 + again) + again**2 * 0.4)


def test_voting():
    _, _, (right, chosen), outcome = episodes(make_workflow("voting", n=2), {"generator": 0.4, "aggregator": 0.7})
    near(right, 0.4)
    assert (chosen[:, 0] == outcome).all()
    count = right.sum(1)
    assert (outcome[count == 0] == 0).all() and (outcome[count == 2] == 1).all()
    near(outcome[count == 1], 0.7 + 0.3 / 2)


@pytest.mark.wide
def test_orch_workers_on_programs():
    skill = {"orchestrator": 0.5, "worker": 0.3, "synthesizer": 0.9}
    task = make_task("stack_code", num_shown=2, num_hidden=1)
    bound, exchanges, (workers, _), outcome = episodes(make_workflow("orch_workers", n=2), skill, task)
    near(workers, 0.3)
    expected = np.where(workers.any(1), 0.9 + 0.1 * workers.mean(1), 0)
    assert abs(outcome.mean() - expected.mean()) < 4 * 0.5 / np.sqrt(EPISODES)
    # Every worker is asked, and reads its own hint after the problem.
    strategy = bound.vocabulary.encode("<strategy>")[0]
    message, prompt = exchanges[0].completion[:, 0], exchanges[1].prompt
    assert exchanges[1].asked.all()
    for row in range(0, EPISODES, 500):
        hints = " ".join(map(str, message[row, : exchanges[0].completion_length[row, 0] - 1])).split(str(strategy))
        for copy in range(2):
            start = task.max_problem_length + 1
            read = prompt[row, copy, start : exchanges[1].prompt_length[row, copy] - 1]
            assert hints[copy + 1].split() == [str(token) for token in read]


def test_a_skill_for_each_role():
    workflow = make_workflow("voting", n=1)
    bound = bind(workflow, make_task("arithmetic"))
    with pytest.raises(UserError, match="the skills miss the role 'aggregator'"):
        jax.eval_shape(lambda key: teach(bound, key, bound.task.draw(key), {"generator": 0.5}), jax.random.key(0))
