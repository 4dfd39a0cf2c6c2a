import io

import pytest
from rich.console import Console

from jaxmarl_llm.errors import plural
from jaxmarl_llm.training import progress


def test_the_time_left_comes_from_updates_after_the_first(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    file = io.StringIO()
    reporter = progress.TerminalReporter(Console(file=file, width=100), "title")
    with reporter.compiling():
        assert file.getvalue().startswith("title\n")
    reporter.start(0, 1000, 7.0)
    # An evaluation and a first update of fifty seconds, then one second an update of 10 steps and two seeds.
    now[0] += 50.0
    shown = []
    for update in range(1, 12):
        reporter.advance(10 * update, 20, 50.0 if update == 1 else 1.0, float("nan"))
        reporter.evaluated(10 * update, 3.0, 2.0, 4.0)
        shown.append(file.getvalue().splitlines()[-1])
        now[0] += 1.0
    assert not any("left" in line or "/s" in line for line in shown[:4])
    assert shown[-1] == " 11 %  110 steps  20/s  eval 3  1m 29s left"


@pytest.mark.parametrize(("count", "text"), [(0, "0 seeds"), (1, "1 seed"), (2, "2 seeds"), (1234, "1,234 seeds")])
def test_plural(count, text):
    assert plural(count, "seed") == text
