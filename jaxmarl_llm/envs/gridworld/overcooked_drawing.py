"""Pictures of Overcooked: counters, piles, pots with their contents, agents with what they hold."""

import math

import numpy as np

from jaxmarl_llm.envs.drawing import INK, Canvas, Color, agent_color
from jaxmarl_llm.envs.gridworld.overcooked_layouts import DIRECTION_VECTORS, Kitchen
from jaxmarl_llm.envs.gridworld.overcooked_rules import (
    COUNTERS_PER_WORD,
    ONION,
    PLATE,
    POT_EMPTY,
    POT_FULL,
    POT_READY,
    SOUP,
    OvercookedState,
)

_FLOOR: Color = (246, 238, 222)
_JOINT: Color = (228, 216, 194)
_COUNTER: Color = (186, 150, 110)
_COUNTER_EDGE: Color = (150, 116, 80)
_CRATE: Color = (150, 108, 66)
_ONION: Color = (240, 200, 80)
_ONION_EDGE: Color = (176, 128, 30)
_PLATE: Color = (252, 252, 252)
_PLATE_EDGE: Color = (150, 156, 168)
_SOUP: Color = (226, 120, 40)
_POT: Color = (70, 74, 86)
_POT_INSIDE: Color = (36, 38, 46)
_STOVE: Color = (120, 124, 134)
_WINDOW: Color = (126, 190, 130)
_READY: Color = (52, 150, 70)
_WHITE: Color = (255, 255, 255)


def draw(kitchen: Kitchen, state: OvercookedState, max_steps: int, *, tile: int = 56) -> np.ndarray:
    """A picture of one state.

    Args:
      kitchen: the static tables.
      state: an unbatched state; read on the host.
      max_steps: shown in the caption.
      tile: pixels a cell.

    Returns:
      `[height * tile + strip, width * tile, 3]` uint8.
    """
    caption = f"step {int(state.step)} / {max_steps}"
    canvas = Canvas(kitchen.height, kitchen.width, tile=tile, background=_FLOOR, caption=caption)
    for cell in kitchen.floor:
        canvas.tile(cell, _FLOOR, outline=_JOINT)
    for symbol in "WOBXP":
        for cell in kitchen.cells(symbol):
            canvas.tile(cell, _COUNTER, outline=_COUNTER_EDGE)
    for cell in kitchen.cells("O"):
        _pile(canvas, cell, ONION)
    for cell in kitchen.cells("B"):
        _pile(canvas, cell, PLATE)
    for cell in kitchen.cells("X"):
        canvas.square(cell, _WINDOW, size=0.86, outline=_READY)
        canvas.text(cell, "serve", _WHITE, size=0.26)
    for cell, status in zip(kitchen.pots, state.pot_status, strict=True):
        _pot(canvas, cell, int(status))
    for index, cell in enumerate(kitchen.counters):
        word, slot = divmod(index, COUNTERS_PER_WORD)
        _item(canvas, cell, (int(state.counters[word]) >> (2 * slot)) & 3, 0.6)
    for agent, (place, direction, held) in enumerate(zip(state.place, state.direction, state.held, strict=True)):
        _agent(canvas, kitchen.floor[int(place)], int(direction), int(held), agent)
    return canvas.array()


def _shift(cell, d_row: float, d_column: float):
    return (cell[0] + d_row, cell[1] + d_column)


def _onion(canvas: Canvas, position, size: float) -> None:
    canvas.line(position, _shift(position, -0.62 * size, 0.0), _ONION_EDGE, width=0.14 * size)
    canvas.circle(position, _ONION, size=size, outline=_ONION_EDGE)
    canvas.circle(_shift(position, -0.12 * size, -0.14 * size), (252, 228, 150), size=0.3 * size, outline=None)


def _plate(canvas: Canvas, position, size: float, filling: Color = (236, 238, 242)) -> None:
    canvas.circle(position, _PLATE, size=size, outline=_PLATE_EDGE)
    canvas.circle(position, filling, size=0.64 * size, outline=_PLATE_EDGE)


def _item(canvas: Canvas, position, item: int, size: float) -> None:
    if item == ONION:
        _onion(canvas, position, 0.8 * size)
    elif item == PLATE:
        _plate(canvas, position, size)
    elif item == SOUP:
        _plate(canvas, position, size, _SOUP)


def _pile(canvas: Canvas, cell, item: int) -> None:
    canvas.square(cell, _CRATE, size=0.86, outline=_COUNTER_EDGE)
    if item == ONION:
        for d_row, d_column in ((0.14, -0.19), (0.14, 0.19), (-0.12, 0.0)):
            _onion(canvas, _shift(cell, d_row, d_column), 0.36)
    else:
        for k in range(4):
            _plate(canvas, _shift(cell, 0.12 - 0.08 * k, 0.0), 0.56)


def _pot(canvas: Canvas, cell, status: int) -> None:
    canvas.square(cell, _STOVE, size=0.92, outline=_POT)
    canvas.line(_shift(cell, 0.0, -0.4), _shift(cell, 0.0, 0.4), _POT, width=0.12)
    canvas.circle(cell, _POT, size=0.74)
    onions = min(POT_EMPTY - status, 3)
    if status >= POT_FULL:
        canvas.circle(cell, _POT_INSIDE, size=0.6, outline=None)
        for d_row, d_column in ((0.08, -0.12), (0.08, 0.12), (-0.11, 0.0))[:onions]:
            _onion(canvas, _shift(cell, d_row, d_column), 0.23)
    else:
        canvas.circle(cell, _SOUP, size=0.6, outline=None)
        if status == POT_READY:
            canvas.circle(_shift(cell, -0.28, 0.28), _READY, size=0.36, outline=_WHITE)
            for start, end in (((-0.27, 0.2), (-0.21, 0.26)), ((-0.21, 0.26), (-0.36, 0.36))):
                canvas.line(_shift(cell, *start), _shift(cell, *end), _WHITE, width=0.06)
        else:
            canvas.text(cell, str(status), _WHITE, size=0.36)
            _timer(canvas, cell, status / POT_FULL)


def _timer(canvas: Canvas, cell, left: float) -> None:
    """A ring of dots around the pot, as many as steps are left."""
    dots = 20
    for k in range(math.ceil(left * dots)):
        angle = 2 * math.pi * k / dots
        position = _shift(cell, -0.335 * math.cos(angle), 0.335 * math.sin(angle))
        canvas.circle(position, _WHITE, size=0.06, outline=None)


def _agent(canvas: Canvas, cell, direction: int, held: int, agent: int) -> None:
    """A disc with its number, a nose where it looks, and what it holds in its right hand."""
    d_row, d_column = DIRECTION_VECTORS[direction]

    def at(ahead: float, right: float):
        return _shift(cell, ahead * d_row + right * d_column, ahead * d_column - right * d_row)

    canvas.circle(_shift(cell, 0.03, 0.03), _JOINT, size=0.78, outline=None)
    canvas.circle(cell, agent_color(agent), size=0.74)
    canvas.arrow(at(0.14, -0.06 if held else 0.0), (d_row, d_column), _WHITE, size=0.24)
    canvas.text(at(-0.1, -0.06 if held else 0.0), str(agent), _WHITE, size=0.3)
    if held:
        hand = at(0.1, 0.3)
        canvas.circle(hand, _WHITE, size=0.44, outline=INK)
        _item(canvas, hand, held, 0.36)
