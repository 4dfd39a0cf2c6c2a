"""Results as tables, on the terminal and in Markdown."""

from collections.abc import Sequence
from typing import Any

_SKIPPED = ("kind", "engine", "env_args", "hyper", "repeats", "pairs", "last", "checksum")
_RATES = ("steps_per_s", "ours", "theirs")
_HEADINGS = {
    "num_envs": "envs",
    "num_steps": "steps",
    "total_steps": "steps",
    "steps_per_s": "steps/s",
    "compile_s": "compile s",
    "seconds": "s",
}


def _cell(name: str, value: Any, is_rate: bool) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if name in _RATES or (is_rate and name in ("min", "max")):
        return _short(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3f}"


def _short(rate: float) -> str:
    """`1.27M`, `853k`: three digits, which is as many as a timing carries."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if rate >= factor:
            value = rate / factor
            return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f}{unit}"
    return f"{rate:.3g}"


def _row(result: dict[str, Any], columns: Sequence[str]) -> list[str]:
    is_rate = "steps_per_s" in result
    return [_cell(name, result.get(name), is_rate) for name in columns]


def _heading(name: str) -> str:
    return _HEADINGS.get(name, name.replace("_", " "))


def _columns(results: Sequence[dict[str, Any]]) -> list[str]:
    names: dict[str, None] = {}
    for result in results:
        for name, value in result.items():
            if name not in _SKIPPED and not isinstance(value, list | dict):
                names[name] = None
    return list(names)


def print_table(results: Sequence[dict[str, Any]], *, title: str = "", console: Any = None) -> None:
    """Prints results as a table, one row each.

    Args:
      results: flat dicts, such as `run_environment_benchmark` returns.
      title: above the table.
      console: a rich console; a new one when not given.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    columns = _columns(results)
    # What is the same in all rows is said once, below.
    same = [name for name in columns if len(results) > 1 and len({result.get(name) for result in results}) == 1]
    columns = [name for name in columns if name not in same]
    table.caption = ", ".join(f"{_heading(name)} {_row(results[0], [name])[0]}" for name in same) or None
    table.caption_justify = "left"
    for name in columns:
        numeric = all(isinstance(result.get(name), int | float | None) for result in results)
        table.add_column(_heading(name), justify="right" if numeric else "left", no_wrap=numeric)
    for result in results:
        table.add_row(*_row(result, columns))
    (console or Console()).print(table)


def markdown_table(results: Sequence[dict[str, Any]], columns: Sequence[str] | None = None) -> str:
    """The same as a Markdown table.

    Args:
      results: flat dicts.
      columns: which fields, in order; all that are no lists and dicts when not given.
    """
    columns = list(columns) if columns is not None else _columns(results)
    lines = [
        "| " + " | ".join(map(_heading, columns)) + " |",
        "|" + "|".join("---" for _ in columns) + "|",
    ]
    lines += ["| " + " | ".join(_row(result, columns)) + " |" for result in results]
    return "\n".join(lines)
