import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch
from PIL import Image

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.report import draw_workflow
from jaxmarl_llm.workflows import PROBLEM, Call, Last, Loop, Slot, Solution, Until, Workflow, make_workflow


@pytest.mark.parametrize(
    ("workflow", "texts", "arrows"),
    [
        (make_workflow("single"), {"generator", "writes: solution"}, 2),
        # Problem to both, attempt to the evaluator and, later, back, verdict back, answer.
        (make_workflow("eval_opt", rounds=5), {"up to 5 rounds, until evaluator says correct", "last round"}, 6),
        (make_workflow("eval_opt", rounds=1), {"one round, until evaluator says correct"}, 6),
        (make_workflow("voting", n=7), {"generator x 7", "<1> … <7>", "the solution\nit names"}, 4),
        (make_workflow("orch_workers", n=2), {"worker x 2", "its part", "<1> <2>"}, 6),
        # The problem to all three, instructions, reports back, all to the answerer, answer.
        (make_workflow("coordinator", n=2, rounds=3), {"worker x 2", "writes: instructions", "up to 3 rounds"}, 7),
        (
            Workflow(
                "three",
                (
                    Call("solver", prompt=(PROBLEM,), writes=Solution(), name="x"),
                    Call("solver", prompt=(Slot("x"),), writes=Solution(), name="y"),
                    Call("judge", prompt=(Slot("x"), Slot("y")), writes=Solution(), name="z"),
                ),
                answer=Last("y"),
            ),
            {"x", "y", "z", "role: solver\nwrites: solution", "role: judge\nwrites: solution"},
            5,
        ),
    ],
)
def test_a_picture_shows_calls_and_what_they_read(tmp_path, workflow, texts, arrows):
    path = tmp_path / "new" / "graph.png"
    figure = draw_workflow(workflow, path)
    axes = figure.axes[0]
    assert texts | {"problem", "answer"} <= {text.get_text() for text in axes.texts}
    assert sum(isinstance(patch, FancyArrowPatch) for patch in axes.patches) == arrows
    # Nothing lies outside the picture, and the picture is not empty.
    renderer = figure.canvas.get_renderer()
    for text in axes.texts:
        box = text.get_window_extent(renderer)
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1
    assert np.asarray(Image.open(path).convert("L")).std() > 5


def test_dollars_are_no_formulas(tmp_path):
    # As a formula, which lacks a brace, it could not be drawn.
    name = "$\\frac{$"
    call = Call(f"role {name}", prompt=(PROBLEM,), writes=Solution(), name=name)
    path = tmp_path / "x.png"
    draw_workflow(Workflow(name, (Loop(call, rounds=2, until=Until(name, name)),), answer=Last(name)), path)
    assert path.is_file()


@pytest.mark.parametrize(
    ("workflow", "path", "message"),
    [
        (make_workflow("single"), "x.pnh", "unknown picture format 'pnh': did you mean png"),
        (make_workflow("single").calls[0], None, "workflow must be Workflow, got Call"),
    ],
)
def test_refused(workflow, path, message):
    with pytest.raises(UserError, match=message):
        draw_workflow(workflow, path)
