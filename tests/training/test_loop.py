import dataclasses
import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training.comparison import assert_same_bits, metrics_without_times, saved_state

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import TrainConfig, TrainingDiverged, TrainingInterrupted, checkpoints, load_run, train
from jaxmarl_llm.training import loop as loop_module
from jaxmarl_llm.training.config import dump_yaml
from jaxmarl_llm.training.evaluation import EvaluationResult
from jaxmarl_llm.training.files import lock_folder
from jaxmarl_llm.training.progress import Reporter


class At(Reporter):
    """Does something after a given update."""

    def __init__(self, update, action):
        self.steps, self.action, self.notes = update * 20, action, []

    def advance(self, env_steps, steps, seconds, train_return):
        if env_steps == self.steps:
            self.action()

    def note(self, text):
        self.notes.append(text)


class PowerCut(BaseException):
    pass


def power_cut():
    raise PowerCut


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def elsewhere(config, name):
    return dataclasses.replace(config, out=str(Path(config.out).parent / name))


def assert_same_runs(one, other, update):
    assert metrics_without_times(one.out) == metrics_without_times(other.out)
    states = [saved_state(config.out, config, loop_module.build_learner, update) for config in (one, other)]
    assert_same_bits(*states)


@pytest.mark.parametrize("num_seeds", [1, 2])
@pytest.mark.parametrize("log_every", [0, 60])
def test_a_run_that_was_cut_off_resumes_bit_by_bit(fake_config, fake_learner, num_seeds, log_every):
    whole = dataclasses.replace(fake_config, num_seeds=num_seeds, log_every=log_every)
    cut = elsewhere(whole, "cut")
    train(whole)
    with pytest.raises(PowerCut):
        train(cut, reporter=At(8, power_cut))
    assert checkpoints.updates(Path(cut.out) / "checkpoints") == [3, 6]
    # What a killed process can leave: a torn line, a half-written checkpoint.
    with (Path(cut.out) / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "upd')
    (Path(cut.out) / "checkpoints" / "9.partial").mkdir()
    result = train(cut, resume=True)
    assert_same_runs(whole, cut, 10)
    assert checkpoints.updates(Path(cut.out) / "checkpoints") == [9, 10]
    assert not list(Path(cut.out).rglob("*.partial"))
    whole_summary = json.loads((Path(whole.out) / "summary.json").read_text())
    assert result.summary["final"] == whole_summary["final"] and result.summary["best"] == whole_summary["best"]


def test_an_interrupted_run_saves_and_resumes_bit_by_bit(fake_config, fake_learner):
    # Update 5 is neither logged nor checkpointed: what was measured since the last line must survive.
    whole = dataclasses.replace(fake_config, log_every=60)
    stopped = elsewhere(whole, "stopped")
    train(whole)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(TrainingInterrupted, match=r"SIGINT.* update 5 of 10.*train --resume --out") as caught:
        train(stopped, reporter=At(5, interrupt))
    assert caught.value.signal_number == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is handler
    assert checkpoints.updates(Path(stopped.out) / "checkpoints") == [3, 5]
    train(stopped, resume=True)
    assert_same_runs(whole, stopped, 10)


def test_a_seed_of_many_is_the_run_of_that_seed(fake_config, fake_learner):
    many = dataclasses.replace(fake_config, num_seeds=3, seed=5)
    one = dataclasses.replace(elsewhere(fake_config, "one"), seed=6)
    train(many)
    train(one)
    several, single = metrics_without_times(many.out), metrics_without_times(one.out)
    for line_of_many, line in zip(several, single, strict=True):
        for name, value in line.items():
            if isinstance(value, list):
                np.testing.assert_allclose(line_of_many[name][1], value[0], rtol=1e-5)


def test_metrics_and_summary(fake_config, fake_learner):
    result = train(fake_config)
    lines = metrics_without_times(fake_config.out)
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert [line["update"] for line in evaluations] == [0, 4, 8, 10]
    assert np.shape(evaluations[0]["return"]) == (1, 6) and np.shape(evaluations[0]["agent_return"]) == (1, 2)
    assert [line["update"] for line in lines if line["kind"] == "train"] == list(range(1, 11))
    assert lines[1]["env_steps"] == 20 and result.summary["env_steps"] == 200
    assert min(result.summary["steps_per_s"], result.summary["evaluation_seconds"]) > 0
    best = max(evaluations[1:], key=lambda line: np.mean(line["return"]))
    assert result.summary["best"]["update"] == best["update"]
    assert checkpoints.updates(Path(fake_config.out) / "best") == [best["update"]]
    run = load_run(fake_config.out)
    assert run.update == best["update"]
    assert run.program is run.program
    assert run.program.evaluate(run.params, 0).episode_return.shape == (1, 6)
    np.testing.assert_array_equal(run.seed_params()["weights"], result.best_params["weights"][0])


def test_nan_stops_the_run_and_keeps_the_last_good_checkpoint(fake_config, fake_learner):
    fake_learner["poison"] = 6
    with pytest.raises(TrainingDiverged, match=r"at update 7 \(environment step 140, seed 0\).*checkpoints/6"):
        train(fake_config)
    folder = Path(fake_config.out) / "checkpoints"
    assert checkpoints.updates(folder) == [3, 6]
    assert checkpoints.problem(folder / "6") is None


def test_nan_is_noticed_before_it_is_saved(fake_config, fake_learner):
    fake_learner["poison"] = 5
    with pytest.raises(TrainingDiverged, match=r"at update 6 .*checkpoints/3"):
        train(dataclasses.replace(fake_config, log_every=200, eval_every=-1))


def test_a_finished_run_is_left_alone(fake_config, fake_learner):
    first = train(fake_config)
    before = contents(fake_config.out)
    result = train(fake_config, resume=True)
    assert result.was_finished and result.summary == json.loads((first.folder / "summary.json").read_text())
    assert_same_bits(result.best_params, first.best_params)
    assert contents(fake_config.out) == before
    damage(first.folder / "best")
    assert_same_bits(train(fake_config, resume=True).best_params, load_run(first.folder, "last").params)
    # One that was killed before its summary is brought to its end.
    (first.folder / "summary.json").unlink()
    again = train(fake_config, resume=True)
    assert not again.was_finished and again.summary["final"] == first.summary["final"]
    assert (first.folder / "metrics.jsonl").read_bytes() == before[first.folder / "metrics.jsonl"]


def test_resume_in_an_empty_folder_begins(fake_config, fake_learner):
    assert train(fake_config, resume=True).summary["updates"] == 10


def test_a_longer_total_continues_where_no_schedule_forbids_it(fake_config, fake_learner):
    config = dataclasses.replace(fake_config, learning_rate_schedule="constant")
    train(config)
    longer = dataclasses.replace(config, total_steps=240)
    assert train(longer, resume=True).summary["updates"] == 12
    before = contents(config.out)
    with pytest.raises(UserError, match="past 200 steps already"):
        train(config, resume=True)
    assert contents(config.out) == before
    train(fake_config := elsewhere(fake_config, "scheduled"))
    with pytest.raises(UserError, match="schedule over its total_steps"):
        train(dataclasses.replace(fake_config, total_steps=240), resume=True)


def contents(folder):
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


def test_the_folder_of_another_run_is_refused_and_left_alone(fake_config, fake_learner):
    train(fake_config)
    before = contents(fake_config.out)
    with pytest.raises(UserError, match="holds this run already: add --resume"):
        train(fake_config)
    other = dataclasses.replace(fake_config, learning_rate=0.5)
    for resume in (False, True):
        with pytest.raises(UserError, match=r"another run \(learning_rate: 0.00025 -> 0.5\)"):
            train(other, resume=resume)
    assert contents(fake_config.out) == before


def test_a_folder_that_is_no_run_is_refused(fake_config, fake_learner):
    folder = Path(fake_config.out)
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds other files"):
        train(fake_config)
    assert [path.name for path in folder.iterdir()] == ["thesis.tex"]
    with pytest.raises(UserError, match="is a file"):
        train(dataclasses.replace(fake_config, out=str(folder / "thesis.tex")))


def test_two_processes_cannot_write_one_run(fake_config, fake_learner):
    lock = lock_folder(Path(fake_config.out))
    with pytest.raises(UserError, match="another process"):
        train(fake_config, resume=True)
    lock.close()
    # The file of a process that was killed before it wrote anything is no obstacle.
    assert [path.name for path in Path(fake_config.out).iterdir()] == [".lock"]
    train(fake_config)


def damage(path):
    """Flips a byte in the largest file."""
    file = max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0xFF
    file.write_bytes(data)


def test_lost_metrics_are_named(fake_config, fake_learner):
    with pytest.raises(PowerCut):
        train(fake_config, reporter=At(8, power_cut))
    (Path(fake_config.out) / "metrics.jsonl").unlink()
    reporter = At(0, power_cut)
    train(fake_config, resume=True, reporter=reporter)
    assert "metrics.jsonl are lost" in reporter.notes[0] and "from update 6" in reporter.notes[1]


def test_a_damaged_newest_checkpoint_is_named_and_passed_over(fake_config, fake_learner):
    whole = fake_config
    cut = elsewhere(whole, "cut")
    train(whole)
    with pytest.raises(PowerCut):
        train(cut, reporter=At(8, power_cut))
    damage(Path(cut.out) / "checkpoints" / "6")
    reporter = At(0, power_cut)
    train(cut, resume=True, reporter=reporter)
    assert "checkpoints/6 is damaged" in reporter.notes[0] and "set aside as 6.damaged" in reporter.notes[0]
    assert_same_runs(whole, cut, 10)


def test_what_was_just_saved_stays_beside_newer_ones_of_a_former_life(fake_config, fake_learner):
    train(fake_config)
    run, folder = load_run(fake_config.out), Path(fake_config.out) / "checkpoints"
    for keep, left in ((2, [5, 10]), (1, [5])):
        checkpoints.save(folder, 5, {"params": run.params}, {}, fake_config, {}, keep)
        assert checkpoints.updates(folder) == left


def test_damage_to_all_checkpoints_is_refused(fake_config, fake_learner):
    train(fake_config)
    folder = Path(fake_config.out)
    damage(folder / "checkpoints" / "10")
    (folder / "checkpoints" / "9" / "progress.json").unlink()
    shutil.rmtree(folder / "best")
    before = contents(folder)
    with pytest.raises(UserError, match=r"checkpoints/10 is damaged .* no sound older one"):
        train(fake_config, resume=True)
    assert contents(folder) == before
    with pytest.raises(UserError, match=r"checkpoints/10 is damaged"):
        load_run(folder)
    with pytest.raises(UserError, match=r"progress.json is missing"):
        load_run(folder, "9")
    with pytest.raises(UserError, match="no checkpoint 7: choose best, last, 9, 10"):
        load_run(folder, "7")


def test_a_checkpoint_without_its_manifest_is_set_aside(fake_config, fake_learner):
    whole, cut = fake_config, elsewhere(fake_config, "cut")
    train(whole)
    with pytest.raises(PowerCut):
        train(cut, reporter=At(8, power_cut))
    folder = Path(cut.out) / "checkpoints"
    for update in ("3", "6"):
        (folder / update / "manifest.json").rename(folder / f"{update}.manifest")
    before = contents(cut.out)
    with pytest.raises(UserError, match=r"checkpoints/6 is damaged \(manifest.json is missing\).* no sound older one"):
        train(cut, resume=True)
    assert contents(cut.out) == before
    (folder / "3.manifest").rename(folder / "3" / "manifest.json")
    reporter = At(0, power_cut)
    train(cut, resume=True, reporter=reporter)
    assert (
        "checkpoints/6 is damaged (manifest.json is missing)" in reporter.notes[0] and "update 3" in reporter.notes[1]
    )
    assert (folder / "6.damaged" / "progress.json").is_file()
    assert_same_runs(whole, cut, 10)


def test_a_run_whose_checkpoints_are_gone_is_refused(fake_config, fake_learner):
    train(fake_config)
    folder = Path(fake_config.out)
    shutil.rmtree(folder / "checkpoints")
    before = contents(folder)
    with pytest.raises(UserError, match=r"come to update 10, but its checkpoints are gone: restore .* cp -r .*best/"):
        train(fake_config, resume=True)
    shutil.rmtree(folder / "best")
    with pytest.raises(UserError, match=r"gone: restore .*/checkpoints from a copy, or start a new run"):
        train(fake_config, resume=True)
    assert contents(folder) == {path: data for path, data in before.items() if "best" not in path.parts}


def test_a_run_killed_before_its_first_checkpoint_begins_again(fake_config, fake_learner):
    # By then there are lines of metrics and a best checkpoint.
    whole = dataclasses.replace(fake_config, eval_every=20)
    killed = elsewhere(whole, "killed")
    train(whole)
    with pytest.raises(PowerCut):
        train(killed, reporter=At(2, power_cut))
    assert checkpoints.updates(Path(killed.out) / "best") and not checkpoints.updates(Path(killed.out) / "checkpoints")
    train(killed, resume=True)
    assert_same_runs(whole, killed, 10)


@pytest.mark.parametrize(("name", "wants_file"), [("metrics.jsonl", False), ("tensorboard", True), ("best", True)])
def test_places_that_cannot_be_written_are_found_at_once(fake_config, fake_learner, monkeypatch, name, wants_file):
    folder = Path(fake_config.out)
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(fake_config))
    (folder / name).write_text("") if wants_file else (folder / name).mkdir()
    monkeypatch.setattr(loop_module, "build_learner", power_cut)
    with pytest.raises(UserError, match=f"{name} cannot be written"):
        train(fake_config, resume=True)


def test_nothing_is_left_of_a_run_that_could_not_begin(fake_config, fake_learner, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError

    monkeypatch.setattr(loop_module, "compile_program", fail)
    with pytest.raises(RuntimeError):
        train(fake_config)
    assert not Path(fake_config.out).exists()


def test_an_evaluation_that_is_nan_is_never_the_best(fake_config, fake_learner, monkeypatch):
    returns = iter([0.0, 1.0, np.nan, 0.5, 0.0])

    def evaluated(self, params, number):
        value: Any = next(returns)
        ones: Any = np.ones((1, 6), np.float32)
        return EvaluationResult(value * ones, value * np.repeat(ones[..., None], 2, -1), ones)

    monkeypatch.setattr(loop_module.Program, "evaluate", evaluated)
    assert train(fake_config).summary["best"]["update"] == 4
    returns = iter([np.nan] * 5)
    nothing = train(elsewhere(fake_config, "nothing"))
    assert nothing.summary["best"] == {}
    assert "NaN" not in (nothing.folder / "summary.json").read_text()
    # Runs of older versions may have saved such a best one.
    path = nothing.folder / "checkpoints" / "10"
    progress = json.loads((path / "progress.json").read_text()) | {"best_return": np.nan, "best_update": 8}
    (path / "progress.json").write_text(json.dumps(progress))
    monkeypatch.setattr(checkpoints, "problem", lambda _: None)
    returns = iter([0.0])
    (nothing.folder / "summary.json").unlink()
    assert train(elsewhere(fake_config, "nothing"), resume=True).summary["best"] == {}


def test_nan_at_the_first_update_points_at_the_environment(fake_config, fake_learner):
    fake_learner["poison"] = 0
    with pytest.raises(TrainingDiverged, match=r"environment's rewards and observations are finite"):
        train(fake_config)


def test_a_manifest_that_names_too_little_is_damage(fake_config, fake_learner):
    train(fake_config)
    path = Path(fake_config.out) / "checkpoints" / "10"
    (path / "manifest.json").write_text("{}")
    assert checkpoints.problem(path) == "manifest.json does not name progress.json"


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError('Error writing "x": "y": Failed to write: No space left on device [os_error_code=\'28\']'),
    ],
)
def test_a_full_disk_takes_one_line_and_no_checkpoint(fake_config, fake_learner, monkeypatch, error):
    train(fake_config)
    folder = Path(fake_config.out) / "checkpoints"
    run, before = load_run(fake_config.out), contents(folder)

    def full(*_, **__):
        raise error

    monkeypatch.setattr(checkpoints.ocp.Checkpointer, "save", full)
    with pytest.raises(UserError, match=r"checkpoints/11 \(No space left on device\).*--resume"):
        checkpoints.save(folder, 11, {"params": run.params}, {}, fake_config, {}, 2)
    assert contents(folder) == before


def test_a_checkpoint_of_another_configuration_is_refused(fake_config, fake_learner):
    other = dataclasses.replace(elsewhere(fake_config, "other"), discount=0.5)
    train(fake_config)
    train(other)
    shutil.rmtree(Path(other.out) / "checkpoints")
    shutil.copytree(Path(fake_config.out) / "checkpoints", Path(other.out) / "checkpoints")
    before = contents(other.out)
    with pytest.raises(UserError, match=r"another configuration \(discount: 0.99 -> 0.5\).*cp .*10/config.yaml"):
        train(other, resume=True)
    assert contents(other.out) == before


def test_a_run_needs_a_folder():
    with pytest.raises(UserError, match="folder"):
        train(TrainConfig())
