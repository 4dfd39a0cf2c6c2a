"""Prompts, stops, answers and scores of whole episodes that were written by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.workflows import (
    NUMBER,
    PROBLEM,
    Call,
    Choice,
    Last,
    Loop,
    Selected,
    Slot,
    Solution,
    Workflow,
    bind,
    make_workflow,
)
from jaxmarl_llm.workflows.tasks.arithmetic import PLUS, TIMES, Arithmetic, Expression
from jaxmarl_llm.workflows.tasks.base import Problem

# 3+4*7 = 1 modulo 10; L = 5, M = 2.
TASK = Arithmetic(level=2)
E = "<end>"


@pytest.fixture(scope="module")
def problem() -> Problem:
    expression = Expression(
        operands=jnp.asarray([3, 4, 7]),
        operators=jnp.asarray([PLUS, TIMES]),
        start=jnp.asarray([0, 1]),
        end=jnp.asarray([2, 2]),
        order=jnp.asarray([1, 0]),
    )
    return Problem(tokens=jnp.asarray(TASK.tokens("3+4*7")), length=jnp.asarray(5), target=expression)


@functools.partial(jax.jit, static_argnums=0)
def episode(bound, problem, rows):
    transcript = bound.begin(problem)
    prompts = []
    for turn, (tokens, length) in zip(bound.workflow.turns, rows, strict=True):
        prompts.append(bound.prompt(transcript, turn))
        transcript = bound.record(transcript, turn.call, tokens, length, prompts[-1][2])
    calls = bound.workflow.calls
    return {
        "prompts": prompts,
        "outcome": bound.outcome(transcript),
        "answer": bound.answer(transcript),
        "format": {call.name: bound.format_ok(transcript, call) for call in calls},
        "score": {call.name: bound.own_score(transcript, call) for call in calls if call.writes.has_own_score},
    }


def play(bound, problem, script):
    """Prompts and judgements of an episode in which each turn's copies write what `script` says, one text a copy."""
    rows = []
    for turn, texts in zip(bound.workflow.turns, script, strict=True):
        written = [bound.vocabulary.encode(text) for text in texts]
        room = bound.max_new_tokens(turn.call)
        tokens = np.array([[*ids, *[bound.vocabulary.end] * room][:room] for ids in written], np.int32)
        rows.append((tokens, np.array([len(ids) for ids in written], np.int32)))

    result = jax.tree.map(np.asarray, episode(bound, problem, rows))
    read = []
    for turn, (tokens, length, asked) in zip(bound.workflow.turns, result["prompts"], strict=True):
        assert tokens.shape == (turn.call.copies, bound.prompt_length(turn.call))
        assert length.max() <= tokens.shape[1] and (tokens[np.arange(tokens.shape[1]) >= length[:, None]] == 0).all()
        names = [
            " ".join(bound.vocabulary.names[index] for index in row[:size])
            for row, size in zip(tokens, length, strict=True)
        ]
        read.append([name if there else None for name, there in zip(names, asked, strict=True)])
    result["read"] = read
    tokens, length = result["answer"]
    result["answer"] = bound.vocabulary.decode(tokens[:length])
    return result


P = "3 + 4 * 7"


def test_single(problem):
    result = play(bind(make_workflow("single"), TASK), problem, [["1" + E]])
    assert result["read"] == [[f"{P} <generator>"]]
    assert (result["answer"], result["outcome"], result["score"]["generator"]) == ("1 <end>", 1, [1])


@pytest.mark.parametrize(
    ("script", "read", "answer", "formats"),
    [
        # Satisfied at once: nobody is asked again.
        (["1", "correct", "8", "correct"], [f"{P} <generator>", f"{P} <attempt> 1 <evaluator>", None, None], "1", 11),
        (
            ["8", "incorrect", "1", "correct"],
            [
                f"{P} <generator>",
                f"{P} <attempt> 8 <evaluator>",
                f"{P} <attempt> 8 incorrect <generator>",
                f"{P} <attempt> 1 <evaluator>",
            ],
            "1",
            11,
        ),
        # A verdict that is none does not stop the loop, and the next prompt shows it.
        (
            ["", "correct3", "+", "+"],
            [
                f"{P} <generator>",
                f"{P} <attempt> <evaluator>",
                f"{P} <attempt> correct 3 <generator>",
                f"{P} <attempt> + <evaluator>",
            ],
            "+",
            0,
        ),
    ],
)
def test_eval_opt(problem, script, read, answer, formats):
    bound = bind(make_workflow("eval_opt", rounds=2), TASK)
    ended = [[text if text == "correct3" else text + E] for text in script]
    result = play(bound, problem, ended)
    assert result["read"] == [[line] for line in read]
    assert result["answer"] == f"{answer} <end>" and result["outcome"] == (answer == "1")
    assert result["format"]["generator"] == [formats // 10] and result["format"]["evaluator"] == [formats % 10]


def test_a_single_round(problem):
    result = play(bind(make_workflow("eval_opt", rounds=1), TASK), problem, [["8" + E], ["correct" + E]])
    assert result["read"] == [[f"{P} <generator>"], [f"{P} <attempt> 8 <evaluator>"]]
    assert result["outcome"] == 0 and result["score"]["evaluator"] == [0] and result["format"]["evaluator"] == [True]


@pytest.mark.parametrize(
    ("choice", "answer", "score", "format_ok"),
    [
        ("<1>" + E, "8 <end>", 0, True),
        ("<2>" + E, "1 <end>", 1, True),
        # Without an end it is no answer.
        ("<2>", "", 0, False),
        # The value instead of the number, and a solution that came to no end.
        ("1" + E, "", 0, False),
        ("<3>" + E, "1 1", 0, True),
    ],
)
def test_voting(problem, choice, answer, score, format_ok):
    result = play(bind(make_workflow("voting", n=3), TASK), problem, [["8" + E, "1" + E, "11"], [choice]])
    assert result["read"] == [[f"{P} <generator>"] * 3, [f"{P} <1> 8 <2> 1 <3> 1 1 <aggregator>"]]
    assert (result["answer"].replace("11", "1 1"), result["outcome"]) == (answer, score)
    assert result["format"]["aggregator"] == [format_ok] and result["score"]["aggregator"] == [score]
    assert result["score"]["generator"].tolist() == [0, 1, 0]
    assert result["format"]["generator"].tolist() == [True, True, False]


def test_one_vote(problem):
    result = play(bind(make_workflow("voting", n=1), TASK), problem, [["1" + E], ["<1>" + E]])
    assert result["read"] == [[f"{P} <generator>"], [f"{P} <1> 1 <aggregator>"]]
    assert result["outcome"] == 1


S = "<strategy>"


@pytest.mark.parametrize(
    ("message", "workers", "format_ok"),
    [
        (f"{S}8{S}1{E}", [f"{P} {S} 8 <worker>", f"{P} {S} 1 <worker>", None], True),
        (f"{S}8{S}1{S}5{E}", [f"{P} {S} 8 <worker>", f"{P} {S} 1 <worker>", f"{P} {S} 5 <worker>"], True),
        # No separator, so nobody has a part; and empty parts, of which two workers read nothing.
        (f"8{E}", [None, None, None], False),
        (f"2{S}1{S}{S}", [f"{P} {S} 1 <worker>", f"{P} {S} <worker>", f"{P} {S} <worker>"], False),
        ("", [None, None, None], False),
    ],
)
def test_orch_workers(problem, message, workers, format_ok):
    bound = bind(make_workflow("orch_workers", n=3), TASK)
    result = play(bound, problem, [[message], ["8" + E, "1" + E, "5" + E], ["1" + E]])
    written = [f"<{place + 1}> {text}" for place, text in enumerate("815") if workers[place]]
    assert result["read"] == [[f"{P} <orchestrator>"], workers, [" ".join([P, *written, "<synthesizer>"])]]
    assert result["format"]["orchestrator"] == [format_ok] and result["outcome"] == 1
    assert result["score"]["worker"].tolist() == [0, float(workers[1] is not None), 0]


def test_one_worker(problem):
    bound = bind(make_workflow("orch_workers", n=1), TASK)
    result = play(bound, problem, [[f"{S}8{E}"], ["1" + E], ["8" + E]])
    assert result["read"][1:] == [[f"{P} {S} 8 <worker>"], [f"{P} <1> 1 <synthesizer>"]]
    assert result["outcome"] == 0


def test_a_debate_of_ones_own(problem):
    """Own copies, own numbers, a loop in which all read all, labels, and room that differs from call to call."""
    draft = Call(
        "solver", prompt=("start", NUMBER, PROBLEM), writes=Solution(), copies=2, max_new_tokens=3, name="draft"
    )
    debate = Call(
        "solver",
        prompt=(PROBLEM, Slot("draft", own=True, label="mine"), Slot("debate", label="says", numbered=True)),
        writes=Solution(),
        copies=2,
        max_new_tokens=7,
        name="debate",
    )
    judge = Call("judge", prompt=(Slot("debate"), "which ?"), writes=Choice("debate"))
    workflow = Workflow("debate", (draft, Loop((debate,), rounds=2), judge), answer=Selected("judge"))
    bound = bind(workflow, TASK)
    assert workflow.roles == ("solver", "judge")
    assert [bound.prompt_length(call) for call in workflow.calls] == [7, 5 + 1 + 3 + 2 * (2 + 7), 2 * 7 + 2]
    script = [["2" + E, "3" + E], ["4" + E, "111" + E], ["6" + E, "1" + E], ["<2>" + E]]
    result = play(bound, problem, script)
    assert result["read"] == [
        [f"start <1> {P}", f"start <2> {P}"],
        [f"{P} mine 2", f"{P} mine 3"],
        [f"{P} mine 2 says <1> 4 says <2> 1 1 1", f"{P} mine 3 says <1> 4 says <2> 1 1 1"],
        ["6 1 which ?"],
    ]
    assert result["outcome"] == 1


def test_what_is_no_part_of_the_episode_is_refused(problem):
    bound = bind(make_workflow("voting", n=3), TASK)
    generator = bound.workflow.call("generator")
    transcript = bound.begin(problem)
    tokens, length, asked = jnp.zeros((3, 2), jnp.int32), jnp.zeros(3, jnp.int32), jnp.ones(3, bool)
    bound.record(transcript, generator, tokens, length, asked)
    for wrong in ((tokens[:1], length, asked), (tokens, length[:1], asked), (tokens, length, asked[:2])):
        with pytest.raises(ValueError, match=r"call 'generator' needs tokens \[C, M\] = \(3, 2\), length and asked"):
            bound.record(transcript, generator, *wrong)
    other = jax.eval_shape(lambda: Arithmetic(level=3).draw(jax.random.key(0)))
    for wrong in (other, jax.tree.map(lambda leaf: leaf[None], problem)):
        with pytest.raises(ValueError, match="the problem has other arrays than one problem of Arithmetic"):
            bound.begin(wrong)
    for skill in (1.5, -0.1, float("nan"), {"generator": np.float32(2)}, {"generator": jnp.asarray(np.inf)}):
        with pytest.raises(ValueError, match="the skill of role 'generator' must lie between 0 and 1, and finite"):
            bound.teacher(transcript, generator, jax.random.key(0), skill)


def test_the_longest_prompts_fill_their_room(problem):
    """Completions without an end, as long as can be, in a workflow of four copies."""
    task = Arithmetic(level=2)
    call = Call("a", prompt=("x", PROBLEM), writes=Solution(), copies=4, max_new_tokens=3)
    last = Call("b", prompt=(Slot("a", label="y z", numbered=True), PROBLEM, "x"), writes=Solution())
    bound = bind(Workflow("w", (call, last), answer=Last("b")), task)
    result = play(bound, problem, [["123"] * 4, ["1" + E]])
    assert bound.prompt_length(last) == 4 * (2 + 1 + 3) + 5 + 1 == len(result["read"][1][0].split())
    assert bound.max_prompt_length == 30 and bound.context_length == 32
