"""Instructions as tokens and as lines: what is in force, what is void, who reads what, and what teachers write."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import PROBLEM, Call, Instructions, Last, Slot, Solution, Workflow, bind, make_workflow
from jaxmarl_llm.workflows.instructions import Action, Orders
from jaxmarl_llm.workflows.tasks.arithmetic import Arithmetic

TASK = Arithmetic(level=2)
MESSAGE = Instructions(
    3, templates=("check {item}", "rest"), items=("7", "two"), goals=("win",), amounts=(4, 6), budget=10
)
# All actions towards a target, as tokens and as a line.
ACTIONS = {
    "<check> 7": "check 7",
    "<check> <two>": "check two",
    "<rest> <none>": "rest",
    "<goal:> <win>": "goal: win",
    "<use_at_most_tokens> 4": "use at most 4 tokens",
    "<use_at_most_tokens> 6": "use at most 6 tokens",
}


@functools.cache
def bound_of(message=MESSAGE, workers=3):
    lead = Call("lead", prompt=(PROBLEM, "<lead>"), writes=message, max_new_tokens=29)
    work = Call("work", prompt=(Slot("lead", part=True), "<work>"), writes=Solution(), copies=workers)
    last = Call("last", prompt=(PROBLEM,), writes=Solution())
    return bind(Workflow("w", (lead, work, last), answer=Last("last")), TASK)


@functools.partial(jax.jit, static_argnums=0)
def read_tokens(bound, tokens, length):
    """`(format_ok [], prompts of the workers)` after a message of the lead."""
    transcript = bound.begin(TASK.draw(jax.random.key(0)))
    lead, work, _ = bound.workflow.turns
    transcript = bound.record(transcript, lead.call, tokens[None], length[None], jnp.ones(1, bool))
    return bound.format_ok(transcript, lead.call)[0], bound.prompt(transcript, work)


def parts_of(text, bound=None):
    bound = bound or bound_of()
    vocabulary = bound.vocabulary
    content = vocabulary.encode(f"{text} <end>")
    tokens = np.zeros(29, np.int32)
    tokens[: len(content)] = content
    format_ok, (prompt, length, asked) = read_tokens(bound, jnp.asarray(tokens), jnp.asarray(len(content)))
    found = {
        copy: vocabulary.decode(np.asarray(prompt)[copy, : length[copy] - 1])
        for copy in np.flatnonzero(np.asarray(asked))
    }
    return bool(format_ok), found


def test_tokens_and_lines_say_the_same():
    draw = np.random.default_rng(0)
    pairs = [*ACTIONS, "<rest> 7", "<check> <none>"]
    lines = [*ACTIONS.values(), "rest 7", "check"]
    right = 0
    for _ in range(60):
        chosen = [(draw.integers(3), draw.integers(len(pairs))) for _ in range(draw.integers(1, 8))]
        format_ok, parts = parts_of(" ".join(f"<{target + 1}> {pairs[pair]}" for target, pair in chosen))
        orders = MESSAGE.read("\n".join(f"{target + 1}: {lines[pair]}" for target, pair in chosen))
        assert format_ok == (not orders.faults)
        expected = {}
        for action in orders.actions:
            expected.setdefault(action.target, []).append(MESSAGE.text(action))
        tokens_of = {line: pair for pair, line in ACTIONS.items()}
        assert parts == {target: " ".join(tokens_of[line] for line in texts) for target, texts in expected.items()}
        right += format_ok
    assert 5 < right < 55


@pytest.mark.parametrize(
    ("text", "format_ok", "parts"),
    [
        ("<2> <check> 7", True, {1: "<check> 7"}),
        ("", False, {}),
        ("<2> <check>", False, {}),
        ("<2> <check> 7 <1>", False, {1: "<check> 7"}),
        ("<check> <2> 7", False, {}),
        ("<1> <rest> <none> <1> <check> 7", False, {0: "<rest> <none>"}),
    ],
)
def test_tokens(text, format_ok, parts):
    assert parts_of(text) == (format_ok, parts)


@pytest.mark.parametrize(
    ("text", "orders"),
    [
        ("2: check 7", Orders((Action(1, 0, "7"),), ())),
        ("  1:  Check TWO \n\n3: rest\n", Orders((Action(0, 0, "two"), Action(2, 1, "")), ())),
        ("2: check 8", Orders((), ("unknown",))),
        ("4: rest\n0: rest\nrest\n1: rest now\n-1: rest\n01: rest", Orders((), ("unknown",) * 6)),
        # One action of each kind to a target is no conflict.
        ("1: rest\n1: goal: win\n1: check 7", Orders((Action(0, 1, ""), Action(0, 2, "win")), ("conflict",))),
        (
            "1: use at most 6 tokens\n2: use at most 6 tokens\n3: use at most 4 tokens\n2: rest",
            Orders((Action(0, 3, "6"), Action(1, 1, "")), ("budget", "budget")),
        ),
        ("1: use at most 6 tokens\n2: use at most 4 tokens", Orders((Action(0, 3, "6"), Action(1, 3, "4")), ())),
    ],
)
def test_lines(text, orders):
    assert MESSAGE.read(text) == orders
    assert MESSAGE.read("\n".join(map(MESSAGE.line, orders.actions))) == Orders(orders.actions, ())


def test_items_of_any_text_have_a_length_and_exist_in_words_only():
    message = Instructions(1, templates=("say {item}!",), item_length=5)
    assert message.read("1: say Hello!").actions == (Action(0, 0, "Hello"),)
    assert message.read("1: say Hello, you!").faults == message.read("1: say !").faults == ("unknown",)
    assert message.menu == "N: say ITEM! (ITEM: up to 5 characters)"
    with pytest.raises(UserError, match="exist in words only: give items"):
        bound_of(message, 1)


def test_the_menu_has_all_that_may_be_said():
    assert MESSAGE.menu.splitlines() == [
        "N: check ITEM (ITEM: 7, two)",
        "N: rest",
        "N: goal: ITEM (ITEM: win)",
        "N: use at most ITEM tokens (ITEM: 4, 6), 10 tokens for all together",
    ]


@pytest.mark.parametrize("skill", [0.0, 0.6, 1.0])
def test_teachers_stay_within_the_form_and_leave_out_whom_they_overlook(skill):
    bound = bound_of(Instructions(3, templates=("check {item}",), items=("7",), amounts=(4, 2), budget=8))
    lead = bound.workflow.calls[0]
    transcript = bound.begin(TASK.draw(jax.random.key(0)))
    tokens, length = jax.vmap(lambda key: bound.teacher(transcript, lead, key, skill))(
        jax.random.split(jax.random.key(1), 50)
    )
    texts = [bound.vocabulary.decode(one[: size - 1]) for one, size in zip(tokens[:, 0], length[:, 0], strict=True)]
    found = [parts_of(text, bound) for text in texts]
    assert all(format_ok == bool(parts) for format_ok, parts in found)
    assert np.mean([len(parts) for _, parts in found]) == pytest.approx(3 * skill, abs=0.4)
    said = {part for _, parts in found for part in parts.values()}
    # The larger amount for all three would exceed the budget.
    assert said == ({"<check> 7", "<use_at_most_tokens> 2"} if skill else set())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "need something to say"),
        ({"templates": ("{item} {item}",)}, "at most once, and no other braces"),
        ({"templates": ("say {x}",)}, "at most once, and no other braces"),
        ({"templates": ("a", "A")}, "must be different texts, and none empty"),
        ({"templates": ("a", " ")}, "must be different texts, and none empty"),
        ({"templates": ("a",), "items": ("b",)}, "need a template with {item}"),
        ({"amounts": (4, 4), "budget": 9}, "amounts of instructions must be different"),
        ({"amounts": (4,)}, "need a budget that holds the largest"),
        ({"amounts": (4,), "budget": 3}, "need a budget that holds the largest"),
        ({"templates": ("a",), "budget": 3}, "a budget needs amounts"),
        ({"amounts": (0,), "budget": 3}, "an amount of instructions must be at least 1"),
        ({"templates": ("a",), "item_length": 0}, "item_length of instructions must be at least 1"),
        ({"number": 0, "templates": ("a",)}, "number of targets must be at least 1"),
        ({"templates": 3}, "templates of instructions must be a tuple"),
    ],
)
def test_instructions_that_cannot_be(settings, message):
    with pytest.raises(UserError, match=message):
        Instructions(**{"number": 2, **settings})


def test_what_has_the_same_tokens_is_refused():
    with pytest.raises(UserError, match="two instructions have the same tokens"):
        bound_of(Instructions(1, templates=("a {item} b", "a b {item}"), items=("7",)), 1)


def test_a_hierarchy_s_workers_read_their_own_tactician():
    bound = bind(make_workflow("hierarchy", teams=2, n=3, templates=("do {item}",), items=("7", "8")), TASK)
    strategist, tactician, worker, _ = bound.workflow.turns
    vocabulary, room = bound.vocabulary, bound.max_new_tokens(tactician.call)
    goal = vocabulary.encode("<goal:> <be_quick>")

    @jax.jit
    def prompts(first, tactics, length):
        transcript = bound.begin(TASK.draw(jax.random.key(0)))
        transcript = bound.record(transcript, strategist.call, first[None], jnp.full(1, 4), jnp.ones(1, bool))
        told = bound.prompt(transcript, tactician)
        transcript = bound.record(transcript, tactician.call, tactics, length, told[2])
        return told, bound.prompt(transcript, worker)

    first = np.zeros(bound.max_new_tokens(strategist.call), np.int32)
    first[:4] = [*vocabulary.encode("<2>"), *goal, vocabulary.end]
    tactics = np.zeros((2, room), np.int32)
    for copy, text in enumerate(("<1> <do> 7 <end>", "<3> <do> 8 <1> <do> 7 <end>")):
        tokens = vocabulary.encode(text)
        tactics[copy, : len(tokens)] = tokens
    told, work = prompts(jnp.asarray(first), jnp.asarray(tactics), jnp.asarray([4, 7]))
    # Only the second team was given a goal, so that the first has no tactics either.
    assert np.asarray(told[2]).tolist() == [False, True]
    assert np.asarray(work[2]).tolist() == [False, False, False, True, False, True]
    texts = [vocabulary.decode(np.asarray(work[0])[copy, 5 : work[1][copy]]) for copy in (3, 5)]
    assert texts == ["<do> 7 <worker>", "<do> 8 <worker>"]
