"""Random play against a slow twin: plain Python on a dictionary of cells, written from the rules alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs import make
from jaxmarl_llm.envs.gridworld.overcooked_layouts import CLASSIC_LAYOUTS, layout_text

VECTORS = [(-1, 0), (1, 0), (0, 1), (0, -1)]
NOTHING, ONION, PLATE, SOUP = range(4)
URGENT = 40

THREE_AGENTS = "WWWPWWW\nO A A O\nW  W  W\nW  A  W\nWBWXWPW"
# 70 floor cells, so that codes of agents need more than a byte; pots, piles and a window in many places.
HALL = "\n".join(["WPOPBPOPBPXW", "OA        AO", *["W          W"] * 5, "WPOPBPOWWWWW"])


class Twin:
    """One kitchen. Counters hold items in `items`; `pots` counts onions and steps."""

    def __init__(self, text, positions, directions, held, pots, items, step, max_steps):
        self.rows = [["" if c in "A0123456789 " else c for c in row] for row in text.split("\n")]
        self.height, self.width = len(self.rows), len(self.rows[0])
        self.positions, self.directions, self.held = list(positions), list(directions), list(held)
        self.pots, self.items, self.step, self.max_steps = dict(pots), dict(items), step, max_steps

    def symbol(self, cell):
        row, column = cell
        return self.rows[row][column] if 0 <= row < self.height and 0 <= column < self.width else "#"

    def play(self, actions):
        """Moves all, then lets all act. Returns reward and shaped rewards."""
        count = len(actions)
        before = list(self.positions)
        wanted = list(before)
        for i, action in enumerate(actions):
            if action < 4:
                self.directions[i] = action
                ahead = (before[i][0] + VECTORS[action][0], before[i][1] + VECTORS[action][1])
                if self.symbol(ahead) == "":
                    wanted[i] = ahead
        blocked = set()
        for i in range(count):
            for j in range(count):
                if i != j and wanted[i] == before[j] and wanted[j] == before[i]:
                    blocked.add(i)
        while True:
            now = [before[i] if i in blocked else wanted[i] for i in range(count)]
            clashing = {i for i in range(count) for j in range(count) if i != j and now[i] == now[j]}
            if clashing <= blocked:
                break
            blocked |= clashing
        self.positions = now

        reward, shaped = 0, [0] * count
        for i, action in enumerate(actions):
            if action == 5:
                vector = VECTORS[self.directions[i]]
                cell = (self.positions[i][0] + vector[0], self.positions[i][1] + vector[1])
                served, shaped[i] = self.use(i, cell)
                reward += 20 * served
        for cell, status in self.pots.items():
            if 0 < status <= 20:
                self.pots[cell] = status - 1
        self.step += 1
        return reward, shaped

    def use(self, i, cell):
        symbol, hand = self.symbol(cell), self.held[i]
        if symbol == "W":
            there = self.items.get(cell, NOTHING)
            if hand == NOTHING or there == NOTHING:
                self.held[i], self.items[cell] = there, hand
        elif symbol == "P":
            status = self.pots[cell]
            if hand == ONION and status > 20:
                self.pots[cell], self.held[i] = status - 1, NOTHING
                return False, 3
            if hand == PLATE and status == 0:
                self.pots[cell], self.held[i] = 23, SOUP
                return False, 5
        elif symbol == "O" and hand == NOTHING:
            self.held[i] = ONION
        elif symbol == "B" and hand == NOTHING:
            in_use = sum(status != 23 for status in self.pots.values())
            useful = self.held.count(PLATE) < in_use and PLATE not in self.items.values()
            self.held[i] = PLATE
            return False, 3 * useful
        elif symbol == "X" and hand == SOUP:
            self.held[i] = NOTHING
            return True, 0
        return False, 0

    def planes(self, viewer):
        out = np.zeros((self.height, self.width, 26), np.uint8)
        for i, cell in enumerate(self.positions):
            mate = i != viewer
            out[(*cell, int(mate))] = 1
            out[(*cell, 2 + 4 * mate + self.directions[i])] = 1
        for r, row in enumerate(self.rows):
            for c, symbol in enumerate(row):
                if symbol:
                    out[r, c, {"P": 10, "W": 11, "O": 12, "B": 14, "X": 15}[symbol]] = 1
        for cell, status in self.pots.items():
            if status >= 20:
                out[(*cell, 16)] = 23 - status
            else:
                out[(*cell, 18)], out[(*cell, 20)], out[(*cell, 21)] = 3, status, status == 0
        carried = dict(zip(self.positions, self.held, strict=True))
        for cell, item in [*self.items.items(), *carried.items()]:
            if item and self.symbol(cell) == "W":
                out[(*cell, 11)] = 0
            if item == SOUP:
                out[(*cell, 18)], out[(*cell, 21)] = 3, 1
            elif item:
                out[(*cell, {PLATE: 22, ONION: 23}[item])] = 1
        out[:, :, 25] = self.max_steps - self.step < URGENT
        return out


def twin_of(env, state):
    """The twin of an unbatched state whose counters are empty."""
    kitchen = env.kitchen
    return Twin(
        layout_text(env.layout),
        [kitchen.floor[int(p)] for p in state.place],
        [int(d) for d in state.direction],
        [int(h) for h in state.held],
        {cell: int(s) for cell, s in zip(kitchen.pots, state.pot_status, strict=True)},
        {},
        int(state.step),
        env.max_steps,
    )


def busy_actions(key, shape):
    key_move, key_interact = jax.random.split(key)
    move = jax.random.randint(key_move, shape, 0, 6)
    return jnp.where(jax.random.bernoulli(key_interact, 0.3, shape), 5, move)


@pytest.mark.parametrize(
    "layout",
    [*CLASSIC_LAYOUTS, THREE_AGENTS, HALL, "WWPW\nOA W\nWBXW"],
    ids=[*CLASSIC_LAYOUTS, "three", "hall", "alone"],
)
def test_random_play_equals_the_twin(layout):
    num_envs, num_steps = 6, 100
    env = make("overcooked", layout=layout, random_start=True, max_steps=num_steps)
    key_start, key_play = jax.random.split(jax.random.key(3))
    _, state = jax.jit(jax.vmap(env.reset))(jax.random.split(key_start, num_envs))

    @jax.jit
    def play(state, key):
        def step(state, key):
            action = busy_actions(key, (num_envs, env.num_agents))
            timestep, state = jax.vmap(env.step)(jax.random.split(key, num_envs), state, action)
            return state, (action, timestep)

        return jax.lax.scan(step, state, jax.random.split(key, num_steps))[1]

    actions, timesteps = jax.tree.map(np.asarray, play(state, key_play))
    dropped = 0
    for b in range(num_envs):
        twin = twin_of(env, jax.tree.map(lambda leaf, b=b: leaf[b], state))
        for t in range(num_steps):
            reward, shaped = twin.play([int(a) for a in actions[t, b]])
            where = f"kitchen {b}, step {t}"
            assert (timesteps.reward[t, b] == reward).all(), where
            assert timesteps.info["shaped_reward"][t, b].tolist() == shaped, where
            for viewer in range(env.num_agents):
                np.testing.assert_array_equal(timesteps.observation[t, b, viewer], twin.planes(viewer), where)
        dropped += timesteps.info["items_dropped"][:, b].sum()
    assert dropped > 0
    assert timesteps.info["shaped_reward"].sum() > 0
