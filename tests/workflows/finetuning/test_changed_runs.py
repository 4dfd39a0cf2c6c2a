"""A run whose files, inputs or configuration changed since it was saved is refused in one line, and left as it is."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
from workflows.finetuning.toy_finetuning import DIGITS, Digit, NextDigit
from workflows.finetuning.toy_play import random_trainer

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.files import lock_folder
from jaxmarl_llm.workflows.finetuning import run as run_module
from jaxmarl_llm.workflows.finetuning.owner import check_inputs, check_owner, inputs_of
from jaxmarl_llm.workflows.finetuning.run import Watcher, finetune, load_finetuned


class Notes(Watcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.fixture(scope="module")
def trainer():
    return random_trainer(iterations=1, trust_region="grpo")


@pytest.fixture(scope="module")
def finished(trainer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    finetune(trainer.config, folder, trainer=trainer)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def refused(folder, trainer, match):
    before = files(folder)
    with pytest.raises(UserError, match=match):
        finetune(trainer.config, folder, trainer=trainer, resume=True)
    assert files(folder) == before


def with_task(trainer, **changes):
    return dataclasses.replace(trainer, bound=dataclasses.replace(trainer.bound, **changes))


def test_a_run_without_checkpoints_is_not_begun_over(folder, trainer):
    shutil.rmtree(folder / "checkpoints")
    refused(folder, trainer, "had come to update 1, but its checkpoints are gone: restore .* with another --out")
    shutil.rmtree(folder / "best")
    refused(folder, trainer, "its checkpoints are gone")
    # As a kill before the first checkpoint leaves it.
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in lines if json.loads(line)["update"] == 0))
    assert finetune(trainer.config, folder, trainer=trainer, resume=True).summary["iterations"] == 1


def test_metrics_without_a_sound_line_are_named_and_kept(folder, trainer):
    (folder / "metrics.jsonl").write_bytes(b"garbage\n[]\n\xff\n")
    notes = Notes()
    finetune(trainer.config, folder, trainer=trainer, resume=True, watcher=notes)
    assert any("lines of" in note and "are lost" in note for note in notes.notes)
    assert (folder / "metrics.jsonl.damaged").read_bytes() == b"garbage\n[]\n\xff\n"
    (folder / "metrics.jsonl").unlink()
    (folder / "metrics.jsonl").mkdir()
    refused(folder, trainer, "metrics.jsonl cannot be written")


def test_an_edited_configuration_is_refused(folder, trainer):
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("learning_rate: 0.02", "learning_rate: 0.5"))
    edited = dataclasses.replace(trainer, config=dataclasses.replace(trainer.config, learning_rate=0.5))
    refused(folder, edited, r"learning_rate: 0\.02 -> 0\.5.*restore it with `cp ")
    with pytest.raises(UserError, match="belongs to another configuration"):
        load_finetuned(folder, "best", edited)


def test_what_is_only_recorded_may_change_and_what_is_judged_itself_may_move(folder, trainer):
    path, config = folder / "checkpoints" / "1", trainer.config
    check_owner(path, dataclasses.replace(config, iterations=9, evaluate_every=7))
    with pytest.raises(UserError, match="iterations: 1 -> 9"):
        check_owner(path, dataclasses.replace(config, iterations=9, learning_rate_schedule="linear"))
    moved = dataclasses.replace(config, model="elsewhere")
    with pytest.raises(UserError, match="model: smollm2 -> elsewhere"):
        check_owner(path, moved)
    progress = json.loads((path / "progress.json").read_text())
    (path / "progress.json").write_text(json.dumps(progress | {"fingerprint": "a"}))
    check_owner(path, moved)
    check_owner(path, dataclasses.replace(config, task="/elsewhere/arithmetic_words"))
    with pytest.raises(UserError, match="task: arithmetic_words -> functions"):
        check_owner(path, dataclasses.replace(config, task="functions"))
    with pytest.raises(UserError, match="another model than the run was trained on"):
        check_inputs(path, inputs_of("b", trainer.bound), config)


def test_other_problems_or_formats_are_refused(folder, trainer):
    problems = tuple(Digit(digit, digit, DIGITS[0]) for digit in DIGITS)
    refused(folder, with_task(trainer, task=NextDigit(train=problems)), "the problems of arithmetic_words are others")
    formats = trainer.bound.formats
    changed = {**formats, "solver": dataclasses.replace(formats["solver"], system="Be brief.")}
    refused(folder, with_task(trainer, formats=changed), "the prompts that ship: others than those of the run")
    # A run of an earlier version does not know them.
    path = folder / "checkpoints" / "1" / "progress.json"
    old = {name: value for name, value in json.loads(path.read_text()).items() if name not in ("task", "formats")}
    path.write_text(json.dumps(old))
    check_inputs(path.parent, inputs_of(None, with_task(trainer, formats=changed).bound), trainer.config)


def test_checkpoints_are_looked_for_under_the_lock(folder, trainer, tmp_path, monkeypatch):
    def locked(*arguments):
        with pytest.raises(UserError, match="another process is training"):
            lock_folder(folder)
        raise UserError("looked")

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "find_start", locked)
        refused(folder, trainer, "looked")

    # A process that was quicker while this one loaded its model.
    def quicker(config):
        shutil.copytree(folder, tmp_path / "new")
        return trainer

    monkeypatch.setattr(run_module, "load_trainer", quicker)
    with pytest.raises(UserError, match="holds this run already"):
        finetune(trainer.config, tmp_path / "new", resume=True)
