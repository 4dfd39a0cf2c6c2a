"""Roles that may write certain texts only: formats that say so, replies that are always in their form, ratios 1."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.text.toy_text import CharacterTokenizer, Sums, tiny_sampler

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, DecoderConfig
from jaxmarl_llm.workflows import PROBLEM, Call, Choice, Instructions, Selected, Slot, Solution, Workflow, make_workflow
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.loading import make_trainer
from jaxmarl_llm.workflows.finetuning.optimise import pack_roles, role_gradients
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.messages import Verdict
from jaxmarl_llm.workflows.text import RoleFormat, bind_text, load_formats, play_text, show_formats
from jaxmarl_llm.workflows.text.choices import automaton_of, forms_of

TOKENIZER = CharacterTokenizer()


def bind(workflow, formats, **settings):
    return bind_text(workflow, Sums(), TOKENIZER, formats, **{"max_new_tokens": 11, "max_length": 400, **settings})


def judged(choices, **settings):
    formats = {
        "generator": RoleFormat("{problem}{generator}{evaluator}"),
        "evaluator": RoleFormat("{problem}{generator}", choices=choices),
    }
    return bind(make_workflow("eval_opt"), formats, **settings)


def texts_of(automaton):
    """All texts that an automaton of bytes has."""

    def walk(state, written):
        if state in automaton.ends:
            yield written.decode()
        for byte, after in automaton.ways[state].items():
            yield from walk(after, written + bytes([byte]))

    return list(walk(0, b""))


def test_a_file_says_what_may_be_written(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "w:\n  a:\n    user: x\n    choices: [yes it is, no]\n  b: {user: x, choices: form}\n  c: {user: x}\n"
    )
    with pytest.raises(
        UserError, match=r"own\.yaml: w\.a: choices of a format: each must be text, got False: quote it, as in \[.no.\]"
    ):
        load_formats(path)
    path.write_text(path.read_text().replace("no]", "7]"))
    with pytest.raises(UserError, match=r"got 7: quote it, as in \[.7.\]"):
        load_formats(path)
    path.write_text(path.read_text().replace("7]", "'no']").replace("form,", "form2,").replace("form}", "form2}"))
    with pytest.raises(
        UserError, match=r"w\.b: choices .* a list of texts, or form .*, got 'form2': did you mean form?"
    ):
        load_formats(path)
    path.write_text(path.read_text().replace("form2", "form"))
    formats = load_formats(path)
    assert [formats["w"][name].choices for name in "abc"] == [("yes it is", "no"), "form", ()]
    path.write_text(show_formats(formats))
    assert load_formats(path) == formats


@pytest.mark.parametrize(
    ("choices", "settings", "fault"),
    [
        ([], {}, "an empty list"),
        (("yes", "yes"), {}, "must be different texts, and none empty"),
        (("yes", ""), {}, "must be different texts, and none empty"),
        (("yes", "perhaps"), {}, "choices of call 'evaluator': 'perhaps' is not in the form of a Verdict"),
        (("yes", "ré"), {}, "choices of call 'evaluator': no tokens of the vocabulary can spell the choice 'ré'"),
        (("yes", "no"), {"max_new_tokens": 3}, "'yes' takes 4 tokens with its end, and there is room for 3"),
        ("form", {"max_new_tokens": 7}, "the shortest takes 8 tokens with its end, and there is room for 7"),
    ],
)
def test_choices_that_cannot_be(choices, settings, fault):
    with pytest.raises(UserError, match=fault):
        judged(choices, **settings)


def test_messages_without_forms_and_tokenizers_without_pieces(monkeypatch):
    with pytest.raises(
        UserError, match="choices of call 'generator': Solution has no list of forms: write choices: and"
    ):
        bind(make_workflow("single"), {"generator": RoleFormat("{problem}", choices="form")})
    with pytest.raises(UserError, match="instructions with items of any text have no list of forms: give items"):
        forms_of(Instructions(1, templates=("say {item}",)))
    monkeypatch.delattr(CharacterTokenizer, "pieces")
    with pytest.raises(UserError, match="need a tokenizer with pieces"):
        judged("form")


def test_the_forms_of_verdicts_and_choices():
    assert sorted(texts_of(forms_of(Verdict("a")))) == ["correct", "incorrect"]
    assert texts_of(forms_of(Choice("a"), (True, False, True))) == ["1", "3"]
    assert texts_of(forms_of(Choice("a"), (False, False))) == ["1", "2"]


@pytest.mark.parametrize(
    "message",
    [
        Instructions(2, templates=("do {item}", "do it"), items=("a", "ab"), goals=("win",)),
        # One template writes what a goal would.
        Instructions(2, templates=("goal: win",), goals=("win", "rest"), amounts=(2, 3), budget=5),
        Instructions(3, amounts=(1, 2), budget=4),
    ],
)
def test_every_message_of_instructions_without_fault_is_there_once_and_no_other(message):
    lines = {
        action: message.line(action)
        for target in range(message.number)
        for form in message.forms
        for item in form.items
        for action in message.read(f"{target + 1}: {form.text.replace('{item}', item)}").actions
    }
    expected = set()
    for size in range(1, message.number * len(message.kinds) + 1):
        for chosen in itertools.combinations(lines, size):
            orders = message.read("\n".join(map(lines.get, chosen)))
            if not orders.faults:
                place = {
                    action: (action.target, message.kinds.index(message.forms[action.form].kind)) for action in chosen
                }
                expected.add("\n".join(lines[action] for action in sorted(chosen, key=place.get)))
    found = texts_of(forms_of(message))
    assert len(found) == len(set(found)) and set(found) == expected


def test_the_same_choices_are_the_same_automaton():
    message = Verdict("generator")
    assert automaton_of(TOKENIZER, "form", message, ()) is automaton_of(TOKENIZER, "form", message, ())


def guess_and_vote():
    """A free solution, and two roles that are held to something, asked at the same time; then one that chooses."""
    guess, digit = (Call(name, prompt=(PROBLEM,), writes=Solution(), copies=3) for name in ("guess", "digit"))
    lead = Call("lead", prompt=(PROBLEM,), writes=Instructions(2, templates=("do {item}",), items=("a", "ab")))
    vote = Call("vote", prompt=(PROBLEM, Slot("guess", numbered=True)), writes=Choice("guess"))
    formats = {
        "guess": RoleFormat("{problem}"),
        "digit": RoleFormat("{problem}!", choices=("3", "5", "33")),
        "lead": RoleFormat("{problem}?", choices="form"),
        "vote": RoleFormat("{problem}{guess}", choices="form"),
    }
    return Workflow("own", (guess, digit, lead, vote), answer=Selected("vote")), formats


@pytest.fixture(scope="module")
def trainer():
    workflow, formats = guess_and_vote()
    bound = bind(workflow, formats, max_new_tokens={"guess": 5, "digit": 3, "lead": 17, "vote": 2})
    config = DecoderConfig(
        vocab_size=TOKENIZER.vocab_size, hidden_size=12, num_layers=2, num_heads=2, num_kv_heads=1,
        intermediate_size=10, max_length=400, scan_layers=True, tied_embeddings=False,
    )  # fmt: skip
    body = jax.jit(lambda key: Decoder(config).init(key, jnp.zeros((1, 1), jnp.int32)))(jax.random.key(0))["params"]
    settings = FinetuneConfig(
        trust_region="grpo", sharing="shared", lora_rank=2, lora_targets=("value", "down"), group_size=5,
        temperature=0.7, top_p=0.9, pack_tokens=2048, require_end=False,
    )  # fmt: skip
    return make_trainer(settings, config, body, bound)


@pytest.fixture(scope="module")
def played(trainer):
    """`(state, episodes)` of random adapters."""
    state = init_state(trainer.config, trainer.model)
    random = np.random.default_rng(5)
    adapters = jax.tree.map(lambda leaf: jnp.asarray(0.3 * random.normal(size=leaf.shape), jnp.float32), state.adapters)
    state = dataclasses.replace(state, adapters=adapters)
    return state, trainer.play(state, trainer.bound.task.held_out, jax.random.key(1))


def test_replies_are_in_their_form_and_their_ratios_are_one(trainer, played):
    state, episodes = played
    samples = episodes.samples
    said = {name: {sample.text for sample in samples if sample.call == name} for name in trainer.bound.workflow.copies}
    held = [sample for sample in samples if sample.constraint is not None]
    assert {sample.call for sample in held} == {"digit", "lead", "vote"} and all(sample.format_ok for sample in held)
    assert said["digit"] <= {"3", "5", "33"} and said["vote"] <= {"1", "2", "3"} and len(said["guess"]) > 15
    # Nobody is cut off, though there is room for one line of instructions, and not for every second one.
    assert all(sample.completion[-1] in TOKENIZER.stop_tokens for sample in held)
    assert {len(text.splitlines()) for text in said["lead"]} == {1, 2}
    found, _ = trainer.score(state.policy(0), trainer.pack(samples, range(len(samples))), len(samples))
    for sample, log_prob in zip(samples, found, strict=True):
        np.testing.assert_allclose(log_prob, sample.log_prob, atol=1e-4)


@pytest.mark.wide
def test_a_gradient_begins_at_ratios_of_one(trainer, played):
    state, episodes = played
    batch = trainer.assess(state, episodes)
    # Nobody finds a sum by chance: advantages by hand.
    draw = np.random.default_rng(2)
    advantage = [np.full(len(sample.completion), draw.normal(), np.float32) for sample in batch.samples]
    batch = dataclasses.replace(batch, advantage=advantage)
    packs = pack_roles(trainer, batch, range(len(batch.samples)))
    gradients, sums = role_gradients(trainer, state.adapters, batch, packs, np.zeros(1), 0.0)
    np.testing.assert_allclose(sums["message_log_ratio"] / sums["learned"], 0, atol=1e-4)
    assert np.isfinite(gradients).all() and (np.abs(gradients).max(axis=1) > 0).all()


@pytest.mark.wide
def test_greedy_evaluators_and_many_rows():
    bound = judged(("yes", "no"), max_length=160)
    sampler = tiny_sampler(bound.workflow, "isolated", max_rows=3)
    for temperature in (0.0, 1.0):
        episodes = play_text(
            sampler, bound, bound.task.held_out, jax.random.key(2), group_size=5, temperature=temperature
        )
        verdicts = [sample for sample in episodes.samples if sample.call == "evaluator"]
        assert {sample.text for sample in verdicts} <= {"yes", "no"}
        assert {sample.value for sample in verdicts} <= {"correct", "incorrect"}
