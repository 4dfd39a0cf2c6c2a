"""What a gradient is estimated to take, beside what the compiler plans."""

import functools

import jax
import jax.numpy as jnp
import pytest

from jaxmarl_llm.llm import Decoder, DecoderConfig
from jaxmarl_llm.llm.adapters import split_adapters
from jaxmarl_llm.llm.automata import RowConstraints, TokenAutomaton
from jaxmarl_llm.llm.memory import gradient_memory
from jaxmarl_llm.llm.packing import Pack
from jaxmarl_llm.workflows.finetuning.gradients import Lessons, pack_gradient
from jaxmarl_llm.workflows.loss import LossWeights

# As users compile, whatever the suite is compiled with.
OPTIMISED = {
    "xla_backend_optimization_level": 3,
    "xla_llvm_disable_expensive_passes": False,
    "xla_cpu_use_fusion_emitters": True,
}
B, L, C, M = 3, 41, 4, 17


def planned(config, top_k, candidates):
    """Bytes of arguments, results and temporaries of `pack_gradient`; nothing is allocated."""

    def init():
        start = {"adapter": jnp.zeros(1, jnp.int32)}
        return split_adapters(Decoder(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), **start)["params"])

    body, adapters = jax.eval_shape(init)
    adapter = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], jnp.float32), adapters)
    shape = jax.ShapeDtypeStruct
    tokens, message = shape((B, C, M), jnp.float32), shape((B, C), jnp.float32)
    integers = shape((B, L), jnp.int32), shape((B,), jnp.int32), shape((B, C, M), jnp.int32)
    table, rows = shape((5, candidates), jnp.int32), shape((B, C), jnp.int32)
    automaton = TokenAutomaton(table, table, shape((5,), jnp.int32), config.vocab_size)
    held_to = RowConstraints(automaton, rows, rows)
    settings = {"ratio": "token", "temperature": 1.0, "top_k": top_k}
    program = jax.jit(functools.partial(pack_gradient.__wrapped__, config, **settings)).lower(
        body,
        adapter,
        None,
        Pack(*integers, shape((B, C, M), bool), held_to if candidates else None),
        Lessons(tokens, tokens, tokens, message, message),
        LossWeights(0.2, 0.28, 0.0, 0.0, 0.5, 0.2),
        0.0,
    )
    plan = program.compile(compiler_options=OPTIMISED).memory_analysis()
    return plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes


@pytest.mark.parametrize(
    ("vocab_size", "top_k", "candidates"),
    [
        (7001, 0, 0),
        *(pytest.param(*one, marks=pytest.mark.wide) for one in ((7001, 5, 0), (3001, 0, 0), (7001, 0, 131))),
    ],
)
def test_a_gradient_takes_what_is_estimated(vocab_size, top_k, candidates):
    config = DecoderConfig(
        vocab_size=vocab_size,
        hidden_size=96,
        num_layers=7,
        num_heads=6,
        num_kv_heads=2,
        intermediate_size=251,
        max_length=200,
        scan_layers=True,
        lora_rank=2,
        num_adapters=1,
    )
    found = planned(config, top_k, candidates)
    estimate = gradient_memory(config, B, L, M, copies=C, limited=top_k > 0, candidates=candidates)
    assert 0.9 < estimate.total / found < 1.1, (estimate, found)
