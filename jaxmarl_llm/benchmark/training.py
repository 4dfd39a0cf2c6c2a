"""Training steps per second, and how long training takes to reach a return.

Axes: B environments, N agents, T rollout length, K updates.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.benchmark.timing import Program, rate_statistics
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.build import build_learner
from jaxmarl_llm.training.config import FIELDS, config_from_mapping
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.training.program import compile_program


def prepare_training(
    name: str,
    *,
    total_steps: float,
    algorithm: str = "ippo",
    env_args: dict[str, Any] | None = None,
    hyper: dict[str, Any] | None = None,
    eval_episodes: int = 0,
) -> Program:
    """Compiles one update of a learner; a run is a whole training of `total_steps` steps.

    A run calls the compiled update once for each rollout, as the training loop does, and stops its clock when the last
    parameters are there. Initialisation, evaluation and reading the curve are not timed.

    Args:
      name: an environment, or an import path `module:Name`.
      total_steps: environment steps of a run; also the horizon of the learner's schedules.
      algorithm: its name in a `TrainConfig`.
      env_args: settings of the environment.
      hyper: settings of the learner, `algorithm_args` among them.
      eval_episodes: episodes that the final parameters play after the clock has stopped, sampling actions; 0 for none.

    Returns:
      The program. A run gives `seconds`, `checksum` (the sum of all parameters' magnitudes), `curve` (pairs of steps
      and mean training return; updates in which no episode ended repeat the value before) and `evaluation_return`.

    Raises:
      UserError: no such environment, algorithm or setting.
    """
    settings = {"env": name, "env_args": env_args or {}, "algorithm": algorithm, "total_steps": int(total_steps)}
    known = {name: value for name, value in (hyper or {}).items() if name in FIELDS}
    settings["algorithm_args"] = {name: value for name, value in (hyper or {}).items() if name not in known}
    learner = build_learner(config_from_mapping(known | settings, "benchmark"))
    num_updates = int(total_steps) // learner.steps_per_update
    if num_updates < 1:
        raise UserError(f"total_steps={int(total_steps)} is less than one update of {learner.steps_per_update} steps")
    program = compile_program(
        learner, place(0, learner.env_groups), np.zeros(1, np.uint32), num_episodes=max(eval_episodes, 1), greedy=False
    )

    def execute(seed):
        seeded = dataclasses.replace(program, seeds=np.asarray([seed], np.uint32))
        state = jax.block_until_ready(seeded.init())
        packed = []
        start = time.perf_counter()
        for _ in range(num_updates):
            state, metrics = program.update(state)
            packed.append(metrics)
        jax.block_until_ready(state.params)
        seconds = time.perf_counter() - start
        returns = [program.unpack(metrics)[0]["episode_return"][0] for metrics in packed]
        steps = learner.steps_per_update * np.arange(1, num_updates + 1)
        found = {
            "seconds": seconds,
            "checksum": float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(state.params))),
            "curve": [[int(x), y] for x, y in zip(steps, _fill(returns), strict=True)],
        }
        if eval_episodes:
            found["evaluation_return"] = float(seeded.evaluate(state.params, 0).episode_return.mean())
        return found

    return Program(program.compile_seconds, num_updates * learner.steps_per_update, execute)


def _fill(returns: Sequence[float]) -> list[float]:
    """Repeats the last finite value where there is none; 0 before the first."""
    filled, last = [], 0.0
    for value in returns:
        last = float(value) if np.isfinite(value) else last
        filled.append(last)
    return filled


def seconds_to_return(
    curve: Sequence[Sequence[float]], seconds: float, target: float, *, window_steps: float = 25_000
) -> tuple[float | None, int | None]:
    """When a training curve first stands at a return.

    Args:
      curve: pairs of steps and return, steps rising evenly from one update to the next.
      seconds: of the whole curve; steps are taken to cost the same time throughout.
      target: the return.
      window_steps: environment steps over which the curve is averaged, back from each point; counted in steps, since
        learners with larger updates have fewer points.

    Returns:
      `(seconds, steps)`, or `(None, None)` when it is never reached.
    """
    steps = np.asarray([point[0] for point in curve], float)
    values = np.asarray([point[1] for point in curve], float)
    width = min(max(1, round(window_steps / steps[0])), len(values))
    sums = np.cumsum(np.concatenate([[0.0], values]))
    means = (sums[width:] - sums[:-width]) / width
    reached = np.flatnonzero(means >= target)
    if not len(reached):
        return None, None
    at = steps[reached[0] + width - 1]
    return float(seconds * at / steps[-1]), int(at)


def run_training_benchmark(
    name: str,
    *,
    total_steps: float,
    repeats: int = 5,
    algorithm: str = "ippo",
    env_args: dict[str, Any] | None = None,
    hyper: dict[str, Any] | None = None,
    target: float | None = None,
    on_result: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures training in this process: steps per second, and the time to a return where one is given.

    Args:
      name: an environment.
      total_steps: environment steps of each run.
      repeats: timed runs, at least 1, after one that is not counted.
      algorithm, env_args, hyper: see `prepare_training`.
      target: a training return.
      on_result: called with the result.

    Returns:
      One dict: `env`, `algorithm`, `num_envs`, `steps_per_s` (median), `min`, `max`, `repeats`, `compile_s`,
      `checksum`, `final_return`, and `seconds_to_target`, `steps_to_target` (medians; None when a run missed it).

    Raises:
      UserError: see `prepare_training`.
    """
    if repeats < 1:
        raise UserError(f"repeats must be at least 1, got {repeats}")
    program = prepare_training(name, total_steps=total_steps, algorithm=algorithm, env_args=env_args, hyper=hyper)
    program.run(0)
    runs = [program.run(seed) for seed in range(1, repeats + 1)]
    result = {
        "kind": "training",
        "engine": "jaxmarl-llm",
        "env": name,
        "env_args": env_args or {},
        "algorithm": algorithm,
        "hyper": hyper or {},
        "total_steps": program.steps,
        **rate_statistics(program.steps, [run["seconds"] for run in runs]),
        "compile_s": program.compile_s,
        "checksum": runs[-1]["checksum"],
        "final_return": float(np.mean([run["curve"][-1][1] for run in runs])),
    }
    if target is not None:
        reached = [seconds_to_return(run["curve"], run["seconds"], target) for run in runs]
        hits = [(seconds, steps) for seconds, steps in reached if seconds is not None and steps is not None]
        whole = len(hits) == len(runs)
        result |= {
            "target": target,
            "seconds_to_target": statistics.median(seconds for seconds, _ in hits) if whole else None,
            "steps_to_target": statistics.median(steps for _, steps in hits) if whole else None,
        }
    if on_result:
        on_result(result)
    return [result]
