"""The compiled functions of a run: start, one update, one evaluation; for S seeds at once.

Axes: S seeds (leading, also when S is 1), M numbers of a packed metrics vector.
"""

import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.training.devices import Placement, check_memory
from jaxmarl_llm.training.evaluation import EvaluationResult, evaluate

# The compiler's, for CPUs: half the time, and what comes out is as fast.
QUICKER: dict[str, Any] = {
    "xla_backend_optimization_level": 1,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
# Keeps the keys of evaluations apart from those of training.
_EVALUATION_STREAM = 0xE7A1


@dataclasses.dataclass(frozen=True)
class Program:
    """A run's functions, compiled ahead of time for one placement.

    Attributes:
      seeds: `[S]` uint32.
      abstract_state: shapes, dtypes and shardings of the state.
      metric_shapes: name to the shape of one seed's metric, `()` or `(N,)`.
      compile_seconds: what tracing and compilation took.
      one_at_a_time: an update waits for the one before it.
    """

    seeds: np.ndarray
    abstract_state: Any
    metric_shapes: dict[str, tuple[int, ...]]
    compile_seconds: float
    one_at_a_time: bool
    _init: Callable
    _update: Callable
    _evaluate: Callable

    def init(self) -> Any:
        """The state before the first update, every leaf with a leading axis S."""
        return self._init(self.seeds)

    def update(self, state: Any) -> tuple[Any, jax.Array]:
        """One update of all seeds; `state` is donated. Returns at once with arrays that are still being computed.

        Returns:
          `(state, packed)`: `packed` `[S, M + 1]` is for `unpack`.
        """
        if self.one_at_a_time:
            jax.block_until_ready(state)
        return self._update(state)

    def unpack(self, packed: jax.Array) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Waits for an update and reads its metrics.

        Returns:
          `(metrics, finite)`: name to `[S]` or `[S, N]` float32, and `[S]` bool, whether the loss and all parameters
          of a seed are finite.
        """
        values = np.asarray(packed)
        metrics, start = {}, 0
        for name, shape in self.metric_shapes.items():
            stop = start + math.prod(shape)
            metrics[name] = values[:, start:stop].reshape(len(values), *shape)
            start = stop
        return metrics, values[:, start] > 0

    def evaluate(self, params: Any, number: int) -> EvaluationResult:
        """Evaluates parameters on the host's behalf.

        Args:
          params: of all seeds.
          number: names the evaluation; the same number draws the same episodes.

        Returns:
          The result as NumPy arrays with a leading axis S.
        """
        return jax.tree.map(np.asarray, self._evaluate(params, self.seeds, np.uint32(number)))


def over_seeds(function: Callable, num_seeds: int, *, in_turn: bool = False) -> Callable:
    """A function of one seed as one of all seeds, with a leading axis S.

    For one seed the axis is only taken off and put back, which costs nothing.

    Args:
      function: of arrays without the axis S.
      num_seeds: S.
      in_turn: a loop over the seeds instead of `vmap`.
    """
    if num_seeds > 1 and in_turn:
        return lambda *arguments: jax.lax.map(lambda one: function(*one), arguments)
    if num_seeds > 1:
        return jax.vmap(function)

    def one_seed(*arguments):
        arguments = jax.tree.map(lambda leaf: leaf[0], arguments)
        return jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), function(*arguments))

    return one_seed


def evaluation_key(seed: jax.Array, number: jax.Array) -> jax.Array:
    """The key of a seed's evaluation of that number, apart from those of its training."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _EVALUATION_STREAM), number)


def compile_together(
    lowered: dict[str, jax.stages.Lowered], placement: Placement, options: dict[str, dict[str, Any]]
) -> dict[str, jax.stages.Compiled]:
    """Compiles the functions of a run at the same time.

    Args:
      lowered: by name; one called `init` runs once.
      placement: the devices.
      options: the compiler's, by name; none for the others, but for `init` on CPUs.
    """
    if placement.on_cpu:
        # What runs once costs less unoptimised.
        options = options | {"init": {"xla_backend_optimization_level": "0"}}
    # XLA compiles outside Python's lock. Several processes must compile in one order, as they meet while compiling.
    workers = len(lowered) if jax.process_count() == 1 else 1
    pool = concurrent.futures.ThreadPoolExecutor(workers)
    try:
        jobs = {name: pool.submit(one.compile, compiler_options=options.get(name)) for name, one in lowered.items()}
        return {name: job.result() for name, job in jobs.items()}
    finally:
        # After Ctrl-C nobody waits for what is being compiled.
        pool.shutdown(wait=False, cancel_futures=True)


def _pack(metrics: dict[str, jax.Array], params: Any) -> jax.Array:
    """Metrics of one seed in one vector, so that the host reads one array an update; the last entry is 1 if finite."""
    finite = jnp.isfinite(metrics["total_loss"])
    for leaf in jax.tree.leaves(params):
        finite &= jnp.all(jnp.isfinite(leaf))
    values = [jnp.ravel(metrics[name]).astype(jnp.float32) for name in sorted(metrics)]
    return jnp.concatenate([*values, finite.astype(jnp.float32)[None]])


def _init_all(learner, num_seeds: int) -> Callable:
    return over_seeds(lambda seed: learner.init(jax.random.key(seed)), num_seeds)


def abstract_state(learner, placement: Placement, seeds: np.ndarray) -> Any:
    """Shapes, dtypes and shardings of a run's state, by tracing alone.

    Args:
      learner: a learner with `init`.
      placement: the devices.
      seeds: `[S]` uint32.

    Returns:
      The state with `jax.ShapeDtypeStruct` leaves, each with a leading axis S.
    """
    state = jax.eval_shape(_init_all(learner, len(seeds)), seeds)
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        state,
        placement.state_shardings(state),
    )


def compile_program(
    learner, placement: Placement, seeds: np.ndarray, *, num_episodes: int, greedy: bool, training: bool = True
) -> Program:
    """Traces and compiles a run's functions.

    Args:
      learner: a learner with `init`, `update`, `act`, `initial_memory`.
      placement: the devices.
      seeds: `[S]` uint32.
      num_episodes: E, episodes of an evaluation for each seed.
      greedy: whether evaluations take the likeliest actions.
      training: false leaves out `init` and `update`, for runs that are only evaluated.

    Returns:
      Functions that take and return arrays placed as `placement` says.

    Raises:
      UserError: the state is larger than the memory.
    """
    start = time.perf_counter()
    num_seeds = len(seeds)
    on_cpu = placement.on_cpu
    shape_seeds = jax.ShapeDtypeStruct(seeds.shape, seeds.dtype)

    def update(state):
        def one(state):
            state, metrics = learner.update(state)
            return state, _pack(metrics, state.params)

        # One seed keeps a few cores busy and fits their caches: there, seeds in turn are faster than side by side.
        return over_seeds(one, num_seeds, in_turn=on_cpu)(state)

    def evaluate_all(params, seeds, number):
        def one(params, seed):
            return evaluate(learner, params, evaluation_key(seed, number), num_episodes, greedy)

        return over_seeds(one, num_seeds)(params, seeds)

    state = abstract_state(learner, placement, seeds)
    check_memory(state)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    replicated = placement.replicated
    lowered = {
        "evaluate": jax.jit(evaluate_all, out_shardings=replicated).lower(
            state.params, shape_seeds, jax.ShapeDtypeStruct((), np.uint32)
        )
    }
    metric_shapes = {}
    if training:
        first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
        metrics = jax.eval_shape(learner.update, first)[1]
        metric_shapes = {name: metrics[name].shape for name in sorted(metrics)}
        lowered["init"] = jax.jit(_init_all(learner, num_seeds), out_shardings=shardings).lower(shape_seeds)
        update_all = placement.spread(update, state)
        lowered["update"] = jax.jit(
            update_all, in_shardings=(shardings,), out_shardings=(shardings, replicated), donate_argnums=0
        ).lower(state)
    compiled = compile_together(lowered, placement, {"update": placement.compiler_options})
    return Program(
        seeds=seeds,
        abstract_state=state,
        metric_shapes=metric_shapes,
        compile_seconds=time.perf_counter() - start,
        # CPU devices share one pool of threads: with several updates in flight their sums can wait for each other for
        # ever, seen with JAX 0.10.2.
        one_at_a_time=on_cpu and placement.num_devices > 1,
        _init=compiled.get("init", _left_out),
        _update=compiled.get("update", _left_out),
        _evaluate=compiled["evaluate"],
    )


def _left_out(*_):
    raise ValueError("this program was compiled with training=False")
