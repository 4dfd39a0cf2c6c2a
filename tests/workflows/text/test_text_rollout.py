"""Whole episodes in words: who is asked what, who is paid for what, and whose random numbers are whose."""

import dataclasses
import re
import threading

import jax
import numpy as np
import pytest
from workflows.text.toy_text import CharacterTokenizer, Sums, sums, tiny_sampler

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import score
from jaxmarl_llm.llm.adapters import join_adapters
from jaxmarl_llm.workflows import PROBLEM, Call, Last, Slot, Solution, Workflow, make_workflow
from jaxmarl_llm.workflows.text import (
    RoleFormat,
    ScriptedSampler,
    bind_text,
    episode_report,
    evaluate_text,
    play_text,
    read_transcripts,
    write_transcripts,
)
from jaxmarl_llm.workflows.text.evaluation import wilson_interval
from jaxmarl_llm.workflows.text.transcripts import episode_records

TOKENIZER = CharacterTokenizer()


def bind(name, task=None, formats=None, *, room=19, max_length=700, require_end=True, **settings):
    workflow = make_workflow(name, **settings) if isinstance(name, str) else name
    return bind_text(
        workflow,
        task or Sums(),
        TOKENIZER,
        formats,
        max_new_tokens=room,
        max_length=max_length,
        require_end=require_end,
    )


def scripted(reply, **policies):
    return ScriptedSampler(reply, TOKENIZER, policies)


def answers(episodes, *fields):
    return [tuple(getattr(sample, field) for field in fields) for sample in episodes.samples]


def test_a_loop_ends_when_the_evaluator_is_satisfied(key):
    bound = bind("eval_opt", rounds=3)

    def reply(text):
        if "Correct or" in text:
            return "Correct." if "Answer: 7" in text or "Answer: 4\n" in text else "It is INCORRECT"
        return "7" if "Last answer: 5" in text else "5" if text.startswith("3") else "4"

    episodes = play_text(scripted(reply, evaluator=1), bound, sums((2, 2), (3, 4)), key)
    assert answers(episodes, "episode", "call", "round", "text", "own_score", "policy") == [
        (0, "generator", 0, "4", 1.0, 0),
        (0, "evaluator", 0, "Correct.", 1.0, 1),
        (1, "generator", 0, "5", 0.0, 0),
        (1, "evaluator", 0, "It is INCORRECT", 1.0, 1),
        (1, "generator", 1, "7", 1.0, 0),
        (1, "evaluator", 1, "Correct.", 1.0, 1),
    ]
    assert episodes.outcome.tolist() == [1.0, 1.0] and episodes.any_correct.all()
    assert episodes.samples[4].messages[-1]["content"].splitlines() == [
        "3+4=",
        "Last answer: 5",
        "A checker says: It is INCORRECT",
        "Write the number.",
    ]


def test_the_chosen_solution_is_the_answer(key):
    bound = bind("voting", n=3)
    guesses = iter(["6", "8", "9"])

    def reply(text):
        return "The best is \\boxed{2}" if "Which" in text else next(guesses)

    episodes = play_text(
        scripted(reply), dataclasses.replace(bound, room={**bound.room, "aggregator": 40}), sums((5, 3)), key
    )
    assert answers(episodes, "call", "copy", "own_score") == [
        ("generator", 0, 0.0),
        ("generator", 1, 1.0),
        ("generator", 2, 0.0),
        ("aggregator", 0, 1.0),
    ]
    assert episodes.outcome.tolist() == [1.0]
    assert "Answer 2: 8\nAnswer 3: 9\n" in episodes.samples[3].messages[-1]["content"]
    wrong = play_text(scripted(lambda text: "8 of 9" if "Which" in text else "8"), bound, sums((5, 3)), key)
    report = episode_report(bound, wrong)
    assert (report["accuracy"], report["selection_failure"], report["generation_failure"]) == (0.0, 1.0, 0.0)
    assert [wrong.samples[3].format_ok, wrong.samples[3].own_score] == [False, 0.0]


def test_workers_without_a_strategy_are_left_out(key):
    bound = bind("orch_workers", n=3, room=60)

    def reply(text):
        if "STRATEGY" in text:
            return "STRATEGY 1: count\nSTRATEGY 3: guess"
        return "5" if "guess" in text else "4"

    episodes = play_text(scripted(reply), bound, sums((2, 2)), key)
    assert answers(episodes, "call", "copy", "own_score") == [
        ("orchestrator", 0, None),
        ("worker", 0, 1.0),
        ("worker", 2, 0.0),
        ("synthesizer", 0, 1.0),
    ]
    assert "Answer 1: 4\nAnswer 3: 5\n" in episodes.samples[3].messages[-1]["content"]
    calls = episode_report(bound, episodes)["calls"]
    assert calls["orchestrator"]["instructions"] == 2
    assert calls["worker"]["idle"] == pytest.approx(1 / 3)
    assert calls["orchestrator"]["format_ok"] == 0.0


def test_a_reply_that_is_cut_off_is_worth_nothing_unless_it_may_be(key):
    for require_end, outcome in ((True, 0.0), (False, 1.0)):
        bound = bind("single", room=5, require_end=require_end)
        episodes = play_text(scripted(lambda text: "    4 indeed"), bound, sums((2, 2)), key)
        assert episodes.outcome.tolist() == [outcome]
        assert episodes.samples[0].format_ok is not require_end
        assert len(episodes.samples[0].completion) == 5
        assert episode_report(bound, episodes)["calls"]["generator"]["cut_off"] == 1.0


def test_a_reply_cannot_speak_for_others(key):
    # What is left of it once its special token is taken out is one again.
    sampler = scripted(lambda text: "correct" if "Correct or" in text else "4<e<end>nd>ok")
    episodes = play_text(sampler, bind("eval_opt", rounds=1), sums((2, 2)), key)
    assert episodes.samples[0].text == "4ok"
    assert [sample.prompt.tolist().count(1) for sample in episodes.samples] == [1, 1]


def test_calls_that_wait_for_nothing_share_a_batch(key):
    solver = Call("solver", prompt=(PROBLEM,), writes=Solution())
    doubter = Call("doubter", prompt=(PROBLEM,), writes=Solution(), copies=2, max_new_tokens=2)
    closer = Call("closer", prompt=(PROBLEM, Slot("solver"), Slot("doubter", numbered=True)), writes=Solution())
    workflow = Workflow("own", (solver, doubter, closer), answer=Last("closer"))
    formats = {
        "solver": RoleFormat("{problem}"),
        "doubter": RoleFormat("doubt {number} {problem}"),
        "closer": RoleFormat("{problem} {solver} {doubter}"),
    }
    batches = []

    class Watched(ScriptedSampler):
        def sample(self, prompts, adapter, key, **settings):
            batches.append((len(prompts), sorted(adapter), settings["max_new_tokens"]))
            return super().sample(prompts, adapter, key, **settings)

    sampler = Watched(lambda text: text[:1], TOKENIZER, {"doubter": 1})
    episodes = play_text(sampler, bind(workflow, formats=formats), sums((2, 2), (3, 1)), key)
    assert batches == [(6, [0, 0, 1, 1, 1, 1], 19), (2, [0, 0], 19)]
    assert [len(sample.completion) for sample in episodes.samples[:4]] == [2, 2, 2, 2]
    assert episodes.samples[3].messages[0]["content"] == "2+2= 2\n 1. d\n2. d"


def test_a_long_prompt_with_little_room_is_asked_apart(key):
    reads_much = Call("much", prompt=(PROBLEM,), writes=Solution(), max_new_tokens=2)
    writes_much = Call("little", prompt=(PROBLEM,), writes=Solution(), max_new_tokens=20)
    formats = {"much": RoleFormat(user="{problem}" + "." * 30), "little": RoleFormat(user="{problem}")}
    held = []

    class Recorded(ScriptedSampler):
        def sample(self, prompts, adapter, key, *, max_new_tokens, **settings):
            held.append(max(map(len, prompts)) + max_new_tokens)
            return super().sample(prompts, adapter, key, max_new_tokens=max_new_tokens, **settings)

    workflow = Workflow("parallel", (reads_much, writes_much), answer=Last("much"))
    for max_length, batches in ((80, 1), (50, 2)):
        held.clear()
        bound = bind(workflow, formats=formats, max_length=max_length)
        episodes = play_text(Recorded(lambda text: "3", TOKENIZER), bound, sums((1, 2)), key)
        assert len(held) == batches and max(held) <= max_length
        assert [sample.text for sample in episodes.samples] == ["3", "3"] and episodes.outcome[0] == 1.0


def test_scoring_overlaps_generation_and_happens_once_for_each_text(key):
    started, may_end = threading.Event(), threading.Event()
    scored = []

    class Slow(Sums):
        def score(self, problem, completion):
            scored.append(completion)
            started.set()
            assert may_end.wait(20)
            return super().score(problem, completion)

    def reply(text):
        if "Correct or" in text:
            # The generator's solution is being scored while the evaluator answers.
            assert started.wait(20)
            may_end.set()
            return "correct"
        return "4"

    episodes = play_text(scripted(reply), bind("eval_opt", Slow()), sums((2, 2)), key, group_size=3)
    assert scored == ["4"] and episodes.outcome.tolist() == [1.0] * 3
    assert episodes.seconds["scoring"] > 0 and episodes.seconds["total"] > 0


@pytest.fixture(scope="module")
def played():
    workflow = make_workflow("voting", n=2)
    bound = bind(workflow, room={"generator": 5, "aggregator": 3}, max_length=160)
    sampler = tiny_sampler(workflow, "isolated", max_length=160, versions=(4, 7), max_rows=4)
    problems = sums((1, 2), (3, 4), (25, 3))
    return bound, sampler, problems, play_text(sampler, bound, problems, jax.random.key(5), group_size=2)


def test_samples_hold_what_the_policy_saw_and_drew(played):
    _, sampler, problems, episodes = played
    assert len(episodes.samples) == 3 * 2 * 3 and episodes.outcome.shape == (6,)
    params = join_adapters(sampler.body, sampler.adapters)
    for sample in episodes.samples:
        assert sample.policy == (sample.call == "aggregator") and sample.versions == (4, 7)
        assert TOKENIZER.chat_ids(sample.messages) == sample.prompt.tolist()
        assert problems[sample.problem].prompt in sample.messages[0]["content"]
        assert sample.problem == sample.episode // 2
    for sample in episodes.samples[1:4:2]:
        scored = score(
            sampler.team.decoder,
            params,
            sample.prompt[None],
            np.asarray([len(sample.prompt)]),
            sample.completion[None],
            np.ones((1, len(sample.completion)), bool),
            adapter=np.asarray([sample.policy], np.int32),
        )
        np.testing.assert_allclose(scored.log_prob[0], sample.log_prob, atol=2e-4)


def test_random_numbers_belong_to_the_episode(played):
    bound, sampler, problems, episodes = played
    alone = play_text(
        sampler,
        bound,
        problems[1:],
        jax.random.key(5),
        group_size=2,
        episode_numbers=[2, 3, 4, 5],
    )
    assert answers(alone, "text", "copy", "call") == answers(episodes, "text", "copy", "call")[6:]
    assert len({sample.completion.tobytes() for sample in episodes.samples if sample.call == "generator"}) > 9


def test_greedy_evaluation_and_its_interval(played):
    bound, sampler, _, _ = played
    found = evaluate_text(sampler, bound)
    assert len(found.episodes.outcome) == 3 and found.interval[0] <= found.accuracy <= found.interval[1]
    generators = [sample.text for sample in found.episodes.samples if sample.call == "generator"]
    assert generators[0::2] == generators[1::2]
    right = evaluate_text(scripted(lambda text: str(eval(re.findall(r"\d\+\d", text)[0]))), bind("single"))
    assert right.accuracy == 1.0 and right.interval == (pytest.approx(3 / (3 + 1.959964**2)), 1.0)
    assert wilson_interval(0.3, 10) == pytest.approx((0.10779, 0.60322), abs=1e-5)


def test_verdicts_are_counted_by_what_is_true(key):
    def reply(text):
        return ("incorrect" if "Answer: 4" in text else "correct") if "Correct or" in text else "4"

    bound = bind("eval_opt", rounds=1)
    report = episode_report(bound, play_text(scripted(reply), bound, sums((2, 2), (5, 3)), key))
    counts = {(one["says_correct"], one["is_correct"]): one["count"] for one in report["verdict_confusion"]}
    assert counts == {(True, True): 0, (True, False): 0, (False, True): 1, (False, False): 1}


def test_transcripts_come_back_as_written(played, tmp_path):
    bound, _, _, episodes = played
    rewards = np.arange(len(episodes.samples)) / 7
    records = episode_records(bound, episodes, rewards)
    path = tmp_path / "new" / "transcripts.jsonl"
    write_transcripts(path, records[:2])
    write_transcripts(path, records[2:], append=True)
    assert read_transcripts(path) == records and len(path.read_text().splitlines()) == 6
    assert [step.reward for step in records[1].steps] == pytest.approx([3 / 7, 4 / 7, 5 / 7])
    assert records[3].problem == "3+4" and records[0].steps[2].role == "aggregator"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "an object is needed"),
        (
            '{"steps": [{"role": "a", "messages": [{"role": "u", "content": "a"}], "reply": "b", "reward": NaN}]}',
            "finite",
        ),
        (
            '{"steps": [{"role": "a", "messages": [{"role": "u", "content": "a"}], "reply": "b", "reward": "1"}]}',
            "number",
        ),
        ('{"steps": [{"role": "solver", "messages": [{"role": "user", "content": "a"}]}]}', "no 'reply'"),
        ('{"steps": [{"role": "solver", "messages": [], "reply": "b"}]}', "no messages"),
        ('{"steps": [{"role": 3, "messages": [{"role": "user", "content": "a"}], "reply": "b"}]}', "a text is needed"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(tmp_path, line, fault):
    path = tmp_path / "own.jsonl"
    good = '{"steps": [{"role": "solver", "messages": [{"role": "user", "content": "a"}], "reply": "b", "more": 1}]}'
    path.write_text(f"{good}\n\n{line}\n{good}\n")
    with pytest.raises(UserError, match=rf"line 3 of .*own.jsonl is no episode: .*{fault}"):
        read_transcripts(path)
    kept = read_transcripts(path, skip_malformed=True)
    assert [record.steps[0].call for record in kept] == ["solver", "solver"]


def test_a_group_beyond_the_most_rows_is_parted(played):
    bound, sampler, problems, episodes = played
    small = dataclasses.replace(sampler, max_rows=2)
    prompt = episodes.samples[0].prompt.tolist()
    settings = {"max_new_tokens": 5, "group": 4, "row": np.asarray([0, 1, 3, 4])}
    drawn = small.sample([prompt], [0], jax.random.key(5), **settings)
    texts = [TOKENIZER.decode(tokens[:length]) for tokens, length in zip(drawn.tokens, drawn.length, strict=True)]
    assert bound.room["generator"] == 5 and problems[0].prompt in TOKENIZER.decode(prompt)
    assert texts == [sample.text for sample in episodes.samples[:6] if sample.call == "generator"]
    likeliest = small.sample([prompt], [0], jax.random.key(5), top_p=1e-6, **settings)
    assert len(set(map(bytes, likeliest.tokens))) == 1 < len(set(texts))


def test_bad_input_of_play(key):
    bound = bind("single")
    sampler = scripted(lambda text: "4")
    with pytest.raises(UserError, match="no problem to play"):
        play_text(sampler, bound, [], key)
    with pytest.raises(UserError, match="episode_numbers must have 4 numbers, one for each episode, got 1"):
        play_text(sampler, bound, sums((1, 2), (3, 4)), key, group_size=2, episode_numbers=[0])
    with pytest.raises(UserError, match="'long' is too long: call 'generator' reads 7"):
        play_text(sampler, bound, [dataclasses.replace(sums((1, 2))[0], name="long", prompt="1" * 700)], key)
