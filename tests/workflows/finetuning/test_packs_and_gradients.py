"""Packed completions have the scores and gradients of each completion by itself."""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.finetuning.toy_play import random_trainer

from jaxmarl_llm.algorithms.policy_gradient.update import flatten
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, Score, join_adapters, score
from jaxmarl_llm.llm.config import LORA_TARGETS
from jaxmarl_llm.workflows.finetuning.gradients import Lessons, message_losses
from jaxmarl_llm.workflows.finetuning.model import AdaptedModel, adapt
from jaxmarl_llm.workflows.finetuning.optimise import optimise, pack_roles, role_gradients
from jaxmarl_llm.workflows.finetuning.replay import Example, with_examples
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.finetuning.steps import plan
from jaxmarl_llm.workflows.loss import LossWeights


@pytest.fixture(scope="module")
def isolated():
    """A trainer of two policies that has learned something, so that neither matrix of its adapters is 0."""
    return with_random_adapters(
        random_trainer(
            reads=True,
            trust_region="grpo",
            sharing="isolated",
            trained_layers=1,
            pack_tokens=512,
            lora_targets=LORA_TARGETS,
        )
    )


def with_random_adapters(trainer, seed=5):
    state = init_state(trainer.config, trainer.model)
    leaves, tree = jax.tree.flatten(state.adapters)
    random = np.random.default_rng(seed)
    drawn = [jnp.asarray(0.3 * random.normal(size=leaf.shape), jnp.float32) for leaf in leaves]
    return trainer, dataclasses.replace(state, adapters=tree.unflatten(drawn))


def played(trainer, state, seed=1):
    episodes = trainer.play(state, trainer.bound.task.train[:3], jax.random.key(seed))
    return episodes, trainer.assess(state, episodes)


def naive_rows(samples, which):
    """One row a completion, for `llm.score`."""
    longest = max(len(samples[number].prompt) for number in which)
    prompt = np.zeros((len(which), longest), np.int32)
    completion, mask = np.zeros((len(which), 2), np.int32), np.zeros((len(which), 2), bool)
    for row, number in enumerate(which):
        sample = samples[number]
        prompt[row, : len(sample.prompt)] = sample.prompt
        completion[row, : len(sample.completion)], mask[row, : len(sample.completion)] = sample.completion, True
    length = np.asarray([len(samples[number].prompt) for number in which], np.int32)
    return tuple(map(jnp.asarray, (prompt, length, completion, mask)))


def naive_score(trainer, adapters, samples, which, **settings):
    model = trainer.model
    params = join_adapters(model.body, model.whole(adapters))
    policy = jnp.asarray([samples[number].policy for number in which], jnp.int32)
    return score(Decoder(model.config), params, *naive_rows(samples, which), adapter=policy, **settings)


def test_packed_scores_are_those_of_each_row(isolated):
    trainer, state = isolated
    _, batch = played(trainer, state)
    for policy in range(2):
        which = trainer.samples_of(batch.samples, policy)
        packs = trainer.pack(batch.samples, which)
        # Fifteen completions of three prompts of the solver are three rows.
        assert policy or sum((packed.index >= 0).any(1).sum() for packed in packs) == 3
        found, _ = trainer.score(state.policy(policy), packs, len(batch.samples))
        naive = jax.jit(functools.partial(naive_score, trainer, samples=batch.samples, which=which))
        expected = np.asarray(naive(state.adapters).log_prob)
        for row, number in enumerate(which):
            np.testing.assert_allclose(found[number], expected[row, : len(found[number])], atol=1e-5)


@pytest.mark.wide
@pytest.mark.parametrize("cut", [{"top_p": 0.7}, {"top_k": 3}])
def test_packed_scores_are_those_of_what_was_drawn_from(cut, isolated):
    trainer, state = isolated
    trainer = dataclasses.replace(trainer, config=dataclasses.replace(trainer.config, temperature=0.8, **cut))
    samples = trainer.play(state, trainer.bound.task.train[:1], jax.random.key(1)).samples
    which = trainer.samples_of(samples, 0)
    found, _ = trainer.score(state.policy(0), trainer.pack(samples, which), len(samples))
    expected = np.asarray(naive_score(trainer, state.adapters, samples, which, temperature=0.8, **cut).log_prob)
    assert expected.min() < -1e30
    for row, number in enumerate(which):
        np.testing.assert_allclose(found[number], expected[row, : len(found[number])], atol=1e-5)


def test_packs_that_no_memory_holds_are_refused(isolated):
    with pytest.raises(UserError, match=r"a gradient over 1000000 completions .* takes about .* GB"):
        isolated[0].model.check_fits(10**5, 16, 10, 16)


def test_what_is_kept_of_all_packs_counts(isolated, monkeypatch):
    trainer, state = isolated
    samples = trainer.play(state, trainer.bound.task.train[:3], jax.random.key(1)).samples
    asked = []
    monkeypatch.setattr(AdaptedModel, "check_fits", lambda *sizes, trunks, **settings: asked.append(trunks))
    packs = pack_roles(trainer, types.SimpleNamespace(samples=samples), range(len(samples)))
    sizes = [sum(packed.trunk.nbytes for packed in of_role) for of_role in packs.values()]
    # Each role's packs beside those of the roles before it.
    expected = [total for total, of_role in zip(np.cumsum(sizes), packs.values(), strict=True) for _ in of_role]
    assert asked == expected and sizes[0] > 0
    everywhere = dataclasses.replace(trainer.model, trained_layers=trainer.model.config.num_layers)
    (packed, *_) = dataclasses.replace(trainer, model=everywhere).pack(samples, range(3), packs[trainer.roles[0]])
    assert packed.trunk is None and asked[-1] == sizes[0]


def test_samplers_of_one_run_share_the_copy_of_its_body(isolated):
    trainer, state = isolated
    adapters = jax.tree.map(lambda leaf: leaf + 1, state.adapters)
    first, second = (trainer.sampler(one, (0, 0)) for one in (state.adapters, adapters))
    copies = []
    for sampler in (first, second):
        sampler.sample([[1, 2, 3], [4, 5]], [0, 1], jax.random.key(0), max_new_tokens=2)
        copies.append(sampler.unstacked.of(sampler.team.decoder, sampler.body, 2)[1])
    assert copies[0] is copies[1]


@pytest.mark.wide
def test_gradients_are_those_of_the_whole_decoder(isolated):
    trainer, state = isolated
    _, batch = played(trainer, state)
    everything = range(len(batch.samples))
    packs = pack_roles(trainer, batch, everything)
    found, sums = role_gradients(trainer, state.adapters, batch, packs, np.zeros(2), 0.0)
    which = list(everything)
    advantage = jnp.asarray([float(batch.advantage[number][0]) for number in which])
    _, _, _, mask = naive_rows(batch.samples, which)
    old = np.full(mask.shape, -2.0, np.float32)

    def loss(adapters):
        log_prob = naive_score(trainer, adapters, batch.samples, which).log_prob
        ratio = jnp.exp(log_prob - old)
        clipped = jnp.clip(ratio, 0.8, 1.28)
        part = -jnp.minimum(ratio * advantage[:, None], clipped * advantage[:, None])
        return jnp.sum(jnp.sum(jnp.where(mask, part, 0.0), 1) / mask.sum(1))

    value, gradient = jax.jit(jax.value_and_grad(loss))(state.adapters)
    expected = np.asarray(jax.jit(flatten)(gradient))
    # What a role learns is its own policy's gradient, and no other's.
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(sums["loss"].sum(), value, rtol=1e-4, atol=1e-5)


def test_a_shared_policy_takes_the_sum_of_its_roles(isolated):
    trainer, state = isolated
    trainer = dataclasses.replace(trainer, policy_of_role=(0, 0))
    _, batch = played(trainer, state)
    packs = pack_roles(trainer, batch, range(len(batch.samples)))
    by_role, _ = role_gradients(trainer, state.adapters, batch, packs, np.zeros(1), 0.0)
    together = {trainer.roles[0]: trainer.pack(batch.samples, range(len(batch.samples))), trainer.roles[1]: []}
    joint, _ = role_gradients(trainer, state.adapters, batch, together, np.zeros(1), 0.0)
    assert np.abs(by_role[1]).max() > 0
    np.testing.assert_allclose(by_role.sum(0), joint[0], atol=1e-5 * np.abs(joint[0]).max())


def test_a_policy_without_samples_stays_bit_by_bit(isolated):
    trainer, state = isolated
    _, batch = played(trainer, state)
    which = [number for number, sample in enumerate(batch.samples) if sample.policy == 1]
    adapters, optimizer_state, _ = optimise(
        trainer, state.adapters, state.optimizer_state, batch, [(which, which)], np.zeros(2), 0.01, 0.0, epochs=1
    )
    before = (state.adapters, state.optimizer_state)
    moved = []
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves((adapters, optimizer_state)), strict=True):
        np.testing.assert_array_equal(old[0], new[0])
        moved.append(bool(np.any(old[1] != new[1])))
    assert all(moved)


def test_completions_without_an_advantage_are_left_out_and_change_nothing(isolated, key):
    trainer, state = isolated
    _, batch = played(trainer, state)
    [(count, seen)] = plan(trainer, batch, key, 0.0)
    assert len(count) == len(batch.samples) > len(seen) > 0
    packs = [pack_roles(trainer, batch, which) for which in (count, seen)]
    whole, part = (role_gradients(trainer, state.adapters, batch, one, np.zeros(2), 0.0)[0] for one in packs)
    np.testing.assert_allclose(whole, part, atol=3e-5 * np.abs(whole).max())
    # An entropy bonus is for all.
    assert len(plan(trainer, batch, key, 0.1)[0][1]) == len(batch.samples)


def test_minibatches_share_the_problems_out(isolated, key):
    trainer, state = isolated
    _, batch = played(trainer, state)
    config = dataclasses.replace(trainer.config, minibatches=2)
    parts = [count for count, _ in plan(dataclasses.replace(trainer, config=config), batch, key, 0.0)]
    problems = [{batch.samples[number].problem for number in part} for part in parts]
    assert sorted(number for part in parts for number in part) == list(range(len(batch.samples)))
    assert not problems[0] & problems[1]


def test_layers_are_refused_that_the_model_has_not(isolated):
    model = isolated[0].model
    settings = {"rank": 2, "alpha": 4.0, "targets": ("query",)}
    plain = dataclasses.replace(model.config, lora_rank=0, num_adapters=0)
    with pytest.raises(UserError, match="at most the 2 layers"):
        adapt(plain, model.body, 1, trained_layers=3, **settings)
    with pytest.raises(UserError, match="scan_layers=True"):
        adapt(dataclasses.replace(plain, scan_layers=False), model.body, 1, **settings)


def test_imitated_messages_are_scored_among_all_tokens(isolated):
    trainer, state = isolated
    _, batch = played(trainer, state)
    number = next(number for number, sample in enumerate(batch.samples) if len(sample.completion) > 1)
    drawn = batch.samples[number]
    limited = dataclasses.replace(trainer, config=dataclasses.replace(trainer.config, top_k=1))
    likeliest = naive_score(trainer, state.adapters, batch.samples, [number], top_k=1).log_prob
    assert float(jnp.min(likeliest)) < -1e30, "the message has to hold a token that top_k=1 leaves out"
    example = Example(drawn.role, drawn.prompt, drawn.completion)
    rows = [role_gradient_of(one, state, with_examples(None, [example], 1.0)) for one in (trainer, limited)]
    assert np.abs(rows[0][0]).max() > 0
    np.testing.assert_array_equal(rows[0][0], rows[1][0])
    np.testing.assert_array_equal(rows[0][1]["imitation_loss"], rows[1][1]["imitation_loss"])
    # Beside what was drawn, which keeps the distribution that it was drawn from.
    joint = with_examples(batch, [example], 1.0)
    together, alone = (role_gradient_of(limited, state, one) for one in (joint, batch))
    expected = rows[0][0] + alone[0]
    np.testing.assert_allclose(together[0], expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(together[1]["imitation_loss"], rows[0][1]["imitation_loss"])


def role_gradient_of(trainer, state, batch):
    packs = pack_roles(trainer, batch, range(len(batch.samples)))
    found, sums = role_gradients(trainer, state.adapters, batch, packs, np.zeros(2), 0.0)
    return np.asarray(found), sums


def test_tokens_that_an_update_makes_impossible_leave_losses_and_gradients_finite():
    # Of two completions of two tokens, the first has become impossible altogether, the second in part.
    lowest = np.finfo(np.float32).min
    mask = jnp.ones((1, 2, 2), bool)
    log_prob = jnp.asarray([[[lowest, lowest], [-1.0, lowest]]])
    old = jnp.full(mask.shape, -2.0)
    lessons = Lessons(old, old, jnp.asarray([[[1.0, 1.0], [-1.0, -1.0]]]), jnp.ones((1, 2)), jnp.zeros((1, 2)))

    @functools.partial(jax.jit, static_argnames="ratio")
    def found(log_prob, ratio):
        def total(log_prob):
            scored = Score(log_prob, jnp.zeros(mask.shape), None)
            parts = message_losses(scored, mask, lessons, LossWeights(), 0.5, ratio)
            return jnp.sum(parts["loss"]), parts

        return jax.grad(total, has_aux=True)(log_prob)

    for ratio in ("token", "message"):
        gradient, parts = found(log_prob, ratio)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((gradient, parts)))
        assert np.all(np.asarray(gradient)[np.asarray(log_prob) == lowest] == 0)
        # The acting policy's divergence counts as that of tokens 20 nats less likely, the base's has no part there.
        np.testing.assert_allclose(parts["message_kl"], [[38.0, 19.0 + np.e - 2]], rtol=1e-5)
        np.testing.assert_allclose(parts["base_kl"], [[0.0, np.exp(-1.0) / 2]], rtol=1e-5)
    np.testing.assert_allclose(found(log_prob, "token")[1]["policy_loss"], [[0.0, (np.e + 0.8) / 2]], rtol=1e-5)


def test_the_value_loss_is_part_of_the_loss():
    mask = jnp.array([[[True, True, False]]])
    zero = jnp.zeros(mask.shape)
    old, target = jnp.array([[[0.0, 1.0, 7.0]]]), jnp.array([[[1.0, 1.0, 7.0]]])
    lessons = Lessons(zero, zero, zero, jnp.ones((1, 1)), jnp.zeros((1, 1)), value=old, target=target)
    weights = LossWeights(value=0.5, value_clip=0.2)
    parts = message_losses(Score(zero, zero, jnp.array([[[0.5, 3.0, 0.0]]])), mask, lessons, weights, 0.0, "token")
    # The first value has gone beyond the clip, which counts as the worse 0.2; the second is off by 2.
    expected = (0.5 * 0.8**2 + 0.5 * 2.0**2) / 2
    np.testing.assert_allclose(parts["value_loss"], [[expected]], rtol=1e-6)
    np.testing.assert_allclose(parts["loss"], [[0.5 * expected]], rtol=1e-6)
    with pytest.raises(ValueError, match="a target of the critic and no value"):
        message_losses(Score(zero, zero, None), mask, lessons, weights, 0.0, "token")


def test_an_unlikely_imitated_token_does_not_overflow():
    mask = jnp.ones((1, 1, 1), bool)
    zero = jnp.zeros(mask.shape)
    lessons = Lessons(zero, zero, zero, jnp.zeros((1, 1)), jnp.ones((1, 1)))

    def total(log_prob):
        return jnp.sum(
            message_losses(Score(log_prob, zero, None), mask, lessons, LossWeights(), 0.0, "token")["loss"] * 0.0
        )

    value, gradient = jax.jit(jax.value_and_grad(total))(jnp.full(mask.shape, -200.0))
    assert value == 0 and np.all(gradient == 0)
