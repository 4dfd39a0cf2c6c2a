"""One message drawn anew: what came before stays, the outcome follows from what is written instead."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.tiny_team import tiny_team

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.replay import replay_message
from jaxmarl_llm.workflows.rollout import play

ALTERNATIVES, EPISODES = 5, 211


@pytest.mark.slow
def test_votes_drawn_anew(key):
    bound, team = tiny_team("voting", "isolated", n=2)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 4)
        params = team.init(keys[0])
        problems = jax.vmap(bound.task.sample)(jax.random.split(keys[1], EPISODES))
        episodes = play(team, params, bound, keys[2], problems, temperature=5.0)
        # Enough right solutions to choose from: the problem's own value, written by the second generator.
        generator = episodes.calls[0]
        value = jax.vmap(lambda problem: bound.task.teacher(key, problem, 1.0)[0])(episodes.problem)
        tokens = generator.completion.at[0, :, 1, 0].set(value[:, 0]).at[0, :, 1, 1].set(bound.vocabulary.end)
        generator = generator.replace(completion=tokens, mask=generator.mask.at[0, :, 1].set(True))
        episodes = episodes.replace(calls=(generator, episodes.calls[1]))
        settings = {"num_alternatives": ALTERNATIVES, "temperature": 5.0}
        return episodes, *replay_message(team, params, bound, keys[3], episodes, "aggregator", **settings)

    episodes, alternatives, outcome = jax.tree.map(np.asarray, run(key))
    assert outcome.shape == (EPISODES, ALTERNATIVES) and alternatives.completion.shape == (EPISODES * 5, 1, 2)
    one, two = bound.vocabulary.encode(["<1>", "<2>"])
    written = alternatives.completion[:, 0].reshape(EPISODES, ALTERNATIVES, 2)
    ended = written[..., 1] == bound.vocabulary.end
    first_right = (episodes.calls[0].completion[0, :, 0] == episodes.calls[0].completion[0, :, 1]).all(-1)
    expected = ended & ((written[..., 0] == two) | ((written[..., 0] == one) & first_right[:, None]))
    np.testing.assert_array_equal(outcome, expected)
    assert 0 < outcome.mean() < 1 and alternatives.asked.all()
    # All alternatives of an episode answer the same prompt, in which the second solution is the planted one.
    prompt = alternatives.prompt[:, 0].reshape(EPISODES, ALTERNATIVES, -1)
    assert (prompt == prompt[:, :1]).all()
    with pytest.raises(UserError, match="there is no copy 2 of round 0"):
        replay_message(team, None, bound, key, episodes, "generator", copy=2)


@pytest.mark.slow
def test_other_copies_stay(key):
    bound, team = tiny_team("eval_opt", rounds=2)

    @jax.jit
    def run(key):
        keys = jax.random.split(key, 4)
        params = team.init(keys[0])
        problems = jax.vmap(bound.task.sample)(jax.random.split(keys[1], 7))
        episodes = play(team, params, bound, keys[2], problems)
        settings = {"round": 1, "num_alternatives": 3}
        return episodes, *replay_message(team, params, bound, keys[3], episodes, "generator", **settings)

    episodes, alternatives, outcome = run(key)
    second = episodes.calls[0]
    np.testing.assert_array_equal(alternatives.asked[::3], second.asked[1])
    np.testing.assert_array_equal(alternatives.prompt[::3], second.prompt[1])
    # Where the evaluator was satisfied at once, nothing changes.
    stopped = ~np.asarray(second.asked[1, :, 0])
    assert (jnp.where(stopped[:, None], outcome == episodes.outcome[:, None], True)).all()
