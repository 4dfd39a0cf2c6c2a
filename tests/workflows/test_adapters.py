"""Adapters of a role's own on a body that roles share: who moves what, and that bodies stay the same."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.tiny_team import flat_policies, learner_of, rows_of, tiny_team, without_role

from jaxmarl_llm.workflows.adapters import own_mask
from jaxmarl_llm.workflows.update import run_steps

RANK = 3


def adapted(body, **settings):
    """A learner of isolated voters with adapters."""
    bound, team = tiny_team("voting", "isolated", n=2, decoder={"lora_rank": RANK, "value_head": True})
    return learner_of(bound, team, body=body, diagnostic_episodes=0, **settings)


def steps_of(learner, state, rows, key, rate):
    """The parameters `[P, F]` after all steps on some rows."""
    average, number = jnp.zeros((2, 0)), jnp.asarray
    after, *_ = run_steps(
        learner, state.params, state.optimizer_state, average, rows, key, number(rate), jnp.zeros(2), number(0.0)
    )
    return flat_policies(after)


@pytest.fixture(scope="module")
def trained():
    """`(is_own [F], before [P, F], after)`: `after` by body `[2, P, F]`, of all rows and of those of no aggregator."""
    # A step for each copy: optimisers of different roles are at different steps.
    learner = adapted("joint", normalize_by_copies=False, num_epochs=2, max_grad_norm=0.1)
    assert learner.updates_per_iteration == (4, 2)

    @jax.jit
    def run(key):
        state, rows = rows_of(learner, key)
        absent = without_role(learner, rows, "aggregator")
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), rows, absent)
        found = {"joint": jax.vmap(lambda rows: steps_of(learner, state, rows, key, 1e-2))(both)}
        frozen = learner.replace(body="frozen")
        alone = dataclasses.replace(state, optimizer_state=state.optimizer_state[0])
        found["frozen"] = jax.vmap(lambda rows: steps_of(frozen, alone, rows, key, 1e-2))(both)
        return flat_policies(state.params), found

    mask = own_mask(jax.eval_shape(learner.team.init, jax.random.key(0)))
    return mask, *jax.tree.map(np.asarray, run(jax.random.key(0)))


def test_the_body_is_learned_jointly_and_its_copies_stay_the_same(trained):
    own, before, after = trained
    for joint in after["joint"]:
        np.testing.assert_array_equal(joint[0, ~own], joint[1, ~own])
        assert (np.abs(joint - before)[0, ~own] > 1e-3).mean() > 0.5
    everyone, absent = after["joint"] - before
    assert np.abs(everyone[:, own]).max(axis=1).min() > 1e-3
    assert np.abs(everyone[0, own] - everyone[1, own]).max() > 1e-3
    # The aggregator learns its adapters from its own completions alone, and a body from those of others too.
    assert absent[0, own].any() and not absent[1, own].any()


def test_a_frozen_body_is_the_base_bit_for_bit(trained):
    own, before, after = trained
    everyone, absent = after["frozen"] - before
    assert not everyone[:, ~own].any() and not absent[:, ~own].any()
    assert np.abs(everyone[:, own]).max(axis=1).min() > 1e-3
    assert absent[0, own].any() and not absent[1, own].any()


def test_the_first_step_of_the_body_is_that_of_shared_policies(key):
    """Adapters that begin at 0 change nothing yet; body and adapters are clipped apart."""
    learner = adapted("joint", optimizer="sgd", max_grad_norm=0.01)
    bound, shared = tiny_team("voting", "shared", n=2, decoder={"value_head": True})

    @jax.jit
    def run(key):
        state, rows = rows_of(learner, key)
        plain = learner.replace(team=shared, body="own")
        own = own_mask(state.params)
        base = jax.tree.map(lambda leaf: leaf[:1], without_adapters(state.params))
        alone = plain.init(key, base)
        return (
            steps_of(learner, state, rows, key, 10.0) - flat_policies(state.params),
            steps_of(plain, alone, rows, key, 10.0) - flat_policies(alone.params),
            own,
            own_mask(base),
        )

    moved, moved_alone, own, own_alone = jax.tree.map(np.asarray, run(key))
    np.testing.assert_allclose(moved[0, ~own], moved_alone[0, ~own_alone], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(moved[:, own], axis=1), 0.1, rtol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(moved[:, ~own], axis=1), 0.1, rtol=1e-3)


def without_adapters(params):
    return {
        name: without_adapters(part) if isinstance(part, dict) else part
        for name, part in params.items()
        if "lora" not in name
    }


def test_what_the_base_lacks_is_added(key):
    learner = adapted("joint")
    bound, one = tiny_team("voting", "shared", n=2)
    base = jax.jit(one.init)(key)
    base = learner.team.replicate(one.params_of(base, "generator"))
    state, free = jax.jit(lambda key, base: (learner.init(key, base), learner.init(key)))(key, base)
    assert without_adapters(state.params).keys() - base.keys() == {"value_output"}
    query = state.params["layers_0"]["query_projection"]
    assert query["lora_a"].shape == (2, 16, RANK) and (query["lora_a"][0] != query["lora_a"][1]).all()
    assert query["lora_b"].shape == (2, RANK, 16) and not query["lora_b"].any()
    np.testing.assert_array_equal(query["kernel"], base["layers_0"]["query_projection"]["kernel"])
    own, flat = own_mask(free.params), np.asarray(flat_policies(free.params))
    np.testing.assert_array_equal(flat[0, ~own], flat[1, ~own])
    assert own.sum() == flat.shape[1] - sum(leaf[0].size for leaf in jax.tree.leaves(base))
    # The state of one update is that of the next.
    after, _ = jax.eval_shape(learner.update, state)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
