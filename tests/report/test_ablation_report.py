import base64
import csv
import dataclasses
import html
import io
import json
import re

import numpy as np
import pytest
from PIL import Image
from workflows.synthetic_cells import SMALL, changed, synthetic_cell, synthetic_results

from jaxmarl_llm.report.ablation import write_report
from jaxmarl_llm.report.ablation_board import write_board
from jaxmarl_llm.report.ablation_findings import find
from jaxmarl_llm.report.ablation_plots import accuracy_figure, cosine_figure, mass_figure, outcome_figure
from jaxmarl_llm.report.ablation_summary import describe, summarize
from jaxmarl_llm.workflows.ablation.loop import ablation_cells
from jaxmarl_llm.workflows.ablation.matrix import WAYS

VERSIONS = [{"jaxmarl_llm": "0.1.0", "jax": "0.10.2"}]


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def visible_text(page):
    """What a reader sees, without pictures."""
    body = re.sub(r"<style>.*?</style>|<[^>]*>", " ", page, flags=re.S)
    return html.unescape(body)


@pytest.fixture(scope="module", params=[(2, 0.3), (5, 0.3)], ids=["two seeds", "five seeds"])
def report(request, tmp_path_factory):
    """`(folder, config, summary)` of a report."""
    num_seeds, fall = request.param
    config = changed(SMALL, num_seeds=num_seeds)
    folder = tmp_path_factory.mktemp("report")
    summary = write_report(folder, config, synthetic_results(config, fall), VERSIONS)
    return folder, config, summary


def test_every_number_of_the_text_is_a_result(report):
    folder = report[0]
    stored = leaves(json.loads((folder / "results.json").read_text()))
    known = {
        format(number, form)
        for number in stored
        if isinstance(number, int | float) and not isinstance(number, bool)
        for form in (".3f", "+.3f", ".1f", ".0f")
    }
    known |= {str(number) for number in stored}
    # Names and versions have digits of their own.
    names = [name for name in stored if isinstance(name, str) and re.search(r"\d", name)]
    sentences = {found["text"] for found in json.loads((folder / "results.json").read_text())["findings"]}
    text = visible_text((folder / "report.html").read_text())
    for name in sorted(set(names) - sentences, key=len, reverse=True):
        text = text.replace(name, " ")
    numbers = re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e-?\d+)?", text)
    assert len(numbers) > 100
    assert [number for number in numbers if number not in known and number.lstrip("+-") not in known] == []
    # The test can fail.
    assert "0.1234567" not in known


def test_sentences_hold_the_values_that_they_name(report):
    for found in report[2]["findings"]:
        for number in re.findall(r"(?<![\w.])[-+]?\d+(?:\.\d+)?", found["text"]):
            values = [value for value in found["values"].values() if isinstance(value, int | float)]
            assert any(
                float(number) == pytest.approx(value, abs=6e-4) or float(number) == round(value, 1) for value in values
            )


def test_page_needs_no_network(report):
    page = (report[0] / "report.html").read_text()
    assert not re.search(r"https?://|<script|<link|@import", page)
    pictures = re.findall(r'<img alt="([^"]*)" src="data:image/png;base64,([^"]*)">', page)
    assert [name.partition(":")[0] for name, _ in pictures] == [
        "Accuracy",
        "How episodes end",
        "Gradient mass",
        "Gradient cosines",
    ]
    for _, data in pictures:
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"))
        assert min(pixels.shape) > 200 and pixels.std() > 5
    assert "<td" in page and page.count("<tr>") == page.count("</tr>")


def test_measures(report):
    _, config, summary = report
    by_name = {cell["name"]: cell for cell in summary["cells"]}
    steady, falling = (by_name[f"arithmetic-tiny-voting-{sharing}"] for sharing in ("shared", "isolated"))
    assert steady["base"]["mean"] == pytest.approx(0.3, abs=0.03)
    assert steady["peak"]["mean"] == pytest.approx(0.6, abs=0.03) and steady["cliffs"] == 0
    assert falling["cliffs"] == config.num_seeds and falling["drop"]["mean"] == pytest.approx(0.27, abs=0.05)
    assert falling["peak"]["low"] <= falling["peak"]["mean"] <= falling["peak"]["high"]
    for cell in summary["cells"]:
        for measure in ("peak", "final", "base"):
            assert cell["gain"]["mean"] == pytest.approx(cell["final"]["mean"] - cell["base"]["mean"], abs=1e-5)
            assert len(cell[measure]["by_seed"]) == config.num_seeds
        ends = cell["outcomes"]["final"]
        assert sum(outcome["mean"] for outcome in ends.values()) == pytest.approx(1, abs=1e-5)
    warning = summary["warnings"]["update_kl"]
    assert warning["cliffs"] == warning["hits"] == warning["alarms"] == config.num_seeds
    assert warning["precision"] == warning["recall"] == 1 and warning["lead"] > 0
    silent = summary["warnings"]["clip_fraction"]
    assert silent["alarms"] == silent["hits"] == 0 and silent["cliffs"] == config.num_seeds


@pytest.mark.parametrize(
    ("alarms", "cliffs", "hits", "told"),
    [
        (2, 0, 0, "2 alarms, and no cliff."),
        (0, 1, 0, "no alarm, 1 cliff."),
        (1, 3, 1, "1 alarm, 3 cliffs, 1 of them with an alarm before, on average 4.0 updates ahead."),
    ],
)
def test_early_warnings_in_words(report, alarms, cliffs, hits, told):
    quality = {"level": 0.2, "alarms": alarms, "cliffs": cliffs, "hits": hits, "lead": 4.0}
    found = find(report[2] | {"warnings": {"clip_fraction": quality}})
    assert found[-1]["text"] == f"Early warning by a role's clip fraction above 0.2: {told}"


@pytest.mark.parametrize(
    ("by_seed", "told"),
    [
        ([0.002], "within 0.050 of zero"),
        ([-0.007, -0.01], "within 0.050 of zero"),
        ([0.3], "have a part in common"),
        ([-0.3, -0.3], "in this run their steps go apart"),
        ([-0.3, -0.2, -0.3, -0.2, -0.3], "they pull one policy apart"),
        ([-0.9, 0.4, -0.9, 0.5, 0.5], "in this run their steps go apart"),
    ],
)
def test_cosines_in_words(report, by_seed, told):
    cell = next(cell for cell in report[2]["cells"] if cell["sharing"] == "shared" and cell["multi_agent"])
    changed_cell = cell | {"role_cosine": {"a-b": describe(np.asarray(by_seed))}}
    texts = [found["text"] for found in find(report[2] | {"cells": [changed_cell]})]
    (text,) = (text for text in texts if "cosine" in text)
    assert told in text and ("[" in text) == (len(by_seed) > 1)


def test_cost_without_what_is_paid_once():
    result = synthetic_cell(SMALL, ablation_cells(SMALL)[0])

    def cost(**times):
        changed_times = result.times | times
        return summarize(SMALL, [dataclasses.replace(result, times=changed_times)], VERSIONS)["cells"][0]["cost"]

    assert cost()["episodes_per_s"] == pytest.approx(512 / 2.25, abs=1e-3)
    quiet = cost(updates=2.0)
    assert quiet["episodes_per_s"] == 256 and quiet["tokens_per_s"] == 2048 and quiet["train_seconds"] == 2.25
    assert cost(updates=0.0, episodes=0.0, tokens=0.0)["episodes_per_s"] is None


def test_updates_are_whole_and_the_legend_lies_outside():
    config = changed(SMALL, iterations=3, workflows=("voting",))
    figure = accuracy_figure(synthetic_results(config), "title")
    figure.canvas.draw()
    (panel,) = (axes for axes in figure.axes if axes.get_visible())
    assert all(tick == round(tick) for tick in panel.get_xticks()) and panel.get_legend() is None
    renderer = figure.canvas.get_renderer()
    below = figure.legends[0].get_window_extent(renderer)
    assert not below.overlaps(panel.get_window_extent(renderer))


def test_names_that_are_no_formulas():
    """Of users: with dollars, of several lines, very long; and more curves than colours."""
    cell = ablation_cells(changed(SMALL, workflows=("orch_workers",)))[0]
    result = synthetic_cell(SMALL, cell)
    names = (r"$\bad{$", "two\nlines $x_1$", "long " * 40, "fourth")
    few = {
        name: values if name.startswith("slot") or values.ndim == 2 else np.concatenate([values, values[:, :, :1]], 2)
        for name, values in result.diagnostics.items()
    }
    cosine = few["role_gradient_cosine"]
    few["role_gradient_cosine"] = np.concatenate([cosine, cosine[..., :1]], 3)
    bad = dataclasses.replace(
        result, cell=dataclasses.replace(cell, workflow=r"my:$\bad{$" * 20), roles=names, diagnostics=few
    )
    for figure in (
        accuracy_figure([bad], "title"),
        outcome_figure([bad], 3, r"$\frac{$"),
        mass_figure([bad], "title"),
        cosine_figure([bad], "title"),
    ):
        assert figure is not None
        figure.canvas.draw()
        for panel in figure.axes:
            # The names leave room for the curves.
            assert panel.get_window_extent().width > 0.3 * figure.bbox.width / 2


def test_verdicts(report):
    _, config, summary = report
    pairs = {(pair["kind"], pair["workflow"], pair["sharing"]): pair for pair in summary["comparisons"]}
    assert len(pairs) == 3 + 6
    falling = pairs["isolated - shared", "voting", "isolated"]
    text = " ".join(found["text"] for found in summary["findings"])
    if config.num_seeds < 5:
        assert {pair["verdict"] for pair in pairs.values()} == {"too few seeds"}
        assert "cannot tell an effect from chance" in text
    else:
        assert falling["verdict"] == "lower" and falling["final"]["mean"] < -0.15
        assert pairs["isolated - shared", "eval_opt", "isolated"]["verdict"] in ("open", "higher", "lower")
        assert "cannot tell" not in text


def test_table_for_spreadsheets(report):
    folder, config, summary = report
    rows = list(csv.DictReader((folder / "results.csv").read_text().splitlines()))
    assert [row["workflow"] for row in rows] == [cell["workflow"] for cell in summary["cells"]]
    assert float(rows[0]["peak"]) == summary["cells"][0]["peak"]["mean"]
    assert all(row["seeds"] == str(config.num_seeds) for row in rows)


def test_what_is_no_number():
    described = describe(np.asarray([np.nan, 0.5, 0.7]))
    assert described["mean"] == pytest.approx(0.6) and described["by_seed"] == [None, 0.5, 0.7]
    assert describe(np.asarray([np.nan]))["low"] is None
    lone = describe(np.asarray([np.nan, 0.5]))
    assert lone["mean"] == 0.5 and lone["low"] is None and lone["high"] is None
    config = changed(SMALL, workflows=("single",))
    result = synthetic_cell(config, ablation_cells(config)[0])
    result.diagnostics["total_loss"][3, 1] = np.nan
    summary = summarize(config, [result], VERSIONS)
    assert summary["cells"][0]["diverged"] == 1 and summary["comparisons"] == []
    json.dumps(summary, allow_nan=False)


def test_control_alone(tmp_path):
    config = changed(SMALL, workflows=("single",), iterations=1, eval_every=3, num_seeds=1)
    results = [synthetic_cell(config, cell) for cell in ablation_cells(config)]
    summary = write_report(tmp_path, config, results, [*VERSIONS, VERSIONS[0] | {"jax": "0.11.0"}])
    page = (tmp_path / "report.html").read_text()
    assert "Gradient mass" not in page
    assert summary["versions"]["jax"] == "0.10.2" and [later["jax"] for later in summary["later_versions"]] == [
        "0.11.0"
    ]
    assert visible_text(page.partition("Resumed with others")[2]).split()[-2:] == ["jax", "0.11.0"]


def test_a_third_way_of_sharing(tmp_path):
    config = changed(SMALL, workflows=("voting", "single"), sharing=WAYS, iterations=3, num_seeds=1)
    summary = write_report(tmp_path, config, synthetic_results(config), VERSIONS)
    # One seed has no interval, whatever reads it.
    assert {pair["final"][end] for pair in summary["comparisons"] for end in ("low", "high")} == {None}
    text = " ".join(found["text"] for found in summary["findings"])
    assert "at the peak (one seed)." in text and "one seed, and so no interval" in text and "[" not in text
    row = next(csv.DictReader((tmp_path / "results.csv").read_text().splitlines()))
    assert row["final_low"] == row["final_high"] == "" != row["final"]
    kinds = [pair["kind"] for pair in summary["comparisons"]]
    assert kinds == ["isolated - shared", "adapters - shared", "adapters - isolated", *["team - single"] * 3]
    assert "LoRA less IP" in visible_text((tmp_path / "report.html").read_text())


def test_board(tmp_path, monkeypatch):
    written = {}

    class Board:
        def __init__(self, folder):
            assert folder == str(tmp_path)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_scalar(self, tag, value, step):
            written[tag, step] = value

    monkeypatch.setattr("tensorboardX.SummaryWriter", Board)
    config = changed(SMALL, num_seeds=3, iterations=5)
    result = synthetic_cell(config, ablation_cells(config)[0])
    result.diagnostics["total_loss"][4] = np.nan
    write_board(tmp_path, result)
    assert written["evaluation/accuracy", 4] == pytest.approx(result.accuracy[4].mean())
    assert written["accuracy_by_seed/2", 5] == pytest.approx(result.accuracy[5, 2])
    share = result.diagnostics["role_gradient_share"]
    assert written["train/role_gradient_share/aggregator", 3] == pytest.approx(share[2, :, 1].mean())
    assert written["train/role_gradient_cosine/generator-aggregator", 1] == pytest.approx(-0.2)
    assert ("train/total_loss", 4) in written and ("train/total_loss", 5) not in written
    assert written["train/slot_gradient_norm/3", 1] == 1
