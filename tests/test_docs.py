"""The documentation is true: its Python runs, its commands parse, its tables match the code, its links work."""

import ast
import dataclasses
import importlib.util
import re
import shlex
import sys
import textwrap
import types
from pathlib import Path

import jax
import pytest

from jaxmarl_llm import environment_names, make
from jaxmarl_llm.cli.ablate import AblateOptions, parse_ablate
from jaxmarl_llm.cli.bench import BenchOptions
from jaxmarl_llm.cli.chat import ChatOptions
from jaxmarl_llm.cli.evaluate import EvaluateOptions
from jaxmarl_llm.cli.export import ExportOptions
from jaxmarl_llm.cli.finetune import FinetuneOptions, parse_finetune
from jaxmarl_llm.cli.inspect import EvalOptions, RenderOptions
from jaxmarl_llm.cli.options import parse_options
from jaxmarl_llm.cli.phase import parse_phase
from jaxmarl_llm.cli.train import TrainOptions
from jaxmarl_llm.envs import registry
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.training import TrainConfig, preset_names
from jaxmarl_llm.workflows.ablation.loop import ablation_cells
from jaxmarl_llm.workflows.ablation.matrix import PRESETS as ABLATIONS
from jaxmarl_llm.workflows.ablation.runner import make_runner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ENVIRONMENTS = (ROOT / "docs" / "environments.md").read_text()
OPTIONS = {
    "train": TrainOptions,
    "eval": EvalOptions,
    "render": RenderOptions,
    "bench": BenchOptions,
    "ablate": AblateOptions,
    "finetune": FinetuneOptions,
    "evaluate": EvaluateOptions,
    "chat": ChatOptions,
    "export": ExportOptions,
}

# `<!-- no-test -->` before a block leaves it out; `<!-- needs: module -->` does where the module is not installed.
BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>[^>]*) -->\n)?(?P<indent> *)```(?P<language>\w*)\n(?P<text>.*?)^(?P=indent)```$", re.M | re.S
)


def blocks(page, language):
    """`(marker, first line, text)` of each fenced block."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        if found["language"] == language:
            yield found["marker"] or "", text.count("\n", 0, found.start("text")), textwrap.dedent(found["text"])


def is_left_out(marker):
    if marker.startswith("needs: "):
        return importlib.util.find_spec(marker.removeprefix("needs: ").strip()) is None
    return marker == "no-test"


def page_id(page):
    return page.stem


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module to run a page in, since dataclasses look theirs up; the working folder is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry._ENVIRONMENTS, "_registered", {})
    module = types.ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    return module


SLOW = ("algorithms", "networks")
WIDE = ("environments", "training", "value_learning", "workflow_learning")


def marked(page):
    marks = [pytest.mark.slow] * (page.stem in SLOW) + [pytest.mark.wide] * (page.stem in WIDE)
    return pytest.param(page, marks=marks)


@pytest.mark.parametrize("page", [marked(page) for page in PAGES if any(blocks(page, "python"))], ids=page_id)
def test_python_runs(page, module):
    for marker, line, text in blocks(page, "python"):
        if is_left_out(marker):
            continue
        # The lines before it make a traceback point into the page.
        exec(compile("\n" * line + text, str(page), "exec"), vars(module))
    CHECKS.get(page.name, lambda module: None)(module)


def check_readme(module):
    assert float(module.metrics["episode_return"]) > 9
    assert module.timestep.observation.shape == (4096, 2, 5, 5, 26)
    loss = module.loss(*[jax.numpy.zeros((3, 4, 2), bool if i in (5, 6, 7) else float) for i in range(8)])
    assert loss.shape == () and float(loss) == 0


def check_training(module):
    page = (ROOT / "docs" / "training.md").read_text()
    train = [line for line in module.lines if line["kind"] == "train"]
    unnamed = {name for name in train[0] if f"`{name}`" not in page} - {"kind", "update", "env_steps"}
    assert not unnamed
    for path in Path("runs/stag_hunt").iterdir():
        assert path.name.startswith(".") or f"`{path.name}" in page, path
    assert module.returns.shape[-1] == 2 and module.action.shape == (2,)


def check_workflows(module):
    config = dataclasses.replace(ABLATIONS["quick"], tasks=("reverse",))
    make_runner(config, ablation_cells(config)[:1])
    assert module.Reverse().held_out(256).length.shape == (256,)


CHECKS = {"README.md": check_readme, "training.md": check_training, "workflows.md": check_workflows}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_parse(page):
    for _, _, text in blocks(page, ""):
        for line in text.splitlines():
            words = shlex.split(line, comments=True) if line.startswith("jaxmarl-llm ") else []
            if len(words) < 2 or words[1] not in OPTIONS:
                continue
            if words[1] == "train" and not words[2].startswith("-"):
                preset = words.pop(2)
                assert preset in preset_names() or preset.endswith(".yaml"), line
            if words[1:3] == ["ablate", "phase"]:
                parse_phase([word for word in words[3:] if word != "--resume"])
            elif words[1] == "ablate":
                # Another ablation is resumed from a folder, which documentation has not.
                words = [word for word in words if word != "--resume"]
                if "--help" not in words:
                    parse_ablate(
                        [*(["quick"] if words[2].startswith("-") and "--model" not in words else []), *words[2:]]
                    )
            elif words[1] == "finetune" and "--help" not in words:
                parse_finetune([*(["sums"] if words[2].startswith("-") else []), *words[2:]])
            elif "--help" not in words:
                default = TrainOptions(config=TrainConfig()) if words[1] == "train" else None
                parse_options(OPTIONS[words[1]], words[2:], program=line, default=default)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.+)$", linked.read_text(), re.M)
            assert anchor in {title.lower().replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("name", [name for name in environment_names() if name in registry.BUILTIN])
def test_settings_of_environments(name):
    section = re.search(rf"^## {name}$(.*?)(?=^## |\Z)", ENVIRONMENTS, re.M | re.S)
    assert section is not None, f"docs/environments.md has no section {name}"
    rows = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section[1], re.M)
    factory = registry.environment_factory(name)
    assert {key: ast.literal_eval(value) for key, value in rows} == {
        field.name: field.default for field in dataclasses.fields(factory)
    }
    info = jax.eval_shape(make(name).reset, jax.random.key(0))[0].info
    assert all(f"`{key}`" in section[1] for key in info)
    picture = ROOT / "docs" / "images" / f"{name}.png"
    assert f"(images/{name}.png)" in section[1] and picture.stat().st_size < 30_000


def test_hooks_are_named():
    hooks = {name for name, value in vars(Environment).items() if getattr(value, "__isabstractmethod__", False)}
    assert all(f"`{hook}" in ENVIRONMENTS for hook in hooks)
