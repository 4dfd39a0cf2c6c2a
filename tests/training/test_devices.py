import dataclasses
import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest
from training.comparison import metrics_without_times

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training import TrainConfig, train
from jaxmarl_llm.training.devices import connect_processes, place


@pytest.fixture
def tiny_config(tmp_path):
    """The real learner, as small as it gets; two updates are enough for all reductions over environments."""
    return TrainConfig(
        env="matrix_game",
        env_args={"game": "coordination", "max_steps": 3, "observation": "last_action"},
        num_envs=4,
        rollout_length=8,
        hidden_sizes=(8,),
        num_epochs=2,
        num_minibatches=2,
        normalize_value=True,
        total_steps=96,
        eval_episodes=4,
        checkpoint_every=64,
        out=str(tmp_path / "one"),
    )


def assert_close_metrics(one, other):
    lines, other_lines = metrics_without_times(one), metrics_without_times(other)
    assert len(lines) == len(other_lines)
    for line, other_line in zip(lines, other_lines, strict=True):
        assert line.keys() == other_line.keys()
        for name, value in line.items():
            if isinstance(value, list):
                value, other_value = np.asarray(value, float), np.asarray(other_line[name], float)
                np.testing.assert_allclose(value, other_value, rtol=1e-5, atol=1e-5, err_msg=name)
            else:
                assert value == other_line[name]


@pytest.mark.parametrize("num_seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_devices_give_the_result_of_one(tiny_config, num_seeds, tmp_path):
    config = dataclasses.replace(tiny_config, num_seeds=num_seeds)
    one = train(config)
    two = train(dataclasses.replace(config, num_devices=2, out=str(tmp_path / "two")))
    assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(two.best_params)} == {2}
    for a, b in zip(jax.tree.leaves(one.best_params), jax.tree.leaves(two.best_params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert_close_metrics(one.folder, two.folder)


def test_environments_are_split_and_all_else_is_replicated(fake_config, fake_learner, monkeypatch):
    from jaxmarl_llm.training import loop

    seen = []
    save = loop.checkpoints.save
    monkeypatch.setattr(loop.checkpoints, "save", lambda *args: (seen.append(args[2]), save(*args))[1])
    train(dataclasses.replace(fake_config, num_devices=2))
    state = seen[-1]
    for leaf in jax.tree.leaves(state.rollout):
        assert {shard.data.shape[:2] for shard in leaf.addressable_shards} == {(1, 2)}
    for leaf in jax.tree.leaves((state.params, state.key, state.update)):
        assert leaf.sharding.is_fully_replicated and len(leaf.sharding.device_set) == 2


def test_a_run_may_go_on_with_other_devices(fake_config, fake_learner, tmp_path):
    config = dataclasses.replace(fake_config, learning_rate_schedule="constant")
    train(config)
    train(dataclasses.replace(config, total_steps=240, num_devices=2), resume=True)
    longer = dataclasses.replace(config, total_steps=240, out=str(tmp_path / "longer"))
    train(longer)
    last, expected = (metrics_without_times(folder)[-1] for folder in (config.out, longer.out))
    np.testing.assert_allclose(last["return"], expected["return"], rtol=1e-5)


def test_bad_numbers_of_devices():
    assert place(0, 8).num_devices == 2
    with pytest.raises(UserError, match="JAX sees 2"):
        place(3, 6)
    assert place(0, 9).num_devices == 1
    with pytest.raises(UserError, match=r"2 devices cannot share .* use --num-devices 1, 5, or a multiple of 2"):
        place(2, 5)


def test_a_process_needs_all_three_numbers(monkeypatch):
    for name in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    connect_processes()
    with pytest.raises(UserError, match="also needs --num-processes and --process-id"):
        connect_processes("localhost:1234")
    monkeypatch.setenv("JAX_NUM_PROCESSES", "two")
    with pytest.raises(UserError, match="JAX_NUM_PROCESSES"):
        connect_processes("localhost:1234")
    with pytest.raises(UserError, match="between 0 and 1"):
        connect_processes("localhost:1234", 2, 2)


@pytest.mark.slow
def test_two_processes_give_the_result_of_one(tiny_config, tmp_path):
    one = train(tiny_config)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    preset = tmp_path / "preset.yaml"
    preset.write_text((one.folder / "config.yaml").read_text())
    command = [sys.executable, "-m", "jaxmarl_llm.cli", "train", str(preset), "--out", str(tmp_path / "two")]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}

    def run(*options):
        processes = [
            subprocess.Popen(
                [*command, *options, "--process-id", str(process), "--no-plots"],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for process in range(2)
        ]
        outputs = [process.communicate(timeout=300)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
        return outputs

    outputs = run()
    assert "final" in outputs[0] and "final" not in outputs[1]
    assert_close_metrics(one.folder, tmp_path / "two")
    assert sorted(path.name for path in (tmp_path / "two" / "checkpoints").iterdir()) == ["2", "3"]
    # A checkpoint that two processes wrote can be read by them again.
    (tmp_path / "two" / "summary.json").unlink()
    run("--resume")
    assert (tmp_path / "two" / "summary.json").is_file()
