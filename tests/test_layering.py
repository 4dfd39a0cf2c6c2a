"""Imports go one way, those inside functions too."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Folders from above to below: one imports itself and what is in a lower line. Modules beside them are below all.
LAYERS = (
    ("cli",),
    ("report", "benchmark"),
    ("workflows",),
    ("training",),
    ("llm.checkpoints",),
    ("algorithms", "llm"),
    ("networks",),
    ("envs",),
)
HEIGHTS = {f"jaxmarl_llm.{folder}": -line for line, folders in enumerate(LAYERS) for folder in folders}


def imports(path):
    """`(line, full name)` of all that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def folder_of(name):
    """The folder among the layers that a module or name in one belongs to, else ""."""
    inside = [folder for folder in HEIGHTS if f"{name}.".startswith(f"{folder}.")]
    return max(inside, key=len, default="")


def test_folders_import_what_is_below_them():
    wrong, found = [], set()
    for path in (ROOT / "jaxmarl_llm").rglob("*.py"):
        here = folder_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        found.add(here)
        # Whose names are those of all folders.
        if path.parent.name == "jaxmarl_llm" and path.stem in ("__init__", "__main__"):
            continue
        for line, name in imports(path):
            there = folder_of(name)
            if there not in ("", here) and HEIGHTS[there] >= HEIGHTS.get(here, -len(LAYERS)):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong
    assert found == {"", *HEIGHTS}
