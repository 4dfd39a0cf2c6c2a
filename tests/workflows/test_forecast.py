"""Time left of an ablation, from a clock that the test turns."""

import dataclasses
import math

import pytest
from workflows.synthetic_cells import SMALL, changed

from jaxmarl_llm.workflows.ablation.forecast import MODEL_PHASES, PHASES, Forecast, phases_of
from jaxmarl_llm.workflows.ablation.loop import ablation_cells
from jaxmarl_llm.workflows.ablation.model_matrix import ModelAblation

WORK = {"preparing": 1, "pretraining": 1, "compiling": 4, "training": 7}  # of the whole study


def test_time_left():
    """A machine on which all takes twice as long as expected, but for training, which takes three times as long."""
    cells, now = ablation_cells(SMALL), [0.0]
    forecast = Forecast(cells, clock=lambda: now[0])
    seconds = {name: (3 if name == "training" else 2) * of_phase for name, of_phase in PHASES.items()}
    left = sum(seconds[name] * WORK[name] for name in PHASES)
    assert forecast.left == math.inf and forecast.done == 0.0
    seen = set()
    for cell in cells:
        for name in PHASES:
            unit = (name, cell.workflow if name == "compiling" else cell if name == "training" else "")
            for share in (0.0, 0.5, 1.0):
                if unit not in seen and share:
                    now[0] += seconds[name] / 2
                    left -= seconds[name] / 2
                forecast.advance(cell, name, share if unit not in seen else 1.0)
                if "training" in {done for done, _ in seen}:
                    assert forecast.left == pytest.approx(left), (cell, name)
            seen.add(unit)
    assert forecast.left == 0.0 and forecast.done == pytest.approx(1.0)


def test_nothing_is_said_before_training_was_measured():
    """Programs may come from a cache: how long they take tells nothing of the updates."""
    cells, now = ablation_cells(SMALL), [0.0]
    phases = phases_of(changed(SMALL, iterations=400, num_seeds=2))
    forecast = Forecast(cells, clock=lambda: now[0], phases=phases)
    for phase in ("preparing", "pretraining", "compiling"):
        now[0] += 1.0
        forecast.advance(cells[0], phase, 1.0)
        assert forecast.left == math.inf
    # The first evaluation is no update.
    now[0] += 100.0
    forecast.advance(cells[0], "training", 0.0)
    assert forecast.left == math.inf
    now[0] += 10.0
    forecast.advance(cells[0], "training", 0.1)
    assert forecast.left == pytest.approx(90.0 + 100.0 * (WORK["training"] - 1) + 101.0 * (WORK["compiling"] - 1))
    whole = sum(phases[name] * WORK[name] for name in PHASES)
    assert forecast.done == pytest.approx(
        (PHASES["preparing"] + PHASES["pretraining"] + PHASES["compiling"] + 30) / whole
    )


@pytest.mark.parametrize(("config", "of_kind"), [(SMALL, PHASES), (ModelAblation(model="m"), MODEL_PHASES)])
def test_training_takes_as_long_as_its_updates_are_many(config, of_kind):
    long = phases_of(dataclasses.replace(config, iterations=config.iterations * 10))
    assert long["training"] == pytest.approx(10 * phases_of(config)["training"]) and long.keys() == of_kind.keys()
