"""The report of an ablation: `results.json`, `results.csv`, and `report.html`, which needs no network."""

import base64
import html
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from jaxmarl_llm.report.ablation_findings import SHARING_NAMES, find
from jaxmarl_llm.report.ablation_plots import accuracy_figure, cosine_figure, mass_figure, outcome_figure
from jaxmarl_llm.report.ablation_summary import MEASURES, summarize, to_csv
from jaxmarl_llm.training.files import write_whole
from jaxmarl_llm.workflows.ablation.matrix import Matrix
from jaxmarl_llm.workflows.ablation.results import CellResult

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; } h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid #e6e6e6; white-space: nowrap; }
th { color: #555; font-weight: 600; } td.name, th.name { text-align: left; }
.scroll { overflow-x: auto; } .interval { color: #777; } .cliff { color: #b3261e; font-weight: 600; }
img { max-width: 100%; height: auto; display: block; margin: .4rem 0; }
.note { color: #555; font-size: 13px; } li { margin: .15rem 0; }
"""

_POLICIES = (
    "the policy before training",
    "SP: one policy for all roles; IP: one policy a role; LoRA: one body for all roles, and a low-rank adapter a role.",
)
_ADAPTERS = (
    "the model as it is, before training",
    "SP: one low-rank adapter on the model for all roles; IP: one adapter a role.",
)
_READING = """
<p class="note">base: {base}. peak: the best mean over a window of evaluations. final: the mean of
the last window. drop: peak less final. gain: final less base. cliff: seeds whose drop is more than noise explains and
more than the least drop of the configuration. {sharing} {intervals}</p>
"""
_COST_NOTE = """
<p class="note">compile: of a program, with the cell that used it first; cells that differ in sharing alone use it
again, and have none. train: all from the first evaluation to the last, and what a program does once when it first
runs; cells that train while the next program is compiled share the processor with it. So neither compares one way of
sharing with another. episodes and tokens a second: of the updates but the first, without evaluations, and only of those
beside which nothing was compiled; a dash where there is none.</p>
"""
_COST_NOTE_OF_MODEL = """
<p class="note">train: the iterations with the compilation in them, evaluations not; cells that use the programs of an
earlier one are faster for that.</p>
"""


def write_report(
    folder: Path, config: Matrix, results: Sequence[CellResult], versions: Sequence[dict[str, str]]
) -> dict:
    """Writes the report of an ablation into its folder.

    Args:
      folder: of the ablation.
      config: its configuration.
      results: its cells, at least one.
      versions: of packages, as `read_header` gives them.

    Returns:
      What `results.json` holds: `summarize`, and `findings`.
    """
    summary = summarize(config, results, versions)
    summary["findings"] = find(summary)
    write_whole(folder / "results.json", json.dumps(summary, indent=2) + "\n")
    write_whole(folder / "results.csv", to_csv(summary))
    write_whole(folder / "report.html", to_html(summary, results))
    return summary


def to_html(summary: dict[str, Any], results: Sequence[CellResult]) -> str:
    """The page.

    Args:
      summary: with `findings`.
      results: the cells, for the pictures.
    """
    window = summary["evaluation"]["window"]
    base, sharing = _ADAPTERS if "model" in summary["config"] else _POLICIES
    parts = [
        "<h1>Shared against isolated policies</h1>",
        "<h2>What this run shows</h2>",
        _findings(summary["findings"]),
    ]
    many = summary["config"]["num_seeds"] > 1
    over_seeds = "mean over seeds, 95 % band; thin lines are seeds" if many else "one seed"
    for task, size in dict.fromkeys((cell["task"], cell["size"]) for cell in summary["cells"]):
        of_group = [result for result in results if (result.cell.task, result.cell.size) == (task, size)]
        parts.append(f"<h2>{html.escape(f'{task}, {size}')}</h2>")
        parts.append(_table([cell for cell in summary["cells"] if (cell["task"], cell["size"]) == (task, size)]))
        figures = {
            "Accuracy": accuracy_figure(of_group, over_seeds),
            "How episodes end": outcome_figure(of_group, window, "before and after training"),
            "Gradient mass": mass_figure(of_group, "norm of each role's gradient over the sum of norms"),
            "Gradient cosines": cosine_figure(of_group, "between roles, and between copies of one role"),
        }
        for name, figure in figures.items():
            if figure is not None:
                parts += [f"<h3>{name}</h3>", _image(figure, f"{name}: {task}, {size}")]
    parts += [
        "<h2>How to read the tables</h2>",
        _READING.format(
            base=base,
            sharing=sharing,
            intervals="In brackets: bootstrap intervals over seeds." if many else "One seed has no interval.",
        ),
        "<h2>Cost</h2>",
        _cost(summary["cells"]),
        _COST_NOTE_OF_MODEL if "model" in summary["config"] else _COST_NOTE,
    ]
    parts += [
        "<h2>Configuration</h2>",
        _settings(summary["config"]),
        "<h2>Versions</h2>",
        _versions(summary),
    ]
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Ablation</title><style>{_STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _findings(findings: list[dict[str, Any]]) -> str:
    """Sentences as paragraphs, details as lists under them."""
    parts, inside = [], False
    for found in findings:
        detail = bool(found.get("detail"))
        if detail != inside:
            parts.append("<ul>" if detail else "</ul>")
            inside = detail
        tag = "li" if detail else "p"
        parts.append(f"<{tag}>{html.escape(found['text'])}</{tag}>")
    return "\n".join([*parts, *(["</ul>"] if inside else [])])


def number(value: float | None, form: str = ".3f") -> str:
    """A number, or a dash where there is none."""
    return "-" if value is None else format(value, form)


def cell_row(cell: dict[str, Any]) -> list[tuple[str, str]]:
    """The measures of a cell as pairs of mean and interval, empty where there is none; then its cliffs."""
    signs = {"drop": ".3f", "gain": "+.3f"}
    found = []
    for measure in MEASURES:
        numbers, form = cell[measure], signs.get(measure, ".3f")
        interval = f"[{number(numbers['low'], form)}, {number(numbers['high'], form)}]"
        found.append((number(numbers["mean"], form), "" if numbers["low"] is None else interval))
    return [*found, (f"{cell['cliffs']} of {len(cell['seeds'])}", "")]


def sharing_name(cell: dict[str, Any]) -> str:
    """SP, IP, LoRA, or a dash for a workflow of one role."""
    return SHARING_NAMES[cell["sharing"]] if cell["multi_agent"] else "-"


def _rows(header: Iterable[str], rows: Iterable[Iterable[str]], names: int) -> str:
    """A table whose first columns are names; cells of rows are HTML already."""

    def line(tag, cells):
        shown = (f"<{tag}{' class=name' * (i < names)}>{cell}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(shown)}</tr>"

    lines = [line("th", header), *(line("td", row) for row in rows)]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _table(cells: list[dict[str, Any]]) -> str:
    def show(measures, cliffs):
        shown = [f'{mean} <span class="interval">{interval}</span>' for mean, interval in measures[:-1]]
        return [*shown, f'<span class="cliff">{measures[-1][0]}</span>' if cliffs else measures[-1][0]]

    rows = [[html.escape(c["workflow"]), sharing_name(c), *show(cell_row(c), c["cliffs"])] for c in cells]
    return _rows(["workflow", "sharing", *MEASURES, "cliffs"], rows, 2)


def _cost(cells: list[dict[str, Any]]) -> str:
    names = ("compile_seconds", "train_seconds", "episodes_per_s", "tokens_per_s")
    # Fine-tuning compiles as it goes.
    names = [name for name in names if any(cell["cost"][name] is not None for cell in cells)]
    rows = [[html.escape(cell["name"]), *(number(cell["cost"][name], ".1f") for name in names)] for cell in cells]
    return _rows(["cell", *(name.replace("_per_s", " a second").replace("_", " ") for name in names)], rows, 1)


def _settings(settings: dict[str, Any]) -> str:
    rows = [[html.escape(name), html.escape(json.dumps(value).strip('"'))] for name, value in settings.items()]
    return _rows(["setting", "value"], rows, 2)


def _versions(summary: dict[str, Any]) -> str:
    """Those that the ablation was begun with; of those that it was resumed with, what differs."""
    first, parts = summary["versions"], [_settings(summary["versions"])]
    for later in summary["later_versions"]:
        changed = {name: version for name, version in later.items() if version != first.get(name)}
        parts += ["<p>Resumed with others, for the cells that were missing then:</p>", _settings(changed)]
    return "\n".join(parts)


def _image(figure: Figure, text: str) -> str:
    content = io.BytesIO()
    figure.savefig(content, dpi=120, format="png")
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img alt="{html.escape(text)}" src="data:image/png;base64,{data}">'
