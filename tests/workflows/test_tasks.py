import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.twins import run_stack, text_of

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.tasks import Task, make_task, register_task, task_names
from jaxmarl_llm.workflows.tasks.arithmetic import Arithmetic
from jaxmarl_llm.workflows.tasks.stack_code import StackCode
from jaxmarl_llm.workflows.tasks.stack_machine import INSTRUCTIONS, run_program

TASKS = {
    "mod10": Arithmetic(level=2),
    "whole": Arithmetic(level=2, digits=2, modulus=None, working=True),
    "brackets": Arithmetic(level=4, brackets=True, operators="+*", modulus=97, working=True),
    "stack": StackCode(level=3, num_shown=1, num_hidden=2, modulus=7, partial=True),
}
PROBLEMS = 1009


@pytest.fixture(scope="module", params=TASKS, ids=str)
def drawn(request):
    """A task, some of its problems and what teachers of skill 1, 0 and 0.3 write and earn."""
    task = TASKS[request.param]

    @jax.jit
    @jax.vmap
    def draw(key):
        problem_key, key = jax.random.split(key)
        problem = task.sample(problem_key)

        @jax.vmap
        def write(key, skill):
            completion = task.teacher(key, problem, skill)
            return completion, task.score(problem, *completion), task.format_ok(*completion)

        written, scores, formats = write(jax.random.split(key, 3), jnp.asarray([1.0, 0.0, 0.3]))
        hints = jax.vmap(lambda skill: task.hint(key, problem, skill, 1))(jnp.asarray([1.0, 0.0]))
        return problem, written, scores, formats, hints, task.is_held_out(problem)

    return task, jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(3), PROBLEMS)))


def test_lengths_and_padding(drawn):
    task, (problem, written, _, formats, hints, _) = drawn
    assert problem.tokens.shape == (PROBLEMS, task.max_problem_length)
    sizes = (task.max_answer_length, task.max_hint_length, task.max_problem_length)
    for size, (tokens, length) in zip(sizes, (written, hints, (problem.tokens, problem.length)), strict=True):
        assert tokens.shape == (*length.shape, size) and tokens.dtype == np.int32
        assert length.min() >= 1 and length.max() <= size
        inside = np.arange(size) < length[..., None]
        assert (tokens[inside] >= 2).all() and (tokens[inside] < 2 + len(task.symbols)).all()
        assert (tokens[~inside] == 0).all()
    assert formats.all()


def test_the_teachers_accuracy_is_its_skill(drawn):
    scores = drawn[1][2]
    assert (scores[:, 0] == 1).all() and (scores[:, 1] < 1).all()
    # Four standard errors.
    assert abs((scores[:, 2] == 1).mean() - 0.3) < 4 * np.sqrt(0.3 * 0.7 / PROBLEMS)


def test_training_problems_are_not_held_out(drawn):
    assert not drawn[1][5].any()


def test_python_agrees(drawn):
    task, (problem, written, scores, _, hints, _) = drawn
    for row in range(PROBLEMS):
        text = text_of(task, problem.tokens[row], problem.length[row])
        for place in range(3):
            completion = text_of(task, written[0][row, place], written[1][row, place])
            if isinstance(task, Arithmetic):
                value = eval(text)
                value = value % task.modulus if task.modulus else value
                assert (completion.split(";")[-1] == str(value)) == scores[row, place], (text, completion)
            else:
                program = [task.symbols[token - 2] for token in written[0][row, place, : written[1][row, place]]]
                expected = python_share(task, text, problem.target, row, program)
                assert scores[row, place] == pytest.approx(expected)
        if isinstance(task, Arithmetic) and task.working:
            # The second sub-expression's value is the second in a right working.
            steps = text_of(task, written[0][row, 0], written[1][row, 0]).split(";")
            right, wrong = (text_of(task, hints[0][row, place], hints[1][row, place]) for place in range(2))
            assert len(steps) == task.level and right == steps[1 % task.level] != wrong


def python_share(task, text, cases, row, program):
    outputs = []
    for case in range(task.num_shown):
        shown, output = text.split(";")[case].split(">")
        assert [int(digit) for digit in shown] == list(cases.inputs[row, case])
        assert int(output) == cases.outputs[row, case]
    hidden = [task.symbols[code] for code in cases.program[row]]
    for inputs, output in zip(cases.inputs[row], cases.outputs[row], strict=True):
        assert run_stack(hidden, inputs, task.modulus) == output
        outputs.append(run_stack(program, inputs, task.modulus) == output)
    return np.mean(outputs) if task.partial else float(all(outputs))


def test_a_program_that_passes_some_cases():
    share, every = TASKS["stack"], dataclasses.replace(TASKS["stack"], partial=False)

    @jax.jit
    @jax.vmap
    def scores(key):
        problem = share.draw(key)
        tokens = jax.random.randint(key, (4,), 2, 9)
        return share.score(problem, tokens, 2), every.score(problem, tokens, 2)

    some, all_cases = map(np.asarray, scores(jax.random.split(jax.random.key(0), 500)))
    assert (all_cases == (some == 1)).all() and ((some > 0) & (some < 1)).any() and all_cases.any()


def test_working_follows_the_usual_order():
    task = Arithmetic(level=4, working=True, modulus=None, operators="*+")

    @jax.jit
    @jax.vmap
    def draw(key):
        problem = task.draw(key)
        return problem, task.teacher(key, problem, 1.0)

    problem, written = jax.tree.map(np.asarray, draw(jax.random.split(jax.random.key(0), 23)))
    for row in range(23):
        text = text_of(task, problem.tokens[row], problem.length[row])
        products = [eval(term) for term in text.split("+") if "*" in term]
        assert set(map(str, products)) <= set(text_of(task, written[0][row], written[1][row]).split(";"))


def test_only_the_last_number_counts():
    task = TASKS["whole"]
    cases = {
        "": (0, 0),
        "ANSWER": (1, 1),
        "0ANSWER": (0, 1),
        "1;2;ANSWER": (1, 1),
        "ANSWER;": (0, 0),
        "ANSWER;1": (0, 1),
        "1+ANSWER": (0, 0),
        "*;ANSWER": (1, 0),
        "ANSWER-": (0, 0),
        "-": (0, 0),
        "--1": (0, 0),
    }
    problem = jax.jit(task.draw)(jax.random.key(1))
    answer = str(eval(text_of(task, problem.tokens, problem.length)))
    texts = [text.replace("ANSWER", answer) for text in cases]
    tokens = np.array([(task.tokens(text) + (2,) * 23)[:23] for text in texts])
    length = np.array([len(text) for text in texts])

    @jax.jit
    @jax.vmap
    def judge(tokens, length):
        return task.score(problem, tokens, length), task.format_ok(tokens, length)

    judged = dict(
        zip(cases, zip(*(np.asarray(one).tolist() for one in judge(tokens, length)), strict=True), strict=True)
    )
    assert judged == cases


def test_random_programs_run_as_in_python():
    rng = np.random.default_rng(0)
    names = [*INSTRUCTIONS, *"0123456789", "?"]
    program = rng.integers(0, len(names), (700, 5))
    # Nothing at random runs for long: most of these programs are kept to instructions that need little.
    program[:500] = rng.choice([0, 1, 2, 3, 6, 8, 13], (500, 5))
    length = rng.integers(0, 6, 700)
    inputs = rng.integers(0, 7, (700, 2))
    run = jax.jit(jax.vmap(lambda *one: run_program(*one, modulus=7)))
    codes = np.where(program == 17, rng.choice([-2, -1, 17, 10**6], program.shape), program)
    result, ok = map(np.asarray, run(codes, length, inputs))
    expected = [run_stack([names[code] for code in program[row, : length[row]]], inputs[row], 7) for row in range(700)]
    assert 100 < ok.sum() < 650
    assert [int(value) if fine else None for value, fine in zip(result, ok, strict=True)] == expected


def test_held_out_problems_are_fixed_and_distinct():
    task = TASKS["stack"]
    problems = task.held_out(37)
    rows = {tuple(row) for row in np.asarray(problems.tokens)}
    assert len(rows) == 37 and problems.length.shape == (37,)
    assert jax.vmap(task.is_held_out)(problems).all()
    fewer = dataclasses.replace(task).held_out(5)
    assert jax.tree.all(jax.tree.map(lambda few, many: (few == many[:5]).all(), fewer, problems))


def test_train_and_held_out_share_no_problem():
    task = Arithmetic(level=1)
    sampled = jax.jit(jax.vmap(task.sample))(jax.random.split(jax.random.key(0), 5000)).tokens
    trained = {tuple(row) for row in np.asarray(sampled)}
    with pytest.raises(
        UserError, match=r"Arithmetic at level 1 has about (\d+) held-out problems, not 300: .*--eval-problems"
    ) as error:
        task.held_out(300)
    count = int(str(error.value).split("about ")[1].split()[0])
    held_out = {tuple(row) for row in np.asarray(task.held_out(count).tokens)}
    assert not trained & held_out
    # 300 different sums of two digits, all on one side or the other.
    assert len(trained) + len(held_out) == 300 and 20 < count < 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllHeldOut(Arithmetic):
    """Nothing is left for training."""

    def is_held_out(self, problem):
        return jnp.ones((), bool)


def test_a_task_without_problems_for_training():
    task = AllHeldOut()
    assert jax.jit(task.sample)(jax.random.key(0)).tokens.shape == (task.max_problem_length,)
    with pytest.raises(UserError, match="all of 512 problems of AllHeldOut at level 1 are held out"):
        task.held_out(3)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("arithmetc", {}, "unknown task 'arithmetc': did you mean arithmetic"),
        ("arithmetic", {"levle": 2}, "unknown setting of arithmetic 'levle': did you mean level"),
        ("arithmetic", {"level": 0}, "level must be at least 1, got 0"),
        ("arithmetic", {"digits": 0}, "digits must be at least 1, got 0"),
        ("arithmetic", {"operators": "+/"}, "operators must be some of"),
        ("arithmetic", {"operators": ""}, "operators must be some of"),
        ("arithmetic", {"modulus": 1}, "modulus must lie between 2 and 10000, got 1"),
        ("arithmetic", {"modulus": None, "level": 8}, "values could exceed 100000000: lower level or digits"),
        ("arithmetic", {"modulus": None, "level": 10**9}, "values could exceed 100000000"),
        ("arithmetic", {"digits": 100}, "digits must be at most 8, got 100"),
        ("arithmetic", {"level": 1.5}, "level .*must be a whole number, got 1.5"),
        ("stack_code", {"modulus": 11}, "modulus must lie between 2 and 10"),
        ("stack_code", {"num_shown": 0}, "num_shown must be at least 1, got 0"),
        ("stack_code", {"num_inputs": 0}, "num_inputs must be at least 1, got 0"),
        ("stack_code", {"num_hidden": -1}, "num_hidden must be at least 0, got -1"),
        ("stack_code", {"num_hidden": 10**9}, "num_hidden must be at most 1000, got 1000000000"),
        ("stack_code", {"num_shown": 10**6}, "num_shown must be at most 100, got 1000000"),
        ("stack_code", {"num_inputs": 11}, "num_inputs must be at most 10, got 11"),
        ("stack_code", {"level": 10**6}, "level must be at most 100, got 1000000"),
        ("arithmetic", {"level": 101}, "level must be at most 100, got 101"),
    ],
)
def test_bad_settings(name, settings, message):
    with pytest.raises(UserError, match=message):
        make_task(name, **settings)


def test_tasks_by_name():
    assert {"arithmetic", "stack_code"} <= set(task_names())
    assert make_task("stack_code", level=2) == StackCode(level=2)
    with pytest.raises(UserError, match="exists already"):
        register_task("arithmetic", StackCode)
    for name, factory, message in (("nn", 3, "registered with what builds it"), ("", StackCode, "needs a name")):
        with pytest.raises(UserError, match=message):
            register_task(name, factory)
    with pytest.raises(UserError, match="held-out set, must be at least 1, got 0"):
        TASKS["mod10"].held_out(0)
    with pytest.raises(UserError, match="held-out set, must be a whole number"):
        TASKS["mod10"].held_out(1.5)
    for settings in ({"level": True}, {"digits": 1.0}, {"operators": None}, {"modulus": 7.0}, {"brackets": 1}):
        with pytest.raises(UserError, match=f"{next(iter(settings))} must be"):
            Arithmetic(**settings)
    with pytest.raises(UserError, match="unknown symbol 'x'"):
        TASKS["mod10"].tokens("1x")
    assert isinstance(TASKS["mod10"], Task)
