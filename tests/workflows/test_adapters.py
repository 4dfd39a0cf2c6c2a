"""Adapters of a role's own on a body that roles share: who moves what, and that bodies stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.tiny_team import learner_of, tiny_team, without_role

from jaxmarl_llm.algorithms.policy_gradient.update import flatten
from jaxmarl_llm.workflows.body import own_mask
from jaxmarl_llm.workflows.loss import CallRows
from jaxmarl_llm.workflows.rollout import CallSamples
from jaxmarl_llm.workflows.update import run_steps

RANK = 3


def adapted(body, **settings):
    """A learner of isolated voters with adapters."""
    bound, team = tiny_team("voting", "isolated", n=2, decoder={"lora_rank": RANK, "value_head": True})
    settings |= {"clip_high": 1e9, "constrained": False, "diagnostic_episodes": 0}
    return learner_of(bound, team, body=body, **settings)


def random_rows(learner, key):
    """Rows of five episodes in which nobody meant anything."""

    def rows(copies, key):
        shape, keys = (1, 5, copies), jax.random.split(key, 3)
        prompt, completion = (
            jax.random.randint(key, (*shape, length), 0, len(learner.bound.vocabulary))
            for key, length in zip(keys[:2], (7, 3), strict=True)
        )
        yes, log_prob = jnp.ones(shape, bool), jnp.full((*shape, 3), -2.0)
        samples = CallSamples(
            prompt, jnp.full(shape, 7), completion, jnp.ones_like(completion, bool), log_prob, yes, yes, None
        )
        return CallRows(samples, jax.random.normal(keys[2], (*shape, 1)), log_prob)

    calls = learner.bound.workflow.calls
    return tuple(rows(call.copies, key) for call, key in zip(calls, jax.random.split(key, len(calls)), strict=True))


def without_adapters(params):
    return {
        name: without_adapters(part) if isinstance(part, dict) else part
        for name, part in params.items()
        if "lora" not in name
    }


@pytest.fixture(scope="module")
def trained():
    """`(how far parameters went [P, F], where they are)` by what trained them; `[2, P, F]` of all rows and of those
    without an aggregator."""
    # A step for each copy: the optimisers of the two roles are at different steps.
    joint = adapted("joint", normalize_by_copies=False, num_epochs=2, max_grad_norm=0.1)
    assert joint.updates_per_iteration == (4, 2)
    first = adapted("joint", optimizer="sgd", max_grad_norm=0.01)
    _, shared = tiny_team("voting", "shared", n=2, decoder={"value_head": True})

    def moved(learner, base, rows, rate):
        state = learner.init(jax.random.key(0), base)
        numbers = {"learning_rate": jnp.asarray(rate), "kl": jnp.zeros(2), "coherence_strength": jnp.zeros(())}
        own = state.params, state.optimizer_state, state.gradient_average
        after, *_ = run_steps(learner, *own, rows, jax.random.key(0), **numbers)
        return flatten(after) - flatten(state.params), flatten(after)

    @jax.jit
    def run(key):
        base, rows = joint.init(key).params, random_rows(joint, key)
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), rows, without_role(joint, rows, "aggregator"))
        found = {
            learner.body: jax.vmap(lambda rows, learner=learner: moved(learner, base, rows, 1e-2))(both)
            for learner in (joint, joint.replace(body="frozen"))
        }
        one = jax.tree.map(lambda leaf: leaf[:1], without_adapters(base))
        found["first"] = moved(first, base, rows, 10.0)
        found["shared"] = moved(first.replace(team=shared, body="own"), one, rows, 10.0)
        return found

    return jax.tree.map(np.asarray, run(jax.random.key(0)))


OWN = own_mask(jax.eval_shape(adapted("joint").team.init, jax.random.key(0)))


def test_the_body_is_learned_jointly_and_its_copies_stay_the_same(trained):
    (everyone, absent), after = trained["joint"]
    np.testing.assert_array_equal(after[:, 0, ~OWN], after[:, 1, ~OWN])
    for moved in (everyone, absent):
        assert (np.abs(moved[0, ~OWN]) > 1e-3).mean() > 0.5
    assert np.abs(everyone[:, OWN]).max(axis=1).min() > 1e-3
    assert np.abs(everyone[0, OWN] - everyone[1, OWN]).max() > 1e-3
    # Nobody asks the aggregator: its adapters stay, its body goes with the others'.
    assert absent[0, OWN].any() and not absent[1, OWN].any()


def test_a_frozen_body_is_the_base_bit_for_bit(trained):
    everyone, absent = trained["frozen"][0]
    assert not everyone[:, ~OWN].any() and not absent[:, ~OWN].any()
    assert np.abs(everyone[:, OWN]).max(axis=1).min() > 1e-3
    assert absent[0, OWN].any() and not absent[1, OWN].any()


def test_the_first_step_of_the_body_is_that_of_shared_policies(trained):
    """Adapters that begin at 0 change nothing yet; body and adapters are clipped apart."""
    moved, alone = trained["first"][0], trained["shared"][0]
    in_body = own_mask(
        jax.eval_shape(tiny_team("voting", n=2, decoder={"value_head": True})[1].init, jax.random.key(0))
    )
    np.testing.assert_allclose(moved[0, ~OWN], alone[0, ~in_body], atol=1e-6)
    for part in (OWN, ~OWN):
        np.testing.assert_allclose(np.linalg.norm(moved[:, part], axis=1), 0.1, rtol=1e-3)


def test_tied_policies_share_their_adapters():
    learner = adapted("frozen", tied=jnp.zeros(2, jnp.int32))

    @jax.jit
    def train(key):
        state = learner.init(key, jax.tree.map(lambda leaf: leaf[:1].repeat(2, 0), learner.team.init(key)))
        numbers = {"learning_rate": jnp.asarray(1e-2), "kl": jnp.zeros(2), "coherence_strength": jnp.zeros(())}
        own = state.params, state.optimizer_state, state.gradient_average
        after, *_ = run_steps(learner, *own, random_rows(learner, key), key, **numbers)
        return flatten(state.params), flatten(after)

    before, after = (np.asarray(flat) for flat in train(jax.random.key(0)))
    np.testing.assert_array_equal(after[0], after[1])
    assert (before[:, OWN] != after[:, OWN]).any() and (before[:, ~OWN] == after[:, ~OWN]).all()


def test_what_the_base_lacks_is_added(key):
    learner = adapted("joint")
    _, one = tiny_team("voting", "shared", n=2)

    @jax.jit
    def start(key):
        base = learner.team.replicate(one.params_of(one.init(key), "generator"))
        return base, learner.init(key, base), learner.init(key).params

    base, state, free = start(key)
    assert without_adapters(state.params).keys() - base.keys() == {"value_output"}
    query = state.params["layers_0"]["query_projection"]
    assert query["lora_a"].shape == (2, 16, RANK) and query["lora_a"].any()
    for name in ("lora_a", "lora_b"):
        np.testing.assert_array_equal(query[name][0], query[name][1])
    assert query["lora_b"].shape == (2, RANK, 16) and not query["lora_b"].any()
    np.testing.assert_array_equal(query["kernel"], base["layers_0"]["query_projection"]["kernel"])
    flat = np.asarray(flatten(free))
    np.testing.assert_array_equal(flat[0], flat[1])
    assert OWN.sum() == flat.shape[1] - sum(leaf[0].size for leaf in jax.tree.leaves(base))
