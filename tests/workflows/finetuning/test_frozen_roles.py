"""Roles that the base model plays throughout: never updated, and no gradient of theirs is computed."""

import jax
import numpy as np
import pytest
from workflows.finetuning.toy_play import random_trainer

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import make_workflow, sharing
from jaxmarl_llm.workflows.finetuning import optimise, team_tr
from jaxmarl_llm.workflows.finetuning.imitation import imitate, transcript_examples
from jaxmarl_llm.workflows.finetuning.monitors import named
from jaxmarl_llm.workflows.finetuning.run import iterate
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.policies import frozen_policies
from jaxmarl_llm.workflows.text import EpisodeRecord, StepRecord

TABLE = {"solver": "frozen", "finisher": "learner"}


@pytest.fixture
def learned_roles(monkeypatch):
    """Roles whose samples have come to a gradient."""
    found = []
    pack_roles = optimise.pack_roles

    def spy(trainer, batch, which, beside):
        which = list(which)
        found.extend(batch.samples[number].role for number in which)
        packs = pack_roles(trainer, batch, which, beside)
        assert not packs["solver"]
        return packs

    monkeypatch.setattr(optimise, "pack_roles", spy)
    return found


def moved(before, after):
    """`[P]` bool, policies of which any bit has changed."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return np.any([np.any(np.asarray(a != b).reshape(len(a), -1), axis=1) for a, b in pairs], axis=0).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"trust_region": "teamtr", "radius": 1.0, "order": "random"},
        pytest.param(
            {"trust_region": "ppo", "replay_weight": 0.1, "replay_capacity": 50, "replay_messages": 5},
            marks=pytest.mark.slow,
        ),
        {"trust_region": "grpo", "epochs": 2},
    ],
    ids=lambda settings: settings["trust_region"],
)
@pytest.mark.wide
def test_frozen_roles_stay_bit_by_bit(settings, learned_roles, monkeypatch):
    trainer = random_trainer(sharing=TABLE, trained_layers=1, num_problems=4, group_size=8, **settings)
    assert trainer.policy_of_role == (1, 0) and trainer.learning == (0,) and trainer.learning_roles == ("finisher",)
    gated = []
    search = team_tr.line_search
    monkeypatch.setattr(team_tr, "line_search", lambda *args: gated.append(1) or search(*args))
    state, memory = init_state(trainer.config, trainer.model), []
    for _ in range(2):
        done = iterate(trainer, state, memory)
        assert moved(state.adapters, done.state.adapters) == [True, False]
        assert moved(state.optimizer_state, done.state.optimizer_state) == [True, False]
        state, memory = done.state, done.memory
        shown = named(done.metrics, trainer.roles)
        assert np.isfinite(list(shown.values())).all()
        # What a role that learns nothing would have learned is not measured.
        assert "entropy/finisher" in shown
        for name in ("entropy", "loss", "gradient_share", "clip_fraction", "rollout_kl"):
            assert f"{name}/solver" not in shown
        # With one step an update nothing has moved when it is taken.
        steps = trainer.config.epochs * trainer.config.minibatches
        assert trainer.config.is_sequential or ("message_kl/finisher" in shown) == (steps > 1)
        assert "gradient_cosine/solver/finisher" not in shown and "policy_divergence/1" not in shown
    assert state.version_vector == (2, 0) and {*learned_roles} == {"finisher"}
    assert len(gated) == (2 if trainer.config.is_sequential else 0)
    assert {example.role for example in memory} <= {"finisher"}
    assert done.metrics["gradient_norm"][0] == 0 < done.metrics["gradient_norm"][1]
    if trainer.config.is_sequential:
        assert done.metrics["accepted"] == done.metrics["fresh"] == 1


def test_frozen_roles_imitate_nothing(learned_roles):
    trainer = random_trainer(sharing=TABLE, trained_layers=1)
    question = ({"role": "user", "content": "1#"},)
    record = EpisodeRecord(tuple(StepRecord(role, question, "2") for role in ("solver", "finisher")))
    examples = transcript_examples(trainer, [record])
    assert [example.role for example in examples] == ["finisher"]
    state = init_state(trainer.config, trainer.model)
    after, _ = imitate(trainer, state, examples, 1, messages=3)
    assert moved(state.adapters, after.adapters) == [True, False] and {*learned_roles} == {"finisher"}
    with pytest.raises(UserError, match="no message to learn"):
        transcript_examples(trainer, [EpisodeRecord(record.steps[:1])])


def test_the_table_gives_frozen_roles_the_last_policy():
    workflow = make_workflow("orch_workers")
    table = {"orchestrator": "frozen", "worker": 0, "synthesizer": 1}
    assert sharing(workflow, table) == (2, 0, 1) and frozen_policies(workflow, table) == (2,)
    table = {"orchestrator": "frozen", "worker": "frozen", "synthesizer": "mine"}
    assert sharing(workflow, table) == (1, 1, 0) and frozen_policies(workflow, table) == (1,)
    assert (
        frozen_policies(workflow, "isolated")
        == frozen_policies(workflow, {**table, "orchestrator": "a", "worker": "b"})
        == ()
    )
    with pytest.raises(UserError, match="all roles of workflow 'orch_workers' are frozen: leave one that learns"):
        sharing(workflow, dict.fromkeys(workflow.roles, "frozen"))
    with pytest.raises(UserError, match="without a gap"):
        sharing(workflow, {**table, "synthesizer": 1})
