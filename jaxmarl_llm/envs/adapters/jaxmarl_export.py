"""`to_jaxmarl`: one of our environments with JaxMARL's surface. JaxMARL is used where it is installed, not needed.

Axes: N agents, A actions.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.envs import spaces
from jaxmarl_llm.envs.base import Environment, EnvState
from jaxmarl_llm.envs.batching import cond_if_any


class ToJaxMARL:
    """One of our environments with JaxMARL's surface: dicts keyed by agent names; see `to_jaxmarl`.

    Attributes:
      env: our environment.
      num_agents: N.
      agents: names, in order.
      observation_spaces, action_spaces: dicts of JaxMARL's spaces, or of ours where JaxMARL is not installed.
      max_steps: the time limit.
    """

    def __init__(self, env: Environment):
        self.env = env
        self.num_agents = env.num_agents
        self.agents = list(env.agents)
        self.max_steps = env.max_steps
        self.observation_spaces = {agent: _their_space(env.observation_space) for agent in self.agents}
        self.action_spaces = {agent: _their_space(env.action_space) for agent in self.agents}

    @functools.partial(jax.jit, static_argnums=0)
    def reset(self, key: jax.Array) -> tuple[dict[str, Any], EnvState]:
        """Starts an episode: `(observations, state)`."""
        timestep, state = self.env.reset(key)
        return self._by_agent(timestep.observation), state

    @functools.partial(jax.jit, static_argnums=0)
    def step(self, key: jax.Array, state: EnvState, actions: dict[str, jax.Array], reset_state: EnvState | None = None):
        """One step that begins a new episode where one ended.

        Args:
          key: consumed.
          state: our state.
          actions: agent name to `[]` int32.
          reset_state: the state to begin with; `reset` makes one when not given.

        Returns:
          `(observations, state, rewards, dones, infos)`; where `dones["__all__"]`, observations and state belong to
          the next episode already.
        """
        key_step, key_reset = jax.random.split(key)
        _, state, rewards, dones, infos = self.step_env(key_step, state, actions)

        def begin(key, state):
            return self.env.initial_state(key)

        if reset_state is None:
            state = cond_if_any(dones["__all__"], begin, lambda key, state: state, key_reset, state)
        else:
            state = jax.tree.map(lambda new, old: jnp.where(dones["__all__"], new, old), reset_state, state)
        return self.get_obs(state), state, rewards, dones, infos

    @functools.partial(jax.jit, static_argnums=0)
    def step_env(self, key: jax.Array, state: EnvState, actions: dict[str, jax.Array]):
        """One step without reset; returns what `step` does."""
        action = jnp.stack([jnp.asarray(actions[agent], jnp.int32).reshape(()) for agent in self.agents])
        timestep, state = self.env.step(key, state, action)
        dones = self._by_agent(timestep.boundary)
        dones["__all__"] = timestep.done
        return (
            self._by_agent(timestep.observation),
            state,
            self._by_agent(timestep.reward),
            dones,
            self._info(timestep.info),
        )

    def get_obs(self, state: EnvState) -> dict[str, Any]:
        """Agent name to observation."""
        return self._by_agent(self.env.observe(state))

    @functools.partial(jax.jit, static_argnums=0)
    def get_avail_actions(self, state: EnvState) -> dict[str, jax.Array]:
        """Agent name to `[A]` bool."""
        return self._by_agent(self.env.action_mask(state))

    def observation_space(self, agent: str | None = None) -> Any:
        """The observation space of an agent; all have the same."""
        return self.observation_spaces[self.agents[0] if agent is None else agent]

    def action_space(self, agent: str | None = None) -> Any:
        """The action space of an agent; all have the same."""
        return self.action_spaces[self.agents[0] if agent is None else agent]

    @property
    def name(self) -> str:
        """Name of our environment's class."""
        return type(self.env).__name__

    @property
    def agent_classes(self) -> dict[str, list[str]]:
        """One class that holds every agent."""
        return {"agent": list(self.agents)}

    def _by_agent(self, tree) -> dict[str, Any]:
        return {agent: jax.tree.map(lambda leaf, i=i: leaf[i], tree) for i, agent in enumerate(self.agents)}

    def _info(self, info) -> dict[str, Any]:
        # Their scripts read `shaped_reward` by agent and reshape everything else to one value an agent.
        flat = {}
        for path, leaf in jax.tree.leaves_with_path(info):
            name = "/".join(str(getattr(part, "key", getattr(part, "name", part))) for part in path)
            if name == "shaped_reward":
                flat[name] = self._by_agent(leaf)
            elif leaf.shape in ((), (self.num_agents,)):
                flat[name] = jnp.broadcast_to(leaf, (self.num_agents,))
        return flat


@functools.cache
def _jaxmarl() -> tuple[type, Any] | None:
    """JaxMARL's base class and its module of spaces, or None where it is not installed."""
    try:
        from jaxmarl.environments import spaces as their_spaces  # pyright: ignore[reportMissingImports]
        from jaxmarl.environments.multi_agent_env import MultiAgentEnv  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    return MultiAgentEnv, their_spaces


def _their_space(space: Any) -> Any:
    found = _jaxmarl()
    if found is None:
        return space
    theirs = found[1]
    if isinstance(space, spaces.Discrete):
        return theirs.Discrete(space.n, dtype=jnp.dtype(space.dtype))
    if isinstance(space, spaces.MultiDiscrete):
        return theirs.MultiDiscrete(list(space.sizes))
    if isinstance(space, spaces.Box):
        return theirs.Box(space.low, space.high, space.shape, dtype=jnp.dtype(space.dtype))
    if isinstance(space, dict):
        return theirs.Dict({name: _their_space(inner) for name, inner in space.items()})
    if isinstance(space, Sequence):
        return theirs.Tuple([_their_space(inner) for inner in space])
    return space


@functools.cache
def _class() -> type[ToJaxMARL]:
    found = _jaxmarl()
    return ToJaxMARL if found is None else type("ToJaxMARL", (ToJaxMARL, found[0]), {})


def to_jaxmarl(env: Environment) -> ToJaxMARL:
    """Gives one of our environments JaxMARL's surface, so that it runs in JaxMARL's own wrappers and scripts.

    JaxMARL has one flag for the end of an episode: `dones[agent]` is true where our agent terminated or the time limit
    came. `infos` holds `shaped_reward` as a dict by agent, everything else as `[N]`. Where JaxMARL is installed the
    result is a `MultiAgentEnv` with JaxMARL's spaces; elsewhere it has the same methods and our spaces.

    Args:
      env: a raw environment (`step` resets by itself, as JaxMARL's does).

    Returns:
      The object, for example for `jaxmarl.wrappers.baselines.LogWrapper`.
    """
    return _class()(env)
