import json
import logging

import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.text.sandbox import sandbox_name
from jaxmarl_llm.workflows.text.tasks import (
    MathTask,
    TextProblem,
    make_text_task,
    register_text_task,
    text_task_names,
)
from jaxmarl_llm.workflows.text.tasks.examples import PROBLEMS, write_example_files

GSM8K = {"question": "Ann has 1,000 coins and gets 234. How many now?", "answer": "1000+234=1234\n#### 1,234"}
MBPP = {
    "task_id": 1,
    "text": "Write a function to add two numbers.",
    "code": "def add(a, b):\n    return a + b",
    "test_setup_code": "TWO = 2",
    "test_list": ["assert add(1, TWO) == 3", "assert add(-1, 1) == 0"],
}
HUMANEVAL = {
    "task_id": "Test/0",
    "prompt": 'import math\n\ndef helper(x):\n    return x + 1\n\ndef area(r: float) -> float:\n    """Area."""\n',
    "entry_point": "area",
    "canonical_solution": "    return math.pi * r * r\n",
    "test": "def check(candidate):\n    assert math.isclose(candidate(2.0), 12.566, abs_tol=1e-3)\n"
    "    assert helper(1) == 2\n",
}


@pytest.fixture
def protected():
    try:
        sandbox_name()
    except UserError as error:
        pytest.skip(str(error))


def block(code, words="Here it is:"):
    return f"{words}\n```python\n{code}\n```\nDone."


def write(path, records):
    path.write_text(
        "".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in records), encoding="utf-8"
    )
    return path


def only(task):
    (problem,) = task.train + task.held_out
    return problem


@pytest.mark.parametrize(
    "settings",
    [
        {"digits": 1, "style": "bare", "num_train": 200, "num_held_out": 20},
        {"digits": 3, "level": 3, "operations": "+-*/"},
        {"digits": 2, "level": 2, "operations": "/", "num_train": 50, "num_held_out": 5},
        {"digits": 2, "style": "bare", "operations": "-", "seed": 5},
    ],
)
def test_arithmetic(settings):
    task = make_text_task("arithmetic_words", **settings)
    assert (len(task.train), len(task.held_out)) == (settings.get("num_train", 1024), settings.get("num_held_out", 128))
    prompts = [problem.prompt for problem in task.train + task.held_out]
    assert len(set(prompts)) == len(prompts)
    assert len({problem.name for problem in task.train + task.held_out}) == len(prompts)
    for problem in task.train[:200]:
        assert task.score(problem, f"so it is \\boxed{{{problem.target}}}") == 1.0
        assert task.score(problem, f"so it is \\boxed{{{int(problem.target) + 1}}}") == 0.0
        if settings.get("style") == "bare":
            # The generator's own text, by another way than the generator's.
            assert eval(problem.prompt.removeprefix("What is ").removesuffix("?")) == int(problem.target)
        else:
            assert int(problem.target) >= 0
    assert task == make_text_task("arithmetic_words", **settings)
    assert task.train == make_text_task("arithmetic_words", **settings).train


def test_held_out_problems_do_not_depend_on_the_seed():
    first, second = (make_text_task("arithmetic_words", digits=1, style="bare", seed=seed) for seed in (0, 1))
    assert not {one.prompt for one in first.train} & {one.prompt for one in second.held_out}
    assert first.train != second.train


@pytest.mark.usefixtures("protected")
def test_list_functions():
    task = make_text_task("list_functions", num_train=12, num_held_out=3, level=3)
    problems = task.train + task.held_out
    right = [(one, block(one.target.solution)) for one in problems]
    empty = [(one, block("def solve(numbers):\n    return []")) for one in problems]
    wrong = [
        (problems[0], ""),
        (problems[0], "def solve(numbers): ..."),
        (problems[0], block("def other():\n    pass")),
    ]
    scores = task.score_many([*right, *empty, *wrong], workers=4)
    assert scores[: len(right)] == [1.0] * len(right)
    assert scores[len(right) :] == [0.0] * (len(empty) + len(wrong))
    assert task.needs_host and task.sandbox_name() != "none"
    assert not {one.prompt for one in task.train} & {one.prompt for one in task.held_out}


def test_what_is_the_answer_in_code():
    task = make_text_task("list_functions", num_train=1, num_held_out=1)
    code = "def solve(x):\n    return x"
    assert task.answer(block(code)) == code
    assert task.answer(block("def first():\n    pass") + block(code) + block("print(solve(1))")) == code
    assert task.answer(f"```\n{code}\n```") == code
    assert task.answer(f"```python\n{code}") == code
    assert task.answer(code) == ""
    assert task.format_ok(block(code))
    assert not task.format_ok(code) and not task.format_ok(f"```python\n{code}") and not task.format_ok(block("x = 1"))


@pytest.mark.usefixtures("protected")
def test_partial_scores():
    for partial, score in ((False, 0.0), (True, 0.5)):
        task = make_text_task("list_functions", num_train=1, num_held_out=1, partial=partial)
        problem = TextProblem("", "", type(task.train[0].target)(("assert f(1) == 1", "assert f(2) == 4")))
        assert task.score(problem, block("def f(x):\n    return x")) == score


def test_gsm8k(tmp_path):
    task = make_text_task(write(tmp_path / "math.jsonl", [GSM8K, ""]))
    problem = only(task)
    assert (problem.prompt, problem.target, problem.name) == (GSM8K["question"], "1,234", "math.jsonl:1")
    assert task.score(problem, "#### 1234.0") == 1.0
    assert task.score(problem, "#### 1233") == 0.0
    assert "\\boxed" in task.instructions and not task.needs_host


@pytest.mark.usefixtures("protected")
def test_mbpp(tmp_path):
    task = make_text_task(write(tmp_path / "code.jsonl", [MBPP]))
    problem = only(task)
    assert MBPP["test_list"][0] in problem.prompt and MBPP["test_list"][1] not in problem.prompt
    answers = [MBPP["code"], "def add(a, b):\n    return 3", "import os\nos._exit(0)"]
    assert task.score_many([(problem, block(answer)) for answer in answers]) == [1.0, 0.0, 0.0]
    sanitized = {**MBPP, "prompt": MBPP["text"], "test_imports": ["import math"]}
    sanitized.pop("text")
    assert only(make_text_task(write(tmp_path / "s.jsonl", [sanitized]), num_shown_tests=0)).prompt == MBPP["text"]


@pytest.mark.usefixtures("protected")
def test_humaneval(tmp_path):
    task = make_text_task(write(tmp_path / "code.jsonl", [HUMANEVAL]))
    problem = only(task)
    whole = "import math\ndef area(r):\n    return math.pi * r ** 2"
    answers = [
        HUMANEVAL["canonical_solution"],
        "return math.pi * r * r",
        whole,
        HUMANEVAL["prompt"] + HUMANEVAL["canonical_solution"],
        "    return 12.0",
        "    pass",
        # Helpers of the prompt are the judge's own.
        whole + "\ndef helper(x):\n    return 7",
    ]
    scores = task.score_many([(problem, block(answer)) for answer in answers])
    assert scores == [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object"),
        ('{"question": "2?"}', "line 2: needs the keys question, answer"),
        ('{"question": 3, "answer": "#### 3"}', "line 2: question must be text, got 3"),
        ('{"question": "2?", "answer": "two"}', 'line 2: answer must end in "#### "'),
        ('{"question": "2?", "answer": "#### 1 or 2"}', "line 2: answer must end in"),
        ({**MBPP, "test_list": []}, "line 2: test_list has no test"),
        ({**MBPP, "test_list": "assert add(1, 1) == 2"}, "line 2: test_list must be a list of texts"),
        ({**MBPP, "test_list": ["assert add(1, 1) =="]}, "line 2: a test of test_list is not Python"),
        ({**HUMANEVAL, "prompt": "def area(r"}, "line 2: prompt is not Python"),
        ({**HUMANEVAL, "entry_point": "a b"}, "line 2: entry_point must be the name of a function"),
        ('{"question": "2?", "answer": ' + "9" * 5000 + "}", "line 2: a number has more than 4300 digits;"),
        ('{"question": "2?", "answer": "#### ' + "9" * 5000 + '"}', "line 2: answer must end in"),
        ({**MBPP, "test_list": ["assert f() == " + "9" * 5000]}, r"line 2: .* not Python .a number has more than 4300"),
        ({**GSM8K, "answer": "#### 7001"}, "line 2: the question of line 1 has the answer 7001 here, and .* there"),
        ("[" * 100_000, "line 2: it is nested too deeply"),
        ('{"question": "\\ud800 how much is 0", "answer": "#### 1"}', "line 2: question holds half of a character"),
        ({**MBPP, "test_list": ["assert '\ud800'"]}, "line 2: test_list holds half of a character"),
    ],
)
def test_malformed_lines(tmp_path, line, message, caplog):
    good = HUMANEVAL if "prompt" in line else MBPP if "text" in line else GSM8K
    path = write(tmp_path / "problems.jsonl", [good, line, {**good, "task_id": 2}, "{"])
    with pytest.raises(UserError, match="problems.jsonl, " + message) as error:
        make_text_task(path)
    assert "\n" not in str(error.value) and "skip_malformed=true" in str(error.value)
    with caplog.at_level(logging.WARNING):
        task = make_text_task(path, skip_malformed=True)
    assert len(task.train + task.held_out) == 2
    assert task.num_left_out == 2
    assert "2 lines malformed and left out" in caplog.text


def test_bad_files(tmp_path):
    with pytest.raises(UserError, match=r"cannot read problems from .*none.jsonl: No such file"):
        make_text_task(tmp_path / "none.jsonl")
    with pytest.raises(UserError, match="the path of problems must be the name of a file"):
        make_text_task("a\0b.jsonl")
    with pytest.raises(UserError, match="has no problem"):
        make_text_task(write(tmp_path / "empty.jsonl", [""]))
    with pytest.raises(UserError, match="held_out_path must be text or PathLike"):
        make_text_task(tmp_path / "empty.jsonl", held_out_path=3)
    with pytest.raises(UserError, match=r"mixes shapes: line 1 is as in GSM8K, line 2 as in MBPP"):
        make_text_task(write(tmp_path / "mixed.jsonl", [GSM8K, MBPP]))
    with pytest.raises(UserError, match=r"has no problem: .*line 1: not JSON"):
        make_text_task(write(tmp_path / "bad.jsonl", ["{"]), skip_malformed=True)
    (tmp_path / "latin.jsonl").write_bytes('{"question": "caf\xe9", "answer": "#### 1"}'.encode("latin-1"))
    with pytest.raises(UserError, match="line 1: not UTF-8"):
        make_text_task(tmp_path / "latin.jsonl")
    with pytest.raises(UserError, match="problems of another kind"):
        make_text_task(write(tmp_path / "a.jsonl", [GSM8K]), held_out_path=write(tmp_path / "b.jsonl", [MBPP]))


def test_a_file_of_held_out_problems(tmp_path, caplog):
    records = [{**GSM8K, "question": f"What is {number}?"} for number in range(64)]
    task = make_text_task(write(tmp_path / "all.jsonl", records))
    assert len(task.train) + len(task.held_out) == 64 and 2 <= len(task.held_out) <= 16
    held_out = write(tmp_path / "held_out.jsonl", [*records[:3], {**GSM8K, "question": "Other?"}])
    task = make_text_task(tmp_path / "all.jsonl", held_out_path=held_out)
    assert (len(task.train), len(task.held_out)) == (61, 4)
    assert "3 problems left out of training" in caplog.text


def test_answers_of_a_file_with_and_without_working(tmp_path):
    path = write(tmp_path / "math.jsonl", [GSM8K])
    assert "step by step" in make_text_task(path).instructions
    for task in (make_text_task(path, working=False), make_text_task("math_examples", working=False)):
        assert task.instructions == make_text_task("arithmetic_words", working=False).instructions
        assert task.format_ok("12") and not task.format_ok("It is \\boxed{12}")
    with pytest.raises(UserError, match="must be true or false, got 'no'"):
        make_text_task(path, working="no")
    with pytest.raises(UserError, match="asks for code, which is always written as such: leave working out"):
        make_text_task(write(tmp_path / "code.jsonl", [MBPP]), working=False)


@pytest.mark.usefixtures("protected")
def test_examples_that_ship(tmp_path):
    write_example_files(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (PROBLEMS / path.name).read_bytes(), "write the example files anew"
    math, code = make_text_task("math_examples"), make_text_task("code_examples")
    for task, answers in ((math, "\\boxed{{{}}}".format), (code, lambda target: block(target.solution))):
        problems = task.train[:6] + task.held_out
        assert task.score_many([(one, answers(one.target)) for one in problems]) == [1.0] * len(problems)


def test_names_and_settings():
    assert {"arithmetic_words", "list_functions", "math_examples", "code_examples"} <= set(text_task_names())
    for settings, message in (
        ({"digit": 1}, "unknown setting of arithmetic_words 'digit': did you mean digits"),
        ({"digits": 4}, "digits must be at most 3"),
        ({"level": 0}, "level must be at least 1"),
        ({"operations": "+%"}, "unknown operation '%'"),
        ({"operations": ""}, "unknown operation"),
        ({"style": "word"}, "unknown style 'word': did you mean words"),
        ({"num_train": 0}, "num_train must be at least 1"),
        ({"working": "no"}, "setting working of arithmetic_words must be true or false, got 'no'"),
    ):
        with pytest.raises(UserError, match=message):
            make_text_task("arithmetic_words", **settings)
    with pytest.raises(UserError, match="found no problem of level 4"):
        _ = make_text_task("arithmetic_words", digits=1, level=4, operations="/").train
    with pytest.raises(UserError, match="unknown text task 'arithmetic': did you mean arithmetic_words"):
        make_text_task("arithmetic")

    class Doubles(MathTask):
        train = held_out = (TextProblem("one", "2 * 1?", "2"),)

    register_text_task("doubles", Doubles)
    task = make_text_task("doubles")
    assert task.score_many([(task.train[0], "2"), (task.train[0], "3")]) == [1.0, 0.0]
