"""Maps of the warehouse: text in, tables of cells out."""

import dataclasses

import numpy as np

from jaxmarl_llm.errors import UserError

FLOOR, SHELF, GOAL = ".", "x", "g"


@dataclasses.dataclass(frozen=True)
class WarehouseMap:
    """A checked map.

    Attributes:
      rows, columns: its size.
      is_shelf, is_goal: `[rows * columns]` tuples of bool, where shelves stand at the start, and where they are wanted.
    """

    rows: int
    columns: int
    is_shelf: tuple[bool, ...]
    is_goal: tuple[bool, ...]


def aisle_map(shelf_rows: int, shelf_columns: int, column_height: int) -> str:
    """Text of a warehouse of shelf blocks two cells wide, with aisles between them and two goals in the last row.

    The map has `(column_height + 1) * shelf_rows + 2` rows and `3 * shelf_columns + 1` columns. The blocks are
    separated by aisles one cell wide; the lowest block of the middle column is left out, so that robots can queue
    before the goals, which lie in the middle of the last row.

    Args:
      shelf_rows: blocks from top to bottom.
      shelf_columns: blocks from left to right, odd.
      column_height: rows of a block.

    Raises:
      UserError: a size below 1, an even number of columns, or no shelf left.
    """
    sizes = {"shelf_rows": shelf_rows, "shelf_columns": shelf_columns, "column_height": column_height}
    for name, size in sizes.items():
        if size < 1:
            raise UserError(f"{name} must be at least 1, got {size}")
    if shelf_columns % 2 == 0:
        raise UserError(f"shelf_columns must be odd, for a middle block above the goals: got {shelf_columns}")
    if shelf_rows == shelf_columns == 1:
        raise UserError("one block is the one left out above the goals: raise shelf_rows or shelf_columns")
    rows, columns = (column_height + 1) * shelf_rows + 2, 3 * shelf_columns + 1
    cells = np.full((rows, columns), FLOOR)
    for top in range(1, rows - 2, column_height + 1):
        for left in range(1, columns, 3):
            cells[top : top + column_height, left : left + 2] = SHELF
    middle = columns // 2 - 1
    cells[-(column_height + 2) :, middle : middle + 2] = FLOOR
    cells[-1, middle : middle + 2] = GOAL
    return "\n".join("".join(row) for row in cells)


def read_map(text: str) -> WarehouseMap:
    """Reads and checks a map: `.` floor, `x` shelf, `g` goal; lines of equal length.

    Raises:
      UserError: unknown characters, lines of unequal length, no shelf, no goal, or a shelf that no floor path joins
        to a goal while the other shelves stand in their places.
    """
    lines = [line.strip() for line in text.strip().splitlines()]
    lines = [line.lower() for line in lines if line]
    unknown = sorted(set("".join(lines)) - {FLOOR, SHELF, GOAL})
    if unknown:
        raise UserError(f"unknown character '{unknown[0]}' in the warehouse map: use . for floor, x shelf, g goal")
    if len({len(line) for line in lines}) != 1:
        raise UserError("the lines of the warehouse map differ in length: make it a rectangle")
    cells = np.array([list(line) for line in lines])
    for symbol, name in ((SHELF, "shelf"), (GOAL, "goal")):
        if not (cells == symbol).any():
            raise UserError(f"the warehouse map has no {name}: put at least one {symbol} into it")
    # A loaded robot leaves its shelf's place over floor only.
    reached = cells == GOAL
    while True:
        wider = _with_neighbours(reached) & (cells != SHELF) | reached
        if (wider == reached).all():
            break
        reached = wider
    stuck = np.argwhere((cells == SHELF) & ~_with_neighbours(reached))
    if len(stuck):
        row, column = stuck[0]
        raise UserError(f"the shelf at row {row}, column {column} of the warehouse map has no floor path to a goal")
    return WarehouseMap(
        rows=cells.shape[0],
        columns=cells.shape[1],
        is_shelf=tuple((cells == SHELF).ravel().tolist()),
        is_goal=tuple((cells == GOAL).ravel().tolist()),
    )


def _with_neighbours(mask):
    out = mask.copy()
    out[1:] |= mask[:-1]
    out[:-1] |= mask[1:]
    out[:, 1:] |= mask[:, :-1]
    out[:, :-1] |= mask[:, 1:]
    return out
