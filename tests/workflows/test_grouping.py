"""Groups of rows and advantages against exact values; rewards of votes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import PROBLEM, Call, Last, Loop, Solution, Workflow, make_workflow
from jaxmarl_llm.workflows.grouping import GROUPINGS, group_advantages, row_groups
from jaxmarl_llm.workflows.rewards import vote_difference
from jaxmarl_llm.workflows.rollout import CallSamples

VOTING = make_workflow("voting", n=3)
REWARD = jnp.asarray([1.0, 0, 0, 1, 0, 0, 0, 0])


def sizes(workflow, grouping, problems=1, group_size=8):
    """Sizes of the groups of each call's rows, and of all rows."""
    groups, number = row_groups(workflow, problems, group_size, grouping)
    counts = [np.bincount(np.ravel(group), minlength=number) for group in groups]
    return [sorted(count[count > 0].tolist()) for count in [*counts, sum(counts)]]


def test_group_sizes():
    assert sizes(VOTING, "slot") == [[8, 8, 8], [8], [8, 8, 8, 8]]
    assert sizes(VOTING, "agent") == [[8, 8, 8], [8], [8, 8, 8, 8]]
    assert sizes(VOTING, "turn") == [[24], [8], [8, 24]]
    assert sizes(VOTING, "role") == [[24], [8], [8, 24]]
    assert sizes(VOTING, "problem") == [[24], [8], [32]]
    assert sizes(VOTING, "episode")[2] == [4] * 8
    loop = make_workflow("eval_opt", rounds=3)
    assert sizes(loop, "slot", problems=2, group_size=5) == [[5] * 6, [5] * 6, [5] * 12]
    assert sizes(loop, "turn", problems=2, group_size=5) == [[5] * 6, [5] * 6, [5] * 12]
    assert sizes(loop, "agent", problems=2, group_size=5) == [[15] * 2, [15] * 2, [15] * 4]
    assert sizes(loop, "episode", problems=2, group_size=5)[2] == [6] * 10
    with pytest.raises(UserError, match="unknown grouping 'slots': did you mean slot"):
        row_groups(VOTING, 1, 8, "slots")


def advantages(rewards, workflow, grouping, group_size, asked=None, **settings):
    groups, number = row_groups(workflow, rewards[0].shape[1] // group_size, group_size, grouping)
    asked = [jnp.ones(reward.shape, bool) for reward in rewards] if asked is None else asked
    found = jax.jit(lambda *rows: group_advantages(*rows, number, group_size, **settings))
    return found(rewards, asked, groups)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (1.732047, -0.577349)),
        ({"scale": "sample_std"}, (1.620182, -0.540061)),
        ({"scale": "none"}, (0.75, -0.25)),
        ({"credit": "leave_one_out"}, (0.857143, -0.285714)),
    ],
)
def test_exact_advantages(settings, expected):
    rewards = [jnp.broadcast_to(REWARD[None, :, None], (1, 8, copies)) for copies in (3, 1)]
    wanted = np.where(REWARD > 0, *expected)
    for grouping in ("slot", "role") if "scale" not in settings else ("slot",):
        for found in advantages(rewards, VOTING, grouping, 8, **settings):
            for copy in range(found.shape[2]):
                np.testing.assert_allclose(found[0, :, copy], wanted, atol=2e-6)
    # In an episode all were rewarded alike.
    for found in advantages(rewards, VOTING, "episode", 8):
        assert not found.any()


def test_leave_one_out_over_episodes():
    """Swarm of three in two episodes: over the other episode's mean, individually, as a team, and mixed."""
    swarm = Workflow(
        "swarm",
        (
            Call("bee", prompt=(PROBLEM,), writes=Solution(), copies=3),
            Call("end", prompt=(PROBLEM,), writes=Solution()),
        ),
        answer=Last("end"),
    )
    own, team = jnp.asarray([[[1.0, 0, 1], [0, 0, 1]]]), jnp.asarray([[[1.0] * 3, [0.0] * 3]])
    end = jnp.zeros((1, 2, 1))

    def found(reward):
        return advantages([reward, end], swarm, "role", 2, credit="leave_one_out")[0][0]

    np.testing.assert_allclose(found(own) * 3, [[2, -1, 2], [-2, -2, 1]], atol=1e-6)
    np.testing.assert_allclose(found(team), [[1] * 3, [-1] * 3], atol=1e-6)
    np.testing.assert_allclose(found(0.5 * own + 0.5 * team) * 6, [[5, 2, 5], [-5, -5, -2]], atol=1e-6)
    coordinator = advantages(
        [jnp.asarray([[[1.0], [0], [1]]])], make_workflow("single"), "slot", 3, credit="leave_one_out"
    )
    np.testing.assert_allclose(coordinator[0][0, :, 0], [0.5, -1.0, 0.5])


def test_pooling_inflates_the_advantages_of_an_agent():
    """Dr. MAS: with pooled statistics an agent's second moment is its variance and squared offset over the pooled."""
    random = np.random.default_rng(0)
    rewards = [
        jnp.asarray(random.normal(offset, 1, (1, 40, copies)), jnp.float32) for offset, copies in ((3, 1), (0, 1))
    ]
    workflow = make_workflow("voting", n=1)
    own = advantages(rewards, workflow, "agent", 40)
    pooled = advantages(rewards, workflow, "problem", 40)
    every = np.concatenate([np.ravel(reward) for reward in rewards])
    for reward, separate, together in zip(rewards, own, pooled, strict=True):
        np.testing.assert_allclose(np.mean(np.square(separate)), 1, rtol=1e-4)
        expected = (np.var(reward) + (np.mean(reward) - every.mean()) ** 2) / every.var()
        np.testing.assert_allclose(np.mean(np.square(together)), expected, rtol=1e-4)


@pytest.mark.parametrize("grouping", GROUPINGS)
def test_against_a_slow_twin(grouping):
    """Two calls in a loop after one outside, odd sizes, some not asked."""
    calls = [Call(name, prompt=(PROBLEM,), writes=Solution(), copies=copies) for name, copies in (("a", 3), ("b", 2))]
    again = Call("a", prompt=(PROBLEM,), writes=Solution(), copies=2, name="again")
    end = Call("end", prompt=(PROBLEM,), writes=Solution())
    workflow = Workflow("mixed", (calls[0], Loop((calls[1], again), rounds=2), end), answer=Last("end"))
    random, group_size, episodes = np.random.default_rng(1), 5, 10
    shapes = [(1, 3), (2, 2), (2, 2), (1, 1)]
    rewards = [random.normal(size=(rounds, episodes, copies)).astype(np.float32) for rounds, copies in shapes]
    asked = [random.random(reward.shape) < 0.7 for reward in rewards]
    rows = {}
    for call, (name, role) in enumerate((("a", "a"), ("b", "b"), ("again", "a"), ("end", "end"))):
        for number, episode, copy in itertools.product(*map(range, rewards[call].shape)):
            problem = episode // group_size
            key = {
                "slot": (problem, name, number, copy),
                "turn": (problem, name, number),
                "agent": (problem, role, copy),
                "role": (problem, role),
                "problem": problem,
                "episode": (problem, episode),
            }[grouping]
            if asked[call][number, episode, copy]:
                rows.setdefault(key, []).append((call, number, episode, copy))
    for settings in ({"scale": "none"}, {"credit": "leave_one_out"}):
        expected = [np.zeros_like(reward) for reward in rewards]
        for members in rows.values():
            for call, *place in members:
                others = [m for m in members if "scale" in settings or m[2] != place[1]]
                if others:
                    baseline = np.mean([rewards[m[0]][m[1:]] for m in others])
                    expected[call][tuple(place)] = rewards[call][tuple(place)] - baseline
        found = advantages(
            list(map(jnp.asarray, rewards)), workflow, grouping, group_size, list(map(jnp.asarray, asked)), **settings
        )
        for left, right in zip(found, expected, strict=True):
            np.testing.assert_allclose(left, right, atol=1e-5)


def test_votes():
    """What a vote is worth: nothing in a clear majority, everything where it decides."""
    tokens = jnp.asarray([[[5], [5], [7]], [[5], [7], [7]], [[5], [7], [9]], [[5], [5], [5]]])[None]
    right = jnp.asarray(tokens[..., 0] == 5, jnp.float32)
    asked = jnp.ones(right.shape, bool).at[0, 3, :2].set(False)
    samples = CallSamples(
        prompt=tokens,
        prompt_length=asked,
        completion=tokens,
        mask=asked,
        log_prob=right,
        asked=asked,
        format_ok=asked,
        own_score=right,
    )
    expected = [[0, 0, 0], [0, -1, -1], [1, 0, 0], [0, 0, 1]]
    np.testing.assert_array_equal(jax.jit(vote_difference)(samples)[0], expected)
