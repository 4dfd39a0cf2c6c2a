"""Runs: their folder, resuming, replay, warm starts; and the best that can be reached is reached."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from toy_processes import kill_when_trained
from workflows.finetuning.toy_finetuning import toy_trainer
from workflows.finetuning.toy_play import random_trainer

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig, load_finetune_config
from jaxmarl_llm.workflows.finetuning.imitation import imitate, transcript_examples
from jaxmarl_llm.workflows.finetuning.replay import Example, draw, remember
from jaxmarl_llm.workflows.finetuning.run import Watcher, finetune, iterate, load_finetuned
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.finetuning.swap import swap_agent
from jaxmarl_llm.workflows.text import EpisodeRecord, StepRecord, write_transcripts

REPLAY = {"trust_region": "grpo", "replay_capacity": 7, "replay_weight": 0.5, "replay_messages": 3}


class Stop(Watcher):
    """Ends a run as a kill would: nothing more is written."""

    def __init__(self, iteration):
        self.iteration = iteration

    def advance(self, iteration, metrics):
        if iteration == self.iteration:
            raise KeyboardInterrupt


def run(folder, trainer, **settings):
    return finetune(trainer.config, folder, trainer=trainer, **settings)


def stored(state):
    return jax.tree.leaves(checkpoints.to_storage(state))


@pytest.mark.parametrize(
    "settings", [pytest.param({"sharing": "isolated", "radius": 0.1}, marks=pytest.mark.wide), REPLAY]
)
@pytest.mark.wide
def test_a_run_that_was_killed_goes_on_bit_by_bit(settings, tmp_path):
    trainer = random_trainer(iterations=3, **settings)
    whole = run(tmp_path / "whole", trainer)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", trainer, watcher=Stop(2))
    assert checkpoints.updates(tmp_path / "cut" / "checkpoints") == [0, 1]
    cut = run(tmp_path / "cut", trainer, resume=True)
    for one, other in zip(stored(whole.state), stored(cut.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert whole.evaluations == cut.evaluations
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (whole.folder, cut.folder)
    ]
    untimed = [
        [
            {name: value for name, value in line.items() if "second" not in name and name != "tokens_per_s"}
            for line in of
        ]
        for of in lines
    ]
    assert untimed[0] == untimed[1]
    assert [line["update"] for line in lines[0] if line["kind"] == "train"] == [1, 2, 3]
    assert load_finetune_config(whole.folder / "config.yaml") == trainer.config
    summary = json.loads((whole.folder / "summary.json").read_text())
    assert summary["iterations"] == 3 and summary["base"]["accuracy"] == 0.0
    _, best = load_finetuned(whole.folder, "best", trainer)
    assert int(best.iteration) == summary["best"]["iteration"] > 0


def test_a_folder_of_another_run_is_left_alone(tmp_path):
    trainer = random_trainer(iterations=1, trust_region="grpo")
    run(tmp_path, trainer)
    with pytest.raises(UserError, match="resume it"):
        run(tmp_path, trainer)
    other = dataclasses.replace(trainer, config=dataclasses.replace(trainer.config, learning_rate=0.5))
    with pytest.raises(UserError, match=r"learning_rate: 0\.02 -> 0\.5"):
        run(tmp_path, other, resume=True)


def changed(trainer, **settings):
    return dataclasses.replace(trainer, config=dataclasses.replace(trainer.config, **settings))


@pytest.mark.wide
def test_a_run_that_is_made_longer_equals_a_long_one(tmp_path):
    trainer = random_trainer(iterations=3, trust_region="grpo")
    whole = run(tmp_path / "whole", trainer)
    run(tmp_path / "longer", changed(trainer, iterations=1))
    longer = run(tmp_path / "longer", trainer, resume=True)
    for one, other in zip(stored(whole.state), stored(longer.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert load_finetune_config(tmp_path / "longer" / "config.yaml").iterations == 3
    with pytest.raises(UserError, match="has done 3 iterations already"):
        run(tmp_path / "longer", changed(trainer, iterations=2), resume=True)
    assert load_finetune_config(tmp_path / "longer" / "config.yaml").iterations == 3


def test_few_held_out_problems_and_checkpoints_of_earlier_versions(tmp_path, monkeypatch):
    trainer = random_trainer(iterations=2, trust_region="grpo", evaluation_problems=9)
    save, notes, started = checkpoints.save, [], []

    def earlier(folder, iteration, state, progress, *rest):
        kept = {name: value for name, value in progress.items() if name not in ("details", "times")}
        return save(folder, iteration, state, kept, *rest)

    class Listen(Watcher):
        def start(self, config, iteration, held_out=0):
            started.append(held_out)

        def note(self, text):
            notes.append(text)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "save", earlier)
        run(tmp_path, changed(trainer, iterations=1), watcher=Listen())
    assert started == [4] and notes == ["held-out problems: the task has 4, fewer than evaluation_problems=9"]
    summary = run(tmp_path, trainer, resume=True).summary
    assert "problems" not in summary["base"] and summary["final"]["problems"] == 4
    assert set(summary["final"]["format_rate"]) == {"solver", "finisher"} and summary["evaluation_seconds"] >= 0


def test_a_run_with_a_schedule_keeps_its_length(tmp_path):
    trainer = random_trainer(iterations=1, trust_region="grpo", learning_rate_schedule="linear")
    run(tmp_path, trainer)
    with pytest.raises(UserError, match=r"a schedule over its iterations \(iterations: 1 -> 2\)"):
        run(tmp_path, changed(trainer, iterations=2), resume=True)


def test_configurations_are_read_back_and_wrong_ones_named(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("learning_rate: 1e-3\nsharing: {solver: 0, finisher: 0}\nlora_targets: [query]\nradius: 1\n")
    config = load_finetune_config(path)
    assert config == FinetuneConfig(
        learning_rate=1e-3, sharing={"solver": 0, "finisher": 0}, lora_targets=("query",), radius=1.0
    )
    for text, message in [
        ("radios: 1", "did you mean radius"),
        ("radius: much", "radius must be a number"),
        ("group_size: many", "group_size cannot be 'many'"),
        ("- 1", "field: value"),
        ("a: [", "not valid YAML"),
        ("[" * 2_000, "not valid YAML: it is nested too deeply"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            load_finetune_config(path)
    with pytest.raises(UserError, match="cannot read"):
        load_finetune_config(tmp_path / "none.yaml")


def test_only_what_not_every_episode_solved_is_kept(key):
    trainer = random_trainer(**REPLAY)
    episodes = trainer.play(init_state(trainer.config, trainer.model), trainer.bound.task.train[:3], key)
    outcome = np.asarray([1] * 5 + [1, 0, 0, 0, 0] + [0, 1, 1, 1, 1], np.float32)
    episodes = dataclasses.replace(episodes, outcome=outcome)
    kept = remember([], episodes, 7)
    np.testing.assert_allclose([example.priority for example in kept], [0.8] * 2 + [0.2] * 5, atol=1e-6)
    assert remember(kept, episodes, 7)[:2] != kept[:2]
    random = np.random.default_rng(0)
    drawn = [draw(kept, 3, random) for _ in range(300)]
    assert all(len({id(one) for one in of}) == 3 for of in drawn)
    assert np.mean([kept[0] in of for of in drawn]) > 1.5 * np.mean([kept[6] in of for of in drawn])
    assert draw([], 3, random) == []
    restored = Example.from_json(json.loads(json.dumps(kept[0].to_json())))
    assert restored.role == kept[0].role and restored.priority == kept[0].priority
    np.testing.assert_array_equal(restored.prompt, kept[0].prompt)


def test_transcripts_are_imitated_by_the_policies_that_they_are_of():
    trainer = random_trainer(trust_region="grpo", sharing="isolated")
    state = init_state(trainer.config, trainer.model)
    steps = tuple(
        StepRecord("solver", ({"role": "user", "content": f"{digit}#"},), reply)
        for digit, reply in (("0", "1"), ("1", "2"), ("2", "3"))
    )
    examples = transcript_examples(trainer, [EpisodeRecord(steps)])
    learned, losses = imitate(trainer, state, examples, 25, messages=3)
    assert losses[-1] < 0.2 * losses[0]
    assert learned.version_vector == (1, 0)
    for old, new in zip(jax.tree.leaves(state.adapters), jax.tree.leaves(learned.adapters), strict=True):
        np.testing.assert_array_equal(old[1], new[1])
    with pytest.raises(UserError, match="unknown role"):
        transcript_examples(trainer, [EpisodeRecord((dataclasses.replace(steps[0], role="solvers"),))])


def test_a_run_whose_transcripts_are_refused_leaves_nothing(tmp_path):
    trainer = random_trainer(warm_start=str(tmp_path / "missing.jsonl"), warm_start_updates=1)
    with pytest.raises(UserError, match="cannot read transcripts"):
        run(tmp_path / "run", trainer)
    assert not (tmp_path / "run").exists()


def warm(folder, **settings):
    """A trainer that begins with transcripts."""
    path = folder / "said.jsonl"
    step = StepRecord("solver", ({"role": "user", "content": "0#"},), "1", reward=1.0)
    write_transcripts(path, [EpisodeRecord((step,))])
    return random_trainer(
        iterations=2, trust_region="grpo", sharing="shared", warm_start=str(path), warm_start_updates=1, **settings
    )


def test_the_base_is_evaluated_before_the_warm_start_and_the_imitated_team_after_it(tmp_path):
    trainer = warm(tmp_path)
    whole = run(tmp_path / "whole", trainer)
    # The toy's accuracy is a tenth of the updates of its policies.
    assert [one[:2] for one in whole.evaluations] == [(0, 0.0), (0, 0.1), (2, pytest.approx(0.3))]
    summary = whole.summary
    assert (summary["base"]["accuracy"], summary["imitated"]["accuracy"], summary["best"]["iteration"]) == (0, 0.1, 2)
    lines = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    assert [(line["update"], line["accuracy"]) for line in lines if line["kind"] == "evaluation"][:2] == [
        (0, [0.0]),
        (0, [0.1]),
    ]
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", trainer, watcher=Stop(1))
    cut = run(tmp_path / "cut", trainer, resume=True)
    for one, other in zip(stored(whole.state), stored(cut.state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert whole.evaluations == cut.evaluations and "imitated" in cut.summary


def test_a_warm_start_of_an_earlier_version_has_no_base(tmp_path, monkeypatch):
    trainer, save = warm(tmp_path, evaluate_every=1), checkpoints.save

    def earlier(folder, iteration, state, progress, *rest):
        kept = {name: progress[name][1:] for name in ("curve", "details")}
        return save(folder, iteration, state, progress | kept, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(checkpoints, "save", earlier)
        run(tmp_path / "run", trainer, watcher=Stop(1))
    found = run(tmp_path / "run", trainer, resume=True)
    assert "base" not in found.summary and found.summary["imitated"]["accuracy"] == 0.1
    assert (found.summary["best"]["iteration"], [one[0] for one in found.evaluations]) == (2, [0, 1, 2])
    _, best = load_finetuned(found.folder, "best", trainer)
    assert int(best.iteration) == 2


@pytest.mark.wide
def test_a_critic_learns_beside_its_policy():
    trainer = random_trainer(trust_region="ppo", sharing="isolated", entropy_coefficient=0.01, length_weight=2.0)
    first = state = init_state(trainer.config, trainer.model)
    losses = []
    for _ in range(8):
        # The same episodes every time.
        done = iterate(trainer, dataclasses.replace(state, key=first.key, iteration=first.iteration))
        state = done.state
        losses.append(done.metrics["value_loss"].mean())
    assert losses[-1] < 0.5 * losses[0]


SETTINGS = {
    "grpo": {"trust_region": "grpo", "learning_rate": 0.02},
    "ppo": {"trust_region": "ppo", "learning_rate": 0.02, "epochs": 2},
    "teamtr": {"trust_region": "teamtr", "learning_rate": 0.05, "radius": 0.3},
}


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["shared", "isolated"])
@pytest.mark.parametrize("algorithm", list(SETTINGS))
def test_the_relay_is_learned(algorithm, sharing):
    trainer = toy_trainer(
        sharing=sharing, num_problems=4, group_size=16, pack_tokens=64, reward="own", **SETTINGS[algorithm]
    )
    state = init_state(trainer.config, trainer.model)
    accuracies = [trainer.evaluate(state).accuracy]
    while accuracies[-1] < 1 and int(state.iteration) < 60:
        done = iterate(trainer, state)
        state = done.state
        if algorithm == "teamtr":
            assert max(done.metrics["policy_divergence"].max(), done.metrics["policy_divergence_k3"].max()) <= 0.3
            assert done.metrics["fresh"] == 1.0
        if int(state.iteration) % 5 == 0:
            accuracies.append(trainer.evaluate(state).accuracy)
    assert accuracies[0] <= 0.5 and accuracies[-1] == 1.0


_RUN = """
import sys
sys.path.insert(0, {tests!r})
from workflows.finetuning.toy_finetuning import toy_trainer
from jaxmarl_llm.workflows.finetuning.run import finetune
trainer = toy_trainer(sharing="isolated", radius=0.1, iterations={iterations}, checkpoint_every=2)
for folder in {folders!r}:
    finetune(trainer.config, folder, trainer=trainer, resume=True)
"""


@pytest.mark.slow
def test_kill_9_in_the_middle_of_an_update(tmp_path):
    tests = str(Path(__file__).parents[2])
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    # The second process compiles little.
    environment |= {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def command(*folders):
        text = _RUN.format(tests=tests, iterations=12, folders=[str(tmp_path / folder) for folder in folders])
        return [sys.executable, "-c", text]

    process = subprocess.Popen(command("killed"), env=environment)
    lines = tmp_path / "killed" / "metrics.jsonl"
    kill_when_trained(process, lines)
    assert max(checkpoints.updates(tmp_path / "killed" / "checkpoints")) < 12
    subprocess.run(command("killed", "whole"), check=True, env=environment, timeout=500)
    trainer = toy_trainer(sharing="isolated", radius=0.1, iterations=12, checkpoint_every=2)
    states = [load_finetuned(tmp_path / folder, "last", trainer)[1] for folder in ("whole", "killed")]
    assert int(states[0].iteration) == 12 and max(states[0].version_vector) > 0
    for one, other in zip(*map(stored, states), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_an_incoming_agent_learns_its_part_first(key):
    trainer = toy_trainer(trust_region="grpo", sharing="isolated", group_size=32, pack_tokens=1024)
    state = init_state(trainer.config, trainer.model)
    incoming = jax.tree.map(lambda leaf: leaf + 0.5, state.policy(0))
    with pytest.raises(UserError, match="policy 2 cannot be replaced"):
        swap_agent(trainer, state, 2, incoming, trainer.bound.task.train, key)
    swap = swap_agent(trainer, state, 0, incoming, trainer.bound.task.train, key, updates=40)
    assert swap.shock[1] < 0.7 * swap.shock[0] and swap.losses[-1] < swap.losses[0]
    for old, new in zip(*map(jax.tree.leaves, (state.policy(1), swap.state.policy(1))), strict=True):
        np.testing.assert_array_equal(old, new)
