"""Definitions that are refused, and what is known of those that are not."""

import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.networks.sharing import sharing_table
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


def judge(of, **settings):
    return call("j", writes=Verdict(of), **settings)


def until(says):
    return workflow(Loop((judge("b"), B), rounds=2, until=Until("j", says)))


A, B = call("a"), call("b")
A_TOO = call("c", Slot("a", part=True), PROBLEM)
GENERATORS = call("g", copies=3)


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
        (lambda: workflow(call("solver", Slot("solvr"))), "a slot of 'solver': there is no call 'solvr'"),
        (lambda: workflow(call("solver", Slot("solvr")), B), "unknown call 'solvr': choose one of b"),
        (lambda: Call("", prompt=(PROBLEM,), writes=Solution()), "a call needs a role"),
        (lambda: make_workflow("Voting"), r"unknown workflow 'Voting': did you mean voting\?$"),
        (lambda: sharing_table((0.5, 1.2), 2), "a policy index of a sharing table must be a whole number, got 0.5"),
        (lambda: workflow(A, call("b", Slot("a", part=True))), "its part of 'a', which is no message"),
        (
            lambda: workflow(call("a", writes=Strategies(2)), call("b", Slot("a", part=True), copies=3)),
            "its part of 'a', which writes at most 2 parts for 3 copies",
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
        (lambda: make_workflow("eval_opt", rounds=0), "rounds of a loop must be at least 1, got 0"),
        (lambda: Loop((A,), rounds=2, until=Until("b", "x")), "unknown call that the loop waits for 'b'"),
        (lambda: Loop((call("a", copies=2),), rounds=2, until=Until("a", "x")), "has 2 copies, not one"),
        (lambda: make_workflow("voting", n=0), "copies of call 'generator' must be at least 1, got 0"),
        (lambda: make_workflow("orch_workers", n=0), "number of strategies must be at least 1, got 0"),
        (lambda: call("a", max_new_tokens=0), "max_new_tokens of call 'a' must be at least 1, got 0"),
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
        # What a message is on.
        (lambda: workflow(GENERATORS, judge("g"), A), "'j' writes a Verdict of 'g', which has 3 copies: .* of 'j'"),
        (lambda: workflow(GENERATORS, judge("g", copies=2), A), "'j' writes a Verdict of 'g', which has 3 copies"),
        (
            lambda: workflow(A, judge("a"), call("k", writes=Verdict("j")), B),
            "'k' writes a Verdict of 'j', which writes Verdict and no solution",
        ),
        (
            lambda: workflow(call("a", writes=Strategies(2)), call("c", writes=Choice("a")), answer=Selected("c")),
            "'c' writes a Choice of 'a', which writes Strategies and no solution",
        ),
        (lambda: workflow(A, judge("a")), "answers by 'j', which writes Verdict and no solution"),
        (lambda: bind(until("corect"), TASK), "unknown token that 'j' may write 'corect': did you mean correct"),
        (lambda: bind(until("7"), TASK), "unknown token that 'j' may write '7': choose one of correct, incorrect"),
        (
            lambda: bind(workflow(call("a", writes=Strategies(2, separator="+")), A_TOO), TASK),
            r"call 'a' of workflow 'w' puts '\+' before each strategy, which is a symbol of the task",
        ),
        # Prompts that may be empty.
        (lambda: bind(workflow(call("a", " ")), TASK), "the prompt of call 'a' of workflow 'w' can be empty"),
        (lambda: bind(workflow(Loop((call("a", Slot("b")), B), rounds=2)), TASK), "the prompt of call 'a' .* be empty"),
        (lambda: Call("a", prompt=(), writes=Solution()), "call 'a' has nothing to read"),
        # Values of another kind.
        (lambda: call("a", 5), "prompt of call 'a': each must be text or Slot, got 5"),
        (lambda: call("a", writes=None), "writes of call 'a' must be Message, got None"),
        (lambda: call("a", writes=Solution), "writes of call 'a' must be Message, .*: write Solution"),
        (lambda: call("a", max_new_tokens=4.0), "max_new_tokens of call 'a' must be a whole number, got 4.0"),
        (lambda: call("a", copies=True), "copies of call 'a' must be a whole number, got True"),
        (lambda: call("a", writes=Verdict(["b"])), r"the name of another call must be text, got \['b'\]"),
        (lambda: call(None), "role of a call must be text, got None"),
        (lambda: call("a", Slot(A)), "of of a slot must be text, got Call"),
        (lambda: Loop((A,), rounds=1.5), "rounds of a loop must be a whole number, got 1.5"),
        (lambda: Loop((Loop((A,), rounds=2),), rounds=2), "calls of a loop: each must be Call, got Loop"),
        (lambda: Loop((A,), rounds=2, until="a"), "until of a loop must be Until, got 'a'"),
        (
            lambda: Workflow("w", "a", answer=Last("a")),
            "steps of workflow 'w' must be a tuple .Call or Loop each., got 'a'",
        ),
        (lambda: Workflow("w", A, answer="a"), "answer of workflow 'w' must be Last or Selected, got 'a'"),
        (lambda: workflow(A, answer=Last(3)), "unknown call of workflow 'w' '3'"),
        (lambda: Strategies(2.0), "the number of strategies must be a whole number, got 2.0"),
        (lambda: bind(A, TASK), "workflow must be Workflow, got Call"),
        (lambda: bind(workflow(A), "arithmetic"), "task must be Task, got 'arithmetic'"),
        (lambda: bind(workflow(A), TASK, context_length=9.5), "context_length must be a whole number, got 9.5"),
        (lambda: Vocabulary(("a", 3)), "the symbols of a vocabulary: each must be text, got 3"),
        (lambda: sharing(workflow(A, B), None), "sharing must be text or Mapping, got None"),
        *(
            (
                lambda one=one, two=two: sharing(workflow(A, B), {"a": one, "b": two}),
                "a policy's index, or all the name",
            )
            for one, two in ((False, True), (0.0, 1.0), (None, None), (0, "b"))
        ),
    ],
)
def test_refused(build, message):
    with pytest.raises(UserError, match=message) as error:
        build()
    assert "\n" not in str(error.value)


def test_a_forgotten_comma():
    alone = Call("a", prompt="solve", writes=Solution())
    assert alone.prompt == ("solve",) and alone == Call("a", prompt=["solve"], writes=Solution())
    assert Loop(alone, rounds=2).calls == (alone,)
    assert Workflow("w", alone, answer=Last("a")) == workflow(alone)
    assert Vocabulary("abc").symbols == ("abc",)


def test_judges_that_fit():
    one_each, many_of_one = workflow(GENERATORS, judge("g", copies=3), A), workflow(A, judge("a", copies=3), B)
    assert all(bind(graph, TASK) for graph in (one_each, many_of_one))


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
    assert workflow(numbered, call("b", writes=Choice("a")), answer=Selected("b")).symbols == ("<1>", "<2>")
