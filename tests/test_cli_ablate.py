import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from toy_models import chatting
from toy_processes import kill_when_trained
from toy_tokenizers import write_folder
from workflows.synthetic_cells import synthetic_runner

from jaxmarl_llm.cli import main
from jaxmarl_llm.cli.ablate import parse_ablate
from jaxmarl_llm.llm.checkpoints import save_model
from jaxmarl_llm.llm.tokenizer import Tokenizer
from jaxmarl_llm.workflows.ablation.matrix import PRESETS

ARGUMENTS = ["ablate", "quick", "--iterations", "29", "--eval-every", "1", "--cliff-window", "3"]


@pytest.fixture
def trained(monkeypatch):
    """Names of the cells that were trained."""
    names = []
    monkeypatch.setattr("jaxmarl_llm.workflows.ablation.runner.make_runner", synthetic_runner(names))
    return names


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ablate", "name an ablation: quick or full"),
        ("ablate quik", "unknown ablation 'quik': did you mean quick?"),
        ("ablate phas", "unknown ablation 'phas': did you mean phase?"),
        ("ablate quick --workflows votting", "unknown workflow 'votting': did you mean voting?"),
        ("ablate quick --sharing shred", "unknown sharing 'shred': did you mean shared?"),
        ("ablate quick --tasks arithmetics", "unknown task 'arithmetics': did you mean arithmetic?"),
        ("ablate quick --sizes bas", "unknown size 'bas': did you mean base?"),
        ("ablate quick --num-seeds 0", "--num-seeds must lie between 1 and 10,000, got 0"),
        ("ablate quick --iterations 0", "--iterations must lie between 1 and 10,000,000, got 0"),
        ("ablate quick --iteration 5", "did you mean --iterations"),
        ("ablate quick --resume", "add --out DIR"),
        ("ablate --resume --out {folder}/nowhere", "no ablation in"),
        ("ablate quick --resume --out {folder}/typo", "typo, so nothing to resume: give the folder that"),
        ("ablate quick --learner-args group=slot --out {folder}/run", "did you mean grouping"),
        ("ablate quick --pretraining-args skil=1 --out {folder}/run", "did you mean skill"),
        ("ablate quick --pretraining-args decoder=small --out {folder}/run", "has an option of its own: --sizes"),
        ("ablate quick --learner-args reward=own reward=outcome", "reward is given twice"),
        ("ablate quick --copies 100000", "--copies must lie between 1 and 100, got 100000"),
        ("ablate quick --level 1000", "--level must lie between 1 and 100, got 1000"),
        ("ablate quick --eval-problems 10000000", "--eval-problems must lie between 1 and 10,000, got 10000000"),
        ("ablate quick --eval-problems 9999 --level 1", "held-out problems, not 9999: ask for fewer"),
        ("ablate quick --learning-rate 1e-50", "--learning-rate must be above 0 and finite in 32 bits, got 1e-50"),
        (
            "ablate quick --num-problems 10000000 --group-size 10000000",
            "episodes (--num-problems x --group-size) takes",
        ),
        (
            "ablate quick --pretraining-args num_episodes=2000000000",
            "pretraining on 2,000,000,000 episodes a step (--pretraining-args num_episodes) takes about",
        ),
        ("ablate quick --sizes medium --num-seeds 10000", "the training state of 10,000 x 2 policies takes about"),
        ("ablate quick --cliff-window 11", "--cliff-window 11 is more than the 10 evaluations after the first"),
        ("ablate quick --learner-args body=", "expected name=value, got 'body='"),
        ("ablate quick --task-args digits=2", "--task-args is for ablations on a language model: add --model"),
        ("ablate sums", "sums is a preset of finetune: add --model, or name an ablation: quick or full"),
        ("ablate quick --model smollm2", "quick is an ablation of small decoders: with --model name a preset"),
        ("ablate sumz --model smollm2", "unknown preset 'sumz': did you mean sums"),
        ("ablate --model", "--model"),
        ("ablate --model smollm2 --sizes tiny", "--sizes does not go with --model: the model has a size"),
        ("ablate --model=smollm2 --level 3", "--level does not go with --model: use --task-args"),
        ("ablate --model smollm2 --eval-greedy", "--eval-greedy does not go with --model: its evaluations"),
        ("ablate --model smollm2 --sharing adapters", "--sharing adapters does not go with --model"),
        ("ablate --model smollm2 --workflows orch", "unknown workflow 'orch': did you mean orch_workers"),
        ("ablate --model smollm2 --learner-args groups=slot", "did you mean grouping"),
        (
            "ablate --model smollm2 --iterations 1 --cliff-window 2",
            "--cliff-window 2 is more than the 1 evaluation after the first",
        ),
        ("ablate --model {folder}/nowhere --out {folder}/run", "there is no model"),
        ("ablate quick --iterations 6 --eval-every 2 --cliff-window=4", "--cliff-window 4 is more than the 3 eval"),
        ("ablate quick --eval-every 0", "--eval-every must lie between 1 and 10,000,000, got 0"),
        ("ablate quick --out ~nobody-of-this-name/run", "there is no user"),
    ],
)
def test_mistakes_take_one_line_and_status_2(arguments, message, tmp_path, capsys):
    assert main(arguments.format(folder=tmp_path).split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ") and message in error
    assert not list(tmp_path.iterdir())


def test_options_override_the_preset(tmp_path):
    options, folder, notice = parse_ablate(["full", "--sizes", "tiny", "base", "--seed", "7", "--eval-greedy"])
    assert options.config.sizes == ("tiny", "base") and options.config.seeds == (7, 8, 9, 10, 11)
    assert options.config.eval_greedy and options.config.iterations == PRESETS["full"].iterations
    assert str(folder).startswith("runs/ablation-full-") and not options.resume and not notice
    quick = parse_ablate(["quick", "--learner-args", "coherence=true"])[0].config
    assert quick.learner_args == PRESETS["quick"].learner_args | {"coherence": True}


def test_names_of_several_lines(tmp_path, capsys):
    assert main(["ablate", "quick", "--learner-args", "reward=mixed\nfoo", "--out", str(tmp_path / "run")]) == 2
    assert main(["ablate", "quick", "--workflows", "vot\ning\r\x1b[2J"]) == 2
    assert main(["ablate", "quick", "--out", "a\0b"]) == 2
    assert main(["ablate", "--resume", "--out", "a\0b\n"]) == 2
    (tmp_path / "file").touch()
    assert main(["ablate", "quick", "--workflows", "single", "--out", str(tmp_path / "file" / "two\nlines")]) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 5 and "\x1b" not in errors and r"reward 'mixed\nfoo'" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_help_shows_defaults_that_apply(capsys):
    shown = []
    for arguments in (["--help"], ["full", "--help"]):
        with pytest.raises(SystemExit):
            parse_ablate(arguments)
        shown.append(" ".join(capsys.readouterr().out.split()))
    quick, full = shown
    assert "usage: jaxmarl-llm ablate PRESET [--option" in quick and "Updates of each cell. (default: 20)" in quick
    assert "below are those of quick; full has --tasks arithmetic stack_code" in quick and "--iterations 200" in quick
    assert "those of quick" not in full and "Updates of each cell. (default: 200)" in full


def test_a_short_ablation_averages_fewer_evaluations(tmp_path, trained, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    short = ["ablate", "quick", "--workflows", "single", "--iterations", "6", "--eval-every", "2", "--out", "~/out"]
    assert main(short) == 0
    folder = tmp_path / "out"
    assert capsys.readouterr().err == "--cliff-window is 3, not 5: as many evaluations follow the first\n"
    assert json.loads((folder / "results.json").read_text())["config"]["cliff_window"] == 3
    assert main([*short, "--resume"]) == 0 and main(["ablate", "--resume", "--out", "~/out"]) == 0
    assert len(trained) == 1
    assert parse_ablate(["--model", "smollm2", "--iterations", "1"])[0].config.cliff_window == 1


def test_module_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "jaxmarl_llm", "--version"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("jaxmarl-llm ")


def test_files_of_an_ablation_on_a_model_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    arguments = ["--model", "model", "--tasks", "a.jsonl", "arithmetic_words", "--task-args", "a.held_out_path=b.jsonl"]
    config = parse_ablate([*arguments, "--learner-args", "warm_start=c.jsonl", "warm_start_updates=1"])[0].config
    assert config.model == str(tmp_path / "model")
    assert config.tasks == (str(tmp_path / "a.jsonl"), "arithmetic_words")
    assert config.task_args["a.held_out_path"] == str(tmp_path / "b.jsonl")
    assert config.learner_args["warm_start"] == str(tmp_path / "c.jsonl")


def test_files_and_resume(tmp_path, trained, capsys):
    folder = tmp_path / "out"
    assert main([*ARGUMENTS, "--out", str(folder)]) == 0
    shown = capsys.readouterr().out
    for text in ("7 of 7", "orch_workers", "cliffs", "report.html", "0s left"):
        assert text in shown
    for name in ("report.html", "results.csv", "ablation.json", "tensorboard/arithmetic-tiny-single-shared"):
        assert (folder / name).exists()
    assert len(json.loads((folder / "results.json").read_text())["cells"]) == 7 == len(trained)

    removed = folder / "cells" / "arithmetic-tiny-eval_opt-isolated.json"
    removed.unlink()
    trained.clear()
    assert main(["ablate", "--resume", "--out", str(folder)]) == 0
    assert trained == [removed.stem] and "6 of 7 cells are done already" in capsys.readouterr().out
    assert main([*ARGUMENTS, "--out", str(folder)]) == 2
    assert "add --resume" in capsys.readouterr().err
    assert main(["ablate", "quick", "--resume", "--out", str(folder)]) == 2
    error = capsys.readouterr().err
    assert f"iterations: 29 -> {PRESETS['quick'].iterations}" in error
    assert f"go on with its own settings: jaxmarl-llm ablate --resume --out {folder}" in error


def test_interrupt_says_how_to_go_on(tmp_path, monkeypatch, capfd):
    def make_runner(config, cells):
        def run_cell(cell, on_progress):
            os.kill(os.getpid(), signal.SIGINT)
            on_progress("training", 0.1, 0.5)

        return run_cell

    monkeypatch.setattr("jaxmarl_llm.workflows.ablation.runner.make_runner", make_runner)
    assert main([*ARGUMENTS, "--out", str(tmp_path / "out")]) == 130
    notice, error = capfd.readouterr().err.splitlines()
    assert (
        notice == "stopping after this step; Ctrl-C again stops at once"
        and f"jaxmarl-llm ablate --resume --out {tmp_path / 'out'}" in error
    )
    # The program does not wait for what is compiled in the background.
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(sys, "argv", ["jaxmarl-llm", *ARGUMENTS, "--out", str(tmp_path / "again")])
    assert main() == 130 and left == [130]


def test_options_on_a_model():
    options, folder, _ = parse_ablate(
        ["--model", "smollm2", "--workflows", "voting", "sums", "--task-args", "digits=1"]
    )
    config = options.config
    assert (config.workflows, config.learner_args["trust_region"]) == (("voting",), "teamtr")
    assert config.task_args["digits"] == 1 and config.task_args["arithmetic_words.style"] == "bare"
    assert folder.name.startswith("ablation-sums-")


@pytest.mark.slow
def test_kill_9_of_a_matrix_on_a_model(tmp_path):
    model = tmp_path / "tiny"
    save_model(chatting(Tokenizer.from_folder(write_folder(tmp_path / "tokenizer"))), model)
    # The second process compiles little.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    program = [sys.executable, "-m", "jaxmarl_llm.cli", "ablate", "--out"]
    options = [
        *("--model", str(model), "--workflows", "eval_opt", "--num-seeds", "1", "--iterations", "4"),
        *("--num-problems", "2", "--group-size", "4", "--eval-every", "2", "--eval-problems", "3"),
        *("--rounds", "1", "--learner-args", "max_new_tokens=64", "max_length=450", "trained_layers=1", "lora_rank=2"),
        *("reward=mixed", "length_weight=1", "require_end=true", "checkpoint_every=2"),
    ]
    killed = tmp_path / "killed"
    process = subprocess.Popen([*program, str(killed), *options], env=environment)
    lines = killed / "runs" / "arithmetic_words-tiny-eval_opt-isolated" / "seed-0" / "metrics.jsonl"
    kill_when_trained(process, lines)
    assert [path.stem for path in (killed / "cells").glob("*.json")] == ["arithmetic_words-tiny-eval_opt-shared"]
    subprocess.run([*program, str(killed), "--resume"], check=True, env=environment, timeout=500)
    subprocess.run([*program, str(tmp_path / "whole"), *options], check=True, env=environment, timeout=500)
    for cell in ("shared", "isolated"):
        path = f"cells/arithmetic_words-tiny-eval_opt-{cell}.npz"
        with np.load(killed / path) as one, np.load(tmp_path / "whole" / path) as other:
            assert one.files == other.files and np.nansum(one["diagnostic/role_gradient_norm"]) > 0
            for name in one.files:
                np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert "the model as it is" in (killed / "report.html").read_text()
    assert main(["evaluate", str(killed)]) == 2
