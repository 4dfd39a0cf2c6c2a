"""Kitchens as text, and the static tables that the rules and the observations read.

One line of text a row of the kitchen, one symbol a cell:

====== ==========================================================
symbol cell
====== ==========================================================
`W`    counter: nobody walks here, and it can hold one item
`A`    floor, where an agent starts (agents in reading order)
`0-9`  floor, where that agent starts (instead of `A`, to fix the order)
`X`    serving window
`B`    pile of plates ("bowls")
`O`    pile of onions
`P`    pot
space  floor
====== ==========================================================

The number of starts is the number of agents. Beyond the edge of the text nobody walks and nothing can be put.
"""

import dataclasses
import functools

import numpy as np

from jaxmarl_llm.errors import UserError, unknown_name

CLASSIC_LAYOUTS: dict[str, str] = {
    "cramped_room": "WWPWW\nOA AO\nW   W\nWBWXW",
    "asymm_advantages": "WWWWWWWWW\nO WXWOW X\nW   P   W\nW A PA  W\nWWWBWBWWW",
    "coord_ring": "WWWPW\nW A P\nBAW W\nO   W\nWOXWW",
    # Digits, because agent 0 starts below agent 1.
    "forced_coord": "WWWPW\nO W1P\nO0W W\nB W W\nWWWXW",
    "counter_circuit": "WWWPPWWW\nW A    W\nB WWWW X\nW     AW\nWWWOOWWW",
}

# What an agent faces: `kind + 8 * index among its kind`.
NOTHING, COUNTER, POT, ONION_PILE, PLATE_PILE, WINDOW = range(6)

# (d_row, d_column) of up, down, right, left: directions and moving actions share these numbers.
DIRECTION_VECTORS: tuple[tuple[int, int], ...] = ((-1, 0), (1, 0), (0, 1), (0, -1))

_KIND_OF_SYMBOL = {"W": COUNTER, "P": POT, "O": ONION_PILE, "B": PLATE_PILE, "X": WINDOW}
_NAME_OF_SYMBOL = {"P": "pot", "O": "pile of onions", "B": "pile of plates", "X": "serving window"}
_SYMBOLS = "WAXBOP 0123456789"

Cell = tuple[int, int]


@dataclasses.dataclass(frozen=True, eq=False)
class Kitchen:
    """A parsed layout. Cells are `(row, column)`; "place" p is the index of a floor cell in reading order.

    Attributes:
      rows: lines of text, digits and `A` replaced by spaces.
      starts: place of each agent at the start, N of them.
      floor: the M floor cells.
      counters: the C counters that touch a floor cell; no other counter can ever hold an item.
      pots: the P pots.
      target: `[M, 4]` int32, place reached by one step in a direction; the same place where something is in the way.
      facing: `[M, 4]` int32, what lies in a direction: its kind plus 8 times its index among `counters` or `pots`.
    """

    rows: tuple[str, ...]
    starts: tuple[int, ...]
    floor: tuple[Cell, ...]
    counters: tuple[Cell, ...]
    pots: tuple[Cell, ...]
    target: np.ndarray
    facing: np.ndarray

    @property
    def height(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        return len(self.rows[0])

    def cells(self, symbol: str) -> tuple[Cell, ...]:
        """All cells with a symbol, in reading order."""
        return _cells(self.rows, symbol)


def layout_text(layout: str) -> str:
    """The text of a layout given by name or as text.

    Args:
      layout: a key of `CLASSIC_LAYOUTS`, or the text itself (more than one line).

    Raises:
      UserError: no layout has that name.
    """
    if "\n" in layout:
        return layout
    if layout not in CLASSIC_LAYOUTS:
        raise unknown_name("overcooked layout", layout, CLASSIC_LAYOUTS)
    return CLASSIC_LAYOUTS[layout]


@functools.lru_cache(maxsize=128)
def parse_layout(layout: str) -> Kitchen:
    """Reads a layout and checks that soup can be made in it.

    Args:
      layout: a classic name, or text in the format of this module; empty lines around the text are dropped.

    Raises:
      UserError: unknown name or symbol, rows of different lengths, missing or doubtful starts, a pot out of reach, or
        no onions, plates or window within reach of any agent.
    """
    lines = layout_text(layout).split("\n")
    while lines and not lines[0].strip():
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    _check_shape(lines)
    start_cells = _start_cells(lines)
    rows = tuple("".join(" " if symbol in "A0123456789" else symbol for symbol in line) for line in lines)

    floor = _cells(rows, " ")
    place = {cell: index for index, cell in enumerate(floor)}
    reachable = _reachable(start_cells, place)
    _check_reach(rows, reachable)
    counters = tuple(cell for cell in _cells(rows, "W") if any(other in place for other in _neighbours(cell)))
    pots = _cells(rows, "P")

    index = {cell: i for cells in (counters, pots) for i, cell in enumerate(cells)}
    target = np.zeros((len(floor), 4), np.int32)
    facing = np.zeros((len(floor), 4), np.int32)
    for here, cell in enumerate(floor):
        for direction, there in enumerate(_neighbours(cell)):
            target[here, direction] = place.get(there, here)
            kind = _KIND_OF_SYMBOL.get(_symbol(rows, there), NOTHING)
            facing[here, direction] = kind + 8 * index.get(there, 0)
    return Kitchen(
        rows=rows,
        starts=tuple(place[cell] for cell in start_cells),
        floor=floor,
        counters=counters,
        pots=pots,
        target=target,
        facing=facing,
    )


def _cells(rows, symbol) -> tuple[Cell, ...]:
    return tuple((r, c) for r, row in enumerate(rows) for c, other in enumerate(row) if other == symbol)


def _neighbours(cell: Cell) -> tuple[Cell, ...]:
    return tuple((cell[0] + d_row, cell[1] + d_column) for d_row, d_column in DIRECTION_VECTORS)


def _symbol(rows, cell: Cell) -> str:
    row, column = cell
    inside = 0 <= row < len(rows) and 0 <= column < len(rows[0])
    return rows[row][column] if inside else ""


def _check_shape(lines) -> None:
    if not lines:
        raise UserError("the layout is empty: write one line of symbols a row, see overcooked_layouts")
    for number, line in enumerate(lines, start=1):
        for symbol in line:
            if symbol not in _SYMBOLS:
                raise UserError(
                    f"layout row {number} has the unknown symbol '{symbol}': use W (counter), A or a digit (agent "
                    "start), X (serving window), B (plates), O (onions), P (pot) and space (floor)"
                )
        if len(line) != len(lines[0]):
            raise UserError(
                f"layout row {number} has {len(line)} cells and row 1 has {len(lines[0])}: make all rows equally long"
            )


def _start_cells(lines) -> tuple[Cell, ...]:
    unnamed = _cells(lines, "A")
    digits = sorted(symbol for line in lines for symbol in line if symbol.isdigit())
    if not unnamed and not digits:
        raise UserError("the layout has no agent start: mark one floor cell for each agent with A")
    if not digits:
        return unnamed
    if unnamed:
        raise UserError("the layout mixes A and digits: mark the agents' starts either all with A or all with digits")
    expected = [str(i) for i in range(len(digits))]
    if digits != expected:
        raise UserError(
            f"the layout's agent starts are {', '.join(digits)}: "
            f"number {len(digits)} agents {', '.join(expected)}, each once"
        )
    return tuple(_cells(lines, digit)[0] for digit in digits)


def _reachable(start_cells, floor) -> set[Cell]:
    seen, frontier = set(start_cells), list(start_cells)
    while frontier:
        for cell in _neighbours(frontier.pop()):
            if cell in floor and cell not in seen:
                seen.add(cell)
                frontier.append(cell)
    return seen


def _check_reach(rows, reachable: set[Cell]) -> None:
    """Items can be handed over counters, so it is enough that some agent reaches a thing."""
    for symbol, name in _NAME_OF_SYMBOL.items():
        cells = _cells(rows, symbol)
        if not cells:
            raise UserError(f"the layout has no {name}: add at least one {symbol}")
        hidden = [cell for cell in cells if not any(other in reachable for other in _neighbours(cell))]
        # A pot that nobody reaches is surely a mistake; a spare pile or window out of reach does no harm.
        if hidden and (symbol == "P" or len(hidden) == len(cells)):
            row, column = hidden[0]
            raise UserError(
                f"no agent can reach the {name} at row {row + 1}, column {column + 1} of the layout: "
                "put floor beside it that connects to an agent start"
            )
