"""Overcooked: a team cooks onion soup in a small kitchen."""

import dataclasses
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.envs import spaces
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.envs.gridworld import overcooked_drawing, overcooked_observation, overcooked_rules
from jaxmarl_llm.envs.gridworld.overcooked_layouts import Cell, Kitchen, parse_layout
from jaxmarl_llm.envs.gridworld.overcooked_rules import OvercookedState
from jaxmarl_llm.envs.random import random_index
from jaxmarl_llm.errors import UserError, unknown_name

_OBSERVATIONS = ("dense", "factored")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Overcooked(Environment[OvercookedState]):
    """Cooperative cooking: three onions into a pot, wait 20 steps, soup onto a plate, plate through the window.

    The game is that of JaxMARL 0.2.0 for two agents; layouts for one or for more than two agents follow the same rules.

    * Agents: N, the number of starts in the layout.
    * Observation: "dense", `[N, height, width, 26]` uint8, see `overcooked_observation`; or "factored", `[N, F]`
      integers that hold the same facts, see `factored_sizes` there. Both show everything to everyone.
    * Action: 0 up, 1 down, 2 right, 3 left (turn, and walk if the way is free), 4 stay, 5 interact with what lies
      ahead: take from a pile or a counter, put on an empty counter, put an onion into a pot, fill a plate, serve.
      Agents move at the same time, and interact one after another.
    * Reward: `delivery_reward` for each soup served, to every agent.
    * Termination: none, episodes last `max_steps`.
    * `info`: `shaped_reward` `[N]` float32, for the agent itself: an onion put into a pot, a plate taken from a pile
      while more pots are in use than plates are carried and no counter holds a plate, a soup taken from a pot. Counts
      of events, each `[N]` float32: `deliveries`, `onions_potted`, `plates_taken`, `soups_taken`, `items_dropped`.
    * Start: empty hands, pots and counters, agents at their starts, looking in random directions. With `random_start`,
      agents stand on random different floor cells with random items, and pots have random status.
    * `global_state`: `[G]` float32, one-hot vectors of agent 0's factored observation.

    Source: Carroll et al. 2019, "On the Utility of Learning about Humans for Human-AI Coordination"; game and
    observation as in JaxMARL (Rutherford et al. 2023).

    Attributes:
      layout: a name (cramped_room, asymm_advantages, coord_ring, forced_coord, counter_circuit) or text, see
        `overcooked_layouts`.
      observation: "dense" or "factored".
      random_start: draw starts at random.
      delivery_reward: reward of a served soup.
      onion_reward, plate_reward, soup_reward: shaped rewards of the three events above.
      max_steps: the time limit.
    """

    layout: str = "cramped_room"
    observation: str = "dense"
    random_start: bool = False
    delivery_reward: float = 20.0
    onion_reward: float = 3.0
    plate_reward: float = 3.0
    soup_reward: float = 5.0
    max_steps: int = 400

    def __post_init__(self):
        super().__post_init__()
        if self.observation not in _OBSERVATIONS:
            raise unknown_name("overcooked observation", self.observation, _OBSERVATIONS)
        for name in ("delivery_reward", "onion_reward", "plate_reward", "soup_reward"):
            if not math.isfinite(getattr(self, name)):
                raise UserError(f"{name} must be a finite number, got {getattr(self, name)}")
        parse_layout(self.layout)

    @property
    def kitchen(self) -> Kitchen:
        """The parsed layout."""
        return parse_layout(self.layout)

    @property
    def num_agents(self) -> int:
        return len(self.kitchen.starts)

    @property
    def observation_space(self) -> spaces.Box | spaces.MultiDiscrete:
        kitchen = self.kitchen
        if self.observation == "dense":
            shape = (kitchen.height, kitchen.width, overcooked_observation.NUM_CHANNELS)
            return spaces.Box(0, 19, shape, "uint8")
        sizes = overcooked_observation.factored_sizes(kitchen, self.num_agents)
        return spaces.MultiDiscrete(sizes, "uint8" if max(sizes) <= 256 else "int32")

    @property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(6)

    def initial_state(self, key: jax.Array) -> OvercookedState:
        num_agents, num_pots = self.num_agents, len(self.kitchen.pots)
        key_direction, key_place, key_held, key_pot = jax.random.split(key, 4)
        direction = random_index(key_direction, 4, (num_agents,))
        if self.random_start:
            # The N greatest of M random numbers: N different cells.
            _, place = jax.lax.top_k(jax.random.uniform(key_place, (len(self.kitchen.floor),)), num_agents)
            held = random_index(key_held, 4, (num_agents,))
            pot_status = random_index(key_pot, overcooked_rules.NUM_POT_STATUS, (num_pots,))
        else:
            place = jnp.asarray(self.kitchen.starts, jnp.int32)
            held = jnp.full((num_agents,), overcooked_rules.EMPTY, jnp.int32)
            pot_status = jnp.full((num_pots,), overcooked_rules.POT_EMPTY, jnp.int32)
        return self._pack(place, direction, held, pot_status, [0] * overcooked_rules.num_words(self.kitchen), 0)

    def state_at(
        self,
        *,
        positions: Sequence[Cell] | None = None,
        directions: Sequence[int] | None = None,
        held: Sequence[int] | None = None,
        pot_status: Sequence[int] | None = None,
        counters: dict[Cell, int] | None = None,
        step: int = 0,
    ) -> OvercookedState:
        """Builds a state by hand, for tests and studies; what is left out is as in a plain start, looking up.

        Args:
          positions: N floor cells `(row, column)`, all different.
          directions: N of 0 up, 1 down, 2 right, 3 left.
          held: N of 0 nothing, 1 onion, 2 plate, 3 soup.
          pot_status: P of 23 empty .. 20 full .. 0 ready, pots in reading order.
          counters: item on each counter cell that holds one.
          step: steps taken.

        Raises:
          UserError: a cell that is not floor or not a counter in reach, two agents on one cell, or a wrong number.
        """
        kitchen, num_agents = self.kitchen, self.num_agents
        places = list(kitchen.starts)
        if positions is not None:
            cells: list[Cell] = [(row, column) for row, column in positions]
            for cell in cells:
                if cell not in kitchen.floor:
                    raise UserError(f"an agent cannot stand at {cell}: choose floor cells of the layout")
            if len(cells) != num_agents or len(set(cells)) != num_agents:
                raise UserError(f"give {num_agents} different positions, got {cells}")
            places = [kitchen.floor.index(cell) for cell in cells]
        words = [0] * overcooked_rules.num_words(kitchen)
        for cell, item in (counters or {}).items():
            if tuple(cell) not in kitchen.counters:
                raise UserError(f"there is no counter in reach at {cell}: choose one of {list(kitchen.counters)}")
            index = kitchen.counters.index(tuple(cell))
            word, slot = divmod(index, overcooked_rules.COUNTERS_PER_WORD)
            words[word] |= item << (2 * slot)
        directions, held = directions or [0] * num_agents, held or [overcooked_rules.EMPTY] * num_agents
        pot_status = pot_status or [overcooked_rules.POT_EMPTY] * len(kitchen.pots)
        for name, values, count, size in (
            ("directions", directions, num_agents, 4),
            ("held", held, num_agents, 4),
            ("pot_status", pot_status, len(kitchen.pots), overcooked_rules.NUM_POT_STATUS),
        ):
            if len(values) != count or not all(0 <= value < size for value in values):
                raise UserError(f"{name} takes {count} numbers from 0 to {size - 1}, got {list(values)}")
        return self._pack(places, directions, held, pot_status, words, step)

    @staticmethod
    def _pack(place, direction, held, pot_status, words, step) -> OvercookedState:
        def scalars(values, dtype=jnp.int32):
            return tuple(jnp.asarray(values[i], dtype) for i in range(len(values)))

        return OvercookedState(
            step=jnp.asarray(step, jnp.int32),
            place=scalars(place),
            direction=scalars(direction),
            held=scalars(held),
            pot_status=scalars(pot_status),
            counters=scalars(words, jnp.uint32),
        )

    def transition(self, key, state, action):
        del key
        state, events = overcooked_rules.advance(self.kitchen, state, action)

        def count(flags):
            return jnp.stack([flag.astype(jnp.float32) for flag in flags])

        served = sum(event.delivered.astype(jnp.float32) for event in events)
        shaped = [
            self.onion_reward * event.potted_onion.astype(jnp.float32)
            + self.plate_reward * event.took_useful_plate.astype(jnp.float32)
            + self.soup_reward * event.took_soup.astype(jnp.float32)
            for event in events
        ]
        info = {
            "shaped_reward": jnp.stack(shaped),
            "deliveries": count(event.delivered for event in events),
            "onions_potted": count(event.potted_onion for event in events),
            "plates_taken": count(event.took_plate for event in events),
            "soups_taken": count(event.took_soup for event in events),
            "items_dropped": count(event.dropped for event in events),
        }
        return state, self.delivery_reward * served, False, info

    def observe(self, state):
        if self.observation == "dense":
            tables = overcooked_observation.dense_tables(self.layout)
            return overcooked_observation.observe_dense(self.kitchen, tables, state, self.max_steps)
        dtype = self.observation_space.dtype
        return overcooked_observation.observe_factored(self.kitchen, state, self.max_steps, dtype)

    def global_state(self, state):
        return overcooked_observation.observe_global(self.kitchen, state, self.max_steps)

    def render(self, state) -> np.ndarray:
        return overcooked_drawing.draw(self.kitchen, state, self.max_steps)
