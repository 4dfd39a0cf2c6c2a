"""Imports go one way, those inside functions too."""

import ast
import functools
import graphlib
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
FILES = sorted((ROOT / "jaxmarl_llm").rglob("*.py"))


def module_of(path):
    """The full name of a file's module."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imports(path):
    """`(line, full name)` of all that a file imports, and whether for type checkers alone."""
    package, found = path.relative_to(ROOT).parent.parts, []
    tree = ast.parse(path.read_text())
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for_checkers = {node for block in blocks for node in ast.walk(block)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, node in for_checkers) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join((*base, node.module) if node.module else base)
            found += [(node.lineno, f"{module}.{alias.name}", node in for_checkers) for alias in node.names]
    return found


def longest(name, known):
    """The longest of the known modules that a name is or lies in, else ""."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name


def test_folders_import_what_is_below_them():
    wrong, found = [], set()
    for path in FILES:
        here = longest(module_of(path), HEIGHTS)
        found.add(here)
        # Whose names are those of all folders.
        if module_of(path) in ("jaxmarl_llm", "jaxmarl_llm.__main__"):
            continue
        for line, name, _ in imports(path):
            there = longest(name, HEIGHTS)
            if there not in ("", here) and HEIGHTS[there] >= HEIGHTS.get(here, -len(LAYERS)):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert not wrong
    assert found == {"", *HEIGHTS}


def test_modules_import_each_other_in_no_circle():
    modules = {module_of(path): path for path in FILES}
    graph = {}
    for module, path in modules.items():
        # Packages load their names on first use: what they tell type checkers, they do not import.
        names = [name for _, name, for_checkers in imports(path) if not (for_checkers and path.stem == "__init__")]
        graph[module] = {longest(name, modules) for name in names} - {module, ""}
    graphlib.TopologicalSorter(graph).prepare()
