"""Time left of an ablation, from a clock that the test turns."""

import math

import pytest
from workflows.synthetic_cells import SMALL

from jaxmarl_llm.workflows.ablation.forecast import PHASES, Forecast
from jaxmarl_llm.workflows.ablation.loop import ablation_cells

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


def test_a_first_guess():
    """Before a phase has been measured, its share of what is expected is taken to be as slow as the others."""
    cells, now = ablation_cells(SMALL), [0.0]
    forecast = Forecast(cells, clock=lambda: now[0])
    now[0] = 5 * PHASES["preparing"]
    forecast.advance(cells[0], "preparing", 1.0)
    whole = sum(PHASES[name] * WORK[name] for name in PHASES)
    assert forecast.left == pytest.approx(5 * (whole - PHASES["preparing"]))
    # What a cell has found done already counts as done.
    forecast.advance(cells[0], "training", 0.0)
    assert forecast.done == pytest.approx(sum(PHASES[name] for name in PHASES if name != "training") / whole)
