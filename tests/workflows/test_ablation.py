import json
import linecache
import os
import signal
import sys

import jax
import numpy as np
import pytest
from workflows.synthetic_cells import SMALL, changed, synthetic_cell, synthetic_runner

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.loop import TrainingInterrupted
from jaxmarl_llm.workflows import make_workflow
from jaxmarl_llm.workflows.ablation.loop import ablation_cells, load_cells, run_ablation
from jaxmarl_llm.workflows.ablation.matrix import PRESETS, Ablation, check_ablation, differences, to_json
from jaxmarl_llm.workflows.ablation.results import from_json, load_cell, read_header, save_cell, write_header


def test_cells_of_the_presets():
    quick = [cell.name for cell in ablation_cells(PRESETS["quick"])]
    # The control has one role, and nothing to share.
    assert len(quick) == 7 and quick.count("arithmetic-tiny-single-shared") == 1
    assert len(set(quick)) == 7
    assert len(ablation_cells(PRESETS["full"])) == 7 * 2 * 3
    only = ablation_cells(changed(workflows=("single",), sharing=("isolated",)))
    assert [cell.sharing for cell in only] == ["isolated"]


def test_evaluations_include_the_first_and_the_last():
    assert changed(iterations=7, eval_every=3).eval_iterations == (0, 3, 6, 7)
    assert changed(iterations=6, eval_every=3).eval_iterations == (0, 3, 6)
    assert changed(iterations=2, eval_every=3).eval_iterations == (0, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"workflows": ("votting",)}, "unknown workflow 'votting': did you mean voting?"),
        ({"tasks": ("aritmetic",)}, "unknown task 'aritmetic': did you mean arithmetic?"),
        ({"sizes": ("tinny",)}, "unknown size 'tinny': did you mean tiny?"),
        ({"sharing": ("isolate",)}, "unknown sharing 'isolate': did you mean isolated?"),
        ({"sizes": ("tiny", "tiny")}, "--sizes has 'tiny' twice"),
        ({"tasks": ()}, "--tasks needs at least one name"),
        ({"num_seeds": 0}, "--num-seeds must lie between 1 and 10,000, got 0"),
        ({"iterations": 0}, "--iterations must lie between 1 and 10,000,000, got 0"),
        ({"learning_rate": float("nan")}, "--learning-rate must be above 0"),
        ({"cliff_drop": 5.0}, "--cliff-drop must lie between 0 and 1"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        check_ablation(changed(**changes))


def test_json_round_trip():
    config = changed(sizes=("tiny", "base"), learner_args={"normalize_by_copies": False}, learning_rate=1e-3)
    assert from_json(json.loads(json.dumps(to_json(config)))) == config
    assert differences(config, changed(config, iterations=8)) == ["iterations: 29 -> 8"]
    with pytest.raises(ValueError, match="other fields: more"):
        from_json(to_json(config) | {"more": 1})


def test_cell_round_trip(tmp_path):
    config = changed(num_seeds=3, iterations=5)
    cell = ablation_cells(config)[0]
    result = synthetic_cell(config, cell)
    save_cell(tmp_path, result, config)
    loaded = load_cell(tmp_path, cell, config)
    assert loaded is not None and (loaded.roles, loaded.seeds, loaded.times) == (
        result.roles,
        result.seeds,
        result.times,
    )
    for name in ("evaluations", "diagnostics"):
        assert jax.tree.all(jax.tree.map(np.array_equal, getattr(loaded, name), getattr(result, name)))
    assert load_cell(tmp_path, ablation_cells(config)[1], config) is None


def test_resume_does_what_is_missing(tmp_path):
    trained = []
    with pytest.raises(KeyboardInterrupt):
        run_ablation(SMALL, tmp_path / "out", synthetic_runner(trained, fail_at=2))
    assert len(trained) == 2
    with pytest.raises(UserError, match="add --resume"):
        run_ablation(SMALL, tmp_path / "out", synthetic_runner(trained))
    results = run_ablation(SMALL, tmp_path / "out", synthetic_runner(trained), resume=True)
    names = [cell.name for cell in ablation_cells(SMALL)]
    assert trained == names == [result.cell.name for result in results]
    run_ablation(SMALL, tmp_path / "out", synthetic_runner(trained), resume=True)
    assert trained == names
    assert read_header(tmp_path / "out")[0] == SMALL
    assert not [path for path in (tmp_path / "out").rglob("*") if path.suffix == ".partial" or path.name == ".lock"]


def test_signal_stops_between_updates(tmp_path):
    trained = []

    def make_runner(config, cells):
        inner = synthetic_runner(trained)(config, cells)

        def run_cell(cell, on_progress):
            if len(trained) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return inner(cell, on_progress)

        return run_cell

    with pytest.raises(TrainingInterrupted, match=r"SIGINT with 1 of 7 cells done; continue with: .* --resume --out"):
        run_ablation(SMALL, tmp_path / "out", make_runner)
    assert len(load_cells(SMALL, tmp_path / "out")) == 1


def everything(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_other_folders_are_left_alone(tmp_path):
    def refuse(config, folder, message):
        with pytest.raises(UserError, match=message) as caught:
            run_ablation(config, folder, synthetic_runner([]), resume=True)
        assert "\n" not in str(caught.value)

    (tmp_path / "file").write_text("mine")
    refuse(SMALL, tmp_path / "file", "is a file")
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("mine")
    refuse(SMALL, foreign, "other files than an ablation's")

    folder = tmp_path / "out"
    config = changed(workflows=("voting",))
    run_ablation(config, folder, synthetic_runner([]))
    before = everything(folder)
    refuse(changed(config, iterations=5, num_seeds=3), folder, "num_seeds: 2 -> 3; iterations: 29 -> 5")
    assert everything(folder) == before

    cell = next((folder / "cells").glob("*.npz"))
    whole = cell.read_bytes()
    cell.write_bytes(whole[:-7])
    refuse(config, folder, "is damaged, or of another version: delete its .json")
    cell.write_bytes(whole)
    known = cell.with_suffix(".json").read_text()
    cell.with_suffix(".json").write_text("{")
    refuse(config, folder, "is damaged")
    cell.with_suffix(".json").write_text(known)
    for name, value in {"seeds": [0], "roles": ["generator"], "eval_iterations": [0, 30], "times": {}}.items():
        cell.with_suffix(".json").write_text(json.dumps(json.loads(known) | {name: value}))
        refuse(config, folder, "is damaged, or of another version: delete its .json")
    cell.with_suffix(".json").write_text(known)
    header = json.loads((folder / "ablation.json").read_text())
    header["config"]["num_seeds"] = "zwei"
    (folder / "ablation.json").write_text(json.dumps(header))
    refuse(config, folder, "damaged, or of another version")
    (folder / "ablation.json").write_text('{"kind": "something"}')
    refuse(config, folder, "damaged, or of another version")
    assert cell.read_bytes() == whole


def test_a_file_in_the_place_of_a_folder_is_refused_before_training(tmp_path):
    for name in ("cells", "tensorboard"):
        write_header(tmp_path / name, SMALL, {})
        (tmp_path / name / name).write_text("mine")
        with pytest.raises(UserError, match=f"{name} is a file, where a folder belongs"):
            run_ablation(
                SMALL, tmp_path / name, lambda config, cells: pytest.fail("nothing is to be trained"), resume=True
            )


def test_cells_of_another_ablation_are_refused(tmp_path):
    run_ablation(changed(seed=5), tmp_path / "other", synthetic_runner([]))
    write_header(tmp_path / "out", SMALL, {})
    (tmp_path / "other" / "cells").rename(tmp_path / "out" / "cells")
    with pytest.raises(UserError, match="is of another ablation"):
        run_ablation(SMALL, tmp_path / "out", synthetic_runner([]), resume=True)
    # What the files of a cell do not show decides as well.
    run_ablation(changed(learning_rate=0.5), tmp_path / "rate", synthetic_runner([]))
    write_header(tmp_path / "mixed", SMALL, {})
    (tmp_path / "rate" / "cells").rename(tmp_path / "mixed" / "cells")
    with pytest.raises(UserError, match="is of another ablation"):
        run_ablation(SMALL, tmp_path / "mixed", synthetic_runner([]), resume=True)


_OWN = """
import dataclasses
import jax.numpy as jnp
from jaxmarl_llm.workflows import PROBLEM, Call, Last, Problem, Solution, Task, Workflow

def duo(n: int = 2):
    answer = Call("writer", prompt=(PROBLEM, "<writer>"), writes=Solution(), copies=n)
    closer = Call("closer", prompt=(PROBLEM, "<closer>"), writes=Solution())
    return Workflow("duo", (answer, closer), answer=Last("closer"))

NOTHING = 3

def number():
    return 3

@dataclasses.dataclass(frozen=True, kw_only=True)
class Same(Task):
    @property
    def symbols(self):
        return ("a", "b")
    max_problem_length = max_answer_length = 1
    def draw(self, key):
        letter = jnp.asarray(self.tokens("a"))
        return Problem(tokens=letter, length=jnp.asarray(1), target=letter)
    def score(self, problem, completion, length):
        return (completion[0] == problem.target[0]).astype(jnp.float32)
    def teacher(self, key, problem, skill):
        return problem.target, problem.length
"""


def test_tasks_and_workflows_by_import_path(tmp_path, monkeypatch):
    """Copies go to a workflow that has them, files have names without a colon, and changed code is another ablation."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(module, text):
        (tmp_path / f"{module}.py").write_text(text)

    write("own_first", _OWN)
    config = changed(tasks=("own_first:Same",), workflows=("own_first:duo", "single"), copies=5)
    assert make_workflow("own_first:duo", **config.workflow_settings("own_first:duo")).turns[0].call.copies == 5
    assert [cell.name for cell in ablation_cells(config)] == [
        "own_first.Same-tiny-own_first.duo-shared",
        "own_first.Same-tiny-own_first.duo-isolated",
        "own_first.Same-tiny-single-shared",
    ]
    run_ablation(config, tmp_path / "out", synthetic_runner([]))
    write("own_first", _OWN.replace('self.tokens("a")', 'self.tokens("b")'))
    monkeypatch.delitem(sys.modules, "own_first")
    linecache.clearcache()
    with pytest.raises(UserError, match="another own_first:Same, whose code has changed"):
        run_ablation(config, tmp_path / "out", synthetic_runner([]), resume=True)
    for changes, message in (
        ({"tasks": ("own_first:Sane",)}, "unknown task in module own_first 'Sane': did you mean Same?"),
        ({"tasks": ("no_such:Task",)}, "cannot import task 'no_such:Task'"),
        ({"workflows": ("own_first:NOTHING",)}, "workflow own_first:NOTHING is 3: name a class or a function"),
        ({"workflows": ("own_first:number",)}, "own_first:number makes a int, not a jaxmarl_llm.workflows.Workflow"),
    ):
        with pytest.raises(UserError, match=message):
            run_ablation(changed(**changes), tmp_path / "new", synthetic_runner([]))
        assert not (tmp_path / "new").exists()


def test_versions_of_the_beginning_are_kept(tmp_path):
    old, new = {"jax": "0.9"}, {"jax": "0.10"}
    for versions in (old, new, old, new):
        write_header(tmp_path, SMALL, versions)
        assert read_header(tmp_path)[1][0] == old
    assert read_header(tmp_path)[1] == [old, new]


@pytest.mark.slow
def test_trains_a_matrix(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    from jaxmarl_llm.workflows.ablation.runner import make_runner

    config = Ablation(
        workflows=("voting",),
        num_seeds=2,
        level=1,
        copies=2,
        iterations=3,
        eval_every=2,
        num_problems=4,
        group_size=2,
        eval_problems=8,
        cliff_window=2,
        learner_args={"diagnostic_episodes": 4},
        pretraining_args={"num_steps": 20, "num_episodes": 8},
    )
    results = run_ablation(config, tmp_path / "out", make_runner)
    assert [result.cell.name for result in results] == [cell.name for cell in ablation_cells(config)]
    for result in results:
        num_roles = len(result.roles)
        assert result.accuracy.shape == (3, 2) and np.isfinite(result.accuracy).all()
        assert result.diagnostics["role_gradient_norm"].shape == (3, 2, num_roles)
        assert result.diagnostics["role_gradient_cosine"].shape == (3, 2, num_roles, num_roles)
        ends = [result.evaluations[name] for name in ("accuracy", "selection_failure", "generation_failure")]
        assert sum(ends) == pytest.approx(1.0, abs=1e-5)
        # Seeds differ in what they train on.
        assert (np.diff(result.diagnostics["role_entropy"], axis=1) != 0).any()
    assert len(load_cells(config, tmp_path / "out")) == 2


def test_settings_are_checked_before_anything_is_built():
    from jaxmarl_llm.workflows.ablation.runner import make_runner

    def refuse(message, **changes):
        config = changed(workflows=("voting",), **changes)
        with pytest.raises(UserError, match=message):
            make_runner(config, ablation_cells(config))

    refuse("unknown setting of --learner-args 'group': did you mean grouping", learner_args={"group": "slot"})
    refuse("an option of its own: --learning-rate", learner_args={"learning_rate": 1.0})
    refuse("unknown grouping 'slots': did you mean slot", learner_args={"grouping": "slots"})
    refuse("unknown setting of --pretraining-args 'skil': did you mean skill", pretraining_args={"skil": 0.5})
