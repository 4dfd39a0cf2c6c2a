"""Base policies: what is learned from, its weights against NumPy, learning, devices, and the files on disk."""

import dataclasses
import functools
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.tiny_team import tiny_decoder

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.workflows import (
    Pretraining,
    base_policies,
    base_policy,
    bind,
    evaluate_base,
    make_pretraining,
    make_task,
    make_workflow,
    pretrain,
)
from jaxmarl_llm.workflows.base_policies import base_policy_path, describe
from jaxmarl_llm.workflows.pretraining import (
    Examples,
    Pretrained,
    draw_examples,
    loss_and_sums,
    role_mean_weights,
    sums_by_role,
)

TASK = make_task("arithmetic")
VOTING = make_workflow("voting", n=2)


def configuration(workflow=VOTING, decoder=None, task=TASK, **settings):
    decoder = tiny_decoder(bind(workflow, task), **(decoder or {})).config
    return make_pretraining(task, workflow, decoder=decoder, **settings)


@pytest.mark.slow
def test_examples_of_the_right_teachers_in_wrong_episodes(key):
    bound = bind(make_workflow("eval_opt", rounds=2), TASK)
    length = bound.context_length + 3
    draw = functools.partial(draw_examples, bound, skill=0.0, advice=1.0, length=length)
    drawn = jax.tree.map(np.asarray, jax.jit(jax.vmap(draw))(jax.random.split(key, 47)))
    assert drawn.tokens.shape == (47, 2, length) and drawn.mask.shape == (47, 2, length - 1)
    retried = 0
    for tokens, mask in zip(drawn.tokens.reshape(-1, length), drawn.mask.reshape(-1, length - 1), strict=True):
        role = bound.vocabulary.encode(
            "<generator>" if "<generator>" in bound.vocabulary.decode(tokens) else "<evaluator>"
        )
        prompt, written = (
            bound.vocabulary.decode(part) for part in np.split(tokens, [list(tokens).index(role[0]) + 1])
        )
        assert bound.vocabulary.decode(tokens[1:][mask]) == written
        expression, *attempt = prompt.split("<attempt>")
        value = eval(expression.split("<")[0]) % 10
        if "<evaluator>" in prompt:
            # What the evaluator reads is wrong, and it is taught to say so.
            assert int(attempt[0].split("<")[0]) != value and written == "incorrect <end>"
        else:
            retried += bool(attempt)
            assert written == f"{value} <end>"
    # The episodes have evaluators that are always wrong too, and take every attempt for a right one.
    assert retried == 0


def test_means_of_roles_against_numpy():
    rng = np.random.default_rng(0)
    mask, role = rng.random((11, 5)) < 0.4, rng.choice([0, 2, 3], 11)
    values = rng.normal(size=(11, 5)).astype(np.float32)
    of_role = [values[role == number][mask[role == number]] for number in range(4)]
    sums = sums_by_role(jnp.asarray(values), jnp.asarray(mask), jnp.asarray(role), 4)
    np.testing.assert_allclose(sums, [found.sum() for found in of_role], rtol=1e-5, atol=1e-6)
    count = jnp.asarray([found.size for found in of_role], jnp.float32)
    weights = role_mean_weights(jnp.asarray(mask), jnp.asarray(role), count)
    expected = np.mean([found.mean() for found in of_role if found.size])
    np.testing.assert_allclose((weights * values).sum(), expected, rtol=1e-5)
    assert not np.asarray(weights)[~mask].any()


def test_only_completions_are_learned_from(key):
    """Against one row after the other without padding, and with other tokens behind the end."""
    rng = np.random.default_rng(1)
    decoder = tiny_decoder(bind(VOTING, TASK), max_length=13)
    size = decoder.config.vocab_size
    start, end = np.asarray([2, 5, 1]), np.asarray([4, 9, 6])
    tokens = rng.integers(0, size, (3, 11))
    place = np.arange(1, 11)[None]
    mask = (place >= start[:, None]) & (place < end[:, None])
    allowed = rng.random((3, 1, size)) < 0.5
    for row in range(3):
        allowed[row, 0, tokens[row]] = True
    role = np.asarray([1, 0, 1])
    params = decoder.init(key, jnp.zeros((1, 1), jnp.int32))["params"]

    @jax.jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def batched(params, tokens):
        return loss_and_sums(
            decoder, params, Examples(tokens, jnp.asarray(mask)), jnp.asarray(role), jnp.asarray(allowed), 3
        )

    @jax.jit
    @jax.grad
    def alone(params):
        total = 0.0
        for row in range(3):
            logits = decoder.apply({"params": params}, jnp.asarray(tokens[row : row + 1, : end[row]]))[0][0]
            log_probs = jax.nn.log_softmax(jnp.where(allowed[row], logits, -jnp.inf))
            of_row = [log_probs[at - 1, tokens[row, at]] for at in range(start[row], end[row])]
            total -= sum(of_row) / (4 if role[row] == 0 else 7) / 2
        return total

    (loss, sums), gradient = batched(params, jnp.asarray(tokens))
    assert list(np.asarray(sums[2])) == [4, 7, 0]
    np.testing.assert_allclose(loss, (sums[0][0] / 4 + sums[0][1] / 7) / 2, rtol=1e-5)
    jax.tree.map(lambda *pair: np.testing.assert_allclose(*pair, atol=1e-5), gradient, alone(params))
    other = np.where(np.arange(11)[None] < end[:, None], tokens, (tokens + 1) % size)
    assert (other != tokens).any()
    jax.tree.map(np.testing.assert_array_equal, gradient, batched(params, jnp.asarray(other))[1])


@pytest.mark.slow
def test_learning_on_one_and_two_devices():
    task = make_task("arithmetic", operators="*", modulus=2)
    settings = {"num_steps": 110, "num_episodes": 22, "skill": 0.5, "skilled_share": 0.91}
    config = configuration(make_workflow("single"), task=task, **settings)
    heard = []
    one = pretrain(config, num_devices=1, on_metrics=heard.append)
    two = pretrain(config, num_devices=2)
    assert [found["step"] for found in heard] == [50, 100, 110] and tuple(heard) == one.metrics
    losses = [found["loss/generator"] for found in one.metrics]
    assert losses[1] < 0.6 * losses[0], losses
    # The last steps are those with mistakes.
    assert losses[2] > losses[1]
    np.testing.assert_allclose(two.metrics[0]["loss/generator"], losses[0], rtol=1e-2)
    found = evaluate_base(config, one.params, num_problems=7)["single"]
    assert found["format_ok/generator"] > 0.9 and found["accuracy"] == found["own_score/generator"]


@pytest.fixture
def made(monkeypatch):
    """Instead of pretraining, random parameters; the list of what was asked for."""
    asked = []

    def fake(config, **_):
        asked.append(config)
        decoder = Decoder(config.decoder)
        params = decoder.init(jax.random.key(len(asked)), jnp.zeros((1, 1), jnp.int32))["params"]
        return Pretrained(params, ({"step": 1.0},), 0.0)

    monkeypatch.setattr(base_policies, "pretrain", fake)
    return asked


def same(left, right):
    return all(jax.tree.leaves(jax.tree.map(lambda x, y: x.dtype == y.dtype and bool((x == y).all()), left, right)))


def test_files_by_configuration(tmp_path, made, monkeypatch):
    config = configuration(decoder={"param_dtype": "bfloat16"})
    first = base_policy(config, folder=tmp_path)
    assert same(base_policy(config, folder=tmp_path), first) and len(made) == 1
    for changes in ({"seed": 1}, {"skill": (("aggregator", 0.5), ("generator", 0.6))}):
        assert not same(base_policy(dataclasses.replace(config, **changes), folder=tmp_path), first)
    assert len(made) == 3 and len(list(tmp_path.iterdir())) == 3
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base_policy(config)
    assert base_policy_path(config).is_file() and tmp_path / "cache" in base_policy_path(config).parents


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign"])
def test_damaged_files_are_made_again(damage, tmp_path, made):
    config = configuration()
    first = base_policy(config, folder=tmp_path)
    path = base_policy_path(config, tmp_path)
    content = bytearray(path.read_bytes())
    at = content.index(np.asarray(first["embedding"]).tobytes())
    content[at] ^= 1
    other = configuration(decoder={"hidden_size": 8})
    base_policy(other, folder=tmp_path / "other")
    foreign = base_policy_path(other, tmp_path / "other").read_bytes()
    path.write_bytes({"cut": content[: at + 9], "flipped": content, "empty": b"", "foreign": foreign}[damage])
    told = []
    again = base_policy(config, folder=tmp_path, notify=told.append)
    assert len(made) == 3 and len(told) == 1 and "is damaged" in told[0] and "\n" not in told[0]
    assert same(base_policy(config, folder=tmp_path), again) and len(made) == 3


def write_anew(path, change):
    """The file with other arrays and a checksum that fits them."""
    with np.load(path) as archive:
        arrays = {name: change(archive[name]) if name != "head" else archive[name] for name in archive.files}
    head = json.loads(str(arrays.pop("head")))
    head["sha256"] = base_policies._checksum(arrays)
    np.savez(path, head=np.asarray(json.dumps(head)), **arrays)


def test_whole_files_of_something_else_are_made_again(tmp_path, made, capsys):
    config = configuration()
    base_policy(config, folder=tmp_path)
    path, other = base_policy_path(config, tmp_path), dataclasses.replace(config, num_steps=3)
    base_policy(other, folder=tmp_path)
    damages = (
        (lambda: path.write_bytes(base_policy_path(other, tmp_path).read_bytes()), "it is of another configuration"),
        (lambda: write_anew(path, lambda leaf: leaf * np.float32(np.nan)), "some of its numbers are not finite"),
        (lambda: write_anew(path, lambda leaf: leaf.view(np.int32)), "it does not fit the decoder"),
    )
    for damage, reason in damages:
        damage()
        again = base_policy(config, folder=tmp_path, notify=base_policies.print_notice)
        told = capsys.readouterr()
        assert told.err == f"base policy {path} is damaged ({reason}): it is made again\n" and not told.out
        assert same(base_policy(config, folder=tmp_path), again)
    assert len(made) == 5


def test_killed_while_writing(tmp_path, made, monkeypatch):
    config = configuration()

    def killed(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            base_policy(config, folder=tmp_path)
    (left,) = tmp_path.iterdir()
    assert left.name.endswith(".partial")
    os.utime(left, (0, 0))
    policy = base_policy(config, folder=tmp_path)
    assert len(made) == 2 and same(base_policy(config, folder=tmp_path), policy)
    assert list(tmp_path.iterdir()) == [base_policy_path(config, tmp_path)]


def test_a_folder_that_cannot_be_written(tmp_path, made):
    (tmp_path / "file").write_text("")
    told = []
    base_policy(configuration(), folder=tmp_path / "file", notify=told.append)
    assert len(told) == 1 and "cannot keep base policy" in told[0]


def test_bad_configurations():
    for settings, message in (
        ({"skill": {"generator": 0.5}}, "miss the roles aggregator"),
        ({"skill": {"generator": 0.5, "aggregatr": 0.5}}, "did you mean aggregator"),
        ({"skill": 1.5}, "between 0 and 1, and finite, got 1.5"),
        ({"skill": "abc"}, "skill of role 'generator' must be a number, got 'abc'"),
        ({"skill": float("nan")}, "must lie between 0 and 1, and finite, got nan"),
        ({"skill": {"generator": 0.5, "aggregator": [2, [3]]}}, "must be a number, got "),
        ({"constrained": "maybe"}, "constrained must be true or false, got 'maybe'"),
        ({"learning_rate": float("inf")}, "learning_rate must lie between"),
        ({"num_step": 3}, "did you mean num_steps"),
        ({"num_steps": 0}, "num_steps must be"),
        ({"decoder": {"max_length": 5}}, "set max_length="),
        ({"num_episodes": 7, "num_devices": 2}, "cannot share"),
    ):
        devices = settings.pop("num_devices", 0)
        with pytest.raises(UserError, match=message):
            pretrain(configuration(**settings), num_devices=devices)
    with pytest.raises(UserError, match="at least one workflow"):
        make_pretraining(TASK)
    with pytest.raises(UserError, match="no key of a base policy"):
        describe(lambda: None)
    assert isinstance(make_pretraining(TASK, VOTING), Pretraining)
