"""Coordinators in words: who is told what, who waits, what is enforced, and what monitors say of it."""

import math
import re

import pytest
from workflows.text.toy_text import CharacterTokenizer, Sums, sums

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import Instructions, make_workflow
from jaxmarl_llm.workflows.instructions import Action
from jaxmarl_llm.workflows.text import (
    ScriptedSampler,
    bind_text,
    episode_report,
    instruction_report,
    play_text,
    read_reply,
)
from jaxmarl_llm.workflows.text.coordination import instruction_metrics

TOKENIZER = CharacterTokenizer()
SAY = {"templates": ("say {item}", "rest"), "items": ("3", "7")}


def bind(name, **settings):
    return bind_text(
        make_workflow(name, **settings), Sums(), TOKENIZER, max_new_tokens=80, max_length=1200, require_end=False
    )


def lines(sample):
    return sample.messages[-1]["content"].splitlines()


def texts(episodes, call):
    return [(sample.round, sample.copy, sample.text) for sample in episodes.samples if sample.call == call]


def test_a_reply_s_lines_are_read_strictly():
    message = Instructions(2, **SAY)
    read = read_reply(message, "1: say 3\nand then\n1: rest", task=None)
    assert (read.value, read.format_ok) == ({0: "say 3"}, False)
    assert read_reply(message, "2: rest\n1: say 7", task=None).format_ok
    assert not read_reply(message, "", task=None).format_ok


def test_workers_see_their_own_instruction_and_the_coordinator_what_they_wrote(key):
    bound = bind("coordinator", n=3, rounds=2, **SAY)

    def reply(text):
        if "Tell workers" in text:
            return "1: say 3" if "Worker 3 wrote: 3" in text else "3: say 3\n1: rest\n3: rest"
        return "is it 3?" if "say 3" in text else "7" if "Answer" in text else "I rest"

    episodes = play_text(ScriptedSampler(reply, TOKENIZER), bound, sums((3, 4)), key)
    assert texts(episodes, "worker") == [(0, 0, "I rest"), (0, 2, "is it 3?"), (1, 0, "I rest"), (1, 2, "is it 3?")]
    first, worker, *_, answerer = episodes.samples
    assert lines(first)[1:] == [
        "Do not solve it. Tell workers N = 1 to 3 what to do, each line in one of these forms:",
        "N: say ITEM (ITEM: 3, 7)",
        "N: rest",
    ]
    assert lines(worker) == ["3+4=", "rest", "Write the number."]
    second = next(sample for sample in episodes.samples if sample.call == "coordinator" and sample.round == 1)
    assert lines(second)[1:3] == ["Worker 1 wrote: I rest", "Worker 3 wrote: is it 3?"]
    assert lines(answerer)[1:3] == ["Answer 1: I rest", "Answer 3: is it 3?"]
    assert episodes.outcome.tolist() == [1] and [first.format_ok, second.format_ok] == [False, False]
    report = instruction_report(bound, episodes)["coordinator"]
    # Both messages instruct two of three and contradict themselves; all four replies have what was said.
    assert report == {
        "following": 1.0,
        "unknown": 0.0,
        "conflict": 1.0,
        "budget": 0.0,
        "idle": pytest.approx(1 / 3),
        "entropy": pytest.approx(math.log(2)),
    }
    assert episode_report(bound, episodes)["calls"]["coordinator"]["instruction_idle"] == report["idle"]
    assert instruction_metrics(bound, episodes)["instruction_conflict/coordinator"] == 1


def test_what_was_told_holds_until_something_else_is(key):
    bound = bind("coordinator", n=2, rounds=3, answerer="worker", **SAY)
    told = iter(("1: say 3", "nothing of use", "2: say 7\n4: rest"))

    def reply(text):
        if "Tell workers" in text:
            return next(told)
        return "3" if "say" in text else "7"

    episodes = play_text(ScriptedSampler(reply, TOKENIZER), bound, sums((3, 4)), key)
    assert texts(episodes, "worker") == [(0, 0, "3"), (2, 1, "3")]
    assert texts(episodes, "answerer") == [(0, 0, "7")] and episodes.samples[-1].role == "worker"
    report = instruction_report(bound, episodes)["coordinator"]
    assert (report["following"], report["unknown"], report["idle"]) == (0.5, pytest.approx(2 / 3), pytest.approx(2 / 3))


def test_allotted_tokens_are_enforced(key):
    bound = bind("coordinator", n=3, rounds=1, templates=("add",), amounts=(3, 9), budget=15)

    def reply(text):
        if "Tell workers" in text:
            return "1: use at most 3 tokens\n2: use at most 9 tokens\n3: add\n3: use at most 9 tokens"
        return "12345" if "Answer" not in text else "7"

    episodes = play_text(ScriptedSampler(reply, TOKENIZER), bound, sums((3, 4)), key)
    assert texts(episodes, "worker") == [(0, 0, "123"), (0, 1, "12345"), (0, 2, "12345")]
    report = instruction_report(bound, episodes)["coordinator"]
    assert (report["budget"], report["idle"], report["following"]) == (1, 0, pytest.approx(1 / 3))
    # A judge of one's own.
    judged = instruction_report(bound, episodes, follows=lambda bound, message, action, sample: action.target > 0)
    assert judged["coordinator"]["following"] == pytest.approx(2 / 3)


def test_other_units_are_told_and_counted_only(key):
    bound = bind("coordinator", n=2, rounds=1, amounts=(1, 2), budget=2, unit="steps")

    def reply(text):
        return "2: use at most 2 steps" if "Tell workers" in text else "1234567"

    episodes = play_text(ScriptedSampler(reply, TOKENIZER), bound, sums((3, 4)), key)
    assert texts(episodes, "worker") == [(0, 1, "1234567")]
    assert instruction_report(bound, episodes)["coordinator"]["following"] == 0


def test_a_strategist_leads_tacticians_who_lead_workers(key):
    bound = bind("hierarchy", teams=2, n=2, strategy={"goals": ("be brief", "be sure")}, **SAY)

    def reply(text):
        if "Tell teams" in text:
            return "2: goal: be sure"
        if "Your team was told" in text:
            assert "goal: be sure" in text
            return "1: say 7\n2: say 3"
        return re.search(r"say (\d)", text)[1] if "say" in text else "7"

    episodes = play_text(ScriptedSampler(reply, TOKENIZER), bound, sums((3, 4)), key)
    assert [(sample.call, sample.copy) for sample in episodes.samples] == [
        ("strategist", 0),
        ("tactician", 1),
        ("worker", 2),
        ("worker", 3),
        ("answerer", 0),
    ]
    assert texts(episodes, "worker") == [(0, 2, "7"), (0, 3, "3")]
    report = instruction_report(bound, episodes)
    assert report["tactician"]["following"] == 1 and report["strategist"]["idle"] == 0.5
    # The tactician's reply does not have the words of its goal.
    assert report["strategist"]["following"] == 0 and list(report) == ["strategist", "tactician"]


def test_settings_of_instructions_come_from_the_workflow_s():
    workflow = make_workflow("coordinator", n=2, templates=["say {item}"], items="x")
    assert workflow.calls[0].writes == Instructions(2, templates=("say {item}",), items=("x",))
    assert workflow.calls[0].writes.line(Action(1, 0, "x")) == "2: say x"
    with pytest.raises(UserError, match="unknown setting of instructions 'template': did you mean templates"):
        make_workflow("coordinator", template="x")
    with pytest.raises(UserError, match="strategy must hold settings by name"):
        make_workflow("hierarchy", strategy="goals")
