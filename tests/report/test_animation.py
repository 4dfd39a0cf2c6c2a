import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from PIL import Image

from jaxmarl_llm.envs import Box, Discrete, Environment, EnvState
from jaxmarl_llm.envs.drawing import Canvas, agent_color
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.report import record_episode, write_episode_gif


@struct.dataclass
class CorridorState(EnvState):
    position: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Corridor(Environment):
    """Two agents walk right; the episode ends when agent 0 reaches the goal."""

    length: int = 5

    num_agents = 2
    observation_space = Box(0, 100, (1,))
    action_space = Discrete(2)

    def initial_state(self, key):
        return CorridorState(step=jnp.int32(0), position=jnp.zeros(2, jnp.int32))

    def transition(self, key, state, action):
        position = jnp.minimum(state.position + action, self.length - 1)
        arrived = position[0] == self.length - 1
        return state.replace(position=position), arrived.astype(jnp.float32), arrived, {}

    def observe(self, state):
        return state.position[:, None].astype(jnp.float32)


class DrawnCorridor(Corridor):
    def render(self, state):
        canvas = Canvas(2, self.length)
        for agent in range(2):
            canvas.circle((agent, int(state.position[agent])), agent_color(agent))
        return canvas.array()


def walk(timestep, memory, key):
    return jnp.ones(2, jnp.int32), memory + 1


def stay(timestep, memory, key):
    return jnp.zeros(2, jnp.int32), memory


def test_an_episode_is_cut_at_its_termination(key):
    episode = record_episode(Corridor(length=5, max_steps=20), walk, key, memory=jnp.int32(0))
    assert len(episode) == 4 and len(episode.states) == 5
    assert episode.terminated
    assert [int(state.position[0]) for state in episode.states] == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(episode.rewards, [[0, 0], [0, 0], [0, 0], [1, 1]])
    assert episode.team_return == 1.0


def test_the_time_limit_ends_an_episode(key):
    episode = record_episode(Corridor(max_steps=7), stay, key)
    assert len(episode) == 7 and not episode.terminated
    assert len(record_episode(Corridor(max_steps=7), stay, key, max_steps=3)) == 3


def test_gif_has_one_frame_a_state_and_is_small(tmp_path, key):
    env = DrawnCorridor(max_steps=20)
    episode = record_episode(env, walk, key, memory=jnp.int32(0))
    path = write_episode_gif(tmp_path / "sub" / "episode.gif", env, episode)
    with Image.open(path) as image:
        assert image.n_frames == 5
        assert image.width >= 240
        image.seek(0)
        first = np.asarray(image.convert("RGB"), int)
        image.seek(4)
        last = np.asarray(image.convert("RGB"), int)
        assert image.info["duration"] == 2000
    assert np.abs(first - last).max() > 50
    assert path.stat().st_size < 40_000


def test_large_pictures_are_scaled_down_and_long_episodes_cut(tmp_path, key):
    env = DrawnCorridor(length=30, max_steps=40)
    episode = record_episode(env, walk, key, memory=jnp.int32(0))
    path = write_episode_gif(tmp_path / "episode.gif", env, episode, max_frames=4)
    with Image.open(path) as image:
        assert image.n_frames == 4
        assert image.width == 480
        image.seek(3)
        last = np.asarray(image.convert("RGB"), int)
    whole = write_episode_gif(tmp_path / "whole.gif", env, episode)
    with Image.open(whole) as image:
        assert image.n_frames == len(episode) + 1
        image.seek(len(episode))
        # The last picture is that of the end.
        assert np.abs(last - np.asarray(image.convert("RGB"), int)).mean() < 4


def test_an_environment_without_renderer_is_one_clear_line(tmp_path, key):
    env = Corridor(max_steps=2)
    with pytest.raises(UserError, match="no renderer"):
        write_episode_gif(tmp_path / "episode.gif", env, record_episode(env, stay, key))
