"""What the runner of cells does with programs and base policies; both are stand-ins that note how they are used."""

import numpy as np
import pytest
from workflows.synthetic_cells import changed

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.ablation import runner
from jaxmarl_llm.workflows.ablation.loop import ablation_cells
from jaxmarl_llm.workflows.ablation.matrix import SHARING, WAYS
from jaxmarl_llm.workflows.ablation.program import CellProgram

CONFIG = changed(workflows=("voting", "single"), sizes=("tiny", "small"), iterations=5, eval_every=3, num_seeds=2)


@pytest.fixture
def used(monkeypatch):
    """Notes `compiled`, `based` and `tied`; the state of a cell is its number of updates."""
    used = {"compiled": [], "based": [], "tied": []}

    def compile_cells(learner, placement, seeds, problems, *, greedy):
        used["compiled"].append((learner.team.decoder.config.hidden_size, learner.bound.workflow.name))
        num_roles = len(learner.team.roles)

        def update(state, tied):
            used["tied"].append(tied)
            reading = np.tile([3.0, 5.0][:num_roles], (len(seeds), 1))
            return Updates(state.params + 1), {"role_length": reading, "role_asked": np.ones((len(seeds), num_roles))}

        def evaluate(params, iteration):
            assert params == iteration
            return {"accuracy": np.full(len(seeds), params / 10)}

        return CellProgram(lambda base: Updates(0), update, evaluate, compile_seconds=7.0)

    def base_policy(pretraining, on_metrics, notify):
        used["based"].append(pretraining.decoder.hidden_size)
        on_metrics({"step": pretraining.num_steps})

    monkeypatch.setattr(runner, "compile_cells", compile_cells)
    monkeypatch.setattr(runner, "base_policy", base_policy)
    return used


class Updates:
    def __init__(self, number):
        self.params = number


def test_what_cells_have_in_common_is_made_once(used):
    cells = ablation_cells(CONFIG)
    train, seen = runner.make_runner(CONFIG, cells), []
    results = [train(cell, lambda *event: seen.append(event)) for cell in cells]
    assert [cell.sharing for cell in cells] == ["shared", "isolated", "shared"] * 2
    tiny, small = used["based"]
    assert used["compiled"] == [(size, name) for size in (tiny, small) for name in ("voting", "single")]
    assert used["tied"] == [tied for tied in ((0, 0), (0, 1), (0,)) * 2 for _ in range(CONFIG.iterations)]
    # Cells with the program of another cost nothing to compile.
    assert [result.times["compile"] for result in results] == [7.0, 0.0, 7.0] * 2
    for result in results:
        assert result.eval_iterations == (0, 3, 5) and result.accuracy[:, 0] == pytest.approx([0.0, 0.3, 0.5])
        assert result.diagnostics["role_length"].shape == (5, 2, len(result.roles))
        # The first update and those beside a compilation are not timed.
        episodes, update = result.times["episodes"], CONFIG.num_problems * CONFIG.group_size * CONFIG.num_seeds
        assert episodes % update == 0 and episodes <= update * (CONFIG.iterations - 1)
        assert 0 <= result.times["updates"] <= result.times["train"]
        assert result.times["tokens"] == episodes * (8.0 if len(result.roles) == 2 else 3.0)
    assert results[-1].times["episodes"] == update * (CONFIG.iterations - 1)
    assert {share for phase, share, _ in seen if phase == "pretraining"} == {1.0}
    assert seen[-1] == ("training", 1.0, pytest.approx(0.5))


@pytest.mark.parametrize(("body", "ranks"), [(None, [0, 4]), ("frozen", [4, 4])])
def test_adapters_are_another_program(used, body, ranks):
    settings = {} if body is None else {"body": body}
    ways = SHARING if body else WAYS
    config = changed(CONFIG, workflows=("voting",), sizes=("tiny",), sharing=ways, learner_args=settings)
    cells = ablation_cells(config)
    train = runner.make_runner(config, cells)
    assert [train(cell, lambda *_: None).cell.sharing for cell in cells] == list(ways)
    assert len(used["based"]) == 1 and used["tied"][:: config.iterations] == [(0, 0), (0, 1), (0, 1)][: len(ways)]
    learners = [train.learner(cell) for cell in (cells[0], cells[-1])]
    assert len(used["compiled"]) == len(ways) - 1 and [one.team.decoder.config.lora_rank for one in learners] == ranks
    assert [one.body for one in learners] == ([body] * 2 if body else ["own", "joint"])


def test_what_goes_wrong_in_the_background_comes_out(used, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    (cell,) = ablation_cells(changed(workflows=("single",)))
    monkeypatch.setattr(runner, "compile_cells", fail)
    with pytest.raises(ZeroDivisionError):
        runner.make_runner(CONFIG, [cell])(cell, lambda *_: None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("learning_rate", "an option of its own: --learning-rate"),
        ("tied", "unknown setting"),
        ("temperatur", "mean temp"),
    ],
)
def test_settings_of_the_learner(name, message):
    config = changed(learner_args={name: 1.0})
    with pytest.raises(UserError, match=message):
        runner.make_runner(config, ablation_cells(config)[:1])
