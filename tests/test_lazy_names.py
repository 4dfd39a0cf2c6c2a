"""Packages that load their names on first use."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

LAZY = (
    "jaxmarl_llm",
    "jaxmarl_llm.benchmark",
    "jaxmarl_llm.report",
    "jaxmarl_llm.training",
    "jaxmarl_llm.workflows",
    "jaxmarl_llm.workflows.finetuning",
    "jaxmarl_llm.workflows.text",
)


@pytest.mark.parametrize("name", LAZY)
def test_every_name_is_there_and_told_to_type_checkers(name):
    package = importlib.import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    told = [alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(told) == sorted(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is not None
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        _ = package.nothing


def test_importing_them_costs_neither_jax_nor_matplotlib():
    code = f"import sys, {', '.join(LAZY)}; sys.exit(bool({{'jax', 'flax', 'matplotlib', 'numpy'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
