"""Padded lengths, and estimates of memory beside what the compiler plans."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, DecoderConfig, generate
from jaxmarl_llm.llm.buckets import length_bucket
from jaxmarl_llm.llm.devices import model_mesh, num_shards
from jaxmarl_llm.llm.memory import MemoryEstimate, check_fits, generation_memory
from jaxmarl_llm.machine import machine_memory

CONFIG = DecoderConfig(
    vocab_size=3001,
    hidden_size=96,
    num_layers=3,
    num_heads=6,
    num_kv_heads=2,
    intermediate_size=251,
    max_length=200,
    scan_layers=True,
)


def test_buckets_hold_their_lengths_and_are_few():
    lengths = range(1, 8193)
    buckets = [length_bucket(length) for length in lengths]
    assert all(length <= bucket for length, bucket in zip(lengths, buckets, strict=True))
    assert all(bucket < 1.5 * length for length, bucket in zip(lengths, buckets, strict=True) if length > 16)
    assert sorted(set(buckets))[:6] == [16, 24, 32, 48, 64, 96] and len(set(buckets)) == 19
    assert length_bucket(37) == 48 and length_bucket(37, at_most=41) == 41
    with pytest.raises(UserError, match="42 tokens are more than the 41 that fit"):
        length_bucket(42, at_most=41)
    with pytest.raises(UserError, match="length must be at least 1, got 0"):
        length_bucket(0)


def planned(function, *args):
    """Bytes of arguments, results and temporaries."""
    plan = jax.jit(function).lower(*args).compile().memory_analysis()
    return plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes


def shapes(config):
    adapter = jnp.zeros(1, jnp.int32) if config.num_adapters else None
    return jax.eval_shape(
        lambda: Decoder(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), adapter=adapter)
    )["params"]


@pytest.mark.parametrize(("prompts", "group"), [(29, 1), (5, 11)])
def test_generation_takes_what_is_estimated(prompts, group):
    prompt, length = jnp.ones((prompts, 61), jnp.int32), jnp.full(prompts, 61)

    def run(params, prompt, length, key):
        return generate(Decoder(CONFIG), params, prompt, length, key, max_new_tokens=31, group=group)

    found = planned(run, shapes(CONFIG), prompt, length, jax.random.key(0))
    estimate = generation_memory(CONFIG, prompts, 61, 31, group=group)
    assert 0.7 < estimate.total / found < 1.5, (estimate, found)


def test_what_does_not_fit_is_refused_in_one_line():
    fits = MemoryEstimate(weights=10**6, cache=10**6, logits=0, activations=1)
    check_fits(fits, "generation")
    with pytest.raises(
        UserError, match=r"generation takes about 9,000,000.0 GB \(cache 9,000,000.0\), and there"
    ) as error:
        check_fits(MemoryEstimate(weights=0, cache=9 * 10**15, logits=0, activations=0), "generation")
    assert "\n" not in str(error.value)
    weights = MemoryEstimate(weights=9 * 10**15, cache=1, logits=0, activations=0)
    check_fits(weights, "it", shards=10**9)
    with pytest.raises(UserError, match="it takes about"):
        check_fits(weights, "it")
    with pytest.raises(UserError, match="cache"):
        check_fits(dataclasses.replace(weights, cache=9 * 10**15), "it", shards=10**9)


def test_copies_are_no_shards():
    mesh = model_mesh(2)
    assert mesh is not None
    params = {"kernel": jnp.ones((6, 10)), "scale": jnp.ones(10)}
    split, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((None, "model"), ()))
    placed = {"kernel": jax.device_put(params["kernel"], split), "scale": jax.device_put(params["scale"], whole)}
    assert num_shards(placed) == 70 / 40
    assert num_shards(jax.device_put(params, whole)) == num_shards(params) == num_shards({"scale": 1.0}) == 1


def test_a_container_may_take_less_than_the_machine_has(tmp_path):
    whole = machine_memory(())
    limits = [tmp_path / name for name in ("memory.max", "memory.limit_in_bytes", "missing")]
    for texts, expected in (
        (("max\n", "9223372036854771712\n"), whole),
        (("12345678\n", "9223372036854771712\n"), 12345678),
        (("max\n", "2345678\n"), 2345678),
        (("", "no number"), whole),
    ):
        for path, text in zip(limits, texts, strict=False):
            path.write_text(text)
        assert machine_memory(limits) == expected
