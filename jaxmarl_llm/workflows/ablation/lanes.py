"""Many settings and seeds of one learner, trained by one compiled program, each in a lane of its own.

Axes: W lanes, I updates, K evaluations, R roles.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxmarl_llm.training.program import QUICKER, evaluation_key, over_seeds
from jaxmarl_llm.workflows.ablation.background import in_background
from jaxmarl_llm.workflows.roll_back import RollBack, RollBackState
from jaxmarl_llm.workflows.tasks.base import Problem

_AXIS = "lane"
# One device a core: each has lanes of its own.
_ON_CPU = QUICKER | {"xla_cpu_multi_thread_eigen": False}


@dataclasses.dataclass(frozen=True)
class LaneCurves:
    """What happened in W lanes.

    Attributes:
      accuracy: `[K, W]` float32, the first of the base policy.
      returns: `[W]` int, how often each went back to its best parameters.
      metrics: `[I, W, ...]` float32, those of every update that were asked for.
      compile_seconds, train_seconds: of all lanes together.
    """

    accuracy: np.ndarray
    returns: np.ndarray
    metrics: dict[str, np.ndarray]
    compile_seconds: float
    train_seconds: float


def run_lanes(
    guard: RollBack,
    base_params: Any,
    seeds: Sequence[int],
    settings: dict[str, np.ndarray],
    problems: Problem,
    *,
    num_evaluations: int,
    eval_every: int,
    keep: Sequence[str] = (),
    on_evaluation: Callable[[int, float], None] = lambda number, accuracy: None,
    on_wait: Callable[[], None] = lambda: None,
) -> LaneCurves:
    """Trains all lanes side by side; on CPUs each core takes its share of them, one after the other.

    Args:
      guard: the learner that lanes have in common, and how it goes back; `most` of 0 for never.
      base_params: without an axis P, where every policy of every lane starts.
      seeds: W numbers.
      settings: `[W, ...]` of float fields of the learner, of `tied`, and of `most` of the guard.
      problems: held out.
      num_evaluations: after that of the base policy.
      eval_every: updates before each.
      keep: names of the metrics to return.
      on_evaluation: called with the number of evaluations done, from 0, and the mean accuracy.
      on_wait: called every second of compilation; what it raises ends the run.
    """
    num_lanes = len(seeds)
    settings = {"seed": np.asarray(seeds, np.uint32)} | {
        name: np.asarray(values, np.int32 if name in ("tied", "most") else np.float32)
        for name, values in settings.items()
    }
    on_cpu = jax.default_backend() == "cpu"
    if not on_cpu:
        guard = dataclasses.replace(guard, learner=guard.learner.replace(early_stop=False))

    def of_lane(lane) -> RollBack:
        of_guard = {name: value for name, value in lane.items() if name == "most"}
        of_learner = {name: value for name, value in lane.items() if name not in ("seed", "most")}
        return dataclasses.replace(guard, learner=guard.learner.replace(**of_learner), **of_guard)

    def evaluate(lane, params, number):
        return guard.learner.evaluate(params, evaluation_key(lane["seed"], number), problems, False)["accuracy"]

    def start(base_params, lane):
        one = of_lane(lane)
        training = one.learner.init(jax.random.key(lane["seed"]), one.learner.team.replicate(base_params))
        accuracy = evaluate(lane, training.params, 0)
        return one.init(training, accuracy), accuracy

    def advance(number, lane, state: RollBackState):
        one = of_lane(lane)

        def step(state, _):
            state, metrics = one.update(state)
            return state, {name: metrics[name] for name in keep}

        state, curves = jax.lax.scan(step, state, length=eval_every)
        accuracy = evaluate(lane, state.training.params, number)
        return one.observe(state, accuracy)[0], accuracy, curves

    devices = jax.local_devices()
    devices = devices[: max(n for n in range(1, len(devices) + 1) if num_lanes % n == 0)]
    mesh = Mesh(np.asarray(devices), (_AXIS,))
    split, whole = PartitionSpec(_AXIS), PartitionSpec()

    def compiled(function, one_for_all, *of_lanes):
        """A function of `one_for_all` and of one lane's arguments, compiled for all lanes; the state is donated."""

        def of_all(one_for_all, *of_lanes):
            own = len(of_lanes[0]["seed"])
            return over_seeds(functools.partial(function, one_for_all), own, in_turn=on_cpu)(*of_lanes)

        specs = (whole, *[split] * len(of_lanes))
        spread = jax.shard_map(of_all, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)
        lowered = jax.jit(spread, donate_argnums=range(2, len(specs))).lower(one_for_all, *of_lanes)
        return in_background(lambda: lowered.compile(_ON_CPU if on_cpu else {}), on_wait)

    def number_of(evaluation: int) -> jax.Array:
        return jax.device_put(jnp.asarray(evaluation, jnp.uint32), NamedSharding(mesh, whole))

    begin = time.perf_counter()
    lanes = jax.device_put(settings, NamedSharding(mesh, split))
    base_params = jax.device_put(jax.tree.map(np.asarray, base_params), NamedSharding(mesh, whole))
    start_all = compiled(start, base_params, lanes)
    state, accuracy = start_all(base_params, lanes)
    advance_all = compiled(advance, number_of(0), lanes, state)
    compile_seconds, begin = time.perf_counter() - begin, time.perf_counter()
    accuracies, curves = [np.asarray(accuracy)], []
    on_evaluation(0, float(accuracies[0].mean()))
    for evaluation in range(1, num_evaluations + 1):
        state, accuracy, metrics = advance_all(number_of(evaluation), lanes, state)
        accuracies.append(np.asarray(accuracy))
        curves.append(jax.tree.map(lambda leaf: np.moveaxis(np.asarray(leaf, np.float32), 0, 1), metrics))
        on_evaluation(evaluation, float(accuracies[-1].mean()))
    return LaneCurves(
        accuracy=np.stack(accuracies),
        returns=np.asarray(state.count),
        metrics={name: np.concatenate([part[name] for part in curves]) for name in keep},
        compile_seconds=compile_seconds,
        train_seconds=time.perf_counter() - begin,
    )
