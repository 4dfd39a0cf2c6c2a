"""A canvas of square tiles for renderers, drawn at twice its size and scaled down so that edges are smooth."""

import numpy as np

Color = tuple[int, int, int]

FLOOR: Color = (244, 240, 230)
WALL: Color = (88, 92, 104)
LINE: Color = (216, 210, 196)
INK: Color = (40, 42, 54)
AGENT_COLORS: tuple[Color, ...] = (
    (31, 119, 180),
    (214, 69, 65),
    (44, 160, 44),
    (148, 103, 189),
    (255, 127, 14),
    (23, 190, 207),
    (227, 119, 194),
    (140, 86, 75),
)
_SCALE = 2


class Canvas:
    """Tiles of `rows` by `columns`, with a text strip below.

    Positions are `(row, column)` and may be fractions; sizes are shares of a tile.

    Args:
      rows, columns: size in tiles.
      tile: pixels a tile.
      background: colour of all tiles.
      caption: one line of text under the picture; empty for none.
    """

    def __init__(self, rows: int, columns: int, *, tile: int = 48, background: Color = FLOOR, caption: str = ""):
        from PIL import Image, ImageDraw

        self._tile = tile * _SCALE
        strip = 24 * _SCALE if caption else 0
        self._image = Image.new("RGB", (columns * self._tile, rows * self._tile + strip), background)
        self._draw = ImageDraw.Draw(self._image)
        for row in range(rows):
            for column in range(columns):
                self.tile((row, column), background, outline=LINE)
        if caption:
            top = rows * self._tile
            self._draw.rectangle((0, top, columns * self._tile, top + strip), fill=(255, 255, 255))
            self._draw.text((6 * _SCALE, top + 5 * _SCALE), caption, fill=INK, font=self._font(12 * _SCALE))

    def _font(self, size: int):
        from PIL import ImageFont

        return ImageFont.load_default(size)

    def _box(self, position, size):
        row, column = position
        centre_x, centre_y = (column + 0.5) * self._tile, (row + 0.5) * self._tile
        half = size * self._tile / 2
        return (centre_x - half, centre_y - half, centre_x + half, centre_y + half)

    def tile(self, position, color: Color, *, outline: Color | None = None) -> None:
        """Fills a whole tile."""
        row, column = position
        left, top = column * self._tile, row * self._tile
        self._draw.rectangle((left, top, left + self._tile - 1, top + self._tile - 1), fill=color, outline=outline)

    def square(self, position, color: Color, *, size: float = 0.6, outline: Color | None = INK) -> None:
        """A square in the middle of a tile."""
        self._draw.rounded_rectangle(
            self._box(position, size), radius=0.12 * size * self._tile, fill=color, outline=outline, width=_SCALE
        )

    def circle(self, position, color: Color, *, size: float = 0.6, outline: Color | None = INK) -> None:
        """A disc in the middle of a tile."""
        self._draw.ellipse(self._box(position, size), fill=color, outline=outline, width=_SCALE)

    def arrow(self, position, direction: tuple[int, int], color: Color = (255, 255, 255), *, size: float = 0.3) -> None:
        """A triangle that points along `direction = (d_row, d_column)`, off centre towards it."""
        row, column = position
        d_row, d_column = direction
        centre = np.array([(column + 0.5 + 0.16 * d_column), (row + 0.5 + 0.16 * d_row)]) * self._tile
        forward = np.array([d_column, d_row], float) * size * self._tile / 2
        side = np.array([-forward[1], forward[0]])
        points = [tuple(centre + forward), tuple(centre - 0.6 * forward + side), tuple(centre - 0.6 * forward - side)]
        self._draw.polygon(points, fill=color)

    def text(self, position, text: str, color: Color = INK, *, size: float = 0.4) -> None:
        """Text centred in a tile."""
        row, column = position
        centre = ((column + 0.5) * self._tile, (row + 0.5) * self._tile)
        self._draw.text(centre, text, fill=color, font=self._font(int(size * self._tile)), anchor="mm")

    def line(self, start, end, color: Color = INK, *, width: float = 0.06) -> None:
        """A line between the centres of two positions."""
        points = [((column + 0.5) * self._tile, (row + 0.5) * self._tile) for row, column in (start, end)]
        self._draw.line(points, fill=color, width=max(1, int(width * self._tile)))

    def array(self) -> np.ndarray:
        """The picture as `[height, width, 3]` uint8."""
        size = (self._image.width // _SCALE, self._image.height // _SCALE)
        return np.asarray(self._image.resize(size, resample=1), np.uint8)


def agent_color(index: int) -> Color:
    """A colour for agent `index`; eight differ."""
    return AGENT_COLORS[index % len(AGENT_COLORS)]
