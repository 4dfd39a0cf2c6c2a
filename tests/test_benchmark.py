import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from jaxmarl_llm import auto_reset, make, vectorize
from jaxmarl_llm.benchmark import (
    MODES,
    machine_report,
    markdown_table,
    prepare_environment,
    prepare_training,
    print_table,
    run_environment_benchmark,
)
from jaxmarl_llm.benchmark.environments import checksum, random_action, steps_for
from jaxmarl_llm.benchmark.serve import Worker, WorkerError
from jaxmarl_llm.benchmark.table import _short
from jaxmarl_llm.benchmark.training import _fill, seconds_to_return
from jaxmarl_llm.errors import UserError


def slow_checksum(name, num_envs, num_steps, seed, **env_args):
    """The measured work once more, step by step, with NumPy sums."""
    raw = make(name, **env_args)
    vector = vectorize(auto_reset(raw), num_envs)
    step = jax.jit(vector.step)
    key_reset, key = jax.random.split(jax.random.key(seed))
    timestep, state = jax.jit(vector.reset)(key_reset)
    total = 0.0
    for _ in range(num_steps):
        key, key_action, key_step = jax.random.split(key, 3)
        total += np.asarray(timestep.observation, np.float64).sum()
        timestep, state = step(key_step, state, random_action(raw, key_action, None, num_envs))
        total += np.asarray(timestep.reward).sum() + np.asarray(timestep.done).sum()
    return total


def test_the_checksum_is_that_of_every_step():
    program = prepare_environment(
        "grid_race", num_envs=3, num_steps=25, mode="observe", consume="sum", env_args={"max_steps": 7}
    )
    assert program.steps == 75
    for seed in (0, 1):
        run = program.run(seed)
        assert run["checksum"] == pytest.approx(slow_checksum("grid_race", 3, 25, seed, max_steps=7), rel=1e-5)
        assert run["seconds"] > 0


@pytest.mark.parametrize("mode", MODES)
def test_result_of_every_mode_is_json(mode):
    seen = []
    results = run_environment_benchmark(["matrix_game"], [2], 10, 2, [mode], on_result=seen.append)
    assert seen == results and len(results) == 1
    result = json.loads(json.dumps(results[0]))
    assert result["num_steps"] == steps_for(2, 10) == 25_000
    assert 0 < result["min"] <= result["steps_per_s"] <= result["max"]
    assert result["repeats"] == 2


def test_staggered_episodes_end_at_different_steps():
    plain, staggered = (
        prepare_environment("matrix_game", num_envs=4, num_steps=2, mode=mode, env_args={"max_steps": 4})
        for mode in ("observe", "observe_staggered")
    )
    # Two steps end no episode of four steps, but half of those that began at steps 0 to 3.
    difference = staggered.run(0)["checksum"] - plain.run(0)["checksum"]
    assert difference != 0


def test_checksum_reads_every_entry():
    tree = {"a": jnp.array([[1.5, 2.0], [3.0, -1.0]]), "b": jnp.array([True, False, True])}
    assert checksum(tree) == 7.5
    assert checksum(()) == 0
    # Bytes wrap around in the sum over environments, the same way on both sides of a comparison.
    assert checksum(jnp.full((300, 2), 1, jnp.uint8)) == 2 * (300 % 256)


def test_random_actions_are_legal_and_uniform(key):
    env = make("foraging")
    mask = jnp.zeros((6000, env.num_agents, env.num_actions), bool).at[..., 1].set(True).at[..., 3].set(True)
    action = np.asarray(random_action(env, key, mask, 6000))
    assert set(np.unique(action)) == {1, 3}
    assert abs((action == 1).mean() - 0.5) < 0.03


def test_bad_input_names_the_closest():
    with pytest.raises(UserError, match="did you mean observe"):
        prepare_environment("grid_race", num_envs=1, mode="observed")
    with pytest.raises(UserError, match="way to consume"):
        prepare_environment("grid_race", num_envs=1, consume="summ")
    with pytest.raises(UserError, match="repeats"):
        run_environment_benchmark(["grid_race"], [1], 1, 0, ["step"])
    with pytest.raises(UserError, match="less than one update"):
        prepare_training("grid_race", total_steps=10)


@pytest.mark.wide
def test_training_takes_every_algorithm_and_its_settings():
    hyper = {"num_envs": 2, "rollout_length": 3, "batch_size": 2, "gradient_steps": 1}
    assert prepare_training("two_step", algorithm="vdn", total_steps=12, hyper=hyper).steps == 12
    with pytest.raises(UserError, match="unknown setting of vdn 'mixr'"):
        prepare_training("two_step", algorithm="vdn", total_steps=12, hyper=hyper | {"mixr": 1})


@pytest.mark.wide
def test_training_program_learns_and_evaluates():
    program = prepare_training(
        "toy_environments:MatchTarget",
        total_steps=64,
        hyper={"num_envs": 4, "rollout_length": 8, "num_epochs": 1, "num_minibatches": 1},
        eval_episodes=2,
    )
    assert program.steps == 64
    one, again, other = program.run(0), program.run(0), program.run(1)
    assert one["checksum"] == again["checksum"] != other["checksum"]
    assert [point[0] for point in one["curve"]] == [32, 64]
    assert np.isfinite(one["evaluation_return"])


def test_time_to_return_waits_for_a_stable_mean():
    curve = [[10 * (i + 1), 100.0 if i in (2, 5, 6, 7, 8, 9) else 0.0] for i in range(10)]
    assert seconds_to_return(curve, 20.0, 100.0, window_steps=10) == (6.0, 30)
    assert seconds_to_return(curve, 20.0, 100.0, window_steps=30) == (16.0, 80)
    assert seconds_to_return(curve, 20.0, 101.0, window_steps=30) == (None, None)
    assert _fill([float("nan"), 2.0, float("nan")]) == [0.0, 2.0, 2.0]


def test_tables():
    results = [
        {"kind": "environment", "env": "a", "num_envs": 1, "steps_per_s": 1234567.0, "compile_s": 0.5},
        {"kind": "environment", "env": "b", "num_envs": 1, "steps_per_s": 98.7, "compile_s": 12.0},
    ]
    console = Console(width=100, record=True, quiet=False, file=open("/dev/null", "w"))  # noqa: SIM115
    print_table(results, title="Speed", console=console)
    console.file.close()
    text = console.export_text()
    assert "1.23M" in text and "98.7" in text and "envs 1" in text
    assert markdown_table(results).splitlines()[2] == "| a | 1 | 1.23M | 0.500 |"
    assert [_short(value) for value in (5, 999, 1000, 12_345, 123_456, 3.2e9)] == [
        "5", "999", "1.00k", "12.3k", "123k", "3.20G",
    ]  # fmt: skip


def test_report_names_versions():
    report = machine_report()
    assert report["jax"] == jax.__version__ and report["cores"] >= 1 and report["device"].startswith("cpu")


PEER = """
import sys
sys.path.insert(0, sys.argv[1])
from serve import serve
def prepare(settings):
    print("noise that must not reach the replies")
    if settings.get("fail"):
        raise ValueError("no such thing")
    return {"steps": settings["steps"]}, lambda seed: {"seconds": 0.25 * seed}
serve(prepare)
"""


@pytest.fixture
def worker(tmp_path):
    import jaxmarl_llm.benchmark.serve as serve

    script = tmp_path / "peer.py"
    script.write_text(PEER)
    folder = serve.__file__.rpartition("/")[0]
    with Worker([sys.executable, str(script), folder], tmp_path / "log") as worker:
        yield worker


def test_a_worker_answers_and_survives_errors(worker):
    assert worker.ask(prepare={"steps": 7}) == {"steps": 7}
    assert worker.ask(run=2) == {"seconds": 0.5}
    assert worker.ask(memory=True)["peak_mib"] > 1
    with pytest.raises(WorkerError, match="no such thing"):
        worker.ask(prepare={"fail": True})
    assert worker.ask(prepare={"steps": 3}) == {"steps": 3}


def test_a_dead_worker_says_why(tmp_path):
    command = [sys.executable, "-c", "import sys; sys.exit('the reason')"]
    with Worker(command, tmp_path / "log") as worker, pytest.raises(WorkerError, match="the reason"):
        worker.ask(run=1)


def test_importing_the_benchmark_costs_no_jax():
    code = "import sys, jaxmarl_llm.benchmark; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_lengths_of_runs():
    assert [steps_for(num_envs, 200) for num_envs in (1, 128, 4096, 65_536, 1_000_000)] == [50_000, 390, 200, 61, 32]
