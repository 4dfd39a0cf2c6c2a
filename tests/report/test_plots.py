import json

import matplotlib
import numpy as np
import pytest
import yaml
from PIL import Image

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.report import plots, read_metrics, write_plots


def write_run(folder, *, num_seeds=1, num_agents=2, updates=20, shared=False):
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"env": "overcooked", "algorithm": "ippo"}))
    share = np.ones(num_agents) if shared else np.arange(num_agents)
    with open(folder / "metrics.jsonl", "w") as file:
        for update in range(1, updates + 1):
            team = 10.0 * update + rng.normal(size=num_seeds)
            common = {"update": update, "env_steps": update * 128, "seconds": update * 0.5, "steps_per_s": 256.0}
            agents = (team[:, None] * share).tolist()
            line = {
                "kind": "train",
                **common,
                "episode_return": [float("nan")] * num_seeds if update < 3 else team.tolist(),
                "agent_return": agents,
                "agent_shaped_reward": agents,
            }
            for name in ("policy_loss", "value_loss", "entropy", "approximate_kl", "clip_fraction"):
                line[name] = rng.normal(size=num_seeds).tolist()
            file.write(json.dumps(line) + "\n")
            if update % 5 == 0:
                returns = (team[:, None] + rng.normal(size=(num_seeds, 4))).tolist()
                line = {"kind": "evaluation", **common, "return": returns, "agent_return": agents}
                file.write(json.dumps(line) + "\n")
    return folder


@pytest.mark.parametrize(("num_seeds", "num_agents", "shared"), [(1, 1, False), (1, 2, True), (5, 7, False)])
def test_three_pictures_are_written(tmp_path, num_seeds, num_agents, shared):
    run = write_run(tmp_path / "run", num_seeds=num_seeds, num_agents=num_agents, shared=shared)
    paths = write_plots(run)
    assert [path.name for path in paths] == ["learning_curve.png", "agent_returns.png", "losses.png"]
    for path in paths:
        with Image.open(path) as image:
            assert image.width > 600
            assert len(set(image.convert("L").resize((200, 100)).tobytes())) > 10, "an empty picture"


def test_value_learners_have_losses_of_their_own(tmp_path):
    names = ("total_loss", "td_error", "gradient_norm", "value_mean", "target_mean", "epsilon")
    lines = [
        {"kind": "train", "update": i, "env_steps": 10 * i} | {name: [float(i)] for name in names} for i in range(1, 4)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    figure = plots._losses(read_metrics(tmp_path))
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.get_visible()] == [
        label for _, label in plots._VALUE_LOSSES
    ]
    assert [path.name for path in write_plots(tmp_path)] == ["losses.png"]


def test_pyplot_and_global_settings_are_untouched(tmp_path):
    import sys

    before = dict(matplotlib.rcParams)
    write_plots(write_run(tmp_path / "run"))
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("text", ["", "\n\n", '{"kind": "tra', "[1, 2]\nnull\n{}\n", '{"kind":"train","update":1}\n'])
def test_a_run_without_a_whole_line_gives_no_pictures(tmp_path, text):
    (tmp_path / "metrics.jsonl").write_text(text)
    assert write_plots(tmp_path) == []


def test_damaged_lines_cost_only_themselves(tmp_path):
    run = write_run(tmp_path / "run")
    whole = read_metrics(run).series("train", "entropy")[1]
    text = (run / "metrics.jsonl").read_text()
    damaged = (
        '{"kind": "train", "update": null, "env_steps": 3, "entropy": [9.0]}\n{"kind": "train", "update": 21, "env_st'
    )
    (run / "metrics.jsonl").write_text(f"{text}{'[' * 100_000}\n{damaged}")
    np.testing.assert_array_equal(read_metrics(run).series("train", "entropy")[1], whole)


def test_a_resumed_run_overwrites_its_lines_and_null_is_missing(tmp_path):
    lines = [
        {"kind": "train", "update": 1, "env_steps": 10, "entropy": [1.0]},
        {"kind": "train", "update": 2, "env_steps": 20, "entropy": [2.0]},
        {"kind": "train", "update": 3, "env_steps": 30, "entropy": [3.0]},
        {"kind": "train", "update": 2, "env_steps": 20, "entropy": [5.0]},
        {"kind": "train", "update": 3, "env_steps": 30, "entropy": [None]},
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    steps, entropy = read_metrics(tmp_path).series("train", "entropy")
    np.testing.assert_array_equal(steps, [10, 20, 30])
    np.testing.assert_array_equal(entropy, [[1.0], [5.0], [np.nan]])
    updates, again = read_metrics(tmp_path).series("train", "entropy", "update")
    np.testing.assert_array_equal(updates, [1, 2, 3])
    np.testing.assert_array_equal(again, entropy)


def test_all_nan_curves_are_left_out(tmp_path):
    line = {"kind": "train", "update": 1, "env_steps": 10, "episode_return": [float("nan")], "entropy": [0.5]}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line))
    assert [path.name for path in write_plots(tmp_path)] == ["losses.png"]


def test_missing_folder_is_one_clear_line(tmp_path):
    with pytest.raises(UserError, match="no run folder"):
        write_plots(tmp_path / "nothing")
