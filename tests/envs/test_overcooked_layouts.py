"""Layouts: the classic ones, layouts as text, and one clear line for each mistake."""

import numpy as np
import pytest

from jaxmarl_llm.envs import make
from jaxmarl_llm.envs.gridworld.overcooked_layouts import CLASSIC_LAYOUTS, COUNTER, NOTHING, POT, parse_layout
from jaxmarl_llm.errors import UserError

GOOD = "WWPWW\nOA AO\nW   W\nWBWXW"


def replaced(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


@pytest.mark.parametrize(
    "name, size, floor, counters, pots",
    [
        ("cramped_room", (4, 5), 6, 5, 1),
        ("asymm_advantages", (5, 9), 14, 12, 2),
        ("coord_ring", (5, 5), 8, 7, 2),
        ("forced_coord", (5, 5), 6, 7, 2),
        ("counter_circuit", (5, 8), 14, 16, 2),
    ],
)
def test_classic_layouts(name, size, floor, counters, pots):
    kitchen = parse_layout(name)
    assert (kitchen.height, kitchen.width) == size
    assert (len(kitchen.floor), len(kitchen.counters), len(kitchen.pots)) == (floor, counters, pots)
    assert len(kitchen.starts) == 2


def test_text_and_name_give_the_same_kitchen():
    named, text = parse_layout("cramped_room"), parse_layout("\n" + CLASSIC_LAYOUTS["cramped_room"] + "\n")
    assert named.rows == text.rows
    np.testing.assert_array_equal(named.facing, text.facing)
    assert make("overcooked", layout=GOOD).num_agents == 2


def test_digits_order_the_agents():
    assert parse_layout(replaced("OA AO", "O1 0O")).starts == (2, 0)
    kitchen = parse_layout("forced_coord")
    assert [kitchen.floor[place] for place in kitchen.starts] == [(2, 1), (1, 3)]


def test_number_of_starts_is_number_of_agents():
    assert make("overcooked", layout=replaced("OA AO", "OA  O")).num_agents == 1
    assert make("overcooked", layout=replaced("OA AO", "OAAAO")).num_agents == 3


def test_tables_of_a_corner():
    kitchen = parse_layout("cramped_room")
    here = kitchen.floor.index((1, 2))
    assert kitchen.facing[here, 0] == POT
    assert kitchen.facing[here, 1] == NOTHING
    assert [kitchen.floor[p] for p in kitchen.target[here]] == [(1, 2), (2, 2), (1, 3), (1, 1)]
    below = kitchen.floor.index((2, 2))
    assert kitchen.facing[below, 1] == COUNTER + 8 * kitchen.counters.index((3, 2))


def test_open_edges_are_closed():
    kitchen = parse_layout(" A P\nO  B\n X  ")
    corner = kitchen.floor.index((0, 0))
    assert kitchen.target[corner, 0] == corner
    assert kitchen.facing[corner, 0] == NOTHING


@pytest.mark.parametrize(
    "layout, words",
    [
        ("cramped_rom", "did you mean cramped_room"),
        ("moon_base", "choose one of asymm_advantages"),
        ("\n\n", "the layout is empty"),
        (replaced("OA AO", "O   O"), "no agent start"),
        (replaced("OA AO", "OA 1O"), "mixes A and digits"),
        (replaced("OA AO", "O1 2O"), "number 2 agents 0, 1, each once"),
        (replaced("OA AO", "O0 0O"), "number 2 agents 0, 1, each once"),
        (replaced("W   W", "W  W"), "row 3 has 4 cells and row 1 has 5"),
        (replaced("W   W", "W T W"), "row 3 has the unknown symbol 'T'"),
        (replaced("P", "W"), "no pot"),
        (replaced("O", "W"), "no pile of onions"),
        (replaced("B", "W"), "no pile of plates"),
        (replaced("X", "W"), "no serving window"),
        ("PWPWW\nOA AO\nW   W\nWBWXW", "no agent can reach the pot at row 1, column 1"),
        ("WWPWWWW\nOA AOWX\nW   WWW\nWBWWWWW", "no agent can reach the serving window at row 2, column 7"),
        ("WWPWWWW\nOA AOWW\nW   WBW\nWWWXW W", "no agent can reach the pile of plates"),
    ],
)
def test_mistakes_are_named(layout, words):
    with pytest.raises(UserError) as error:
        make("overcooked", layout=layout)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_things_handed_over_counters_are_within_reach():
    """Nobody in forced_coord reaches everything, but together they do."""
    kitchen = parse_layout("forced_coord")
    assert len({kitchen.floor[place][1] for place in kitchen.starts}) == 2


def test_spare_pile_out_of_reach_is_allowed():
    assert parse_layout("OWPWW\nOA AO\nW   W\nWBWXW").cells("O") == ((0, 0), (1, 0), (1, 4))


@pytest.mark.parametrize(
    "setting, words",
    [
        ({"observation": "factord"}, "did you mean factored"),
        ({"max_steps": 0}, "max_steps"),
        ({"delivery_reward": float("nan")}, "delivery_reward must be a finite number"),
        ({"layuot": "coord_ring"}, "did you mean layout"),
    ],
)
def test_bad_settings(setting, words):
    with pytest.raises(UserError, match=words):
        make("overcooked", **setting)
