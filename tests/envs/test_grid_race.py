"""The race of two: rewards by hand, what is a collision, who earned the reward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import make
from jaxmarl_llm.errors import UserError

UP, DOWN, LEFT, RIGHT, STAY = range(5)
STEP, COLLISION, GOAL = np.float32(-0.01), np.float32(-0.5), np.float32(1.0)


@pytest.fixture(scope="module")
def race():
    env = make("grid_race")
    return env, jax.jit(env.step)


def run(race, joint_actions):
    env, step = race
    key = jax.random.key(0)
    timestep, state = env.reset(key)
    timesteps = []
    for action in joint_actions:
        timestep, state = step(key, state, jnp.array(action))
        timesteps.append(timestep)
    return timesteps, state


def discounted(timesteps, discount=0.95):
    return sum(discount**t * float(timestep.reward[0]) for t, timestep in enumerate(timesteps))


def test_two_ways_round_without_collision_give_the_optimum(race):
    timesteps, _ = run(race, [(RIGHT, DOWN)] * 3 + [(DOWN, RIGHT)] * 3)
    assert [float(timestep.reward[0]) for timestep in timesteps] == [STEP] * 5 + [GOAL]
    assert discounted(timesteps) == pytest.approx(0.728537, abs=1e-6)
    last = timesteps[-1]
    assert last.terminated.all() and not last.truncated
    assert last.info["arrival"].tolist() == [1.0, 1.0] and last.info["collision"] == 0.0


def test_free_rider_gets_the_reward_but_no_arrival(race):
    timesteps, _ = run(race, [(RIGHT, STAY)] * 3 + [(DOWN, STAY)] * 3)
    assert timesteps[-1].reward.tolist() == [1.0, 1.0] and timesteps[-1].terminated.all()
    assert sum(timestep.info["arrival"] for timestep in timesteps).tolist() == [1.0, 0.0]
    # Whatever the idle agent does on its own side, the team gets the same: no action of it deserves credit.
    for other in (UP, LEFT, DOWN):
        again, _ = run(race, [(RIGHT, other)] + [(RIGHT, STAY)] * 2 + [(DOWN, STAY)] * 3)
        assert discounted(again) == discounted(timesteps)


def test_sharing_the_start_is_free_and_any_other_cell_is_a_collision(race):
    timesteps, state = run(race, [(STAY, UP), (RIGHT, RIGHT), (STAY, UP), (DOWN, RIGHT), (LEFT, STAY), (UP, LEFT)])
    rewards = [float(timestep.reward[0]) for timestep in timesteps]
    # At the start together; in (0, 1) together, twice; apart; apart; apart.
    assert rewards == [STEP, COLLISION, COLLISION, STEP, STEP, STEP]
    assert [float(timestep.info["collision"]) for timestep in timesteps] == [0, 1, 1, 0, 0, 0]
    assert state.position.tolist() == [[0, 0], [0, 1]]
    assert not timesteps[-1].done


def test_swapping_cells_is_a_collision(race):
    timesteps, state = run(race, [(RIGHT, STAY), (LEFT, RIGHT), (STAY, LEFT)])
    assert [float(timestep.reward[0]) for timestep in timesteps] == [STEP, COLLISION, STEP]
    assert state.position.tolist() == [[0, 0], [0, 0]]


def test_each_agent_sees_itself_first(race):
    timesteps, _ = run(race, [(RIGHT, DOWN)])
    observation = timesteps[0].observation.reshape(2, 2, 16).argmax(axis=-1)
    assert observation.tolist() == [[1, 4], [4, 1]]


def test_bad_settings():
    with pytest.raises(UserError, match="size must be at least 2"):
        make("grid_race", size=1)


def test_picture_shows_both_in_one_cell(race):
    env, _ = race
    _, together = run(race, [(RIGHT, RIGHT)])
    _, apart = run(race, [(RIGHT, STAY)])
    assert (env.render(together) != env.render(apart)).any()
