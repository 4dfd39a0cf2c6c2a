"""Ablations on a language model: cells of fine-tuning runs, of a team that writes random tokens."""

import dataclasses
import json
import os
import signal

import numpy as np
import pytest
from workflows.finetuning.toy_play import RandomTrainer, random_trainer

from jaxmarl_llm.cli.finetune import load_preset
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.report.ablation import write_report
from jaxmarl_llm.training.config import dump_yaml
from jaxmarl_llm.training.interruption import StopSignal
from jaxmarl_llm.training.loop import TrainingInterrupted
from jaxmarl_llm.workflows.ablation import model_runner
from jaxmarl_llm.workflows.ablation.forecast import MODEL_PHASES, Forecast
from jaxmarl_llm.workflows.ablation.loop import Watcher, ablation_cells, run_ablation
from jaxmarl_llm.workflows.ablation.matrix import Cell, check_ablation, differences, short_name, to_json
from jaxmarl_llm.workflows.ablation.model_matrix import ModelAblation, from_preset, merge
from jaxmarl_llm.workflows.ablation.model_results import cell_of_runs
from jaxmarl_llm.workflows.ablation.results import from_json
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig

TOY = ModelAblation(
    model="toy",
    workflows=("eval_opt",),
    iterations=3,
    num_problems=3,
    group_size=5,
    learning_rate=0.02,
    eval_every=2,
    eval_problems=4,
    cliff_window=1,
    learner_args={
        "trust_region": "grpo",
        "lora_rank": 4,
        "lora_targets": ["value", "down"],
        "max_new_tokens": 2,
        "max_length": 48,
        "pack_tokens": 16,
        "reward": "mixed",
        "checkpoint_every": 2,
    },
)


@pytest.fixture
def events(monkeypatch):
    """What was loaded, played and updated."""
    found = []

    def load_trainer(config, model):
        assert model == "model"
        return random_trainer(**vars(config))

    def play_held_out(self, state, inner=RandomTrainer.play_held_out):
        found.append(f"evaluate {self.config.sharing} {int(state.iteration)}")
        return inner(self, state)

    monkeypatch.setattr(RandomTrainer, "play_held_out", play_held_out)
    monkeypatch.setattr(model_runner, "load_trainer", load_trainer)
    monkeypatch.setattr(model_runner, "load_base", lambda config: found.append("load") or "model")
    return found


def train(folder, watcher=None, **settings):
    def make_runner(config, cells):
        return model_runner.make_model_runner(config, cells, folder=folder)

    return run_ablation(TOY, folder, make_runner, watcher=watcher, **settings)


def test_an_interrupted_matrix_goes_on_in_the_middle_of_a_run(tmp_path, events):
    class Interrupt(Watcher):
        """Ctrl-C in the first update of the second seed of the second cell."""

        def advance(self, cell, phase, share, accuracy):
            if cell.sharing == "isolated" and share == pytest.approx(0.5 + 0.5 / 3):
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(TrainingInterrupted, match=r"with 1 of 2 cells done; continue with: .* ablate --resume --out"):
        train(tmp_path / "out", Interrupt())
    # The model is loaded once, and played once before it is trained; both seeds of both cells know how it does.
    of_run = ["evaluate shared 2", "evaluate shared 3"]
    assert events == [
        "load",
        "evaluate shared 0",
        *of_run,
        *of_run,
        *(one.replace("shared", "isolated") for one in of_run),
    ]
    saved = tmp_path / "out" / "runs" / "arithmetic_words-toy-eval_opt-isolated" / "seed-1" / "checkpoints"
    assert sorted(path.name for path in saved.iterdir()) == ["0", "1"]
    events.clear()
    seen = []

    class See(Watcher):
        def advance(self, cell, phase, share, accuracy):
            seen.append((phase, round(share, 3)))

    results = train(tmp_path / "out", See(), resume=True)
    assert events == ["load", "evaluate shared 0", "evaluate isolated 2", "evaluate isolated 3"]
    # The first seed is there; the second goes on after its first update.
    assert seen == [("evaluating the model", 0), ("evaluating the model", 1)] + [
        ("training", share) for share in (0.5, 0.667, 0.833, 1.0)
    ]
    whole = train(tmp_path / "whole")
    for one, other in zip(results, whole, strict=True):
        assert one.seeds == other.seeds == (0, 1) and one.eval_iterations == (0, 2, 3) == TOY.eval_iterations
        for kind in ("evaluations", "diagnostics"):
            assert getattr(one, kind).keys() == getattr(other, kind).keys()
            for name, values in getattr(one, kind).items():
                np.testing.assert_array_equal(values, getattr(other, kind)[name], err_msg=name)
        shape = (3, 2, len(one.roles))
        assert one.diagnostics["role_gradient_share"].shape == shape and one.times["episodes"] == 2 * 3 * 15
        assert one.diagnostics["role_gradient_cosine"].shape == (*shape, 2) and "role_base_kl" not in one.diagnostics
    summary = write_report(tmp_path / "out", TOY, results, [{"jax": "0.10"}])
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Gradient cosines" in page and "the model as it is" in page and "Early warning" not in page
    assert summary["warnings"] == {} and "compile" not in page
    assert "2 cells with 2 seeds each, 3 updates. Accuracy is that of likeliest tokens" in page


def test_what_was_done_before_takes_no_time():
    cells, now = ablation_cells(TOY), [0.0]
    forecast = Forecast(cells, clock=lambda: now[0], phases=MODEL_PHASES)
    for phase in ("evaluating the model", "training"):
        now[0] += 5.0
        forecast.advance(cells[0], phase, 1.0 if phase != "training" else 0.5)
    now[0] += 20.0
    forecast.advance(cells[0], "training", 0.75)
    assert forecast.left == pytest.approx(20.0 + 80.0)


def test_signals_reach_both_of_two_handlers(capfd):
    before = signal.getsignal(signal.SIGINT)
    with StopSignal("stopping") as outer:
        with StopSignal("stopping"):
            pass
        with StopSignal("stopping") as inner:
            os.kill(os.getpid(), signal.SIGINT)
            assert inner.number == outer.number == signal.SIGINT
            # The second one acts as it always does.
            assert signal.getsignal(signal.SIGINT) == before
    assert signal.getsignal(signal.SIGINT) == before and capfd.readouterr().err == "stopping\n"


def write_run(folder, lines, **settings):
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_yaml(FinetuneConfig(**settings)))
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return folder


def lines_of_run(*norms):
    """Evaluations at the begin and at the end, and an update for each pair of gradient norms."""
    for update in (0, len(norms)):
        yield {"kind": "evaluation", "update": update, "env_steps": 0} | {
            name: [value]
            for name, value in {
                "accuracy": 0.5,
                "any_correct": 0.75,
                "selection_failure": 0.25,
                "generation_failure": 0.25,
            }.items()
        }
    for update, pair in enumerate(norms, 1):
        line = {"kind": "train", "update": update, "env_steps": 8 * update, "seconds": 2.0 * update, "tokens": [16.0]}
        for role, norm in zip("ab", pair, strict=True):
            line |= {f"gradient_norm/{role}": [norm], f"learned_messages/{role}": [4.0 * (norm > 0)]}
            line |= {f"gradient_share/{role}": [1.0], f"entropy/{role}": [0.5 * (norm > 0)], f"length/{role}": [3.0]}
        yield line | {"gradient_cosine/a/b": [-0.5], "policy_divergence/0": [0.1]}


@pytest.mark.parametrize("trust_region", ["grpo", "teamtr"])
def test_curves_of_runs(trust_region, tmp_path):
    seeds = [((3.0, 1.0), (0.0, 0.0)), ((1.0, 1.0), (2.0, 0.0))]
    folders = [
        write_run(tmp_path / str(seed), list(lines_of_run(*norms)), trust_region=trust_region, iterations=2)
        for seed, norms in enumerate(seeds)
    ]
    cell, nan = Cell("w", "isolated", "t", "m"), np.nan
    result = cell_of_runs(cell, "ab", (0, 1), (4, 5), folders)
    assert result.eval_iterations == (0, 2) and result.times == {"train": 8.0, "episodes": 32.0, "tokens": 64.0}
    assert result.evaluations["selection_failure"].tolist() == [[0.25, 0.25]] * 2
    found = result.diagnostics
    # Without a gradient nothing is shared, compared or known of what was learned from.
    expected = [[[0.75, 0.25], [0.5, 0.5]], [[nan, nan], [1.0, 0.0]]]
    np.testing.assert_array_equal(found["role_gradient_share"], expected)
    np.testing.assert_array_equal(found["role_entropy"], [[[0.5, 0.5], [0.5, 0.5]], [[nan, nan], [0.5, nan]]])
    np.testing.assert_array_equal(found["role_length"], np.full((2, 2, 2), 3.0))
    # TeamTR's policies are updated apart: no two gradients are of one moment.
    between = [[-0.5, -0.5], [nan, nan]] if trust_region == "grpo" else np.full((2, 2), nan)
    np.testing.assert_array_equal(found["role_gradient_cosine"][..., 0, 1], between)
    np.testing.assert_array_equal(found["role_gradient_cosine"][..., 1, 1], [[1, 1], [nan, nan]])
    together = cell_of_runs(cell, "ab", (0, 0), (4, 5), folders).diagnostics
    np.testing.assert_array_equal(together["role_gradient_cosine"][..., 0, 1], [[-0.5, -0.5], [nan, nan]])
    np.testing.assert_array_equal(together["policy_divergence"][..., 0], np.float32([[0.1, 0.1]] * 2))


@pytest.mark.parametrize("damage", ["garbage", "an evaluation", "an update", "a value", "the file"])
def test_a_run_whose_metrics_are_damaged_is_named(damage, tmp_path):
    lines = list(lines_of_run((3.0, 1.0), (1.0, 1.0)))
    folders = [write_run(tmp_path / str(seed), lines, iterations=2) for seed in range(2)]
    path = folders[1] / "metrics.jsonl"
    if damage == "the file":
        path.unlink()
    elif damage == "garbage":
        path.write_text("garbage")
    else:
        lost = {"an evaluation": 1, "an update": 2, "a value": 0}[damage]
        rest = [{"kind": "evaluation", "update": 0, "env_steps": 0}] if damage == "a value" else []
        path.write_text("\n".join(map(json.dumps, rest + lines[:lost] + lines[lost + 1 :])))
    with pytest.raises(UserError, match=f"lines of {path} are lost or damaged: restore it .* or remove {folders[1]}"):
        cell_of_runs(Cell("w", "isolated", "t", "m"), "ab", (0, 1), (4, 5), folders)


def test_a_preset_becomes_a_matrix():
    preset = load_preset("sums_grpo")
    base = from_preset(preset, "models/qwen.gguf")
    check_ablation(base)
    names = [cell.name for cell in ablation_cells(base)]
    teams = [f"arithmetic_words-qwen-eval_opt-{sharing}" for sharing in ("shared", "isolated")]
    assert names == [*teams, "arithmetic_words-qwen-single-shared"]
    for cell in ablation_cells(base)[:2]:
        expected = dataclasses.replace(
            preset, model="models/qwen.gguf", sharing=cell.sharing, seed=5, evaluate_every=base.eval_every
        )
        assert base.finetune_config(cell, 5) == expected
    assert from_json(json.loads(json.dumps(to_json(base)))) == base
    assert differences(base, dataclasses.replace(base, rounds=3)) == ["rounds: 2 -> 3"]
    critic = merge(dataclasses.replace(base, learner_args={"trust_region": "ppo"}), base)
    assert critic.finetune_config(ablation_cells(critic)[0], 0).credit == "value"
    with pytest.raises(UserError, match="sets n of single"):
        from_preset(dataclasses.replace(preset, workflow="single", workflow_args={"n": 3}), "smollm2")


def test_settings_of_tasks():
    base = from_preset(load_preset("sums_grpo"), "smollm2")
    given = {"digits": 1, "mine.limit": 9}
    config = merge(dataclasses.replace(base, tasks=("arithmetic_words", "data/mine.jsonl"), task_args=given), base)
    assert config.settings_of("mine") == {"digits": 1, "limit": 9}
    own = load_preset("sums_grpo").task_args
    assert config.settings_of("arithmetic_words") == own | {"digits": 1}
    # Those of the preset's task go with it.
    assert merge(dataclasses.replace(base, tasks=("mine.jsonl",)), base).task_args == {}
    assert short_name("data/gsm8k/") == "gsm8k" and short_name("Qwen/Qwen2.5-0.5B") == "Qwen2.5-0.5B"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("a/x.jsonl", "b/x.jsonl")}, "--tasks has 'x' twice"),
        ({"sharing": ("adapters",)}, "unknown sharing 'adapters'"),
        ({"learner_args": {"lora_rnak": 4}}, "setting of --learner-args 'lora_rnak': did you mean lora_rank"),
        ({"learner_args": {"seed": 4}}, "an option of its own: --seed"),
        ({"learner_args": {"workflow_args": 4}}, "an option of its own: --copies and --rounds"),
        ({"learner_args": {"radius": "wide"}}, "--learner-args: radius must be a number"),
        ({"learner_args": {"lora_rank": 0}}, "lora_rank must be a whole number of at least 1"),
        ({"task_args": {"sums.digits": 4}}, "task of --task-args 'sums'"),
        ({"eval_problems": 5}, "arithmetic_words has 4 held-out problems, not 5: set --eval-problems"),
    ],
)
def test_bad_input(changes, message, events, tmp_path):
    config = dataclasses.replace(TOY, **changes)
    with pytest.raises(UserError, match=message):
        check_ablation(config)
        model_runner.make_model_runner(config, ablation_cells(config), folder=tmp_path)
