"""Environment steps per second under random play.

Axes: B environments, N agents, T steps.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.benchmark.timing import Program, compile_timed, rate_statistics
from jaxmarl_llm.envs import Environment, auto_reset, vectorize
from jaxmarl_llm.envs.random import random_index
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.build import build_environment
from jaxmarl_llm.training.config import TrainConfig

MODES = ("step", "auto_reset", "observe", "observe_staggered")
CONSUME = ("carry", "sum")


def prepare_environment(
    name: str,
    *,
    num_envs: int,
    num_steps: int = 200,
    mode: str = "observe",
    consume: str = "sum",
    env_args: dict[str, Any] | None = None,
) -> Program:
    """Compiles T steps of B environments with uniformly random legal actions.

    Reward and end of episode of every step go into a checksum that is carried along, so no step can be dropped.

    Args:
      name: an environment.
      num_envs: B.
      num_steps: T.
      mode: `"step"` (no reset; observations unused), `"auto_reset"` (exact resets; observations unused), `"observe"`
        (exact resets; observations used), or `"observe_staggered"` (the same, with episodes that begin at different
        steps, so that some end at almost every step: the dearest case for resets).
      consume: how observations are used: `"carry"` keeps each until the next step overwrites it, `"sum"` also adds it
        up on the next step, as a policy would read it.
      env_args: settings of the environment.

    Returns:
      The program; one run is `B * T` environment steps.

    Raises:
      UserError: no such environment, mode or way to consume.
    """
    if mode not in MODES:
        raise unknown_name("benchmark mode", mode, MODES)
    if consume not in CONSUME:
        raise unknown_name("way to consume observations", consume, CONSUME)
    if num_steps < 1:
        raise UserError(f"num_steps must be at least 1, got {num_steps}")
    raw = build_environment(TrainConfig(env=name, env_args=env_args or {}))
    vector = vectorize(raw if mode == "step" else auto_reset(raw), num_envs)
    uses_observations = mode.startswith("observe")

    def rollout(key):
        key_reset, key_run = jax.random.split(key)
        timestep, state = vector.reset(key_reset)
        if mode == "observe_staggered":
            state = state.replace(step=jnp.arange(num_envs, dtype=jnp.int32) % raw.max_steps)
        observation = timestep.observation if uses_observations else ()

        def step(carry, _):
            state, observation, mask, key, total = carry
            key, key_action, key_step = jax.random.split(key, 3)
            action = random_action(raw, key_action, mask, num_envs)
            timestep, state = vector.step(key_step, state, action)
            if uses_observations and consume == "sum":
                total = total + checksum(observation)
            total = total + checksum((timestep.reward, timestep.done))
            observation = timestep.observation if uses_observations else ()
            return (state, observation, timestep.action_mask if mask is not None else None, key, total), None

        mask = timestep.action_mask if has_mask(raw) else None
        carry = (state, observation, mask, key_run, jnp.float32(0))
        (state, observation, _, _, total), _ = jax.lax.scan(step, carry, None, num_steps)
        return total, checksum(observation), jax.tree.leaves(state)

    compiled, compile_s = compile_timed(rollout, jax.random.key(0))

    def execute(seed):
        total, last, _ = jax.block_until_ready(compiled(jax.random.key(seed)))
        return {"checksum": float(total), "last": float(last)}

    return Program(compile_s, num_envs * num_steps, execute)


def checksum(tree: Any) -> jax.Array:
    """`[]` float32, a sum that reads every entry of all leaves `[B, ...]` at the speed of memory.

    Small integers are added in their own type, which wraps around: widening them first costs ten times as much on a
    CPU, which would measure the checksum and not the environment.
    """
    total = jnp.float32(0)
    for leaf in jax.tree.leaves(tree):
        kind = jnp.int32 if leaf.dtype == jnp.bool_ else leaf.dtype
        columns = jnp.sum(leaf, axis=0, dtype=kind)
        total = total + jnp.sum(columns.astype(jnp.float32))
    return total


def has_mask(env: Environment) -> bool:
    """Whether an environment ever forbids an action."""
    return type(env).action_mask is not Environment.action_mask


def random_action(env: Environment, key: jax.Array, mask: jax.Array | None, num_envs: int) -> jax.Array:
    """`[B, N]` int32, uniform over the legal actions; one draw of 32 random bits each.

    Args:
      env: for the numbers of agents and actions.
      key: consumed.
      mask: `[B, N, A]`, or None where everything is legal.
      num_envs: B.
    """
    shape = (num_envs, env.num_agents)
    if mask is None:
        return random_index(key, env.num_actions, shape)
    count = jnp.sum(mask, axis=-1, dtype=jnp.int32)
    rank = random_index(key, count, shape)
    return jnp.argmax(jnp.cumsum(mask, axis=-1, dtype=jnp.int32) > rank[..., None], axis=-1).astype(jnp.int32)


def steps_for(num_envs: int, num_steps: int) -> int:
    """T for a batch size: more where a run would be too short to time, fewer (but 32) where it would take minutes."""
    return max(min(num_steps, max(32, 4_000_000 // num_envs)), 50_000 // num_envs)


def run_environment_benchmark(
    names: Sequence[str],
    num_envs: Sequence[int] = (1, 128, 1024, 4096),
    num_steps: int = 200,
    repeats: int = 5,
    modes: Sequence[str] = ("step", "auto_reset", "observe"),
    *,
    consume: str = "sum",
    env_args: dict[str, Any] | None = None,
    on_result: Callable[[dict[str, Any]], None] | None = None,
) -> list[dict[str, Any]]:
    """Measures environments one after another in this process; see `prepare_environment`.

    Args:
      names: environments.
      num_envs: batch sizes B.
      num_steps: T, raised for small batches and lowered for huge ones, see `steps_for`.
      repeats: timed runs, at least 1, after one that is not counted.
      modes: of `MODES`.
      consume: of `CONSUME`.
      env_args: settings for all of the environments.
      on_result: called with each result as it is there.

    Returns:
      One dict a measurement: `env`, `mode`, `consume`, `num_envs`, `num_steps`, `steps_per_s` (median), `min`, `max`,
      `repeats`, `compile_s`, `checksum`.

    Raises:
      UserError: no such environment, mode or setting.
    """
    for what, smallest in (("repeats", repeats), ("num_envs", min(num_envs, default=1))):
        if smallest < 1:
            raise UserError(f"{what} must be at least 1, got {smallest}")
    results = []
    for name, batch, mode in _product(names, num_envs, modes):
        length = steps_for(batch, num_steps)
        program = prepare_environment(
            name, num_envs=batch, num_steps=length, mode=mode, consume=consume, env_args=env_args
        )
        program.run(0)
        runs = [program.run(seed) for seed in range(1, repeats + 1)]
        result = {
            "kind": "environment",
            "engine": "jaxmarl-llm",
            "env": name,
            "env_args": env_args or {},
            "mode": mode,
            "consume": consume if mode.startswith("observe") else "none",
            "num_envs": batch,
            "num_steps": length,
            **rate_statistics(program.steps, [run["seconds"] for run in runs]),
            "compile_s": program.compile_s,
            "checksum": runs[-1]["checksum"],
        }
        results.append(result)
        if on_result:
            on_result(result)
    return results


def _product(names: Iterable, batches: Iterable, modes: Iterable):
    return [(name, batch, mode) for name in names for batch in batches for mode in modes]
