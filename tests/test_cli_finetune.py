import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from toy_models import chatting
from toy_tokenizers import write_folder

from jaxmarl_llm.cli import main
from jaxmarl_llm.cli.finetune import load_preset, parse_finetune
from jaxmarl_llm.cli.finetune_display import progress_text
from jaxmarl_llm.llm.checkpoints import load_adapter, load_model, save_model
from jaxmarl_llm.llm.tokenizer import Tokenizer
from jaxmarl_llm.report.finetuning import divergence_figure, gradient_shares_figure, write_finetune_plots
from jaxmarl_llm.training.config import FINETUNE_FOLDER, dump_yaml, preset_description, preset_names
from jaxmarl_llm.training.metrics import read_metrics
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.run import Watcher

SETTINGS = [
    *("--workflow-args", "rounds=1", "--iterations", "1", "--num-problems", "3", "--group-size", "4"),
    *("--max-new-tokens", "64", "--max-length", "450", "--evaluate-every", "1", "--evaluation-problems", "5"),
    *("--lora-rank", "2", "--trained-layers", "1", "--checkpoint-every", "1"),
    # A random model is never right: what its replies differ by is their length, where there is room to end them.
    *("--radius", "5", "--learning-rate", "0.01", "--reward", "mixed", "--length-weight", "1", "--temperature", "1"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny random model that can chat."""
    root = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer.from_folder(write_folder(root / "tokenizer"))
    save_model(chatting(tokenizer), root / "tiny")
    return root / "tiny"


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    """The folder of a finished run, and what was printed."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        out = io.StringIO()
        patch.setattr(sys, "stdout", out)
        assert main(["finetune", "sums", "--model", str(model), *SETTINGS, "--out", str(folder)]) == 0
    return folder, out.getvalue()


@pytest.mark.parametrize("name", preset_names(FINETUNE_FOLDER))
def test_presets_are_sound_and_described(name):
    load_preset(name).check()
    assert preset_description(name, FINETUNE_FOLDER)


def test_options_override_the_preset(model):
    base = load_preset("sums")
    options, folder = parse_finetune(["sums", "--task-args", "digits=1", "--sharing", "SP", "--seed=7"])
    assert options.config.task_args == base.task_args | {"digits": 1}
    assert options.config.sharing == "shared" and options.config.seed == 7
    assert options.config.workflow_args == base.workflow_args
    assert folder.parts[0] == "runs" and folder.name.startswith("finetune-sums-")
    other = parse_finetune(["sums", "--workflow", "voting", "--trust-region", "ppo"])[0].config
    assert other.workflow_args == {} and other.credit == "value" and other.task_args == base.task_args
    files = ["--task", "a.jsonl", "--task-args", "held_out_path=b.jsonl", "--formats", "c.yaml"]
    config = parse_finetune(["sums", *files])[0].config
    found = (config.task, config.task_args["held_out_path"], config.formats, config.model)
    assert found == (*(str(Path(name).absolute()) for name in ("a.jsonl", "b.jsonl", "c.yaml")), base.model)
    grouped = parse_finetune(["sums", "--sharing", "generator=0", "evaluator=1"])[0].config
    assert grouped.sharing == {"generator": 0, "evaluator": 1}


@pytest.mark.parametrize(("question", "missing"), [("2 + 3?", "evaluation"), ("4 + 5?", "training")])
def test_a_task_needs_problems_of_both_kinds(question, missing, model, tmp_path, capsys):
    """One problem is held out or not."""
    (tmp_path / "one.jsonl").write_text(json.dumps({"question": question, "answer": "#### 5"}) + "\n")
    arguments = ["--model", str(model), "--task", str(tmp_path / "one.jsonl"), "--out", str(tmp_path / "run")]
    assert main(["finetune", "sums", *arguments]) == 2
    assert f"one.jsonl has no problem for {missing}: add problems" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_options_that_change_nothing_are_named(tmp_path, capsys):
    options = "--trust-region grpo --radius 0.1 --resample_every=3 --credit group --kl-target 1 --clip-low 0.1"
    assert main(["finetune", "sums", *options.split(), "--model", str(tmp_path / "nowhere")]) == 2
    *notes, error = capsys.readouterr().err.splitlines()
    assert error.startswith("error: there is no model")
    assert notes == [
        "note: resample_every changes nothing here: it is for trust_region=teamtr",
        "note: radius changes nothing here: it is for trust_region=teamtr",
        "note: kl_target changes nothing here: it is for a kl_coefficient above 0",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("finetune", "name a preset (functions, sums"),
        ("finetune sumz", "unknown preset 'sumz': did you mean sums"),
        ("finetune demo", "'demo' is a preset of train"),
        ("finetune sums sums_grpo", "finetune takes one preset"),
        ("finetune sums --radios 1", "did you mean --radius"),
        ("finetune sums --trust-region team", "did you mean teamtr"),
        ("finetune sums --radius 0", "radius must be above 0"),
        ("finetune sums --trust-region grpo --kl-coefficient 0.1 --top-p 0.9", "set kl_coefficient to 0, or top_k"),
        ("finetune sums --model= --out {folder}/run", "the source of a model must be the name of a file or folder"),
        ("finetune sums --model ~nobodyx/y --out {folder}/run", "no user of the name that ~nobodyx/y begins with"),
        ("finetune sums --reward foo", "unknown reward 'foo': choose one of mixed, outcome, own, solo, votes"),
        ("finetune sums --resume", "add --out DIR"),
        ("finetune --resume --out {folder}/nowhere", "no fine-tuned run in"),
        ("finetune sums --model {folder}/nowhere --out {folder}/run", "there is no model"),
        ("finetune sums --model {model} --sharing generator=0 --out {folder}/run", "misses evaluator"),
        ("finetune sums --model {model} --workflow votting --out {folder}/run", "did you mean voting"),
        ("finetune sums --model {model} --task sums --out {folder}/run", "unknown text task 'sums'"),
        ("finetune sums --model {model} --max-length 64 --out {folder}/run", "a prompt can exceed the context"),
        ("chat", "RUN|MODEL"),
        ("chat {folder}", "no fine-tuned run in"),
        ("chat {folder}/nowhere", "there is no model"),
        ("chat ~nobodyx/y", "no user of the name that ~nobodyx/y begins with"),
        ("chat {model} --role generator", "--role and --plain are for fine-tuned runs"),
        ("chat {model} --max-new-tokens 0", "--max-new-tokens must be at least 1"),
        ("chat {model} --temperature -1", "--temperature must be at least 0"),
        ("evaluate {folder}/nowhere", "no fine-tuned run in"),
        ("evaluate {model}", "no fine-tuned run in"),
        ("export {folder} --out {folder}/out", "no fine-tuned run in"),
        ("export {folder}", "export needs a folder to write: add --out PATH"),
        ("export {folder} --out", "--out"),
        ("export", "RUN"),
    ],
)
def test_mistakes_take_one_line_and_status_2(arguments, message, model, tmp_path, capsys):
    assert main(arguments.format(folder=tmp_path, model=model).split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ") and message in error
    assert not list(tmp_path.iterdir())


def test_a_run_shows_and_writes_what_it_came_to(run):
    folder, shown = run
    for text in ("eval_opt on arithmetic_words", "isolated policies, teamtr", "iteration 1: held-out accuracy",
                 "points over base", "in their format", "24 episodes in", "jaxmarl-llm chat", "5 held-out problems",
                 "3 problems x 4 a play, anew after each accepted update", "loading ", "evaluations ",
                 "no evaluation beat the base: the best adapters are the base's"):  # fmt: skip
        assert text in shown
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "transcripts.jsonl", "plots/accuracy.png",
                 "plots/divergence.png", "adapters/generator/adapter_config.json",
                 "adapters/evaluator/adapter_model.safetensors"):  # fmt: skip
        assert (folder / name).is_file(), name
    episodes = [json.loads(line) for line in (folder / "transcripts.jsonl").read_text().splitlines()]
    assert len(episodes) == 5 and {step["role"] for step in episodes[0]["steps"]} == {"generator", "evaluator"}


def test_divergence_is_shown_and_drawn_against_the_radius(tmp_path):
    config = FinetuneConfig(radius=0.02, iterations=9)
    lines = [
        {"kind": "train", "update": number, "env_steps": 8 * number, "accuracy": [0.5], "tokens_per_s": 1234.0}
        | {f"reward/{role}": [0.25] for role in ("generator", "evaluator")}
        | {f"policy_divergence/{policy}": [-0.01] for policy in (0, 1)}
        | {"policy_divergence_k3/0": [0.017], "policy_divergence_k3/1": [0.005], "accepted": [0.5]}
        for number in (1, 2)
    ]
    metrics = {name: np.ravel(value)[0] for name, value in lines[0].items() if name != "kind"}
    shown = progress_text(config, 1, metrics)
    for text in ("iteration 1 of 9", "generator 0.25", "divergence 0.0170 of 0.02", "50 % accepted", "1,234 tokens/s"):
        assert text in shown
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "config.yaml").write_text(dump_yaml(config))
    figure = divergence_figure(read_metrics(tmp_path))
    assert figure is not None
    drawn = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    # As the adapters' folders are named.
    assert list(drawn) == ["generator", "evaluator", "radius"]
    np.testing.assert_allclose(drawn["generator"], 0.017)
    assert write_finetune_plots(tmp_path) == [tmp_path / "plots" / f"{name}.png" for name in ("accuracy", "divergence")]


def test_an_iteration_without_a_gradient_is_a_gap(tmp_path):
    lines = [
        {"kind": "train", "update": number, "env_steps": 8 * number}
        | {f"gradient_norm/{role}": [norm] for role, norm in zip(("generator", "evaluator"), norms, strict=True)}
        for number, norms in enumerate([(3.0, 1.0), (0.0, 0.0), (0.0, 2.0), (0.0, 0.0)], 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    figure = gradient_shares_figure(read_metrics(tmp_path))
    assert figure is not None
    areas = [[np.asarray(path.vertices) for path in area.get_paths()] for area in figure.axes[0].collections]
    for area in areas:
        # Nothing between 1 and 2.
        assert [(part[:, 0].min(), part[:, 0].max()) for part in area] == [(0, 1), (2, 3)]
    assert figure.axes[0].get_xlim() == (0, 4)
    assert areas[0][0][:, 1].max() == pytest.approx(0.75) and areas[0][1][:, 1].max() == 0


def test_a_finished_run_is_resumed_and_refused_anew(run, model, capsys):
    folder, _ = run
    before = (folder / "metrics.jsonl").read_text()
    summary = json.loads((folder / "summary.json").read_text())
    assert main(["finetune", "--resume", "--out", str(folder), "--no-plots"]) == 0
    again = capsys.readouterr().out
    assert "goes on after iteration 1 of 1" in again
    # The same tables as when it ended.
    first, second = (text[text.index("held out ") : text.index("\nmetrics ")] for text in (run[1], again))
    assert first == second and "in their format" in first and "\ntranscripts " in again
    assert json.loads((folder / "summary.json").read_text()) == summary
    for name in ("base", "best", "final"):
        assert summary[name]["problems"] == 5 and set(summary[name]["format_rate"]) == {"generator", "evaluator"}
    assert summary["evaluation_seconds"] > 0 < summary["loading_seconds"]
    assert (folder / "metrics.jsonl").read_text() == before
    assert main(["finetune", "sums", "--model", str(model), *SETTINGS, "--out", str(folder)]) == 2
    assert "holds this run already" in capsys.readouterr().err
    assert main(["finetune", "--resume", "--out", str(folder), "--seed", "3"]) == 2
    assert "seed: 0 -> 3" in capsys.readouterr().err


def test_commands_know_each_others_folders(run, tmp_path, capsys):
    folder, _ = run
    assert main(["eval", str(folder)]) == 2
    assert f"use `jaxmarl-llm evaluate {folder}`" in capsys.readouterr().err
    assert main(["render", str(folder)]) == 2
    capsys.readouterr()
    (tmp_path / "config.yaml").write_text("env: overcooked\n")
    assert main(["evaluate", str(tmp_path)]) == 2
    assert f"use `jaxmarl-llm eval {tmp_path}`" in capsys.readouterr().err


@pytest.mark.wide
def test_evaluate(run, tmp_path, capsys):
    folder, _ = run
    said = tmp_path / "said.jsonl"
    assert main(["evaluate", str(folder), "--checkpoint", "last", "--transcripts", str(said)]) == 0
    shown = capsys.readouterr().out
    for text in ("iteration 1, 5 problems", "base model", "accuracy [95 % interval]", "evaluator", "cut off"):
        assert text in shown
    assert len(said.read_text().splitlines()) == 5
    assert main(["evaluate", str(folder), "--transcripts", str(said)]) == 2
    assert "exists already" in capsys.readouterr().err
    nowhere = tmp_path / "no" / "where.jsonl"
    # Before anything is played.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxmarl_llm.workflows.finetuning.finished.load_finetuned_team", None)
        assert main(["evaluate", str(folder), "--transcripts", str(nowhere)]) == 2
    assert "choose a file in a folder that exists" in capsys.readouterr().err and not nowhere.parent.exists()

    problems = tmp_path / "mine.jsonl"
    lines = [{"question": f"What is 1 + {n}?", "answer": f"#### {n + 1}"} for n in range(3)]
    problems.write_text("\n".join(map(json.dumps, lines)))
    options = ["--problems", str(problems), "--replace", "generator", "--no-base", "--json"]
    assert main(["evaluate", str(folder), *options, "--num-problems", "9"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "no evaluation beat the base" in printed.err and "3 problems, fewer than --num-problems 9" in printed.err
    assert found["problems"] == 3 and "base model" not in found and 0 <= found["team"]["accuracy"] <= 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--replace gen", "did you mean generator"),
        ("--checkpoint 77", "has no checkpoint 77"),
        ("--num-problems 0", "--num-problems must be at least 1"),
        ("--problems {folder}/empty.jsonl", "empty.jsonl"),
        ("--problems {folder}/nowhere.jsonl", "nowhere.jsonl"),
        ("--task-args digit=1", "did you mean digits"),
        ("--workflow-args n=4", "unknown setting of eval_opt 'n'"),
        ("--task list_functions --problems x.jsonl", "leave one out"),
    ],
)
def test_mistakes_of_evaluate(options, message, run, tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    assert main(["evaluate", str(run[0]), *options.format(folder=tmp_path).split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and message in error


def test_export(run, model, tmp_path, capsys):
    folder, _ = run
    assert main(["export", str(folder), "--checkpoint", "last", "--out", str(tmp_path / "peft")]) == 0
    base = load_model(model, max_length=450)
    assert not capsys.readouterr().err
    config, adapters = load_adapter([tmp_path / "peft" / name for name in ("generator", "evaluator")], base)
    assert config.num_adapters == 2 and any(np.asarray(leaf).any() for leaf in jax.tree.leaves(adapters))
    hf = ["export", str(folder), "--checkpoint", "last", "--format", "hf", "--out", str(tmp_path / "hf")]
    capsys.readouterr()
    assert main(hf) == 2
    assert "add --role generator|evaluator" in capsys.readouterr().err
    assert main([*hf, "--role", "solver"]) == 2
    assert "unknown role 'solver'" in capsys.readouterr().err
    assert main([*hf, "--role", "generator"]) == 0
    capsys.readouterr()
    assert main(["chat", str(tmp_path / "peft" / "generator")]) == 2
    assert "is an adapter: name its model, and the adapter with --adapter" in capsys.readouterr().err
    said = []
    for chosen in ([str(model), "--adapter", str(tmp_path / "peft" / "generator")], [str(tmp_path / "hf")]):
        assert main(["chat", *chosen, "--max-new-tokens", "5", "--message", "1 + 1"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert main(["chat", str(model), "--adapter", str(model), "--message", "1 + 1"]) == 2
    assert "holds no adapter_config.json: it is no adapter" in capsys.readouterr().err
    assert main(["chat", str(folder), "--adapter", str(tmp_path / "peft" / "generator")]) == 2
    assert "--adapter is for models" in capsys.readouterr().err
    merged = load_model(tmp_path / "hf")
    changed = [bool((np.asarray(a) != np.asarray(b)).any())
               for a, b in zip(*map(jax.tree.leaves, (base.params, merged.params)), strict=True)]  # fmt: skip
    assert any(changed) and merged.fingerprint != base.fingerprint
    capsys.readouterr()
    assert main([*hf, "--role", "generator"]) == 2
    assert "exists already and is not empty" in capsys.readouterr().err


def test_damaged_runs_take_one_line(run, model, tmp_path, capsys):
    folder, _ = run
    config = (folder / "config.yaml").read_text()

    def refused(**changes):
        copy = tmp_path / f"copy{len(list(tmp_path.iterdir()))}"
        shutil.copytree(folder, copy)
        for name, content in changes.items():
            path = copy / name.replace("__", "/").replace("_yaml", ".yaml")
            path.write_text(content)
        assert main(["export", str(copy), "--out", str(tmp_path / "out")]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and not (tmp_path / "out").exists()
        return error

    assert "config.yaml: unknown field 'optimiser'" in refused(config_yaml=config + "optimiser: adam\n")
    assert "config.yaml is not valid YAML" in refused(config_yaml="model: [")
    best = next(path.name for path in (folder / "best").iterdir())
    assert "is damaged (config.yaml has" in refused(**{f"best__{best}__config_yaml": ""})
    other = tmp_path / "other"
    tokenizer = load_model(model).tokenizer
    save_model(chatting(tokenizer, rope_base=300.0), other)
    error = refused(config_yaml=config.replace(f"model: {model}", f"model: {other}"))
    assert "another model than the run was trained on" in error


def test_chat(run, model, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 1 + 1?\n\nAnd 2?\n/exit\nunread\n"))
    assert main(["chat", str(model), "--max-new-tokens", "3"]) == 0
    piped = capsys.readouterr().out
    assert piped.count("\n") >= 2
    assert main(["chat", str(model), "--max-new-tokens", "3", "--message", "What is 1 + 1?"]) == 0
    alone = capsys.readouterr().out
    assert piped.startswith(alone)
    # An answer may be longer than what the run was trained on, 450 tokens, as its model holds 512.
    for options in (["--max-new-tokens", "451"], ["--max-new-tokens", "3", "--plain", "--role", "evaluator"]):
        assert main(["chat", str(run[0]), "--message", "1 + 1", *options]) == 0
    assert capsys.readouterr().err.count("no evaluation beat the base") == 2
    assert main(["chat", str(run[0]), "--max-new-tokens", "512", "--message", "1 + 1"]) == 2
    assert "leaves no room for a message" in capsys.readouterr().err
    assert main(["chat", str(run[0]), "--dtype", "bfloat16"]) == 2
    assert "--dtype is for models" in capsys.readouterr().err
    assert main(["chat", ""]) == 2
    assert "RUN|MODEL must be the name of a file or folder, got ''" in capsys.readouterr().err
    assert main(["export", str(run[0]), "--out", "~nobodyx/y"]) == 2
    assert "no user of the name that ~nobodyx/y begins with" in capsys.readouterr().err
    assert main(["chat", str(run[0]), "--role", "judge"]) == 2
    assert "unknown role 'judge'" in capsys.readouterr().err
    assert main(["chat", str(model), "--message", "word " * 900]) == 2
    assert "the message is too long" in capsys.readouterr().err


def test_interrupt_says_how_to_go_on(run, tmp_path, monkeypatch, capfd):
    from jaxmarl_llm.training.loop import TrainingInterrupted

    def stopped(config, folder, *, resume, watcher):
        assert isinstance(watcher, Watcher) and isinstance(config, FinetuneConfig)
        watcher.start(config, 0)
        raise TrainingInterrupted(f"stopped; continue with: jaxmarl-llm finetune --resume --out {folder}", 15)

    monkeypatch.setattr("jaxmarl_llm.workflows.finetuning.run.finetune", stopped)
    arguments = ["finetune", "sums", "--out", str(tmp_path / "out")]
    assert main(arguments) == 143
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and f"jaxmarl-llm finetune --resume --out {tmp_path / 'out'}" in error
    # The program does not wait for threads that score.
    left = []
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(sys, "argv", ["jaxmarl-llm", *arguments])
    assert main() == 143 and left == [143]


def test_ctrl_c_while_the_model_is_loaded_takes_one_line(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("jaxmarl_llm.workflows.finetuning.run.load_trainer", interrupted)
    assert main(["finetune", "sums", "--out", str(tmp_path / "out")]) == 130
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "nothing was trained: begin again" in error
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_signal_saves_the_run(model, tmp_path):
    """A process that is terminated while it trains goes on where it was."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "jaxmarl_llm.cli", "finetune", "sums", "--model", str(model), *SETTINGS]
    command += ["--out", str(folder), "--iterations", "50", "--evaluate-every", "50", "--no-plots"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            if line.startswith("iteration 0"):
                break
        process.send_signal(signal.SIGTERM)
        error = process.stderr.read()
    assert process.returncode == 143 and f"--resume --out {folder}" in error
