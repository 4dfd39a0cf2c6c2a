"""`check_env`: the conformance test of the environment contract, for our environments and for yours."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.envs.checks_static import EnvCheckError, check_static, fail, named_leaves
from jaxmarl_llm.envs.wrappers import auto_reset

__all__ = ["EnvCheckError", "check_env"]

_EAGER_STEPS = 3


@struct.dataclass
class _Rollout:
    """T steps of random legal play, raw `step`, a new episode after each end.

    Attributes:
      key, action: `[T]` and `[T, N]`, what went into each step.
      before, after: `(TimeStep, state)` with a leading T axis, on both sides of each step.
      transition_step: `[T]` int32, `step` as `transition` returned it; one of `before` where `step` is overridden.
      global_state: `[T, G]`.
    """

    key: jax.Array
    action: jax.Array
    before: Any
    after: Any
    transition_step: jax.Array
    global_state: jax.Array


def check_env(env: Environment, *, num_steps: int = 200, seed: int = 0) -> None:
    """Checks that an environment keeps the contract, by inspection and by random legal play.

    Covered: settings (frozen, hashable), agents, spaces, structure, shapes and types of `reset` and `step`, values of
    every `TimeStep` field, the step count and the time limit, determinism, `jit`, `vmap`, actions of inactive agents,
    `auto_reset`, `global_state` and the renderer.

    Args:
      env: a raw environment, without `auto_reset` and `LogEpisodes`.
      num_steps: T, steps of random play; more find rarer faults.
      seed: of the random play.

    Raises:
      EnvCheckError: the first fault found, in one line.
    """
    check_static(env)
    random = np.random.default_rng(seed)
    key_first, key_draw, key_auto = jax.random.split(jax.random.key(seed), 3)
    play = jax.jit(functools.partial(_play, env))
    draws = _draw(env, key_draw, random, (num_steps,))
    rollout = play(key_first, draws)
    host = _host(rollout)
    # What is NaN would also differ from itself below.
    _check_observation(env, host)
    _check_eager(env, rollout, key_first)
    again = play(key_first, draws)
    _same(env, rollout.after, again.after, "two runs with the same key", "use only `key` for randomness")
    _check_reward_and_info(env, host)
    _check_legal(env, host.before[0])
    _check_legal(env, host.after[0])
    _check_terminated(env, host)
    _check_step_count(env, host)
    step = jax.jit(jax.vmap(env.step))
    _check_vmap(env, step, rollout)
    _check_inactive(env, step, rollout, random)
    _check_time_limit(env, step, rollout)
    _check_auto_reset(env, rollout, key_auto, random)
    _check_render(env, rollout)


def check_beginning(env: Environment) -> None:
    """The part of `check_env` that costs next to nothing: inspection, and the values of one reset.

    Args:
      env: a raw environment.

    Raises:
      EnvCheckError: the first fault found, in one line.
    """
    check_static(env)

    def begin(key):
        timestep, state = env.reset(key)
        return timestep, env.global_state(state)

    timestep, global_state = _host(jax.jit(begin)(jax.random.key(0)))
    _check_finite(env, timestep, global_state)
    _check_legal(env, timestep)


# Random play.


def _legal_action(noise, action_mask):
    """The legal action of the largest noise: uniform over the legal ones."""
    return jnp.argmax(jnp.where(action_mask, noise, -1.0), axis=-1).astype(jnp.int32)


def _draw(env, key, random, shape) -> tuple[jax.Array, jax.Array, np.ndarray]:
    """Keys of step and reset and noise of the actions, drawn outside the compiled loops, which then compile faster."""
    key_step, key_reset = jax.random.split(key)
    noise = random.random((*shape, env.num_agents, env.action_space.n), np.float32)
    return jax.random.split(key_step, shape), jax.random.split(key_reset, shape), noise


def _play(env, key, draws) -> _Rollout:
    overridden = type(env).step is not Environment.step

    def one_step(before, draw):
        key_step, key_reset, noise = draw
        timestep, state = before
        action = _legal_action(noise, timestep.action_mask)
        after = env.step(key_step, state, action)
        step = state.step if overridden else env.transition(key_step, state, action)[0].step
        record = _Rollout(key_step, action, before, after, step, env.global_state(after[1]))
        done = after[0].done
        return jax.tree.map(lambda new, old: jnp.where(done, new, old), env.reset(key_reset), after), record

    return jax.lax.scan(one_step, env.reset(key), draws)[1]


def _check_eager(env, rollout, key) -> None:
    timestep, state = env.reset(key)
    advice = "use no Python or NumPy randomness and no state outside the arguments"
    _same(env, _at(rollout.before, 0), (timestep, state), "jitted and plain reset", advice, exact=False)
    for t in range(min(_EAGER_STEPS, rollout.action.shape[0])):
        stepped = env.step(rollout.key[t], _at(rollout.before[1], t), _at(rollout.action, t))
        _same(env, _at(rollout.after, t), stepped, "jitted and plain step", advice, exact=False)


def _check_vmap(env, step, rollout) -> None:
    batched = step(rollout.key, rollout.before[1], rollout.action)
    advice = "let no array depend on the batch: no Python branches on shapes, no cond on closed-over values"
    _same(env, rollout.after, batched, "vmap and a loop", advice, exact=False)


def _check_inactive(env, step, rollout, random) -> None:
    active, action = np.asarray(rollout.before[0].active), np.asarray(rollout.action)
    if active.all():
        return
    other = random.integers(1, max(2, env.action_space.n), active.shape, np.int32)
    changed = np.where(active, action, (action + other) % env.action_space.n)
    one = step(rollout.key, rollout.before[1], rollout.action)
    two = step(rollout.key, rollout.before[1], changed)
    advice = "ignore it, for example action = jnp.where(self.active(state), action, 0) first in transition"
    _same(env, one, two, "two actions of an inactive agent", advice)


def _check_time_limit(env, step, rollout) -> None:
    state = rollout.before[1]
    steps = env.max_steps - 1 - (np.arange(rollout.action.shape[0], dtype=np.int32) % 2)
    timestep, _ = step(rollout.key, state.replace(step=steps), rollout.action)
    last = steps == env.max_steps - 1
    if (np.asarray(timestep.truncated) != last).any():
        problem = f"true exactly on step {env.max_steps} was expected, with max_steps={env.max_steps}"
        fail(env, "timestep.truncated", problem, "leave the time limit to the base class")


# Values seen in random play. All arrays are NumPy here.


def _check_observation(env, rollout) -> None:
    for timestep, _ in (rollout.before, rollout.after):
        _check_finite(env, timestep, rollout.global_state)
        leaves = named_leaves(timestep.observation, "observation")
        for (name, leaf), space in zip(leaves, jax.tree.leaves(env.observation_space), strict=True):
            if not space.contains(leaf):
                problem = f"values in [{leaf.min()}, {leaf.max()}] lie outside {space}"
                fail(env, f"timestep.{name}", problem, "widen observation_space or fix observe")


def _check_finite(env, timestep, global_state) -> None:
    named = [*named_leaves(timestep.observation, "timestep.observation"), ("global_state", global_state)]
    for name, leaf in named:
        if not np.isfinite(leaf).all():
            fail(env, name, "NaN or infinite", "return finite values, without divisions by zero")


def _check_reward_and_info(env, rollout) -> None:
    if not np.isfinite(rollout.after[0].reward).all():
        fail(env, "timestep.reward", "NaN or infinite", "return finite rewards")
    first = rollout.before[1].step == 0
    timestep = rollout.before[0]
    fresh = {"reward": timestep.reward, "terminated": timestep.terminated, "truncated": timestep.truncated}
    for name, leaf in [*fresh.items(), *named_leaves(timestep.info, "info")]:
        if leaf[first].any():
            fail(env, f"timestep.{name}", "not zero after reset", "use Environment.reset or first_timestep")
    for name, leaf in named_leaves(rollout.after[0].info, "info"):
        if np.issubdtype(leaf.dtype, np.floating) and not np.isfinite(leaf).all():
            fail(env, f"timestep.{name}", "NaN or infinite", "guard divisions by zero counts")


def _check_legal(env, timestep) -> None:
    legal = timestep.action_mask.any(axis=-1)
    if not legal.all():
        agent = env.agents[int(np.argwhere(~legal)[0][-1])]
        advice = "leave at least one action, such as doing nothing, to dead and idle agents too"
        fail(env, "timestep.action_mask", f"{agent} has no legal action", advice)


def _check_terminated(env, rollout) -> None:
    before, after = rollout.before[0].terminated, rollout.after[0].terminated
    if (before & ~after).any():
        agent = env.agents[int(np.argwhere(before & ~after)[0][-1])]
        problem = f"{agent} was terminated and then was not, within one episode"
        fail(env, "timestep.terminated", problem, "keep it true until the reset")
    running = ~(after.all(axis=-1) | rollout.after[0].truncated)[:, None]
    wrong = after & rollout.after[0].active & running
    if wrong.any():
        agent = env.agents[int(np.argwhere(wrong)[0][-1])]
        advice = "override active(state) so that it is false for agents that ended"
        fail(env, "timestep.active", f"{agent} is terminated and still active", advice)


def _check_step_count(env, rollout) -> None:
    before, after = rollout.before[1].step, rollout.after[1].step
    if before[0] != 0:
        fail(env, "state.step", f"{before[0]} after reset", "start at jnp.zeros((), jnp.int32)")
    if (after != before + 1).any() or (rollout.transition_step != before).any():
        advice = "leave state.step to the base class, and resets to auto_reset"
        fail(env, "state.step", "changed by transition, or step resets by itself", advice)
    if (rollout.after[0].truncated != (after >= env.max_steps)).any():
        problem = f"not equal to step >= max_steps ({env.max_steps})"
        fail(env, "timestep.truncated", problem, "leave the time limit to the base class")


# Automatic reset and the renderer.


def _check_auto_reset(env, rollout, key, random) -> None:
    """Two copies, one step and two steps before the limit, so that ends fall on different steps."""
    wrapped = auto_reset(env)
    late = env.max_steps - 1 - np.arange(2, dtype=np.int32)
    twice = np.zeros(2, int)
    state, mask = _at(rollout.before[1], twice).replace(step=late), _at(rollout.before[0].action_mask, twice)

    def one_step(carry, draw):
        state, mask = carry
        keys, _, noise = draw
        action = _legal_action(noise, mask)
        raw, _ = jax.vmap(env.step)(keys, state, action)
        timestep, state = jax.vmap(wrapped.step)(keys, state, action)
        return (state, timestep.action_mask), (raw, timestep, state.step, jax.vmap(env.observe)(state))

    run = jax.jit(lambda carry, draws: jax.lax.scan(one_step, carry, draws)[1])
    raw, timestep, step, observed = _host(run((state, mask), _draw(env, key, random, (4, 2))))
    done = timestep.terminated.all(axis=-1) | timestep.truncated
    same = functools.partial(
        _same, env, advice="make observe(state) depend on the state alone", root="timestep.observation"
    )
    same(raw.observation, timestep.final_observation, "auto_reset's final_observation and the raw step")
    same(observed, timestep.observation, "auto_reset's observation and observe(state)")
    now, final = jax.tree.map(lambda leaf: leaf[~done], (timestep.observation, timestep.final_observation))
    same(now, final, "auto_reset's observation and final_observation within an episode", exact=False)
    if not done.any() or step[done].any():
        fail(env, "auto_reset", "state.step is not 0 after an episode ended", "start initial_state at step 0")


def _check_render(env, rollout) -> None:
    for state in (_at(rollout.before[1], 0), _at(rollout.after[1], -1)):
        try:
            picture = env.render(state)
        except NotImplementedError:
            return
        shape, dtype = np.shape(picture), getattr(picture, "dtype", type(picture).__name__)
        if len(shape) != 3 or shape[2] != 3 or 0 in shape or dtype != np.uint8:
            fail(env, "render", f"{dtype}{list(shape)}", "return a NumPy uint8 array [height, width, 3]")


# Trees.


def _at(tree, index):
    """The entries `index` of the leading axis, cut out on the host so that nothing is compiled."""

    def cut(leaf):
        return leaf[index] if _is_key(leaf) else jnp.asarray(np.asarray(leaf)[index])

    return jax.tree.map(cut, tree)


def _is_key(leaf) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _host(tree):
    def to_numpy(leaf):
        return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)

    return jax.tree.map(to_numpy, tree)


def _same(env, one, two, what: str, advice: str, *, exact: bool = True, root: str = "") -> None:
    """Fails at the first leaf that differs; floats up to rounding unless `exact`."""
    for (name, a), b in zip(named_leaves(_host(one), root), jax.tree.leaves(_host(two)), strict=True):
        if not exact and np.issubdtype(a.dtype, np.floating):
            equal = np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
        else:
            equal = np.array_equal(a, b, equal_nan=np.issubdtype(a.dtype, np.inexact))
        if not equal:
            fail(env, name, f"{what} give different values", advice)
