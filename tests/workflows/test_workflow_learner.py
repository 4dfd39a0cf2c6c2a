"""Learning of teams: gradients go where they belong, ratios start at one, devices agree, tiny models learn."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec
from workflows.tiny_team import learner_of, tiny_team, without_role

from jaxmarl_llm.algorithms.policy_gradient.update import flatten
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.mesh import ENV_AXIS
from jaxmarl_llm.workflows import Problem, Task
from jaxmarl_llm.workflows.assessment import assess
from jaxmarl_llm.workflows.gradients import combine_roles
from jaxmarl_llm.workflows.ragged import same_tokens
from jaxmarl_llm.workflows.update import role_gradients, role_sums, run_steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class Opposite(Task):
    """Answer a with b, and b with a."""

    @property
    def symbols(self):
        return ("a", "b")

    @property
    def max_problem_length(self):
        return 2

    @property
    def max_answer_length(self):
        return 1

    def draw(self, key):
        letters = jnp.asarray(self.tokens("ab"), jnp.int32)[jax.random.randint(key, (2,), 0, 2)]
        return Problem(tokens=letters, length=jnp.asarray(2), target=jnp.asarray(self.tokens("ba"))[letters[1] - 2])

    def is_held_out(self, problem):
        return jnp.zeros((), bool)

    def score(self, problem, completion, length):
        return same_tokens((completion, length), (problem.target[None], jnp.asarray(1))).astype(jnp.float32)

    def teacher(self, key, problem, skill):
        return problem.target[None], jnp.asarray(1)


def rows_of(learner, key):
    """Parameters, and rows of one rollout whose advantages are random."""
    state = learner.init(key)
    problems = jax.vmap(learner.bound.task.sample)(jax.random.split(key, learner.num_problems))
    episodes = learner.play(state.params, key, problems, learner.group_size)
    rows, _ = assess(learner, state, episodes)
    keys = jax.random.split(key, len(rows))
    return state.params, tuple(
        dataclasses.replace(part, advantage=jax.random.normal(key, part.advantage.shape))
        for part, key in zip(rows, keys, strict=True)
    )


def test_routing(key):
    bound, shared = tiny_team("voting", "shared", n=2)
    isolated = dataclasses.replace(shared, policy_of_role=(0, 1))
    kl = jnp.full((2,), 0.1)

    def total_loss(learner, params, rows):
        """The mean over all completions of each policy, summed over policies."""
        team = learner.team
        sums = [role_sums(learner, team.params_of(params, role), role, rows, 0.1) for role in team.roles]
        count = [part["count"] for part in sums]
        count = jax.ops.segment_sum(jnp.stack(count), jnp.asarray(team.policy_of_role), team.num_policies)
        return sum(part["loss"] / count[policy] for part, policy in zip(sums, team.policy_of_role, strict=True))

    def of_policies(learner, params, rows):
        gradients, sums = role_gradients(learner, params, rows, kl)
        mean = gradients / jnp.maximum(sums["count"], 1.0)[:, None]
        return combine_roles(mean, sums["count"], learner.team.policy_of_role)[0], sums

    @jax.jit
    def gradients(key):
        learner = learner_of(bound, shared, kl_coefficient=0.1, entropy_coefficient=0.01)
        params, rows = rows_of(learner, key)
        found = []
        for team in (shared, isolated):
            learner = learner.replace(team=team)
            own = team.replicate(jax.tree.map(lambda leaf: leaf[0], params))
            joint = jax.grad(lambda own, learner=learner: total_loss(learner, own, rows))(own)
            combined, sums = of_policies(learner, own, rows)
            found.append((flatten(joint), combined))
        absent, _ = of_policies(learner, own, without_role(learner, rows, "aggregator"))
        return found, absent, sums

    found, absent, sums = jax.tree.map(np.asarray, gradients(key))
    for joint, combined in found:
        np.testing.assert_allclose(combined, joint, atol=1e-5 * np.abs(joint).max())
        assert (np.linalg.norm(joint, axis=1) > 0).all()
    assert absent[0].any() and not absent[1].any()
    # Ratios before the first update.
    assert (sums["rollout_kl"] / sums["count"] < 1e-6).all() and not sums["clip_fraction"].any()


@pytest.mark.wide
def test_tied_policies_are_shared_ones(key):
    """One program of isolated policies trains them as isolated and as shared ones, by what it is given."""
    bound, shared = tiny_team("voting", "shared", n=2)
    isolated = dataclasses.replace(shared, policy_of_role=(0, 1))

    @jax.jit
    def run(key):
        learner = learner_of(bound, shared, role_weighting="equal_mass", num_epochs=2)
        params, rows = rows_of(learner, key)
        one = jax.tree.map(lambda leaf: leaf[0], params)

        def steps(team, tied):
            now = dataclasses.replace(learner, team=team, tied=tied)
            own = team.replicate(one)
            moments = jax.vmap(now.make_optimizer().init)(flatten(own))
            rate, strength = jnp.asarray(1e-2), jnp.zeros(())
            after, *_ = run_steps(now, own, moments, jnp.zeros((2, 0)), rows, key, rate, jnp.zeros(2), strength)
            return flatten(after)

        both = jax.vmap(lambda tied: steps(isolated, tied))(jnp.asarray([[0, 0], [0, 1]]))
        return steps(shared, None), both

    as_shared, (tied, free) = jax.tree.map(np.asarray, run(key))
    assert np.array_equal(tied[0], tied[1])
    np.testing.assert_allclose(tied[0], as_shared[0], atol=1e-5)
    # Each role alone takes a step of its own.
    assert np.abs(free[0] - free[1]).max() > 1e-3 < np.abs(free - as_shared).max(axis=1).min()


@pytest.mark.parametrize(
    ("num_problems", "group_size", "num_minibatches", "groups"),
    [(64, 8, 1, 64), (63, 8, 1, 1), (1, 8, 2, 1), (6, 8, 3, 2), (6, 5, 5, 2), (8, 3, 4, 2)],
)
def test_devices_share_whole_problems(num_problems, group_size, num_minibatches, groups):
    bound, team = tiny_team("voting", n=2)
    sizes = {"num_problems": num_problems, "group_size": group_size, "num_minibatches": num_minibatches}
    assert learner_of(bound, team, **sizes).env_groups == groups


@pytest.mark.slow
def test_devices_learn_what_one_learns(key):
    bound, team = tiny_team("voting", "shared", n=3)
    learner = learner_of(bound, team, num_minibatches=2, normalize_by_copies=False, reward="own", diagnostic_episodes=4)
    assert learner.updates_per_iteration == (6, 2)
    state = jax.jit(learner.init)(key)
    mesh = jax.make_mesh((2,), (ENV_AXIS,), axis_types=(AxisType.Auto,))
    split = jax.shard_map(learner.update, mesh=mesh, in_specs=(Spec(),), out_specs=(Spec(), Spec()), check_vma=False)
    one = jax.jit(learner.update)(state)
    two = jax.jit(split)(jax.device_put(state, NamedSharding(mesh, Spec())))
    assert max(jax.tree.leaves(jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), state.params, one[0].params))) > 0
    # Measured on the first episodes of each device.
    few = ("slot_", "role_slot_", "role_update_")
    for name in (name for name in one[1] if not name.startswith(few)):
        np.testing.assert_allclose(one[1][name], two[1][name], atol=1e-4, err_msg=name)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one[0].params, two[0].params)
    assert one[1]["role_updates"].tolist() == [6, 2]
    assert one[1]["slot_gradient_cosine"].shape == (4, 4)


@pytest.mark.parametrize("credit", ["group", pytest.param("value", marks=pytest.mark.slow)])
@pytest.mark.wide
def test_tiny_models_learn(key, credit):
    bound, team = tiny_team("single", task=Opposite(), decoder={"value_head": credit == "value"})
    learner = learner_of(
        bound, team, num_problems=16, group_size=4, credit=credit, diagnostic_episodes=0, early_stop=False
    )

    @jax.jit
    def run(rates, key):
        def one(rate):
            state = learner.init(key)
            own = learner.replace(learning_rate=rate)
            problems = jax.vmap(bound.task.sample)(jax.random.split(key, 32))
            state, metrics = jax.lax.scan(lambda state, _: own.update(state), state, None, 80)
            return learner.evaluate(state.params, key, problems)["accuracy"], metrics

        return jax.vmap(one)(rates)

    after, metrics = jax.tree.map(np.asarray, run(jnp.asarray([0.0, 1e-2]), key))
    assert after[1] > 0.95 > 0.6 > metrics["accuracy"][0].max(), (after, metrics["accuracy"])
    assert metrics["role_base_kl"][0].max() < 1e-9 and metrics["role_base_kl"][1, -1] > 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grouping": "slots"}, "unknown grouping 'slots': did you mean slot"),
        ({"num_minibatches": 5}, "num_minibatches 5 must divide the 12 episodes"),
        ({"group_size": 1}, "set group_size to at least 2, or credit='value'"),
        ({"credit": "leave_one_out", "grouping": "episode"}, "another grouping than 'episode'"),
        ({"body": "join"}, "unknown body 'join': did you mean joint"),
        ({"body": "frozen"}, "body='frozen' needs a decoder with adapters: set its lora_rank to at least 1"),
        ({"credit": "value"}, "needs a decoder with value_head=True"),
        ({"kl_coefficient": jnp.zeros(3)}, "one number or one for each role"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"tied": jnp.zeros(2, jnp.int32)}, "tied must have one number for each of the 1 policies"),
        ({"tied": jnp.ones(1, jnp.int32)}, "tied must hold numbers from 0 to 0"),
        ({"normalize_by_copies": "maybe"}, "normalize_by_copies must be true or false, got 'maybe'"),
        ({"adapt_kl": 2}, "adapt_kl must be true or false, got 2"),
        ({"kl_coefficient": -1}, "kl_coefficient must lie between 0 and"),
        ({"kl_coefficient": "much"}, "kl_coefficient must be a number"),
        ({"kl_coefficient": [0.1, [2]]}, "kl_coefficient must be a number"),
        ({"kl_coefficient": jnp.asarray([0.1, jnp.nan])}, "kl_coefficient must lie"),
        ({"entropy_coefficient": float("inf")}, "entropy_coefficient must be finite and at least 0"),
        ({"clip_high": -0.1}, "clip_high must be finite and at least 0"),
        ({"warmup_updates": "10"}, "warmup_updates must be a number, got '10'"),
        ({"adam_epsilon": 0.0}, "adam_epsilon must be above 0"),
        ({"learning_rate": 1e-50}, "learning_rate must be above 0 in 32 bits, got 1e-50"),
        ({"num_problems": 0}, "num_problems must be a whole number of at least 1"),
    ],
)
def test_bad_settings(settings, message):
    bound, team = tiny_team("voting", n=2)
    with pytest.raises(UserError, match=message):
        learner_of(bound, team, **settings).check()


def test_every_number_and_flag_is_judged():
    bound, team = tiny_team("voting", n=2)
    learner = learner_of(bound, team)
    for field in dataclasses.fields(learner):
        if isinstance(field.default, bool | int | float):
            with pytest.raises(UserError, match=field.name):
                learner.replace(**{field.name: "maybe"}).check()
    learner.replace(kl_coefficient=[0.1, 0.0], value_clip=-1.0, tied=None).check()


def test_base_parameters(key):
    bound, team = tiny_team("voting", "isolated", n=2, decoder={"value_head": True})
    learner = learner_of(bound, team)
    without, one = tiny_team("voting", n=2)
    base = jax.jit(one.init)(key)
    with pytest.raises(UserError, match="on the parameters of one policy"):
        jax.eval_shape(learner.init, key, base)
    with pytest.raises(UserError, match="they lack 'norm'"):
        jax.eval_shape(learner.init, key, {name: leaf for name, leaf in base.items() if name != "norm"})
    replicated = team.replicate(one.params_of(base, "generator"))
    state = jax.jit(learner.init)(key, replicated)
    assert (state.params["embedding"] == base["embedding"]).all() and "value_output" in state.params
    assert len(without.vocabulary) == base["embedding"].shape[1]
