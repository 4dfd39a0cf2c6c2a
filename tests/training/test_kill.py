import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training.comparison import assert_same_bits, metrics_without_times, saved_state

from jaxmarl_llm.training import build_learner, checkpoints
from jaxmarl_llm.training.config import load_yaml

PRESET = """
env: grid_race
env_args: {max_steps: 9}
num_envs: 4
rollout_length: 8
hidden_sizes: [8]
total_steps: 12_800
eval_every: 1280
eval_episodes: 4
checkpoint_every: 640
"""
ALGORITHMS = {
    "ippo": "num_epochs: 2\nnum_minibatches: 2\n",
    "qmix": "algorithm: qmix\nnetwork: gru\ngru_size: 4\n"
    "algorithm_args: {replay_size: 400, batch_size: 4, priority_exponent: 0.6}\n",
}


def start(*options):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[2] / ".jax_cache"))
    command = [sys.executable, "-m", "jaxmarl_llm.cli", "train", *options, "--no-plots"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for_checkpoint(process, folder, update):
    deadline = time.monotonic() + 240
    while not [found for found in checkpoints.updates(folder / "checkpoints") if found >= update]:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_killed_run_resumes_bit_by_bit(algorithm, tmp_path):
    preset = tmp_path / "preset.yaml"
    preset.write_text(PRESET + ALGORITHMS[algorithm])
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = start(str(preset), "--out", str(whole))
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output

    process = start(str(preset), "--out", str(killed))
    wait_for_checkpoint(process, killed, 40)
    process.kill()
    process.communicate()
    assert not (killed / "summary.json").exists()

    # The second time it is asked politely.
    process = start("--resume", "--out", str(killed))
    wait_for_checkpoint(process, killed, 160)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 143 and "stopped by SIGTERM" in output, output

    process = start("--resume", "--out", str(killed))
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0 and "resuming from update" in output, output
    assert metrics_without_times(killed) == metrics_without_times(whole)
    states = [saved_state(folder, load_yaml(folder / "config.yaml"), build_learner, 400) for folder in (whole, killed)]
    assert_same_bits(*states)
