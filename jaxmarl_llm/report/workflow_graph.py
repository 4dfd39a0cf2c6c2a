"""A picture of a workflow's graph, from its definition alone."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from jaxmarl_llm.arguments import check_kind
from jaxmarl_llm.errors import unknown_name
from jaxmarl_llm.report.plots import COLORS, INK, new_figure, plain
from jaxmarl_llm.workflows.graph import Call, Last, Loop, Slot, Workflow
from jaxmarl_llm.workflows.messages import number_token

# All in inches, the unit of the axes.
_BOX = (1.5, 0.9)
_GAP = 0.95
_END = 0.8
_MARGIN = 0.35
_ABOVE = 1.15
_BELOW = 1.25
_SHADOW = 0.07
_FAINT = "#b0b0b0"


def draw_workflow(workflow: Workflow, path: str | Path | None = None) -> Figure:
    """Draws the calls from left to right, what each reads, loops, and where the answer comes from.

    Args:
      workflow: any.
      path: of a picture to write, if given.

    Returns:
      The Matplotlib figure.

    Raises:
      UserError: no workflow, or a path whose ending is no format of pictures.
    """
    check_kind("workflow", workflow, Workflow)
    formats = FigureCanvasBase.get_supported_filetypes()
    ending = "" if path is None else Path(path).suffix[1:]
    if ending and ending.lower() not in formats:
        raise unknown_name("picture format", ending, formats)
    calls = workflow.calls
    centers = [_MARGIN + _END + _GAP + _BOX[0] / 2 + place * (_BOX[0] + _GAP) for place in range(len(calls))]
    answer_left = centers[-1] + _BOX[0] / 2 + _GAP
    width = answer_left + _END + _MARGIN
    # Room for arcs only where there are any.
    bottom = 0.0 if any(isinstance(step, Loop) for step in workflow.steps) else _BELOW - 0.3
    top = _BELOW + _BOX[1] + (_ABOVE + 0.3 if len(calls) > 1 else 0.6)
    figure = new_figure(width, top - bottom, f"workflow '{workflow.name}'")
    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(bottom, top)
    axes.set_axis_off()

    place = 0
    for step in workflow.steps:
        if isinstance(step, Loop):
            _loop(axes, step, centers[place], centers[place + len(step.calls) - 1])
        place += len(step.calls) if isinstance(step, Loop) else 1
    middle = _BELOW + _BOX[1] / 2
    problem_right = _MARGIN + _END
    problem = (_MARGIN + _END / 2, middle + 0.2)
    tops = [(center, _top(call.copies)) for call, center in zip(calls, centers, strict=True)]
    _end(axes, _MARGIN, "problem")
    _end(axes, answer_left, "answer")
    names = [call.name for call in calls]
    for place, (call, center) in enumerate(zip(calls, centers, strict=True)):
        color = COLORS[workflow.roles.index(call.role) % len(COLORS)]
        _box(axes, call, center, color)
        for source in dict.fromkeys(slot.of for slot in call.slots if slot.of != "number"):
            label = _reading(workflow, [slot for slot in call.slots if slot.of == source])
            if source == "problem" and place == 0:
                _arrow(axes, (problem_right, middle), (center - _BOX[0] / 2, middle), _FAINT)
            elif source == "problem":
                _above(axes, problem, tops[place], _FAINT, "")
            elif names.index(source) < place - 1:
                _above(axes, tops[names.index(source)], tops[place], INK, label)
            else:
                _reads(axes, centers, names.index(source), place, calls[names.index(source)].copies, label)
    answer = workflow.answer
    by = names.index(answer.call if isinstance(answer, Last) else answer.by)
    text = "" if isinstance(answer, Last) else "the solution\nit names"
    if by == len(calls) - 1:
        _arrow(axes, (_right(centers[by], calls[by].copies), middle), (answer_left, middle), INK)
        axes.text(answer_left - _GAP / 2, middle + 0.08, text, ha="center", va="bottom", fontsize=7, color=INK)
    else:
        _above(axes, tops[by], (answer_left + _END / 2, middle + 0.2), INK, text)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=144)
    return figure


def _box(axes: Axes, call: Call, center: float, color: str) -> None:
    left = center - _BOX[0] / 2
    for shadow in reversed(range(min(call.copies, 3))):
        corner = (left + shadow * _SHADOW, _BELOW + shadow * _SHADOW)
        style = {"facecolor": "white", "edgecolor": color, "linewidth": 1.4, "zorder": 3}
        axes.add_patch(FancyBboxPatch(corner, *_BOX, boxstyle="round,pad=0,rounding_size=0.1", **style))
    name = plain(call.name)
    title = name if call.copies == 1 else f"{name} x {call.copies}"
    lines = [f"writes: {type(call.writes).__name__.lower()}"]
    if call.name != call.role:
        lines.insert(0, f"role: {plain(call.role)}")
    axes.text(center, _BELOW + 0.66, title, ha="center", va="center", fontsize=9, color=color, weight="bold", zorder=4)
    axes.text(center, _BELOW + 0.32, "\n".join(lines), ha="center", va="center", fontsize=7.5, color=INK, zorder=4)


def _end(axes: Axes, left: float, text: str) -> None:
    corner, size = (left, _BELOW + _BOX[1] / 2 - 0.2), (_END, 0.4)
    style = {"facecolor": "#f2f2f2", "edgecolor": "#999999", "linewidth": 1.0}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.2", **style))
    axes.text(left + _END / 2, _BELOW + _BOX[1] / 2, text, ha="center", va="center", fontsize=9, color=INK)


def _loop(axes: Axes, loop: Loop, first: float, last: float) -> None:
    left, right = first - _BOX[0] / 2 - 0.2, last + _BOX[0] / 2 + 0.3
    corner, size = (left, 0.4), (right - left, _BELOW + _BOX[1] + 0.3 - 0.4)
    style = {"facecolor": "#fafafa", "edgecolor": _FAINT, "linestyle": "--", "linewidth": 1.0, "zorder": 0}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle="round,pad=0,rounding_size=0.1", **style))
    text = f"up to {loop.rounds} rounds" if loop.rounds > 1 else "one round"
    if loop.until is not None:
        text += plain(f", until {loop.until.call} says {loop.until.says}", 120)
    axes.text((left + right) / 2, 0.2, text, ha="center", va="center", fontsize=8, color=INK)


def _reads(axes: Axes, centers: list[float], source: int, reader: int, copies: int, label: str) -> None:
    """An arrow to the next call, or below the boxes, for what was written in the round before."""
    middle = _BELOW + _BOX[1] / 2
    start, end = centers[source], centers[reader]
    if reader == source + 1:
        tail, head = _right(start, copies), end - _BOX[0] / 2
        _arrow(axes, (tail, middle), (head, middle), INK)
        axes.text((tail + head) / 2, middle + 0.08, label, ha="center", va="bottom", fontsize=7, color=INK)
    else:
        side = _BOX[0] / 4
        tail, head = (start + side, end - side) if source == reader else (start - side, end + side)
        _arrow(axes, (tail, _BELOW), (head, _BELOW), INK, bow=0.42)
        text = "last round" + (f": {label}" if label else "")
        axes.text((tail + head) / 2, _BELOW - 0.46, text, ha="center", va="top", fontsize=7, color=INK)


def _above(axes: Axes, tail: tuple[float, float], head: tuple[float, float], color: str, label: str) -> None:
    # Longer arcs rise higher, so that they do not lie on each other.
    rise = min(_ABOVE - 0.35, 0.3 + 0.1 * (head[0] - tail[0]) / (_BOX[0] + _GAP))
    # What comes from the left arrives on the left.
    _arrow(axes, tail, (head[0] - 0.2, head[1]), color, bow=rise)
    height = (tail[1] + head[1]) / 2 + rise + 0.05
    axes.text((tail[0] + head[0]) / 2, height, label, ha="center", va="bottom", fontsize=7, color=INK)


def _arrow(axes: Axes, tail: tuple[float, float], head: tuple[float, float], color: str, bow: float = 0.0) -> None:
    """An arrow; a bow in inches bends it up when it points right and down when it points left."""
    distance = max(abs(head[0] - tail[0]), 1e-6)
    style = f"arc3,rad={-2 * bow / distance}"
    arrow = FancyArrowPatch(
        tail, head, arrowstyle="-|>", connectionstyle=style, mutation_scale=11, shrinkA=1, shrinkB=1
    )
    arrow.set(color=color, linewidth=1.2, zorder=2)
    axes.add_patch(arrow)


def _right(center: float, copies: int) -> float:
    return center + _BOX[0] / 2 + (min(copies, 3) - 1) * _SHADOW


def _top(copies: int) -> float:
    return _BELOW + _BOX[1] + (min(copies, 3) - 1) * _SHADOW


def _reading(workflow: Workflow, slots: list[Slot]) -> str:
    """What is special in how a call reads another one."""
    said = []
    for slot in slots:
        copies = 1 if slot.of == "problem" else workflow.call(slot.of).copies
        if slot.part:
            said.append("its part")
        elif slot.own:
            said.append("its own")
        elif slot.numbered:
            said.append(" ".join(map(number_token, range(copies))) if copies <= 3 else f"<1> … <{copies}>")
        elif copies > 1:
            said.append("all")
    return ", ".join(dict.fromkeys(said))
