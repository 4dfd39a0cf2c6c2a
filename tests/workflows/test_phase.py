"""Phase diagrams: which runs there are, what counts as rise and fall, files and resuming, pictures; lanes."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from workflows.tiny_team import tiny_team

from jaxmarl_llm.cli import main
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.report.phase_plots import phase_figure, phase_page, write_phase_report
from jaxmarl_llm.report.phase_summary import cautions, phase_counts, summarize_phase
from jaxmarl_llm.training.loop import TrainingInterrupted
from jaxmarl_llm.workflows import RollBack, WorkflowLearner, make_task
from jaxmarl_llm.workflows.ablation.lanes import run_lanes
from jaxmarl_llm.workflows.ablation.phase import Phase, lanes_of, programs_of
from jaxmarl_llm.workflows.ablation.phase_run import run_phase
from jaxmarl_llm.workflows.ablation.sealed import write_sealed

CONFIG = Phase(
    copies=(1, 5), learning_rates=(0.5, 0.25), remedies=("none", "one_step", "roll_back"), num_seeds=3, iterations=24
)
POINTS = CONFIG.iterations // CONFIG.eval_every + 1


def curve_of(copies, lane):
    """Falls at the high rate with many copies, at once or late, unless it is held back; else rises or stays."""
    rise = np.minimum(0.1 * np.arange(POINTS), 0.4)
    if copies > 1 and lane.learning_rate == 0.5 and lane.remedy == "none":
        late = np.where(np.arange(POINTS) < POINTS - 4, rise, rise - 0.3)
        return 0.3 + (late if lane.seed else np.where(np.arange(POINTS) > 0, -0.2, 0.0))
    return 0.3 + (rise if lane.sharing == "isolated" else 0.0 * rise)


def train(config, copies, on_evaluation):
    runs = [lane for _, lanes in programs_of(config, copies) for lane in lanes]
    on_evaluation(0.5, 0.3)
    return {
        "copies": copies,
        "seconds": {"compile": 1.0, "train": 2.0},
        "lanes": [
            dataclasses.asdict(lane) | {"accuracy": curve_of(copies, lane).tolist(), "returns": 1} for lane in runs
        ],
    }


def test_programs_and_lanes():
    assert [shape for shape, _ in programs_of(Phase(), 3)] == [
        {},
        {"normalize_by_copies": True},
        {"role_weighting": "equal_mass"},
    ]
    # One copy takes one step in any case.
    assert [shape for shape, _ in programs_of(Phase(), 1)] == [{}, {"role_weighting": "equal_mass"}]
    for copies in (1, 5):
        lanes = [lane for _, part in programs_of(CONFIG, copies) for lane in part]
        assert len(lanes) == len(set(lanes)) == 3 * 2 * 2 * 3 and set(lanes) == set(lanes_of(CONFIG, CONFIG.remedies))


def test_points(tmp_path):
    parts = run_phase(CONFIG, tmp_path / "out", train=train)
    paths = write_phase_report(tmp_path / "out", CONFIG, parts)
    assert [path.name for path in paths if path.stat().st_size] == [
        "phase.png",
        "report.md",
        "phase.csv",
        "results.json",
    ]
    summary = summarize_phase(CONFIG, parts)
    assert len(summary["points"]) == 2 * 3 * 2 * 2 and summary == json.loads(paths[-1].read_text())
    for point in summary["points"]:
        counts = [point[name] for name in ("rises", "stays", "falls")]
        if (point["copies"], point["learning_rate"], point["remedy"]) == (5, 0.5, "none"):
            # At the end the late ones are still above the base.
            assert counts == [0, 0, 3] and point["gain_by_seed"] == pytest.approx([-0.2, 0.1, 0.1])
        else:
            assert counts == ([3, 0, 0] if point["sharing"] == "isolated" else [0, 3, 0])
        assert point["returns"] == 3
    page = phase_page(summary)
    assert "| none | SP | 0 | 9 | 3 |" in page and "| one_step | IP | 12 | 0 | 0 | +0.400 | +0.400 |" in page
    assert "IP, N = 1: 0.5; IP, N = 5: 0.25" in page
    assert (summary["base"]["5"], summary["difference_error"]["5"]) == (0.3, 0.0573)
    assert "below two standard errors of a difference (0.115 with 128 held-out problems)" in page
    certain = dataclasses.replace(CONFIG, margin=0.15)
    assert not cautions(summarize_phase(certain, parts))
    assert phase_counts(summary)[:2] == [("none", 1, 6, 6, 0), ("none", 5, 3, 3, 6)]
    rows = paths[2].read_text().splitlines()
    assert rows[0] == "copies,remedy,sharing,learning_rate,gain,rises,stays,falls,returns" and len(rows) == 25
    panels = [axes for axes in phase_figure(summary).axes if axes.get_title(loc="left")]
    assert len(panels) == 6
    signs = [text.get_text() for text in panels[0].texts]
    assert sorted(signs) == ["→→→"] * 3 + ["↓↓↓"]


def test_parts_are_kept(tmp_path):
    folder, trained = tmp_path / "out", []

    def stopped(config, copies, on_evaluation):
        trained.append(copies)
        if len(trained) == 2:
            raise TrainingInterrupted("stopped", 2)
        return train(config, copies, on_evaluation)

    with pytest.raises(TrainingInterrupted):
        run_phase(CONFIG, folder, train=stopped)
    for config, resume, message in (
        (CONFIG, False, "add --resume"),
        (dataclasses.replace(CONFIG, seed=1), True, "another phase diagram"),
    ):
        with pytest.raises(UserError, match=message):
            run_phase(config, folder, resume=resume, train=stopped)
    parts = run_phase(CONFIG, folder, resume=True, train=stopped)
    assert trained == [1, 5, 5]
    assert parts == [train(CONFIG, copies, lambda share, accuracy: None) for copies in CONFIG.copies]
    # A part of another diagram, one that does not say, and a damaged one are refused before others are trained.
    (folder / "parts/1.json").unlink()
    other = dataclasses.replace(CONFIG, level=1)
    run_phase(other, tmp_path / "level", train=train)
    (folder / "parts/5.json").write_bytes((tmp_path / "level/parts/5.json").read_bytes())
    with pytest.raises(UserError, match="is of another phase diagram: move it away"):
        run_phase(CONFIG, folder, resume=True, train=stopped)
    write_sealed(folder / "parts/5.json", parts[1])
    with pytest.raises(UserError, match="does not say of which phase diagram"):
        run_phase(CONFIG, folder, resume=True, train=stopped)
    (folder / "parts/5.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        run_phase(CONFIG, folder, resume=True, train=stopped)
    assert trained == [1, 5, 5]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("mine")
    with pytest.raises(UserError, match="other files"):
        run_phase(CONFIG, tmp_path / "other", train=stopped)


def test_a_folder_in_the_place_of_the_picture_is_named(tmp_path):
    parts = run_phase(CONFIG, tmp_path / "out", train=train)
    (tmp_path / "out/phase.png").mkdir()
    with pytest.raises(IsADirectoryError, match=r"phase\.png'$"):
        write_phase_report(tmp_path / "out", CONFIG, parts)
    assert not list((tmp_path / "out").glob("*.partial"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--remedies non", "unknown remedy 'non': did you mean none"),
        ("--learning-rates nan", "--learning-rates must be above 0 and finite"),
        ("--seed -1", "--seed must lie between"),
        ("--seed 4294967295", "--seed must lie between"),
        ("--sharing shred", "did you mean shared"),
        ("--copies 0", "--copies must lie between 1 and 100, got 0"),
        ("--copies 3 3", "--copies has '3' twice: give it once"),
        ("--pretraining-args num_episodes=2000000000", "episodes a step (--pretraining-args num_episodes) takes about"),
        ("--num-problems 10000000", "episodes (--num-problems x --group-size) takes about"),
        ("--eval-problems 9999 --level 1", "held-out problems, not 9999: ask for fewer"),
        ("--eval-every 5", "--eval-every 5 must divide --iterations 24"),
        ("--group-size 1", "--group-size must be at least 2"),
        ("--window 13", "more than the 12 evaluations"),
        ("--num-seeds 1000000000", "--num-seeds must lie between 1 and 10,000"),
        ("--resume", "add --out DIR"),
        ("--resume --out {folder}/nowhere", "no phase diagram"),
        ("--learning-rate 1", "--learning-rates"),
        ("--pretraining-args skill=abc", "skill of role 'generator' must be a number, got 'abc'"),
        ("--pretraining-args decoder=small", "decoder, which has an option of its own: --size"),
        ("--pretraining-args seed=1 seed=2", "seed is given twice"),
    ],
)
def test_mistakes_take_one_line_and_status_2(arguments, message, tmp_path, capsys):
    assert main(["ablate", "phase", *arguments.format(folder=tmp_path).split()]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ") and message in error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_lanes_are_runs_by_themselves(key):
    """Settings and seeds side by side give what each gives alone; a lane that is tied is a shared team."""
    bound, team = tiny_team("voting", "isolated", task=make_task("arithmetic", level=1, modulus=2), n=2)
    learner = WorkflowLearner(
        bound=bound,
        team=team,
        num_problems=4,
        group_size=3,
        temperature=5.0,
        diagnostic_episodes=0,
        coherence=True,
        entropy_coefficient=0.1,
    )
    guard = RollBack(learner=learner)
    base = jax.jit(lambda key: team.params_of(team.init(key), team.roles[0]))(key)
    settings = {
        "learning_rate": np.asarray([1e-2, 1e-3, 1e-2]),
        "tied": np.asarray([[0, 1], [0, 1], [0, 0]]),
        "most": np.zeros(3),
    }
    arguments = {"num_evaluations": 2, "eval_every": 2, "keep": ("role_base_kl", "learning_rate")}
    problems = jax.vmap(bound.task.sample)(jax.random.split(key, 7))
    curves = run_lanes(guard, base, [3, 4, 3], settings, problems, **arguments)
    assert curves.accuracy.shape == (3, 3) and curves.metrics["role_base_kl"].shape == (4, 3, 2)
    np.testing.assert_allclose(curves.metrics["learning_rate"], np.tile(settings["learning_rate"], (4, 1)), rtol=1e-6)

    @jax.jit
    def alone(learner, seed):
        state = learner.init(jax.random.key(seed), team.replicate(base))
        found = []
        for _ in range(4):
            state, metrics = learner.update(state)
            found.append(metrics["role_base_kl"])
        return jax.numpy.stack(found)

    for lane, seed in enumerate((3, 4, 3)):
        one = learner.replace(  # pyright: ignore[reportAttributeAccessIssue]
            **{name: jax.numpy.asarray(values[lane]) for name, values in settings.items() if name != "most"}
        )
        np.testing.assert_allclose(curves.metrics["role_base_kl"][:, lane], alone(one, seed), atol=1e-6, rtol=1e-3)
    assert (curves.metrics["role_base_kl"][-1] > 0).all()
