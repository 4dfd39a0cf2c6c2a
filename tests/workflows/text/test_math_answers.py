from fractions import Fraction

import pytest

from jaxmarl_llm.workflows.text.tasks.math_answers import (
    extract_answer,
    is_marked,
    is_number,
    parse_number,
    same_answer,
)

NUMBERS = {
    1234: ["1,234", "1234", "1234.0", "$1,234", "$1,234.00", "1.234e3", "1{,}234", r"1\,234", r"\$1234", "**1234**"],
    Fraction(1, 2): ["1/2", "0.5", ".5", "0.50", r"\frac{1}{2}", r"\dfrac{2}{4}", "5e-1", "1 / 2", "0.5 hours"],
    Fraction(3, 2): ["1 1/2", "1.5", "3/2", "+1.5"],
    -3: ["-3", "- 3", "\u22123", "(-3)", "x = -3", "-$3", "$-3", "-3 degrees", "-6/2"],
    50: ["50%", "50 percent", "50", r"50\%"],
    12: ["12 apples", "12 km/h", "12 m^2", r"12\text{ cm}^{3}", "5 + 7 = 12", r"\text{12 apples}", "12."],
    12345678: ["12,345,678"],
}
NO_NUMBERS = [
    "",
    "none",
    "3 or 4",
    "3, 4",
    "1/0",
    "10-3",
    "2^10",
    "7 of 8",
    "1,23",
    "1,234,56",
    "3.14.15",
    "12:30",
    "A12",
]


@pytest.mark.parametrize("value", NUMBERS)
def test_forms_of_one_number(value):
    for text in NUMBERS[value]:
        assert parse_number(text) == value, text
        assert same_answer(text, str(value))
        assert not same_answer(text, str(value + Fraction(1, 10**9)))


@pytest.mark.parametrize(
    "text", [*NO_NUMBERS, "1e999999999", "9" * 500, "1/" + "9" * 500, "\u0663", "nan", "inf", "__import__('os')"]
)
def test_no_number_or_more_than_one(text):
    assert parse_number(text) is None
    assert not same_answer(text, text)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I have 3 apples. The answer is 5.", "5"),
        ("First 2. Then\n#### 1,000 apples\nnot 7", "1000"),
        ("#### 4 and later \\boxed{5}", "5"),
        ("so \\boxed{3}, no, \\boxed{\\frac{1}{2}}", "1/2"),
        ("write \\boxed{}: #### 6", "6"),
        ("\\boxed{3, 4}", ""),
        ("\\boxed{x} = 4", ""),
        ("#### many, 7 or 8\n9", ""),
        ("10 - 3", "3"),
        ("(10) -3", "3"),
        ("it is -4 degrees", "-4"),
        ("from 5-7", "7"),
        ("total: $1,250.00.", "1250"),
        ("\\boxed{7", "7"),
        ("\\boxed{\\boxed{8}}", "8"),
        ("nothing", ""),
        ("", ""),
    ],
)
def test_which_number_is_the_answer(text, answer):
    assert extract_answer(text) == answer


def test_what_marks_an_answer():
    assert is_marked("\\boxed{5}") and is_marked("#### 5")
    assert not is_marked("5") and not is_marked("\\boxed{}") and not is_marked("#### none")


@pytest.mark.parametrize(
    "part", ["1,", "-", "1 ", "\\boxed{", "{", "1", " ", "\n", "\\frac{", "\\boxed{}", "1 1 1/", "- ", "#### ", "$"]
)
def test_long_texts_take_no_time(part):
    # Any that took more than linear time would take minutes.
    extract_answer(part * (200_000 // len(part)))
    parse_number(part * (20_000 // len(part)))


@pytest.mark.parametrize("text", ["99", " -7.\n", "1,234", "3/4", "99 "])
def test_a_number_and_nothing_else(text):
    assert is_number(text)


@pytest.mark.parametrize("text", ["", "The answer is 99.", "90 + 9 = 99", "99 99", "99 apples", "\\boxed{}", "."])
def test_more_than_a_number(text):
    assert not is_number(text)
