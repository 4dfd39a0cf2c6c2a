import json

import numpy as np

from jaxmarl_llm.training.records import Records, combine, keep_lines, last_update


def test_resuming_drops_later_and_torn_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"kind": "train", "update": update}) for update in (1, 2, 3)]
    damaged = [
        '{"kind": "train", "upd',
        '{"update": null}',
        '{"update": "2"}',
        '{"update": true}',
        "[1]",
        "3",
        "[" * 100_000,
    ]
    path.write_text("\n".join([*lines, *damaged]))
    assert last_update(path) == 3 and last_update(tmp_path / "nowhere") == 0
    keep_lines(path, 2)
    assert path.read_text() == "\n".join(lines[:2]) + "\n"
    keep_lines(path, None)
    assert path.read_text() == ""


def test_combined_metrics_weigh_episodes():
    records = [
        {
            "episodes_finished": np.array([1.0, 0.0]),
            "episode_return": np.array([10.0, np.nan]),
            "agent_return": np.array([[10.0, 0.0], [np.nan, np.nan]]),
            "total_loss": np.array([1.0, 2.0]),
        },
        {
            "episodes_finished": np.array([3.0, 0.0]),
            "episode_return": np.array([2.0, np.nan]),
            "agent_return": np.array([[2.0, 4.0], [np.nan, np.nan]]),
            "total_loss": np.array([3.0, 2.0]),
        },
    ]
    combined = combine(records)
    np.testing.assert_allclose(combined["episode_return"], [4.0, np.nan])
    np.testing.assert_allclose(combined["agent_return"], [[4.0, 3.0], [np.nan, np.nan]])
    np.testing.assert_allclose(combined["episodes_finished"], [4.0, 0.0])
    np.testing.assert_allclose(combined["total_loss"], [2.0, 2.0])


def test_a_line_is_json_with_exact_float32(tmp_path):
    records = Records(tmp_path, None, 0)
    values = np.array([0.1, np.nan, np.inf], np.float32)
    records.write("train", 1, 20, {"seconds": 0.25}, {"loss": values, "agent_return": np.ones((3, 2), np.float32)})
    records.close()
    (text,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert "NaN" not in text and "Infinity" not in text
    line = json.loads(text)
    assert line["loss"] == [0.1, None, None] and np.float32(line["loss"][0]) == values[0]
    assert line["agent_return"] == [[1.0, 1.0]] * 3
    assert list((tmp_path / "tensorboard").iterdir())
