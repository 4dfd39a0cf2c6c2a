"""Formats as files, their checks, prompts of the workflows that ship, and lengths known before anything is asked."""

import dataclasses

import pytest
from workflows.text.toy_text import CharacterTokenizer, Sums, sums

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import NUMBER, PROBLEM, Call, Last, Slot, Solution, Workflow, make_workflow, workflow_names
from jaxmarl_llm.workflows.text import RoleFormat, bind_text, load_formats, show_formats
from jaxmarl_llm.workflows.text.formats import formats_of
from jaxmarl_llm.workflows.text.tasks import make_text_task

TOKENIZER = CharacterTokenizer()
SETTINGS = {"max_new_tokens": 7, "max_length": 500}


def bind(workflow, formats=None, **settings):
    return bind_text(workflow, Sums(), TOKENIZER, formats, **{**SETTINGS, **settings})


def test_what_ships_covers_every_workflow_and_reads_back_from_its_print(tmp_path):
    shipped = load_formats()
    for name in workflow_names():
        bound = bind(make_workflow(name))
        assert list(bound.formats) == [call.name for call in bound.workflow.calls]
    path = tmp_path / "own.yaml"
    path.write_text(show_formats(shipped))
    assert load_formats(path) == shipped


def test_a_file_of_one_s_own(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        'single:\n  generator:\n    system: Be brief.\n    user: "{{{problem}}} {instructions}{number}/{count}"\n'
    )
    bound = bind(make_workflow("single"), path)
    call = bound.workflow.calls[0]
    messages, tokens = bound.prompt(sums((1, 2))[0], bound.begin(), call, 0)
    assert messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "{1+2=} Write the number.1/1"},
    ]
    assert TOKENIZER.decode(tokens, skip_special=False).startswith("<system>Be brief.<end><user>{1+2=}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("single: [1]", "single must hold names"),
        ("- 1", "must hold names"),
        ("single: {generator: {user: hello}}", "call 'generator' has no {problem}"),
        ("single: {generator: {system: hello}}", "single.generator has no user message"),
        (
            "single: {generator: {user: '{problem} {evaluator}'}}",
            "unknown placeholder in the format of call 'generator'",
        ),
        ("single: {generator: {user: '{problem}', block: a}}", "unknown field of .* 'block': did you mean blocks"),
        (
            "single: {generator: {user: '{problem}', blocks: {evaluator: a}}}",
            "'generator' reads no other call: leave .*'evaluator' out",
        ),
        (
            "single: {generator: {user: '{problem}'}}\nvoting: {}\nsingle: {generator: {user: 'a {problem}'}}",
            "is no YAML: 'single' is there twice, again in line 3",
        ),
        ("single:\n  generator:\n    user: '{problem}'\n    user: a", "'user' is there twice, again in line 4"),
        ("single: {generator: {user: '{problem}', blocks: {evaluator: '{txt}'}}}", "'txt': did you mean text"),
        ("single: {generator: {user: 3}}", "user of a format must be text"),
        ("single: {generater: {user: '{problem}'}}", "'generater': did you mean generator"),
        ("voting: {generator: {user: '{problem}'}}", "have no workflow 'single' .voting."),
        ("single: {generator: {user: '{problem}'", "is no YAML"),
        ("single: 2026-13-99", "is no YAML"),
        ("[" * 2_000, "own.yaml is no YAML: it is nested too deeply"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path, text, fault):
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=fault) as caught:
        bind(make_workflow("single"), path)
    assert "\n" not in str(caught.value)


def test_formats_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match=r"cannot read formats from .*: No such file"):
        load_formats(tmp_path / "none.yaml")
    for path in ("a\0b", 3):
        with pytest.raises(UserError, match="the path of formats must be"):
            load_formats(path)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="miss its call 'aggregator'"):
        bind(make_workflow("voting"), {"generator": RoleFormat("{problem}")})
    own = Workflow("own", (Call("count", prompt=(PROBLEM,), writes=Solution()),), answer=Last("count"))
    with pytest.raises(
        UserError,
        match=r"the formats plain have no workflow 'own' .coordinator, .*, voting.: give formats, a RoleFormat",
    ):
        bind(own)
    with pytest.raises(UserError, match="call 'count' has the name of a placeholder"):
        bind(own, {"count": RoleFormat("{problem}")})


def pair_workflow(slot):
    solver = Call("solver", prompt=(PROBLEM, NUMBER), writes=Solution(), copies=2)
    closer = Call("closer", prompt=(PROBLEM, slot), writes=Solution(), copies=2, max_new_tokens=11)
    last = Call("last", prompt=(PROBLEM,), writes=Solution())
    return Workflow("pair", (solver, closer, last), answer=Last("last"))


@pytest.mark.parametrize(
    ("slot", "block", "shown"),
    [
        (Slot("solver"), None, "a\nb\n"),
        (Slot("solver", label="{see}", numbered=True), None, "{see} 1. a\n{see} 2. b\n"),
        (Slot("solver", own=True), None, "b\n"),
        (Slot("solver", numbered=True), "[{number}={text}]", "[1=a][2=b]"),
    ],
)
def test_slots_of_the_graph_decide_what_is_read(slot, block, shown):
    blocks = {} if block is None else {"solver": block}
    formats = dict.fromkeys(("solver", "last"), RoleFormat("{problem}"))
    bound = bind(pair_workflow(slot), {**formats, "closer": RoleFormat("{problem}<{solver}>", blocks=blocks)})
    solver, closer, _ = bound.workflow.calls
    board = bound.begin()

    def asked():
        return bound.messages(sums((1, 2))[0], board, closer, 1)[0]["content"]

    assert asked() == "1+2=<>"
    board["solver"] = [bound.reply(board, solver, text, ended=True) for text in ("a", "{number}b"[-1:])]
    assert asked() == f"1+2=<{shown}>"


def test_what_is_filled_in_is_not_read_as_a_template():
    formats = dict.fromkeys(("solver", "last"), RoleFormat("{problem}"))
    bound = bind(
        pair_workflow(Slot("solver")), {**formats, "closer": RoleFormat("{problem}{solver}")}, max_new_tokens=40
    )
    solver, closer, _ = bound.workflow.calls
    board = bound.begin()
    board["solver"][0] = bound.reply(board, solver, "{problem}{{", ended=True)
    assert bound.messages(sums((1, 2))[0], board, closer, 0)[0]["content"] == "1+2={problem}{{"


def test_the_longest_prompt_is_known_from_the_definition():
    slot = Slot("solver", numbered=True)
    formats = dict.fromkeys(("solver", "last"), RoleFormat("{problem}"))
    formats["closer"] = RoleFormat("{problem}: {solver}", blocks={"solver": "{number}={text};"})
    # <user>, ": ", <end>, <assistant>, one for each placeholder; "1+2="; two solutions of 7 characters and "2=;".
    longest = 7 + 4 + 2 * (7 + 3)
    bound = bind(pair_workflow(slot), formats, max_length=longest + 11)
    solver, closer, _ = bound.workflow.calls
    board = bound.begin()
    board["solver"] = [bound.reply(board, solver, "1234567", ended=False)] * 2
    assert len(bound.prompt(sums((1, 2))[0], board, closer, 0)[1]) == longest - 2
    with pytest.raises(
        UserError,
        match=rf"call 'closer' of workflow 'pair' has up to {longest} tokens \(7 fixed \+ 4 problem \+ 20 solver\), "
        rf"with 11 to write {longest + 11}, but max_length is {longest + 10}: raise it",
    ):
        bind(pair_workflow(slot), formats, max_length=longest + 10)


def test_room_of_each_call():
    workflow = pair_workflow(Slot("solver"))
    formats = dict.fromkeys(("solver", "closer", "last"), RoleFormat("{problem}"))
    assert bind(workflow, formats).room == {"solver": 7, "closer": 11, "last": 7}
    assert bind(workflow, formats, max_new_tokens={"solver": 3, "closer": 5, "last": 2}).room["closer"] == 5
    assert bind(workflow, formats, max_new_tokens={"solver": 3, "last": 2}).room["closer"] == 11
    for wrong, fault in (
        ({"solver": 3}, "misses call 'last'"),
        ({"solvers": 3}, "'solvers': did you mean solver"),
        ({"solver": 0, "last": 2}, "max_new_tokens of call 'solver' must be at least 1"),
        (2.5, "must be a whole number"),
    ):
        with pytest.raises(UserError, match=fault):
            bind(workflow, formats, max_new_tokens=wrong)


def test_replies_that_grow_when_read_again_are_cut():
    bound = bind(make_workflow("eval_opt"), max_length=180)
    generator, evaluator = bound.workflow.calls
    board = bound.begin()
    reply = bound.reply(board, generator, "123456789", ended=True)
    assert reply.text == "1234567"
    # What a call wrote may be longer than its room only by other means than `reply`.
    board["generator"][0] = dataclasses.replace(reply, text="9" * 300)
    messages, tokens = bound.prompt(sums((1, 2))[0], board, evaluator, 0)
    assert len(tokens) <= 180 - 7 and "9" * 100 not in messages[0]["content"]


def test_short_formats_ship_by_name():
    for name, formats in load_formats("brief").items():
        assert formats_of(make_workflow(name), "brief") == formats
        assert all(of_call.system for of_call in formats.values())
    assert load_formats("plain") == load_formats()
    with pytest.raises(UserError, match=r"brief have no workflow 'hierarchy' .eval_opt, .*: choose the formats plain$"):
        formats_of(make_workflow("hierarchy"), "brief")


def test_an_answer_without_working_is_the_number_alone():
    task = make_text_task("arithmetic_words", style="bare", working=False)
    assert task.format_ok("12") and not task.format_ok("It is \\boxed{12}")
    assert "boxed" not in task.instructions
