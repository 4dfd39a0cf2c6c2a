"""Maps of the escape room: text in, tables of cells out, with a check that a team can escape."""

import dataclasses

import numpy as np

from jaxmarl_llm.errors import UserError

_WALL, _FLOOR, _START, _KEY, _MAP, _EXIT = "#.skme"
_DOORS = "rb"  # the door's colour is its place in this string


@dataclasses.dataclass(frozen=True)
class EscapeRoomMap:
    """A checked map; a cell is `row * columns + column`.

    Attributes:
      rows, columns: its size.
      wall, exit: `[rows * columns]` tuples of bool.
      door: the cells of the D doors.
      door_color: `[D]`, 0 red or 1 blue.
      start, key, map: cells where agents, the key and the map may be at the start.
    """

    rows: int
    columns: int
    wall: tuple[bool, ...]
    exit: tuple[bool, ...]
    door: tuple[int, ...]
    door_color: tuple[int, ...]
    start: tuple[int, ...]
    key: tuple[int, ...]
    map: tuple[int, ...]


def three_rooms(rows: int, columns: int) -> str:
    """Text of a hall between two rooms: the key behind the red door on the left, the map behind the blue one.

    Agents start anywhere in the hall; key and map lie anywhere in their rooms; the exit is in the hall's upper wall.

    Args:
      rows: at least 5.
      columns: at least 7.

    Raises:
      UserError: a smaller size.
    """
    if rows < 5 or columns < 7:
        raise UserError(f"an escape room needs at least 5 rows and 7 columns, got {rows} by {columns}")
    side = max(1, (columns - 4) // 3)
    hall = columns - 4 - 2 * side
    inner = _WALL + _KEY * side + "{left}" + _START * hall + "{right}" + _MAP * side + _WALL
    lines = [inner.format(left=_WALL, right=_WALL)] * (rows - 2)
    lines[(rows - 2) // 2] = inner.format(left=_DOORS[0], right=_DOORS[1])
    top = [_WALL] * columns
    top[2 + side + hall // 2] = _EXIT
    return "\n".join(["".join(top), *lines, _WALL * columns])


def read_map(text: str) -> EscapeRoomMap:
    """Reads and checks a map.

    Signs: `#` wall, `.` floor, `r` red door, `b` blue door, `e` exit, and floor where something may be at the start:
    `s` an agent, `k` the key, `m` the map. Letters may be capitals. Beyond the text everything is wall.

    Raises:
      UserError: unknown characters, lines of unequal length, something missing, or something that agents of both
        colours together cannot reach.
    """
    lines = [line.strip().lower() for line in text.strip().splitlines()]
    signs = {_WALL, _FLOOR, _START, _KEY, _MAP, _EXIT, *_DOORS}
    unknown = sorted(set("".join(lines)) - signs)
    if unknown:
        raise UserError(f"unknown character '{unknown[0]}' in the escape room: use # . r b e s k m")
    if len({len(line) for line in lines}) != 1:
        raise UserError("the lines of the escape room differ in length: make it a rectangle")
    grid = np.array([list(line) for line in lines])
    for sign, name in ((_START, "start"), (_KEY, "key"), (_MAP, "map"), (_EXIT, "exit")):
        if not (grid == sign).any():
            raise UserError(f"the escape room has no {name}: put at least one {sign} into it")
    _check_escape(grid)

    def where(signs):
        return tuple(np.flatnonzero(np.isin(grid.ravel(), list(signs))).tolist())

    return EscapeRoomMap(
        rows=grid.shape[0],
        columns=grid.shape[1],
        wall=tuple((grid == _WALL).ravel().tolist()),
        exit=tuple((grid == _EXIT).ravel().tolist()),
        door=where(_DOORS),
        door_color=tuple(_DOORS.index(grid.ravel()[cell]) for cell in where(_DOORS)),
        start=where(_START),
        key=where(_KEY),
        map=where(_MAP),
    )


def reachable(grid: np.ndarray, colors: tuple[int, ...]) -> list[np.ndarray]:
    """Where agents of some colours get to, opening doors for one another.

    Args:
      grid: `[rows, columns]` signs.
      colors: the colours in the team.

    Returns:
      For each colour `[rows, columns]` bool, the cells that it reaches from the first start; exits included.
    """
    opened = np.zeros(grid.shape, bool)
    while True:
        reached = []
        for color in colors:
            passable = ~np.isin(grid, [_WALL, *_DOORS]) | opened | (grid == _DOORS[color])
            seen = np.zeros(grid.shape, bool)
            seen[tuple(np.argwhere(grid == _START)[0])] = True
            while True:
                # An exit is left, not walked through.
                wider = seen | _neighbours(seen & (grid != _EXIT)) & passable
                if (wider == seen).all():
                    break
                seen = wider
            reached.append(seen)
        now_open = opened | np.any(reached, axis=0) & np.isin(grid, list(_DOORS))
        if (now_open == opened).all():
            return reached
        opened = now_open


def _check_escape(grid):
    reached = reachable(grid, (0, 1))
    anyone, everyone = np.any(reached, axis=0), np.all(reached, axis=0)
    for sign, name, found in (
        (_START, "start", everyone),
        (_KEY, "key", anyone),
        (_MAP, "map", anyone),
        (_EXIT, "exit", everyone),
    ):
        missed = np.argwhere((grid == sign) & ~found)
        if len(missed):
            row, column = missed[0]
            raise UserError(f"the {name} at row {row}, column {column} of the escape room is out of reach: open a way")


def _neighbours(mask):
    out = np.zeros_like(mask)
    out[1:] |= mask[:-1]
    out[:-1] |= mask[1:]
    out[:, 1:] |= mask[:, :-1]
    out[:, :-1] |= mask[:, 1:]
    return out
