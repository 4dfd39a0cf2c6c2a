#!/usr/bin/env python
"""Draws the pictures of docs/environments.md: one state of every environment.

usage: python docs/make_images.py [NAME ...]

States are built by hand, so that the pictures are the same everywhere.
"""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import jaxmarl_llm
from jaxmarl_llm.errors import UserError, unknown_name

FOLDER = Path(__file__).parent / "images"
MAX_WIDTH = 360
MAX_BYTES = 30_000


def _integers(values):
    return jnp.asarray(values, jnp.int32)


def matrix_game(env, state):
    """The climbing game after the best play."""
    return state.replace(step=_integers(1), last_action=_integers([0, 0]))


def two_step(env, state):
    """Stage 2B."""
    return state.replace(step=_integers(1), stage=_integers(2))


def grid_4x4(env, state):
    """Half-way."""
    return state.replace(step=_integers(3), position=_integers([1, 2]))


def grid_race(env, state):
    """One agent runs, the other waits beside the start."""
    return state.replace(step=_integers(4), position=_integers([[2, 2], [0, 1]]))


def switch_riddle(env, state):
    """Agent 1 is in the room, the light is on, agents 0 and 2 have been there."""
    return state.replace(
        step=_integers(3), light=jnp.asarray(True), in_room=_integers(1), visited=jnp.asarray(0b101, jnp.uint32)
    )


def overcooked(env, state):
    """One cook carries a soup to the window, the other brings an onion; a plate stands on a counter."""
    return env.state_at(
        positions=[(2, 3), (1, 1)], directions=[1, 2], held=[3, 1], pot_status=[21], counters={(0, 1): 2}, step=120
    )


def escape_room(env, state):
    """Red has opened its door and holds the key; blue waits before its own."""
    columns = env.columns
    return state.replace(
        step=_integers(9),
        cell=_integers([4 * columns + 1, 3 * columns + 6]),
        item_cell=_integers([4 * columns + 1, 2 * columns + 9]),
        holder=_integers([0, -1]),
        door_open=jnp.asarray([True, False]),
    )


def foraging(env, state):
    """Two agents beside a food that needs both."""
    return state.replace(
        step=_integers(7),
        agent_row=_integers([3, 4]),
        agent_column=_integers([3, 4]),
        agent_level=_integers([1, 2]),
        food_row=_integers([3, 6]),
        food_column=_integers([4, 1]),
        food_level=_integers([3, 1]),
    )


def warehouse(env, state):
    """Robot 0 carries a requested shelf; robot 1 drives under the shelves."""
    columns = 10
    shelf = np.asarray(state.shelf).copy()
    shelf[shelf == 2] = 1
    shelf[[3 * columns + 2, 5 * columns + 7]] = 0, 2
    return state.replace(
        step=_integers(14),
        cell=_integers([4 * columns + 3, 6 * columns + 8]),
        direction=_integers([2, 0]),
        load=_integers([2, 0]),
        shelf=jnp.asarray(shelf),
    )


def coin_game(env, state):
    """Each agent stands beside a coin."""
    return state.replace(step=_integers(5), cell=_integers([3, 7, 4, 2]))


STATES = (
    *(matrix_game, two_step, grid_4x4, grid_race, switch_riddle),
    *(overcooked, escape_room, foraging, warehouse, coin_game),
)


def draw(build) -> Path:
    """Draws one picture, with a palette of 255 colours."""
    env = jaxmarl_llm.make(build.__name__)
    picture = Image.fromarray(env.render(build(env, env.initial_state(jax.random.key(0)))))
    if picture.width > MAX_WIDTH:
        picture = picture.resize(
            (MAX_WIDTH, round(picture.height * MAX_WIDTH / picture.width)), Image.Resampling.LANCZOS
        )
    path = FOLDER / f"{build.__name__}.png"
    picture.quantize(255, kmeans=4, dither=Image.Dither.NONE).save(path, optimize=True)
    return path


def main(names):
    """Draws the pictures that were asked for, all of them without names."""
    builds = {build.__name__: build for build in STATES}
    FOLDER.mkdir(exist_ok=True)
    for name in names or builds:
        if name not in builds:
            raise unknown_name("picture", name, builds)
        path = draw(builds[name])
        size = path.stat().st_size
        if size >= MAX_BYTES:
            raise UserError(f"{path} has {size} bytes: draw it smaller or with fewer colours")
        print(f"{path.relative_to(FOLDER.parent)}  {size:,} bytes")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")
