"""Pictures of attention weights: who attends to whom."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.patches import Rectangle

from jaxmarl_llm.report.plots import INK, new_figure, plain

_MARK = "#D55E00"
_MOST_NUMBERS = 12


def plot_attention(
    weights,
    path: str | Path,
    *,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    marked=None,
    mark_label: str = "",
    title: str = "",
) -> Path:
    """Draws one panel a head: a row for each token that attends, a column for each one that is attended to.

    Axes: H heads, Q queries, K keys.

    Args:
      weights: `[H, Q, K]` float in [0, 1], for example one step of one environment from `networks.attention_maps`.
      path: the picture to write; the folder is made. Its ending is the format.
      queries, keys: names of rows and columns; numbers by default.
      marked: `[Q, K]` bool, cells to outline; none by default.
      mark_label: what an outline means.
      title: above the panels.

    Returns:
      The path.

    Raises:
      ValueError: the weights do not have three axes, or there are not as many names as rows or columns.
    """
    weights = np.asarray(weights, np.float32)
    if weights.ndim != 3:
        raise ValueError(
            f"weights must be [heads, queries, keys], got shape {weights.shape}: index the batch axes first"
        )
    num_heads, num_queries, num_keys = weights.shape
    queries = [str(index) for index in range(num_queries)] if queries is None else list(queries)
    keys = [str(index) for index in range(num_keys)] if keys is None else list(keys)
    if (len(queries), len(keys)) != (num_queries, num_keys):
        raise ValueError(f"{num_queries} queries and {num_keys} keys, but {len(queries)} and {len(keys)} names")
    columns = min(4, num_heads)
    rows = -(-num_heads // columns)
    size = min(0.5, 5.0 / max(num_queries, num_keys))
    figure = new_figure(columns * (size * num_keys + 0.3) + 1.7, rows * (size * num_queries + 1.0) + 0.6, title)
    rotation = 45 if max(map(len, keys)) > 3 else 0
    queries, keys = list(map(plain, queries)), list(map(plain, keys))
    grid = figure.subplots(rows, columns, squeeze=False)
    for head, axes in enumerate(grid.reshape(-1)):
        if head >= num_heads:
            axes.set_visible(False)
            continue
        axes.imshow(weights[head], cmap="Blues", vmin=0.0, vmax=1.0)
        axes.set_title(f"head {head}", loc="left", fontsize=9, color=INK)
        axes.set_xticks(range(num_keys), keys, rotation=rotation, fontsize=8, color=INK)
        first_column = head % columns == 0
        axes.set_yticks(range(num_queries), queries if first_column else [""] * num_queries, fontsize=8, color=INK)
        if first_column:
            axes.set_ylabel("attends", fontsize=9, color=INK)
        axes.set_xlabel("is attended to", fontsize=9, color=INK)
        axes.tick_params(length=0)
        axes.spines[:].set_color("#999999")
        for query, key in np.ndindex(num_queries, num_keys):
            if marked is not None and marked[query][key]:
                axes.add_patch(
                    Rectangle((key - 0.46, query - 0.46), 0.92, 0.92, fill=False, edgecolor=_MARK, linewidth=1.6)
                )
            weight = weights[head, query, key]
            if max(num_queries, num_keys) <= _MOST_NUMBERS and weight >= 0.005:
                color = "white" if weight > 0.55 else INK
                axes.text(key, query, f"{weight:.2f}", ha="center", va="center", fontsize=7, color=color)
    bar = figure.colorbar(grid[0, 0].images[0], ax=grid, shrink=0.9)
    bar.set_label("attention weight", fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=8, colors=INK)
    if marked is not None and mark_label:
        outline = Rectangle((0, 0), 1, 1, fill=False, edgecolor=_MARK, linewidth=1.6, label=plain(mark_label))
        figure.legend(handles=[outline], loc="outside lower left", fontsize=8, frameon=False, labelcolor=INK)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
