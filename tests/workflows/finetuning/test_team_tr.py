"""TeamTR: the gate holds, what is refused leaves no trace, and every sample is as fresh as its mode says."""

import dataclasses
import types
from typing import Any

import jax
import numpy as np
import pytest
from workflows.finetuning.toy_finetuning import toy_trainer
from workflows.finetuning.toy_play import random_trainer

from jaxmarl_llm.algorithms.trust_region import occupancy_drift_bound
from jaxmarl_llm.cli.finetune_display import progress_text
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import make_workflow
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.monitors import episode_log_ratio, message_divergence, named
from jaxmarl_llm.workflows.finetuning.run import iterate
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.finetuning.steps import next_penalty
from jaxmarl_llm.workflows.finetuning.team_tr import line_search


def stages(number, **settings):
    """States and metrics of stages, the first state before all."""
    trainer = random_trainer(**settings)
    state, found = init_state(trainer.config, trainer.model), []
    for _ in range(number):
        done = iterate(trainer, state)
        found.append((state, done.state, done.metrics))
        state = done.state
    return trainer, found


def same(first, second):
    return all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (first, second)), strict=True))


def test_the_gate_holds_and_its_steps_are_cut():
    _, found = stages(6, sharing="isolated", radius=0.004)
    divergence = np.asarray([metrics["policy_divergence"] for *_, metrics in found])
    positive = np.asarray([metrics["policy_divergence_k3"] for *_, metrics in found])
    fraction = np.asarray([metrics["policy_fraction"] for *_, metrics in found])
    assert divergence.max() <= 0.004 and positive.min() >= 0 and 0 < positive.max() <= 0.004
    assert fraction.max() > 0 and (fraction < 1).any()
    for (_, state, metrics), cut in zip(found, fraction, strict=True):
        assert metrics["fresh"] == 1.0
        radii = np.where(cut > 0, 0.004, 0.0)
        assert metrics["drift_bound"] == pytest.approx(float(occupancy_drift_bound(radii, discount=0.9)))
        assert metrics["sum_sqrt_radius"] == pytest.approx(np.sqrt(radii).sum())
        assert int(state.episodes) % 15 == 0
    assert found[-1][1].version_vector == tuple((fraction > 0).sum(0))


def test_refused_steps_leave_no_trace():
    _, found = stages(2, sharing="isolated", radius=1e-12, line_search=2)
    moved = [metrics for *_, metrics in found if np.nanmax(metrics["policy_tried_divergence"]) > 0]
    assert moved
    for before, after, metrics in found:
        assert metrics["accepted"] == 0.0 and np.nanmax(metrics["policy_divergence"]) == 0.0
        assert same((before.adapters, before.optimizer_state), (after.adapters, after.optimizer_state))
        assert after.version_vector == (0, 0)


def test_where_there_is_nothing_to_learn_no_step_is_counted(monkeypatch):
    trainer = random_trainer(sharing="isolated", reward="own")
    play = type(trainer).play

    def alike(self, state, problems, key):
        """The solver's messages are worth the same, the finisher's are not."""
        episodes = play(self, state, problems, key)
        samples = [
            dataclasses.replace(sample, own_score=float(sample.role == "solver" or sample.episode % 2))
            for sample in episodes.samples
        ]
        return dataclasses.replace(episodes, samples=samples)

    monkeypatch.setattr(type(trainer), "play", alike)
    done = iterate(trainer, init_state(trainer.config, trainer.model))
    shown = named(done.metrics, trainer.roles)
    assert shown["accepted"] in (0.0, 1.0) and "policy_accepted/1" in shown
    for name in ("policy_accepted/0", "policy_divergence/0", "policy_fraction/0", "entropy/solver", "base_kl/finisher"):
        assert name not in shown
    assert shown["learned_messages/solver"] == shown["gradient_norm/solver"] == 0.0 < shown["gradient_norm/finisher"]
    text = progress_text(trainer.config, 1, shown | {"tokens_per_s": 1.0})
    assert f"{100 * shown['accepted']:.0f} % accepted" in text
    shown.pop("accepted")
    assert "no step: nothing to learn" in progress_text(trainer.config, 1, shown | {"tokens_per_s": 1.0})


def test_a_step_that_is_no_number_is_refused(key):
    trainer = random_trainer(sharing="isolated")
    state = init_state(trainer.config, trainer.model)
    batch = trainer.assess(state, trainer.play(state, trainer.bound.task.train[:2], key))
    own = trainer.samples_of(batch.samples, 0)
    old_log_prob = [one if number in own else None for number, one in enumerate(batch.old_log_prob)]
    old = state.policy(0)
    new = jax.tree.map(lambda leaf: leaf * np.nan, old)
    gate = line_search(trainer, old, new, trainer.pack(batch.samples, own), old_log_prob, 1.0)
    assert gate.adapter is old and gate.fraction == 0.0 and not any(one is not None for one in gate.log_prob)


@pytest.mark.parametrize(
    ("resample", "fresh", "plays"),
    [("every", True, 2), ("every_k", False, 1), ("never", False, 1), ("importance", False, 1)],
)
def test_samples_are_as_fresh_as_the_mode_says(resample, fresh, plays):
    _, [(_, state, metrics)] = stages(1, sharing="isolated", resample=resample, radius=5.0)
    assert metrics["policy_accepted"][0] == 1.0
    np.testing.assert_array_equal(metrics["policy_fresh"], [1.0, fresh])
    assert int(state.episodes) == 15 * plays
    share = metrics["policy_effective_samples"]
    assert share[0] == pytest.approx(1.0) and (share[1] < 1.0) == (resample == "importance")
    # What the first policy's update moved is known before the second's.
    assert metrics["policy_drift"][0] == 0.0 < metrics["policy_drift"][1]


def test_one_policy_for_all_roles_is_one_update():
    _, [(before, after, metrics)] = stages(1, sharing="shared", radius=5.0)
    assert after.version_vector == (1,) and metrics["policy_fraction"].shape == (1,)
    assert int(after.episodes) == 15 and not same(before.adapters, after.adapters)
    shown = named(metrics, ("solver", "finisher"))
    assert np.isfinite(list(shown.values())).all() and "base_kl/solver" not in shown and "entropy/solver" in shown


def test_a_random_order_changes_from_stage_to_stage():
    # The second in the order meets a drift.
    _, found = stages(4, sharing="isolated", order="random", radius=5.0)
    assert len({int(np.argmax(metrics["policy_drift"])) for *_, metrics in found}) == 2


def test_the_penalty_follows_the_divergence():
    _, found = stages(3, sharing="isolated", radius=1e-5, kl_coefficient=0.5)
    coefficient = np.asarray([metrics["policy_kl_coefficient"] for *_, metrics in found])
    assert coefficient[-1].max() > 0.5


def test_the_anchor_follows_what_each_policy_wrote():
    config = types.SimpleNamespace(kl_target=1.0)
    trainer: Any = types.SimpleNamespace(policy_of_role=(0, 0, 1, 2), num_policies=3, config=config)
    # The second role of policy 0 wrote nothing, and policy 2 neither.
    found = next_penalty(trainer, np.ones(3), np.asarray([1.2, 0.0, 5.0, 0.0]), np.asarray([4.0, 0.0, 3.0, 0.0]))
    np.testing.assert_array_equal(found, [1.0, 2.0, 1.0])


def test_divergences_against_sums_by_hand():
    old = [np.asarray([-1.0, -2.0]), None, np.asarray([-0.5])]
    new = [np.asarray([-1.5, -1.0]), None, np.asarray([-0.25])]
    ratio = np.asarray([-0.5, 1.0, 0.25])
    expected = (-ratio.sum() / 2, (np.expm1(ratio) - ratio).sum() / 2)
    np.testing.assert_allclose(message_divergence(old, new), expected, rtol=1e-6)
    assert message_divergence([None], [None]) == (0.0, 0.0)
    assert message_divergence(old[:1], [np.asarray([-1.0, np.finfo(np.float32).min])]) == (np.inf, np.inf)
    samples = [dataclasses.make_dataclass("Sample", ["episode"])(episode) for episode in (1, 0, 1)]
    np.testing.assert_allclose(episode_log_ratio(samples, old, new, 2), [0.0, 0.75])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"trust_region": "trpo"}, "did you mean grpo or ppo"),
        ({"radius": 0.0}, "radius must be above 0"),
        ({"group_size": 1}, "set group_size to at least 2"),
        ({"replay_weight": 1.0, "replay_capacity": 4}, "trust_region to grpo"),
        ({"replay_weight": 1.0, "trust_region": "grpo"}, "set replay_capacity"),
        ({"warm_start": "x.jsonl"}, "warm_start_updates"),
        ({"lora_targets": ("queries",)}, "unknown target of an adapter"),
        ({"lora_targets": ()}, "at least one"),
        ({"lora_targets": None}, "lora_targets must be a tuple"),
        ({"workflow_args": 3}, "workflow_args must be"),
        ({"sharing": 3}, "sharing must be"),
        ({"require_end": "no"}, "require_end must be True or False"),
        ({"discount": 1.0}, "below 1"),
        ({"minibatches": 99}, "at most num_problems"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 0.9, "dtype": "bfloat16"}, "set dtype to float32"),
        ({"entropy_coefficient": -1.0}, "entropy_coefficient must be finite and at least 0"),
        ({"num_problems": 10**9}, "too many for an iteration: 8000000000 messages"),
        ({"group_size": 10**9}, "too many for an iteration"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        FinetuneConfig(**settings).check()


@pytest.mark.parametrize(
    "name", [field.name for field in dataclasses.fields(FinetuneConfig) if isinstance(field.default, float)]
)
def test_every_number_is_judged(name):
    for wrong in (float("inf"), float("nan"), -1.0, 1e39, "much", True):
        with pytest.raises(UserError, match=rf"^{name} must"):
            FinetuneConfig(**{name: wrong}).check()


def test_what_does_not_fit_the_model_or_the_workflow_is_refused():
    with pytest.raises(UserError, match="lora_rank must be at most 16, the width of the model"):
        toy_trainer(lora_rank=17)
    with pytest.raises(UserError, match="10000002 messages"):
        toy_trainer(num_problems=1, group_size=5_000_001)
    for settings in ({"rounds": 10**9}, {"rounds": 10_001}):
        with pytest.raises(UserError, match="rounds of a loop must be at most 10000"):
            make_workflow("eval_opt", **settings)
    with pytest.raises(UserError, match=r"copies of call .* must be at most 10000"):
        make_workflow("voting", n=10**9)
