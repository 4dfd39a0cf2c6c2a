"""Episodes that decoders play: what is read and written, outcomes against Python, devices, log-probabilities."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec
from workflows.tiny_team import tiny_team

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import score
from jaxmarl_llm.mesh import ENV_AXIS
from jaxmarl_llm.workflows.diagnostics import episode_metrics
from jaxmarl_llm.workflows.rollout import allowed_mask, play

TEMPERATURE = 3.0
GROUP = 997


def episodes_of(bound, team, params, problems, group_size, key):
    return play(team, params, bound, key, problems, group_size=group_size, temperature=TEMPERATURE)


def begin(bound, team, key, count):
    """Parameters and problems."""
    return jax.jit(lambda key: (team.init(key), jax.vmap(bound.task.sample)(jax.random.split(key, count))))(key)


def value_of(text):
    """The value of an expression modulo 10, which Python reads as the task does."""
    return eval(text) % 10


def test_voting_against_python(key):
    bound, team = tiny_team("voting", "isolated", n=2)
    params, problems = begin(bound, team, key, 5)
    episodes = jax.jit(lambda *x: episodes_of(bound, team, *x[:2], GROUP, x[2]))(params, problems, key)
    generator, aggregator = jax.tree.map(np.asarray, episodes.calls)
    vocabulary = bound.vocabulary
    assert generator.completion.shape == (1, 5 * GROUP, 2, 2) and aggregator.completion.shape == (1, 5 * GROUP, 1, 2)
    interesting = np.flatnonzero(episodes.any_correct | (np.arange(5 * GROUP) % 47 == 0))
    for row in interesting:
        expression = vocabulary.decode(problems.tokens[row // GROUP])
        texts = [vocabulary.decode(tokens) for tokens in generator.completion[0, row]]
        right = [text == f"{value_of(expression)} <end>" for text in texts]
        assert list(generator.own_score[0, row]) == right
        reads = vocabulary.decode(aggregator.prompt[0, row, 0])
        contents = [text.removesuffix("<end>").strip() for text in texts]
        written = f"{expression} <1> {contents[0]} <2> {contents[1]} <aggregator>".split()
        assert reads.split() == written or reads.replace(" ", "") == "".join(written)
        vote = vocabulary.decode(aggregator.completion[0, row, 0])
        chosen = {"<1> <end>": 0, "<2> <end>": 1}.get(vote)
        assert aggregator.format_ok[0, row, 0] == (chosen is not None)
        assert episodes.outcome[row] == (chosen is not None and right[chosen])
        assert episodes.any_correct[row] == any(right)
    assert 0 < np.mean(episodes.outcome) <= np.mean(episodes.any_correct) < 1


def test_log_probs_are_those_of_scoring(key):
    bound, team = tiny_team("eval_opt", "isolated", rounds=3)
    params, problems = begin(bound, team, key, 1009)

    @jax.jit
    def difference(params, problems, key):
        episodes = episodes_of(bound, team, params, problems, 1, key)
        found = []
        for call, samples in zip(bound.workflow.calls, episodes.calls, strict=True):
            rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[3:]), samples)
            scored = score(
                team.decoder,
                team.params_of(params, call.role),
                rows.prompt,
                rows.prompt_length,
                rows.completion,
                rows.mask,
                temperature=TEMPERATURE,
                allowed=allowed_mask(bound, call, True),
            )
            found.append(jnp.max(jnp.where(rows.mask, jnp.abs(scored.log_prob - rows.log_prob), 0.0)))
        return jnp.stack(found), episodes, episode_metrics(bound, episodes)

    found, episodes, metrics = jax.tree.map(np.asarray, difference(params, problems, key))
    assert found.max() < 1e-4
    generator, evaluator = episodes.calls
    says_correct = (evaluator.completion[..., 0] == bound.vocabulary.encode("correct")[0]) & evaluator.format_ok
    # Once satisfied, nobody is asked, and a copy that is not asked has no tokens.
    stopped = np.logical_or.accumulate(says_correct & evaluator.asked, axis=0)
    assert (generator.asked[1:] == ~stopped[:-1]).all() and (evaluator.asked == generator.asked).all()
    assert (generator.mask.any(-1) == generator.asked).all()

    # An evaluator's verdict is on the generator's latest attempt.
    verdicts, right = evaluator.asked & evaluator.format_ok, generator.own_score >= 1
    for truth, says in itertools.product((0, 1), (0, 1)):
        share = ((right == truth) & (says_correct == says))[verdicts].mean()
        np.testing.assert_allclose(metrics["verdict_confusion"][truth, says], share, atol=1e-6)
    any_correct = (right & generator.asked).any((0, 2))
    assert (any_correct == episodes.any_correct).all()
    np.testing.assert_allclose(metrics["selection_failure"], (any_correct & (episodes.outcome < 1)).mean(), atol=1e-6)
    np.testing.assert_allclose(metrics["generation_failure"], 1 - any_correct.mean(), atol=1e-6)
    tokens = [call.mask.sum() for call in episodes.calls]
    np.testing.assert_allclose(metrics["role_token_share"], tokens / np.sum(tokens), rtol=1e-6)
    np.testing.assert_allclose(metrics["role_format_ok"][1], evaluator.format_ok[evaluator.asked].mean(), rtol=1e-6)
    assert metrics["selection_failure"] > 0 and metrics["verdict_confusion"].all()


@pytest.mark.slow
def test_one_episode(key):
    bound, team = tiny_team("orch_workers", n=2)
    params, problems = begin(bound, team, key, 1)
    episodes = jax.jit(lambda *x: episodes_of(bound, team, *x[:2], 1, x[2]))(params, problems, key)
    assert episodes.calls[0].own_score is None
    assert episodes.outcome.shape == (1,)
    assert episodes.calls[1].prompt.shape == (1, 1, 2, bound.prompt_length(bound.workflow.call("worker")))


@pytest.mark.slow
def test_two_devices_play_what_one_plays(key):
    bound, team = tiny_team("voting", n=2)
    params, problems = begin(bound, team, key, 6)

    def run(params, problems, key):
        episodes = episodes_of(bound, team, params, problems, 2, key)
        return episodes.outcome, episodes.calls[0].completion

    mesh = jax.make_mesh((2,), (ENV_AXIS,), axis_types=(AxisType.Auto,))
    split = jax.shard_map(
        run,
        mesh=mesh,
        in_specs=(Spec(), Spec(ENV_AXIS), Spec()),
        out_specs=(Spec(ENV_AXIS), Spec(None, ENV_AXIS)),
        check_vma=False,
    )
    one = jax.jit(run)(params, problems, key)
    replicated = NamedSharding(mesh, Spec())
    two = jax.jit(split)(*jax.device_put((params, problems, key), replicated))
    jax.tree.map(np.testing.assert_array_equal, one, two)


def test_bad_team(key):
    bound, _ = tiny_team("voting", n=2)
    _, team = tiny_team("single")
    with pytest.raises(UserError, match="the team has the roles generator, but workflow 'voting' has"):
        episodes_of(bound, team, None, None, 1, key)
