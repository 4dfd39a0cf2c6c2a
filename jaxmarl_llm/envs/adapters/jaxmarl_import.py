"""`from_jaxmarl`: a JaxMARL environment under our contract. Nothing here imports JaxMARL.

Axes: N agents, A actions, G global state.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxmarl_llm.envs import spaces
from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.batching import cond_if_any
from jaxmarl_llm.errors import UserError

_UNKNOWN_LIMIT = 1000


class ByIdentity:
    """Holds an object that is not a value (mutable, without a sound `==`), and compares and hashes it by identity.

    Attributes:
      value: the object.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other):
        return isinstance(other, ByIdentity) and self.value is other.value

    def __hash__(self):
        return id(self.value)

    def __repr__(self):
        return repr(self.value)

    def __deepcopy__(self, memo):
        return self


@struct.dataclass
class FromJaxMARLState(EnvState):
    """State of `FromJaxMARL`. JaxMARL hands observations out with each step, so they are kept.

    Attributes:
      inner: the wrapped environment's state.
      observation: `[N, ...]`.
      action_mask: `[N, A]` bool.
      terminated: `[N]` bool, agents that ended in this episode.
      global_state: `[G]` float32, or an empty tuple where the environment has no `world_state`.
    """

    inner: Any
    observation: jax.Array
    action_mask: jax.Array
    terminated: jax.Array
    global_state: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class FromJaxMARL(Environment[FromJaxMARLState]):
    """A JaxMARL environment; see `from_jaxmarl`.

    Observation: `[N, ...]` as the wrapped environment gives it where all agents' shapes agree (integers and booleans
      keep their type where all types agree); else flattened, float32, padded with zeros to the longest.
    Action: `Discrete(A)`, A the widest agent's; `action_mask` closes the padding and, where the environment tells,
      illegal actions.
    Reward: `[N]`, the wrapped environment's.
    Termination: an agent's own `done`, and everybody's `__all__` unless the time limit explains it.
    State: the wrapped state, with what was observed in it.

    Attributes:
      wrapped: the JaxMARL environment, compared by identity.
    """

    wrapped: ByIdentity

    @property
    def inner(self) -> Any:
        """The JaxMARL environment."""
        return self.wrapped.value

    @property
    def num_agents(self) -> int:
        return len(self.agents)

    @functools.cached_property
    def agents(self) -> tuple[str, ...]:
        return tuple(self.inner.agents)

    @functools.cached_property
    def observation_space(self) -> spaces.Box:
        shapes = self._observation_shapes
        dtypes = {leaf.dtype for leaf in shapes}
        dtype = dtypes.pop() if len(dtypes) == 1 else jnp.dtype("float32")
        if len({leaf.shape for leaf in shapes}) > 1:
            shape = (max(math.prod(leaf.shape) for leaf in shapes),)
            dtype = jnp.dtype("float32")
        else:
            shape = shapes[0].shape or (1,)
        if jnp.issubdtype(dtype, jnp.bool_) or jnp.issubdtype(dtype, jnp.floating):
            # Declared bounds are not relied on: some environments leave theirs.
            return spaces.Box(-math.inf, math.inf, shape, "float32")
        limits = jnp.iinfo(dtype)
        return spaces.Box(int(limits.min), int(limits.max), shape, dtype.name)

    @functools.cached_property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(max(self._action_counts))

    def initial_state(self, key):
        observation, inner = self.inner.reset(key)
        inner = jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), inner, self._state_types)
        return self._state(jnp.zeros((), jnp.int32), observation, inner, jnp.zeros((self.num_agents,), bool))

    def transition(self, key, state, action):
        # What an ended agent does is fixed to its first legal action: some environments record it.
        idle = jnp.argmax(state.action_mask, axis=-1).astype(jnp.int32)
        action = jnp.where(state.terminated, idle, action)
        actions = {agent: action[i] for i, agent in enumerate(self.agents)}
        observation, inner, reward, done, info = self.inner.step_env(key, state.inner, actions)
        inner = jax.tree.map(lambda leaf, like: jnp.asarray(leaf, like.dtype), inner, self._state_types)

        at_limit = state.step + 1 >= self.max_steps
        own = self._own_done(done)
        everybody = jnp.asarray(done["__all__"], bool)
        ended = cond_if_any(
            at_limit & everybody, self._ended_without_clock, _keep, key, state.inner, actions, (own, everybody)
        )
        terminated = state.terminated | ended
        info = _numeric_info(info, self.agents)
        reward = jnp.stack([jnp.asarray(reward[agent], jnp.float32).reshape(()) for agent in self.agents])
        return self._state(state.step, observation, inner, terminated), reward, terminated, info

    def observe(self, state):
        return state.observation

    def action_mask(self, state):
        return state.action_mask

    def active(self, state):
        return ~state.terminated

    def global_state(self, state):
        if isinstance(state.global_state, tuple):
            return super().global_state(state)
        return state.global_state

    def _ended_without_clock(self, key, inner, actions, flags):
        """`[N]` bool: who ends on this step also when the wrapped environment's clock stands at zero."""
        rewound, found = _rewind(inner)
        if not found:
            # Nothing tells a time limit from an end of the game: on the last step it counts as the limit.
            own, _ = flags
            return own & ~jnp.all(own)
        done = self.inner.step_env(key, rewound, actions)[3]
        return self._own_done(done) | jnp.asarray(done["__all__"], bool)

    def _own_done(self, done):
        return jnp.stack([jnp.asarray(done[agent], bool).reshape(()) for agent in self.agents])

    def _state(self, step, observation, inner, terminated) -> FromJaxMARLState:
        world = observation.get("world_state")
        return FromJaxMARLState(
            step=step,
            inner=inner,
            observation=self._stack(observation),
            action_mask=self._mask(inner),
            terminated=terminated,
            global_state=() if world is None else _single_vector(world),
        )

    def _stack(self, observation) -> jax.Array:
        space = self.observation_space

        def fit(leaf):
            leaf = jnp.asarray(leaf).astype(space.dtype)
            if leaf.shape == space.shape:
                return leaf
            leaf = leaf.reshape(-1)
            return jnp.pad(leaf, (0, space.shape[0] - leaf.shape[0]))

        return jnp.stack([fit(observation[agent]) for agent in self.agents])

    def _mask(self, inner) -> jax.Array:
        counts = np.asarray(self._action_counts)
        own = jnp.asarray(np.arange(self.num_actions) < counts[:, None])
        if self._mask_method is None:
            return own
        legal = getattr(self.inner, self._mask_method)(inner)
        rows = [jnp.asarray(legal[agent], bool).reshape(-1)[: self.num_actions] for agent in self.agents]
        mask = jnp.stack([jnp.pad(row, (0, self.num_actions - row.shape[0])) for row in rows]) & own
        return jnp.where(jnp.any(mask, axis=-1, keepdims=True), mask, own)

    # What is known without running anything.

    @functools.cached_property
    def _reset_types(self):
        return jax.eval_shape(self.inner.reset, jax.eval_shape(lambda: jax.random.key(0)))

    @functools.cached_property
    def _state_types(self):
        """Types of the state that `step_env` returns: some resets start counters as Python numbers."""
        key = jax.eval_shape(lambda: jax.random.key(0))
        actions = {agent: jax.ShapeDtypeStruct((), jnp.int32) for agent in self.agents}
        return jax.eval_shape(lambda *args: self.inner.step_env(*args)[1], key, self._reset_types[1], actions)

    @functools.cached_property
    def _observation_shapes(self):
        observation = self._reset_types[0]
        leaves = [jax.tree.leaves(observation[agent]) for agent in self.agents]
        if any(len(found) != 1 for found in leaves):
            raise UserError(f"{self._name} gives several arrays an agent: from_jaxmarl needs one as observation")
        return [found[0] for found in leaves]

    @functools.cached_property
    def _action_counts(self) -> tuple[int, ...]:
        found = [self.inner.action_space(agent) for agent in self.agents]
        if not all(hasattr(space, "n") for space in found):
            raise UserError(
                f"{self._name} has actions that are not discrete: from_jaxmarl needs Discrete action spaces"
            )
        return tuple(int(space.n) for space in found)

    @functools.cached_property
    def _mask_method(self) -> str | None:
        for name in ("get_avail_actions", "get_legal_moves"):
            method = getattr(self.inner, name, None)
            if not callable(method):
                continue
            try:
                legal = jax.eval_shape(method, self._reset_types[1])
            except NotImplementedError:
                # The base class declares it for everybody.
                continue
            if isinstance(legal, dict) and set(self.agents) <= set(legal):
                return name
        return None

    @property
    def _name(self) -> str:
        return str(getattr(self.inner, "name", type(self.inner).__name__))


def _keep(key, inner, actions, flags):
    own, everybody = flags
    return own | everybody


def _rewind(state: Any) -> tuple[Any, bool]:
    """A copy of a state with every `step` field at zero, and whether there is one."""
    if not dataclasses.is_dataclass(state) or isinstance(state, type):
        return state, False
    changes, found = {}, False
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if field.name == "step":
            changes["step"], found = jnp.zeros_like(value), True
        elif dataclasses.is_dataclass(value):
            changes[field.name], inside = _rewind(value)
            found |= inside
    return dataclasses.replace(state, **changes), found


def _single_vector(world) -> jax.Array:
    return jnp.asarray(world, jnp.float32).reshape(-1)


def _numeric_info(info: Any, agents: tuple[str, ...]) -> dict[str, jax.Array]:
    """Entries of `info` that are numbers: `[]` or `[N]` float32; a dict keyed by agents becomes `[N]`."""
    kept = {}
    for name, value in info.items() if isinstance(info, dict) else ():
        if isinstance(value, dict) and set(agents) <= set(value):
            value = [value[agent] for agent in agents]
            if any(jnp.size(entry) != 1 for entry in value):
                continue
            kept[name] = jnp.stack([jnp.asarray(entry, jnp.float32).reshape(()) for entry in value])
        elif isinstance(value, (int, float, np.ndarray, jax.Array)) and jnp.shape(value) in ((), (len(agents),)):
            kept[name] = jnp.asarray(value, jnp.float32)
    return kept


def from_jaxmarl(env: Any, *, max_steps: int | None = None) -> FromJaxMARL:
    """Wraps a JaxMARL environment, so that it trains here unchanged.

    The raw `step_env` is used and never a reset inside a step. JaxMARL has one `done` for two meanings. They are told
    apart so: when everybody is done on the last step of the time limit, the step is asked for once more with the
    wrapped state's `step` at zero, and only an end that is still there counts as termination: a game that is won on its
    last step ends, one that ran out of time is bootstrapped. On other steps `done` is termination. Where an
    environment's own clock runs longer than its `max_steps` (MPE and SMAX give one step more), our limit comes first:
    `max_steps` gives exactly that many rewards.

    Legal actions come from `get_avail_actions`, or `get_legal_moves` (Hanabi), or are all. Agents whose observations
    or action counts differ are padded. `obs["world_state"]` becomes `global_state`. Entries of `info` that are one
    number, or one an agent (such as `shaped_reward`), are kept. There is no renderer.

    Args:
      env: the environment, for example `jaxmarl.make("MPE_simple_spread_v3")`.
      max_steps: the time limit; not above the environment's own. By default the environment's `max_steps`, or
        `num_inner_steps * num_outer_steps` where it has those, else 1,000 (Hanabi ends far below).

    Returns:
      An `Environment`. Two adapters of one object are equal; of two objects they are not.

    Raises:
      UserError: continuous actions, an observation of several arrays, or a time limit above the environment's own.
    """
    for name in ("reset", "step_env", "agents", "action_space"):
        if not hasattr(env, name):
            raise UserError(f"{type(env).__name__} is not a JaxMARL environment: it has no '{name}'")
    own = _own_limit(env)
    if max_steps is not None and own is not None and max_steps > own:
        raise UserError(f"max_steps={max_steps} is above the environment's own limit {own}: build it with a larger one")
    limit = max_steps if max_steps is not None else own if own is not None else _UNKNOWN_LIMIT
    adapter = FromJaxMARL(wrapped=ByIdentity(env), max_steps=int(limit))
    # Bad spaces are refused here and not in the middle of a compilation.
    _ = adapter.observation_space, adapter.action_space
    return adapter


def _own_limit(env: Any) -> int | None:
    limit = getattr(env, "max_steps", None)
    if limit is None:
        inner, outer = getattr(env, "num_inner_steps", None), getattr(env, "num_outer_steps", None)
        if inner is not None and outer is not None:
            limit = int(inner) * int(outer)
    return None if limit is None else int(limit)
