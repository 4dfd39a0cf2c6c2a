"""`check_env` accepts sound environments of many kinds and names the one fault of each broken one."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxmarl_llm.envs import Box, Discrete, Environment, EnvState, MultiDiscrete, Wrapper, auto_reset
from jaxmarl_llm.envs.checks import EnvCheckError, check_env


@struct.dataclass
class WalkState(EnvState):
    position: jax.Array
    alive: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Walk(Environment[WalkState]):
    """Agents on a line; an agent that reaches the end dies. The seed of all examples below."""

    num_agents: int = 2
    length: int = 4
    max_steps: int = 6

    @property
    def observation_space(self):
        return Box(0.0, 1.0, (self.length,))

    @property
    def action_space(self):
        return Discrete(3)

    def initial_state(self, key):
        # The bits of the key itself: a draw would take most of the compile time of these examples.
        bits = jax.random.key_data(key)[-1] >> jnp.arange(self.num_agents, dtype=jnp.uint32)
        position = (bits & 1).astype(jnp.int32)
        return WalkState(step=jnp.zeros((), jnp.int32), position=position, alive=jnp.ones(self.num_agents, bool))

    def transition(self, key, state, action):
        move = jnp.where(state.alive, action - 1, 0)
        position = jnp.clip(state.position + move, 0, self.length - 1)
        alive = position < self.length - 1
        info = {"shaped_reward": 0.1 * move.astype(jnp.float32), "moves": (move != 0).sum().astype(jnp.float32)}
        return state.replace(position=position, alive=alive), alive.astype(jnp.float32), ~alive, info

    def observe(self, state):
        return jax.nn.one_hot(state.position, self.length, dtype=jnp.float32)

    def active(self, state):
        return state.alive

    def render(self, state):
        picture = np.zeros((self.num_agents, self.length, 3), np.uint8)
        picture[np.arange(self.num_agents), np.asarray(state.position)] = 255
        return picture


# Sound environments.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PytreeWalk(Walk):
    """Observations as a dict, one of them factored integers; different action counts; names of its own."""

    @property
    def observation_space(self):
        return {"line": Box(0.0, 1.0, (self.length,)), "place": MultiDiscrete((self.length, 2)), "alive": Discrete(2)}

    @property
    def agents(self):
        return ("walker", "runner")

    def observe(self, state):
        alive = state.alive.astype(jnp.int32)
        return {"line": super().observe(state), "place": jnp.stack([state.position, alive], -1), "alive": alive}

    def action_mask(self, state):
        return jnp.array([[True, True, False], [True, True, True]])

    def global_state(self, state):
        return state.position.astype(jnp.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyedWalk(Walk):
    """Holds a random key in its state, moves at random and never ends by itself."""

    length: int = 1000

    def initial_state(self, key):
        key_state, key_rest = jax.random.split(key)
        state = super().initial_state(key_rest)
        return KeyedState(step=state.step, position=state.position, alive=state.alive, key=key_state)

    def transition(self, key, state, action):
        state = state.replace(key=jax.random.fold_in(state.key, 1))
        return super().transition(key, state, jax.random.randint(state.key, action.shape, 0, 3))


@struct.dataclass
class KeyedState(WalkState):
    key: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Halved(Wrapper):
    """A wrapper that changes the observation."""

    def observe(self, state):
        return 0.5 * self.env.observe(state)


@pytest.mark.parametrize(
    "env",
    [
        Walk(num_agents=3),
        Walk(num_agents=1, max_steps=1),
        PytreeWalk(),
        KeyedWalk(max_steps=300),
        Halved(env=Walk()),
    ],
    ids=["dying", "alone", "pytree", "keyed", "wrapped"],
)
def test_sound_environments_pass(env):
    check_env(env, num_steps=60)


# One fault each: a class, and what the message must name.


class NotFrozenDataclass(Walk):
    speed: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListSetting(Walk):
    rewards: Any = dataclasses.field(default_factory=lambda: [1.0, 2.0])


class Identity:
    pass


@dataclasses.dataclass(frozen=True, kw_only=True)
class IdentitySetting(Walk):
    model: Any = dataclasses.field(default_factory=Identity)


class BadAgents(Walk):
    @property
    def agents(self):
        return ("one", "one")


class WeakState(Walk):
    def initial_state(self, key):
        return super().initial_state(key).replace(step=0)


class OtherDtype(Walk):
    def transition(self, key, state, action):
        state, *rest = super().transition(key, state, action)
        return state.replace(position=state.position.astype(jnp.int16)), *rest


class OtherStructure(Walk):
    def reset(self, key):
        timestep, state = super().reset(key)
        return timestep.replace(info={"moves": timestep.info["moves"]}), state


class PythonBranch(Walk):
    def transition(self, key, state, action):
        if action[0] > 1:
            action = action * 0
        return super().transition(key, state, action)


class NotATimeStep(Walk):
    def reset(self, key):
        return super().reset(key)[0].observation, self.initial_state(key)


class IntegerMask(Walk):
    def action_mask(self, state):
        return jnp.ones((2, 3), jnp.int32)


class WrongShape(Walk):
    def observe(self, state):
        return super().observe(state)[:, :-1]


class WrongDtype(Walk):
    def observe(self, state):
        return super().observe(state).astype(jnp.bfloat16)


class LongReward(Walk):
    def transition(self, key, state, action):
        state, _, *rest = super().transition(key, state, action)
        return state, jnp.ones(3), *rest


class ThreeValues(Walk):
    def transition(self, key, state, action):
        return super().transition(key, state, action)[:3]


class NoState(Walk):
    def initial_state(self, key):
        return {"step": 0}


class Raises(Walk):
    def transition(self, key, state, action):
        raise RuntimeError("two\nlines")


class NanObservation(Walk):
    def observe(self, state):
        return super().observe(state) / 0.0


class ShapedReward(Walk):
    def transition(self, key, state, action):
        *rest, info = super().transition(key, state, action)
        return *rest, {"shaped_reward": info["moves"]}


class SquareGlobalState(Walk):
    def global_state(self, state):
        return super().observe(state)


class OutOfSpace(Walk):
    def observe(self, state):
        return 2.0 * super().observe(state)


class NanReward(Walk):
    def transition(self, key, state, action):
        state, reward, *rest = super().transition(key, state, action)
        return state, reward / reward, *rest


class InfoAfterReset(Walk):
    def first_timestep(self, state):
        timestep = super().first_timestep(state)
        return timestep.replace(info={**timestep.info, "moves": jnp.ones(())})


class NoLegalAction(Walk):
    def action_mask(self, state):
        return jnp.broadcast_to(state.alive[:, None], (2, 3))


class Resurrection(Walk):
    def transition(self, key, state, action):
        old = state.alive
        state, reward, terminated, info = super().transition(key, state, action)
        return state, reward, terminated & old, info


class DeadButActive(Walk):
    def active(self, state):
        return jnp.ones((2,), bool)


class ResetsItself(Walk):
    def transition(self, key, state, action):
        state, reward, terminated, info = super().transition(key, state, action)
        fresh = self.initial_state(key)
        state = jax.tree.map(lambda new, old: jnp.where(terminated.all(), new, old), fresh, state)
        return state, reward, terminated, info


class CountsItself(Walk):
    def transition(self, key, state, action):
        state, *rest = super().transition(key, state, action)
        return state.replace(step=state.step + 1), *rest


class LateLimit(Walk):
    def step(self, key, state, action):
        timestep, state = super().step(key, state, action)
        return timestep.replace(truncated=state.step > self.max_steps), state


class LateLimitUnseen(LateLimit):
    """The limit lies beyond the random play; only a state put close to it shows the fault."""

    def transition(self, key, state, action):
        return super().transition(key, state, jnp.zeros_like(action))


class HiddenRandomness(Walk):
    def transition(self, key, state, action):
        state, reward, *rest = super().transition(key, state, action)
        return state, reward + np.random.default_rng().random(), *rest


class DeadAgentsAct(Walk):
    def transition(self, key, state, action):
        *rest, info = super().transition(key, state, action)
        return *rest, {**info, "moves": action.sum().astype(jnp.float32)}


class BatchDependent(Walk):
    def observe(self, state):
        return sum_in_batch(super().observe(state))


@jax.custom_batching.custom_vmap
def sum_in_batch(value):
    return value


@sum_in_batch.def_vmap
def _sum_in_batch(axis_size, in_batched, value):
    return value * value.mean(axis=0, keepdims=True), True


class FloatPicture(Walk):
    def render(self, state):
        return super().render(state) / 255.0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (object(), "not an Environment"),
        (auto_reset(Walk()), "check the raw environment"),
        (NotFrozenDataclass(), "class: not a dataclass itself"),
        (ListSetting(), "rewards: list is not hashable: store tuples"),
        (IdentitySetting(), "model: a copy is not equal"),
        (BadAgents(), "agents: .* for 2 agents: return num_agents different names"),
        (WeakState(), "state.step: weakly typed at reset"),
        (OtherDtype(), r"state.position: int32\[2\] after reset but int16\[2\] after step"),
        (OtherStructure(), r"timestep.info\['shaped_reward'\]: reset and step return different structures"),
        (PythonBranch(), "transition: cannot be traced by jax.jit .*Bool.*jnp.where instead of `if`"),
        (NotATimeStep(), "reset: returns .* first"),
        (IntegerMask(), r"timestep.action_mask: int32\[2, 3\]: return bool\[2, 3\]"),
        (WrongShape(), r"timestep.observation: float32\[2, 3\]: observation_space asks for float32\[2, 4\]"),
        (WrongDtype(), r"timestep.observation: bfloat16\[2, 4\]"),
        (LongReward(), r"reward of transition: float32\[3\]: return \[2\], one value an agent"),
        (ThreeValues(), r"transition: returns 3 values: return \(state, reward, terminated, info\)"),
        (NoState(), "state: dict is not an EnvState"),
        (Raises(), r"transition: fails under jax.jit \(RuntimeError: two lines \(.*test_checks.py:\d+\)\)"),
        (NanObservation(), "timestep.observation: NaN or infinite"),
        (ShapedReward(), r"info\['shaped_reward'\]: float32\[\]: return float32\[2\]"),
        (SquareGlobalState(), r"global_state: float32\[2, 4\]: return a flat float32 vector"),
        (OutOfSpace(), r"timestep.observation: values in \[0.0, 2.0\] lie outside"),
        (NanReward(), "timestep.reward: NaN or infinite"),
        (InfoAfterReset(), r"timestep.info\['moves'\]: not zero after reset"),
        (NoLegalAction(), "timestep.action_mask: agent_. has no legal action"),
        (Resurrection(), "timestep.terminated: agent_. was terminated and then was not"),
        (DeadButActive(), "timestep.active: agent_. is terminated and still active"),
        (ResetsItself(num_agents=1, length=3), "state.step: changed by transition, or step resets by itself"),
        (CountsItself(), "state.step: changed by transition"),
        (LateLimit(length=1000), "timestep.truncated: not equal to step >= max_steps"),
        (LateLimitUnseen(max_steps=500), "timestep.truncated: true exactly on step 500"),
        (HiddenRandomness(), "timestep.reward: jitted and plain step give different values"),
        (DeadAgentsAct(), r"info\['moves'\]: two actions of an inactive agent"),
        (BatchDependent(), "timestep.observation: vmap and a loop give different values"),
        (FloatPicture(), r"render: float64\[2, 4, 3\]: return a NumPy uint8 array"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_names_the_fault(env, message):
    with pytest.raises(EnvCheckError, match=message) as caught:
        check_env(env, num_steps=60)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(type(env).__name__ + ": ")


def test_the_seed_of_the_play_does_not_matter():
    check_env(Walk(), num_steps=20, seed=1)
