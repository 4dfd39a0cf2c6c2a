"""Definitions that are refused, and what is known of those that are not."""

import pytest

from jaxmarl_llm.errors import UserError
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
    Strategies,
    Until,
    Verdict,
    Vocabulary,
    Workflow,
    bind,
    build_vocabulary,
    make_task,
    make_workflow,
    register_workflow,
    sharing,
    workflow_names,
)

TASK = make_task("arithmetic", level=2)


def call(name, *prompt, writes=Solution(), **settings):
    return Call(name, prompt=prompt or (PROBLEM,), writes=writes, **settings)


def workflow(*steps, answer=None):
    last = steps[-1].calls[-1] if isinstance(steps[-1], Loop) else steps[-1]
    return Workflow("w", steps, answer=answer or Last(last.name))


A, B = call("a"), call("b")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: workflow(call("a", Slot("b")), B), "a cycle outside a loop: 'a' reads 'b'"),
        (lambda: workflow(call("a", Slot("a"))), "a cycle outside a loop: 'a' reads 'a'"),
        (lambda: workflow(call("a", writes=Verdict("b")), B), "a cycle outside a loop: 'a' reads 'b'"),
        (lambda: workflow(Loop((call("a", Slot("b")),), rounds=2), B), "a cycle outside a loop: 'a' reads 'b'"),
        (
            lambda: workflow(call("solver"), call("b", Slot("solvr"))),
            "no call fills a slot of 'b': unknown call 'solvr': did you mean solver",
        ),
        (lambda: workflow(A, call("b", Slot("a", part=True))), "its part of 'a', which is not one message"),
        (
            lambda: workflow(call("a", writes=Strategies(2)), call("b", Slot("a", part=True), copies=3)),
            "its part of 'a', which writes at most 2 strategies for 3 copies",
        ),
        (
            lambda: workflow(call("a", copies=2), call("b", Slot("a", own=True), copies=3), A, answer=Last("b")),
            "2 calls named 'a'",
        ),
        (
            lambda: workflow(call("a", copies=2), call("b", Slot("a", own=True), copies=3), answer=Last("a")),
            "its own copy of 'a', which has 2 copies and not 3",
        ),
        (lambda: workflow(call("a", Slot("problem", own=True))), "'problem', which has no copies"),
        (lambda: workflow(A, answer=Last("b")), "unknown call of workflow 'w' 'b'"),
        (lambda: workflow(call("a", copies=2)), "answers by 'a', which has 2 copies and not one"),
        (lambda: workflow(A, answer=Selected("a")), "'a', which does not write a Choice"),
        (lambda: Workflow("w", (), answer=Last("a")), "needs at least one call"),
        (lambda: Loop((), rounds=2), "a loop needs at least one call"),
        (lambda: make_workflow("eval_opt", rounds=0), "at least one round, got 0"),
        (lambda: Loop((A,), rounds=2, until=Until("b", "x")), "unknown call that the loop waits for 'b'"),
        (lambda: Loop((call("a", copies=2),), rounds=2, until=Until("a", "x")), "has 2 copies, not one"),
        (lambda: make_workflow("voting", n=0), "call 'generator' must have at least one copy, got 0"),
        (lambda: make_workflow("orch_workers", n=0), "number of strategies must be at least 1, got 0"),
        (lambda: call("a", max_new_tokens=0), "room for at least one token, got 0"),
        (lambda: call("problem"), "cannot be named 'problem'"),
        (lambda: make_workflow("votin"), "unknown workflow 'votin': did you mean voting"),
        (lambda: make_workflow("voting", rounds=3), "unknown setting of voting 'rounds'"),
        (lambda: register_workflow("voting", lambda: workflow(A)), "exists already"),
        (
            lambda: bind(workflow(call("a", max_new_tokens=1)), TASK),
            "an answer cannot fit: call 'a' .* max_new_tokens=1",
        ),
        (
            lambda: bind(make_workflow("voting", n=3), TASK, context_length=16),
            r"call 'aggregator' of workflow 'voting' has up to 15 tokens \(5 problem \+ 9 generator \+ 1 fixed\), "
            "with 2 to write 17, but the context holds 16",
        ),
        (lambda: bind(workflow(A), TASK, vocabulary=Vocabulary(TASK.symbols[1:])), "unknown token '0'"),
        (lambda: bind(workflow(A), TASK, vocabulary=Vocabulary(("x", *TASK.symbols))), "begin with the task's symbols"),
        (lambda: build_vocabulary(TASK, workflow(call("a", "12"))), "token '12' could also be read as 1 2"),
        (lambda: sharing(workflow(A, B), {"a": 0}), "the sharing table of workflow 'w' misses b"),
        (lambda: sharing(workflow(A, B), {"a": 0, "b": 0, "c": 0}), "unknown role of workflow 'w' 'c'"),
        (lambda: sharing(workflow(A, B), {"a": 0, "b": 2}), "without a gap"),
        (lambda: sharing(workflow(A, B), "isolatd"), "unknown sharing 'isolatd': did you mean isolated"),
    ],
)
def test_refused(build, message):
    with pytest.raises(UserError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


def test_sharing():
    graph = make_workflow("orch_workers", n=5)
    assert graph.roles == ("orchestrator", "worker", "synthesizer")
    assert sharing(graph) == sharing(graph, "shared") == (0, 0, 0)
    assert sharing(graph, "isolated") == (0, 1, 2)
    assert sharing(graph, {"worker": 0, "synthesizer": 0, "orchestrator": 1}) == (1, 0, 0)
    assert sharing(graph, {"worker": "body", "synthesizer": "head", "orchestrator": "head"}) == (0, 1, 0)


def test_what_is_known_before_compilation():
    assert {"single", "eval_opt", "voting", "orch_workers"} <= set(workflow_names())
    graph = make_workflow("eval_opt", rounds=2)
    assert hash(graph) == hash(make_workflow("eval_opt", rounds=2)) and graph != make_workflow("eval_opt", rounds=3)
    assert [(turn.call.name, turn.round) for turn in graph.turns] == [
        ("generator", 0),
        ("evaluator", 0),
        ("generator", 1),
        ("evaluator", 1),
    ]
    assert set(graph.symbols) == {"<attempt>", "<generator>", "<evaluator>", "correct", "incorrect"}
    bound = bind(graph, TASK, context_length=13)
    # Problem 5; attempt and its label 2 + 1; verdict 2; marker 1.
    assert [bound.prompt_length(one) for one in graph.calls] == [11, 9]
    assert bound.context_length == 13 and hash(bound) == hash(bind(graph, TASK))
    evaluator = bound.allowed_tokens(graph.call("evaluator"))
    assert evaluator.nonzero()[0].tolist() == sorted(bound.vocabulary.encode("correct incorrect <end>"))


def test_one_vocabulary_for_many_workflows():
    graphs = [make_workflow(name) for name in ("voting", "eval_opt", "single")]
    vocabulary = build_vocabulary(TASK, *graphs)
    assert len({bind(graph, TASK, vocabulary=vocabulary).vocabulary for graph in graphs}) == 1
    assert vocabulary.encode(TASK.symbols) == TASK.tokens(TASK.symbols)
    numbered = call("a", NUMBER, PROBLEM, copies=2)
    assert workflow(numbered, call("b", writes=Choice("a"))).symbols == ("<1>", "<2>")
