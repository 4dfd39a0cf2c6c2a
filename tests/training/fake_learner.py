"""A learner with the interface of the real ones that compiles in no time: its parameters walk at random."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.envs import Environment


@struct.dataclass
class FakeState:
    params: Any
    rollout: Any
    key: jax.Array
    update: jax.Array


@struct.dataclass
class FakeLearner:
    env: Environment = struct.field(pytree_node=False)
    num_envs: int = struct.field(pytree_node=False, default=4)
    rollout_length: int = struct.field(pytree_node=False, default=5)
    poison: int = struct.field(pytree_node=False, default=-1)

    one_device = ""

    @property
    def env_groups(self):
        return self.num_envs

    @property
    def steps_per_update(self):
        return self.num_envs * self.rollout_length

    def init(self, key):
        key_params, key_rollout, key = jax.random.split(key, 3)
        return FakeState(
            params={"weights": jax.random.normal(key_params, (3,)), "bias": jnp.zeros(())},
            rollout={"walk": jnp.zeros((self.num_envs,)), "keys": jax.random.split(key_rollout, self.num_envs)},
            key=key,
            update=jnp.zeros((), jnp.int32),
        )

    def update(self, state):
        key, key_noise = jax.random.split(state.key)
        steps = jax.vmap(lambda key: jax.random.uniform(key))(state.rollout["keys"])
        keys = jax.vmap(lambda key: jax.random.split(key)[0])(state.rollout["keys"])
        walk = state.rollout["walk"] + steps
        poison = jnp.where(state.update == self.poison, jnp.nan, 0.0)
        params = {
            "weights": state.params["weights"] + 0.1 * jax.random.normal(key_noise, (3,)) + poison,
            "bias": state.params["bias"] + mesh.sum_over_devices(walk.sum()) / self.num_envs,
        }
        num_agents = self.env.num_agents
        metrics = {
            "total_loss": params["weights"].sum(),
            "episode_return": params["bias"],
            "episodes_finished": jnp.where(state.update % 2 == 0, 2.0, 0.0),
            "agent_return": jnp.full((num_agents,), params["bias"]),
        }
        return FakeState(params, {"walk": walk, "keys": keys}, key, state.update + 1), metrics

    def initial_memory(self, batch_shape=()):
        return ()

    def act(self, params, timestep, memory, key, greedy=True):
        shape = timestep.active.shape
        return jnp.broadcast_to((params["weights"][0] > 0).astype(jnp.int32), shape), memory


def use_fake_learner(monkeypatch) -> dict[str, Any]:
    """Lets `train` and `load_run` build fake learners, with the settings in the dict that is returned."""
    from jaxmarl_llm.training import loop, runs
    from jaxmarl_llm.training.build import build_environment

    settings: dict[str, Any] = {}

    def build(config):
        env = build_environment(config)
        return FakeLearner(env, num_envs=config.num_envs, rollout_length=config.rollout_length, **settings)

    monkeypatch.setattr(loop, "build_learner", build)
    monkeypatch.setattr(runs, "build_learner", build)
    return settings
