import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.tiny_team import tiny_team

from jaxmarl_llm.workflows import TeamPolicy, WorkflowLearner, make_task, swap_roles

FIT = jnp.asarray([[0.5, 0.25, 0.125], [0.0625, 0.25, 0.5], [0.125, 0.5, 0.0]])


@dataclasses.dataclass(frozen=True)
class Toy:
    """Accuracy is how well each policy, a number, fits its role, summed over roles."""

    team: TeamPolicy

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def evaluate(self, params, key, problems, greedy):
        fits = [FIT[role, params[policy]] for role, policy in enumerate(self.team.policy_of_role)]
        return {"accuracy": jnp.sum(jnp.stack(fits))}


def swapped(table):
    names = ("writer", "judge", "chooser")[: len(table)]
    team = TeamPolicy(None, names, table)  # pyright: ignore[reportArgumentType]
    return jax.tree.map(np.asarray, swap_roles(Toy(team), jnp.arange(max(table) + 1), jax.random.key(0), None))  # pyright: ignore[reportArgumentType]


def test_exchanged_policies():
    report = swapped((0, 1, 2))
    # As they are 0.75; the first two, first and last, last two exchanged 0.3125, 0.5, 1.5.
    assert report.accuracy.tolist() == [[0.75, 0.3125, 0.5], [0.3125, 0.75, 1.5], [0.5, 1.5, 0.75]]
    assert report.cost == pytest.approx([0.34375, -0.15625, -0.25])
    assert report.specialisation == pytest.approx(0.75 - (0.3125 + 0.5 + 1.5) / 3)


def test_policies_of_groups():
    report = swapped((0, 0, 1))
    assert report.accuracy[0, 1] == report.accuracy[0, 0] == 1.0625
    assert report.accuracy[0, 2] == 0.25 + 0.0625 + 0.125 and report.accuracy[1, 2] == 0.5 + 0.25 + 0.125
    assert swapped((0,)).accuracy.shape == (1, 1) and swapped((0,)).specialisation == 0


def test_one_policy_is_the_same_everywhere():
    report = swapped((0, 0, 0))
    assert report.specialisation == 0 and not report.cost.any() and (report.accuracy == report.accuracy[0, 0]).all()


@pytest.mark.slow
def test_teams_that_play(key):
    bound, shared = tiny_team("voting", "shared", task=make_task("arithmetic", level=1, modulus=2), n=2)
    isolated = dataclasses.replace(shared, policy_of_role=(0, 1))
    one, two, exchanged = [
        WorkflowLearner(bound=bound, team=team, temperature=5.0)
        for team in (shared, isolated, dataclasses.replace(isolated, policy_of_role=(1, 0)))
    ]

    @jax.jit
    def run(key):
        problems = jax.vmap(bound.task.sample)(jax.random.split(key, 8009))
        params = isolated.init(key)
        first = jax.tree.map(lambda leaf: leaf[:1], params)
        by_hand = [learner.evaluate(params, key, problems, False)["accuracy"] for learner in (two, exchanged)]
        return swap_roles(one, first, key, problems, False), swap_roles(two, params, key, problems, False), by_hand

    of_one, of_two, by_hand = jax.tree.map(np.asarray, run(key))
    assert of_one.specialisation == 0 and (of_one.accuracy == of_one.accuracy[0, 0]).all() and of_one.accuracy[0, 0] > 0
    assert [of_two.accuracy[0, 0], of_two.accuracy[0, 1]] == by_hand and by_hand[0] != by_hand[1]
