"""The compiled functions of cells: start, one update, one evaluation; of all seeds at once, for any way of sharing.

Axes: S seeds (leading), P policies, Q held-out problems.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.mesh import ENV_AXIS
from jaxmarl_llm.training.devices import Placement
from jaxmarl_llm.training.program import QUICKER, compile_together, evaluation_key, over_seeds
from jaxmarl_llm.workflows.learner import WorkflowLearner
from jaxmarl_llm.workflows.tasks.base import Problem


@dataclasses.dataclass(frozen=True)
class CellProgram:
    """Functions of the cells that differ in sharing alone, compiled ahead of time.

    Attributes:
      init: `base_params -> state`: parameters without an axis P, where every policy of every seed starts; every leaf of
        the state has a leading axis S.
      update: `(state, tied) -> (state, metrics)`, see `WorkflowLearner.tied`; the state is donated, metrics have a
        leading axis S.
      evaluate: `(params, iteration) -> metrics`, on the held-out problems.
      compile_seconds: what tracing and compilation took.
    """

    init: Callable[[Any], Any]
    update: Callable[[Any, tuple[int, ...]], tuple[Any, dict[str, jax.Array]]]
    evaluate: Callable[[Any, int], dict[str, jax.Array]]
    compile_seconds: float


def compile_cells(
    learner: WorkflowLearner,
    placement: Placement,
    seeds: np.ndarray,
    problems: Problem,
    *,
    greedy: bool,
) -> CellProgram:
    """Traces and compiles the functions of cells.

    Args:
      learner: trains one seed, with a policy for each role.
      placement: devices, which share the episodes of every seed.
      seeds: `[S]` uint32.
      problems: `[Q]`, held out.
      greedy: evaluations take the likeliest tokens.
    """
    start = time.perf_counter()
    num_seeds = len(seeds)
    on_cpu = placement.on_cpu
    if num_seeds > 1 and not on_cpu:
        learner = learner.replace(early_stop=False)  # pyright: ignore[reportAttributeAccessIssue]
    whole, split = PartitionSpec(), PartitionSpec(ENV_AXIS)

    def init(seeds, base_params):
        base = learner.team.replicate(base_params)
        return over_seeds(lambda seed: learner.init(jax.random.key(seed), base), num_seeds)(seeds)

    def update(state, tied):
        one = learner.replace(tied=tied).update  # pyright: ignore[reportAttributeAccessIssue]
        # One seed keeps a few cores busy and fits their caches: there, seeds in turn are faster than side by side.
        return over_seeds(one, num_seeds, in_turn=on_cpu)(state)

    def evaluate(params, seeds, problems, iteration):
        def one(params, seed):
            return learner.evaluate(params, evaluation_key(seed, iteration), problems, greedy)

        return over_seeds(one, num_seeds, in_turn=on_cpu)(params, seeds)

    seeds_there = jax.device_put(seeds, placement.replicated)
    of_base = Decoder(dataclasses.replace(learner.team.decoder.config, lora_rank=0))
    one_policy = jax.eval_shape(lambda: of_base.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
    problems = jax.device_put(problems, jax.sharding.NamedSharding(placement.mesh, split))
    init_all = jax.jit(init, out_shardings=placement.replicated).lower(seeds_there, one_policy)
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placement.replicated), init_all.out_info
    )
    number = jax.device_put(jnp.zeros((), jnp.uint32), placement.replicated)

    def there(tied):
        return jax.device_put(np.asarray(tied, np.int32), placement.replicated)

    update_all = placement.share(update, (whole, whole), (whole, whole))
    lowered = {
        "init": init_all,
        "update": jax.jit(update_all, donate_argnums=0).lower(state, there(learner.team.policy_of_role)),
        "evaluate": jax.jit(placement.share(evaluate, (whole, whole, split, whole), whole)).lower(
            state.params, seeds_there, problems, number
        ),
    }
    shared = placement.compiler_options | (QUICKER if on_cpu else {})
    compiled = compile_together(lowered, placement, {"update": shared, "evaluate": shared})

    def evaluate_now(params, iteration):
        number = jax.device_put(np.uint32(iteration), placement.replicated)
        return compiled["evaluate"](params, seeds_there, problems, number)

    return CellProgram(
        init=lambda base_params: compiled["init"](
            seeds_there, jax.device_put(jax.tree.map(np.asarray, base_params), placement.replicated)
        ),
        update=lambda state, tied: compiled["update"](state, there(tied)),
        evaluate=evaluate_now,
        compile_seconds=time.perf_counter() - start,
    )
