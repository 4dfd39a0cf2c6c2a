"""How replies of each kind of message are read."""

import dataclasses

import pytest
from workflows.text.toy_text import Sums

from jaxmarl_llm.workflows import Choice, Message, Solution, Strategies, Synthesis, Verdict
from jaxmarl_llm.workflows.text import Reading, read_reply


def read(message, text, written=(True, True, False)):
    return read_reply(message, text, task=Sums(), written=written)


@pytest.mark.parametrize("message", [Solution(), Synthesis("solver")])
def test_solutions_are_the_task_s(message):
    assert read(message, "it is 4") == Reading("it is 4", True)
    assert read(message, "no idea") == Reading("no idea", False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("correct", "correct"),
        ("\\boxed{Correct}.", "correct"),
        ("INCORRECT!", "incorrect"),
        ("At first it looks correct, but it is incorrect", "incorrect"),
        ("not incorrect at first ... correct", "correct"),
        ("This is not correct.", "incorrect"),
        ("correctly solved", None),
        ("", None),
        ("Yes.", "correct"),
        ("no", "incorrect"),
        ("No, it is correct", "correct"),
        ("yes and no", None),
    ],
)
def test_the_last_verdict_counts(text, says):
    assert read(Verdict("solver"), text) == Reading(says, says is not None)


@pytest.mark.parametrize(
    ("text", "copy"),
    [
        ("2", 1),
        ("\\boxed{1} rather than 2", 0),
        ("\\boxed{2} no, \\boxed{ 1 }", 0),
        ("Solution 1 is wrong, so 2.", 1),
        # No number of a solution that was written: the third was not, and there is none before the first.
        ("3", None),
        ("4", None),
        ("0", None),
        ("-1", None),
        ("1.5", None),
        ("x2", None),
        ("the first", None),
        ("\\boxed{7} or 1", None),
        ("9" * 5000, None),
    ],
)
def test_the_boxed_number_or_the_last_one_chooses(text, copy):
    assert read(Choice("solver"), text) == Reading(copy, copy is not None)


@pytest.mark.parametrize(
    ("text", "parts", "format_ok"),
    [
        ("STRATEGY 1: add\nSTRATEGY 2: count up", {0: "add", 1: "count up"}, True),
        ("Here:\n**Strategy 1:** add\n- strategy 2. count", {0: "add", 1: "count"}, True),
        ("STRATEGY 2: count", {1: "count"}, False),
        ("STRATEGY 1: add\nSTRATEGY 1: count", {0: "add"}, False),
        ("STRATEGY 1: a\nSTRATEGY 2: b\nSTRATEGY 3: c\nSTRATEGY 4: d", {0: "a", 1: "b", 2: "c"}, False),
        ("STRATEGY 1:\nSTRATEGY 2: ...", {}, False),
        ("add them", {}, False),
        (f"STRATEGY {'9' * 5000}: add", {}, False),
    ],
)
def test_strategies_are_lines(text, parts, format_ok):
    assert read(Strategies(3), text) == Reading(parts, format_ok)


def test_a_form_of_one_s_own_is_registered():
    @dataclasses.dataclass(frozen=True)
    class Rating(Message):
        is_solution = has_own_score = False
        allowed = max_length = format_ok = teacher = None  # In words none of these is needed.

    with pytest.raises(TypeError, match="Rating cannot be read in words: register it with"):
        read(Rating(), "5")

    @read_reply.register
    def _(message: Rating, text, *, task, written=()):
        return Reading(len(text), True)

    assert read(Rating(), "*****") == Reading(5, True)
