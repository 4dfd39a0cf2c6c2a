"""The part of `check_env` that runs nothing: settings, spaces, structure, shapes and types."""

import copy
import dataclasses
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jaxmarl_llm import user_code
from jaxmarl_llm.envs import spaces
from jaxmarl_llm.envs.base import Environment, EnvState, TimeStep
from jaxmarl_llm.envs.wrappers import AutoReset, LogEpisodes


class EnvCheckError(AssertionError):
    """An environment breaks the contract. The message names the field and says what to do."""


def check_static(env: Environment) -> None:
    """Checks all of an environment that can be known by inspection and abstract evaluation.

    Args:
      env: a raw environment.

    Raises:
      EnvCheckError: the first fault found.
    """
    _check_settings(env)
    _check_agents_and_spaces(env)
    _check_structure(env)


def fail(env: Environment, field: str, problem: str, advice: str) -> NoReturn:
    """Raises `EnvCheckError` in its one form: environment, field, problem, advice."""
    raise EnvCheckError(f"{type(env).__name__}: {field}: {problem}: {advice}")


def _check_settings(env) -> None:
    if not isinstance(env, Environment):
        fail(env, "type", "not an Environment", "subclass jaxmarl_llm.Environment")
    if isinstance(env, AutoReset | LogEpisodes):
        fail(env, "type", "this wrapper changes what a step means", "check the raw environment, `env.env`")
    cls = type(env)
    undecorated = "__dataclass_fields__" not in vars(cls)
    if undecorated and vars(cls).get("__annotations__"):
        fail(
            env, "class", "not a dataclass itself", "decorate it with @dataclasses.dataclass(frozen=True, kw_only=True)"
        )
    for field in dataclasses.fields(env):
        value = getattr(env, field.name)
        try:
            hash(value)
        except TypeError:
            fail(
                env,
                field.name,
                f"{type(value).__name__} is not hashable",
                "store tuples and numbers, not lists or arrays",
            )
    twin = copy.deepcopy(env)
    for field in dataclasses.fields(env):
        if field.compare and getattr(twin, field.name) != getattr(env, field.name):
            fail(
                env,
                field.name,
                "a copy is not equal to the original",
                "give its class __eq__ and __hash__, or use a tuple",
            )
    if twin != env or hash(twin) != hash(env):
        fail(env, "__eq__, __hash__", "an equal copy hashes differently", "keep the methods that the dataclass makes")


def _check_agents_and_spaces(env) -> None:
    if not isinstance(env.num_agents, int) or env.num_agents < 1:
        fail(env, "num_agents", f"{env.num_agents!r}", "return an int of at least 1")
    agents = env.agents
    if not isinstance(agents, tuple) or not all(isinstance(name, str) for name in agents):
        fail(env, "agents", f"{agents!r}", "return a tuple of strings")
    if len(agents) != env.num_agents or len(set(agents)) != len(agents):
        fail(env, "agents", f"{agents!r} for {env.num_agents} agents", "return num_agents different names")
    if not isinstance(env.action_space, spaces.Discrete) or env.action_space.n < 1:
        fail(env, "action_space", f"{env.action_space!r}", "return Discrete(A) with A of at least 1")
    for path, space in jax.tree.leaves_with_path(env.observation_space):
        if not all(hasattr(space, name) for name in ("shape", "dtype", "contains")):
            name = "observation_space" + jax.tree_util.keystr(path)
            fail(env, name, f"{space!r} is not a space", "use Box, Discrete, MultiDiscrete or a pytree of them")


def _check_structure(env) -> None:
    """Shapes, dtypes and weak types, by abstract evaluation alone."""
    key = jax.eval_shape(lambda: jax.random.key(0))
    action = jax.ShapeDtypeStruct((env.num_agents,), jnp.int32)
    _check_hooks(env, key, action)
    reset = _trace(env, "reset", env.reset, key)
    _check_reset_types(env, *reset)
    stepped = _trace(env, "step", env.step, key, reset[1], action)
    _same_types(env, reset, stepped)
    _check_timestep_shapes(env, reset[0])
    _check_info_shapes(env, reset[0].info)
    _check_global_state_shape(env, reset[1])


def _trace(env, name, function, *args):
    try:
        return jax.eval_shape(function, *args)
    except EnvCheckError:
        raise
    except Exception as error:
        problem = f"{type(env).__name__}: {name}: "
        if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
            problem += (
                f"cannot be traced by jax.jit ({user_code.describe(error)}): use jnp functions of the arguments, "
                "jnp.where instead of `if`, and no float(), int() or NumPy on arrays"
            )
        else:
            problem += f"fails under jax.jit ({user_code.describe(error)}): let it return arrays for every state"
        raise EnvCheckError(problem) from error


def _check_hooks(env, key, action) -> None:
    """What an environment's own functions return, before the base class makes a time step of it."""
    if type(env).reset is not Environment.reset or type(env).step is not Environment.step:
        return
    state = _trace(env, "initial_state", env.initial_state, key)
    _check_state_type(env, state)
    returned = _trace(env, "transition", env.transition, key, state, action)
    if not isinstance(returned, tuple) or len(returned) != 4:
        what = f"{len(returned)} values" if isinstance(returned, tuple) else type(returned).__name__
        fail(env, "transition", f"returns {what}", "return (state, reward, terminated, info)")
    _check_state_type(env, returned[0])
    for name, leaf in zip(("reward", "terminated"), returned[1:3], strict=True):
        if getattr(leaf, "shape", None) not in ((), (env.num_agents,)):
            what = describe(leaf) if hasattr(leaf, "shape") else type(leaf).__name__
            fail(env, f"{name} of transition", what, f"return [{env.num_agents}], one value an agent, or [] for all")


def _check_state_type(env, state) -> None:
    if not isinstance(state, EnvState):
        fail(
            env, "state", f"{type(state).__name__} is not an EnvState", "subclass EnvState with @flax.struct.dataclass"
        )


def _check_reset_types(env, timestep, state) -> None:
    if not isinstance(timestep, TimeStep):
        fail(env, "reset", f"returns {type(timestep).__name__} first", "return (TimeStep, state)")
    _check_state_type(env, state)
    for name, leaf in named_leaves((timestep, state)):
        if leaf.weak_type:
            advice = "give it a dtype, for example jnp.zeros((), jnp.int32) or jnp.asarray(x, jnp.float32)"
            fail(env, name, "weakly typed at reset, since it comes from a Python number", advice)


def _same_types(env, reset, stepped) -> None:
    if jax.tree.structure(reset) != jax.tree.structure(stepped):
        a, b = ({name for name, _ in named_leaves(tree)} for tree in (reset, stepped))
        where = ", ".join(sorted(a ^ b)) or "static fields"
        fail(env, where, "reset and step return different structures", "return the same fields from both")
    for (name, a), (_, b) in zip(named_leaves(reset), named_leaves(stepped), strict=True):
        if (a.shape, a.dtype, a.weak_type) != (b.shape, b.dtype, b.weak_type):
            problem = f"{describe(a)} after reset but {describe(b)} after step"
            fail(env, name, problem, "make them equal (.astype, jnp.asarray with a dtype), or a scan cannot carry it")


def _check_timestep_shapes(env, timestep) -> None:
    agents, actions = env.num_agents, env.action_space.n
    expected = {
        "reward": ((agents,), "float32"),
        "terminated": ((agents,), "bool"),
        "truncated": ((), "bool"),
        "action_mask": ((agents, actions), "bool"),
        "active": ((agents,), "bool"),
    }
    for name, (shape, dtype) in expected.items():
        leaf = getattr(timestep, name)
        if leaf.shape != shape or leaf.dtype != dtype:
            fail(env, f"timestep.{name}", f"{describe(leaf)}", f"return {dtype}{list(shape)}")
    if jax.tree.structure(timestep.observation) != jax.tree.structure(env.observation_space):
        problem = f"structure {jax.tree.structure(timestep.observation)}"
        fail(env, "timestep.observation", problem, f"match observation_space, {env.observation_space}")
    pairs = zip(named_leaves(timestep.observation, "observation"), jax.tree.leaves(env.observation_space), strict=True)
    for (name, leaf), space in pairs:
        shape = (agents, *space.shape)
        if leaf.shape != shape or leaf.dtype != jnp.dtype(space.dtype):
            advice = f"observation_space asks for {space.dtype}{list(shape)}, agent axis first"
            fail(env, f"timestep.{name}", describe(leaf), advice)


def _check_info_shapes(env, info) -> None:
    if isinstance(info, dict) and "shaped_reward" in info:
        leaf = info["shaped_reward"]
        if leaf.shape != (env.num_agents,) or leaf.dtype != jnp.float32:
            advice = f"return float32[{env.num_agents}], one value an agent"
            fail(env, "timestep.info['shaped_reward']", describe(leaf), advice)


def _check_global_state_shape(env, state) -> None:
    leaf = _trace(env, "global_state", env.global_state, state)
    if leaf.ndim != 1 or leaf.dtype != jnp.float32:
        fail(env, "global_state", describe(leaf), "return a flat float32 vector")
    if env.global_state_size != leaf.shape[0]:
        fail(env, "global_state_size", f"{env.global_state_size} for {describe(leaf)}", "do not override it")


def named_leaves(tree, root: str = "") -> list[tuple[str, Any]]:
    """Leaves with names to print; a `(TimeStep, state)` pair gives `timestep.…` and `state.…`."""
    if isinstance(tree, tuple) and len(tree) == 2 and isinstance(tree[0], TimeStep):
        return named_leaves(tree[0], "timestep") + named_leaves(tree[1], "state")
    return [(root + jax.tree_util.keystr(path), leaf) for path, leaf in jax.tree.leaves_with_path(tree)]


def describe(leaf) -> str:
    """`float32[3, 2]`, for messages."""
    weak = ", weakly typed" if getattr(leaf, "weak_type", False) else ""
    return f"{leaf.dtype}{list(leaf.shape)}{weak}"
