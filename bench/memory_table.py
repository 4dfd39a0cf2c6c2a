#!/usr/bin/env python
"""What fits: the most sequences at once, by model, memory, length and roles; nothing is allocated.

usage: python bench/memory_table.py [--model FOLDER ...] [--memory GB ...] [--length L ...] [--roles P ...] [--no-check]

A quarter of a length is written, the rest is read. Estimates are those of `generation_memory` and `gradient_memory`
for a GPU; adapters of all roles are in float32, with two moments each. The check compares the same estimates, for this
machine and SmolLM2-135M, with what XLA plans.
"""

import argparse
import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
from pairs import write

from jaxmarl_llm.benchmark.table import print_table
from jaxmarl_llm.llm import Decoder, DecoderConfig, generate
from jaxmarl_llm.llm.adapters import split_adapters
from jaxmarl_llm.llm.checkpoints.hf_config import read_config
from jaxmarl_llm.llm.memory import generation_memory, gradient_memory
from jaxmarl_llm.llm.packing import Pack
from jaxmarl_llm.workflows.finetuning.gradients import Lessons, pack_gradient
from jaxmarl_llm.workflows.loss import LossWeights

QWEN3 = {"vocab_size": 151936, "head_dim": 128, "num_kv_heads": 8, "qk_norm": True, "rope_base": 1e6}
MODELS = {
    "SmolLM2-135M": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "num_layers": 30,
        "num_heads": 9,
        "num_kv_heads": 3,
        "intermediate_size": 1536,
    },
    "Qwen3-0.6B": QWEN3 | {"hidden_size": 1024, "num_layers": 28, "num_heads": 16, "intermediate_size": 3072},
    "Qwen3-1.7B": QWEN3 | {"hidden_size": 2048, "num_layers": 28, "num_heads": 16, "intermediate_size": 6144},
    "Qwen3-4B": QWEN3 | {"hidden_size": 2560, "num_layers": 36, "num_heads": 32, "intermediate_size": 9728},
}


def adapted(model: str, dtype: str, roles: int, rank: int) -> DecoderConfig:
    """A model by name or folder, with an adapter for each role."""
    if model in MODELS:
        shape = {"max_length": 32768, "scan_layers": True, "dtype": dtype, "param_dtype": dtype}
        config = DecoderConfig(**MODELS[model], **shape)
    else:
        _, config = read_config(Path(model), dtype)
    return dataclasses.replace(config, lora_rank=rank, num_adapters=roles)


def needed(work: str, config: DecoderConfig, batch: int, length: int) -> int:
    """Bytes of a batch, while a team is trained."""
    new = length // 4
    if work == "generation":
        found = generation_memory(config, batch, length - new, new, platform="gpu")
        return found.total + 2 * found.adapters
    limited = work == "gradient, top-k"
    return gradient_memory(config, batch, length - new, new, limited=limited, platform="gpu").total


def most(work: str, config: DecoderConfig, length: int, there: float) -> int:
    """The largest batch that fits."""
    low, high = 0, 1 << 20
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(work, config, middle, length) <= there else (low, middle - 1)
    return low


def shapes(config: DecoderConfig):
    """Body and adapters of a decoder."""

    def init():
        start = {"adapter": jnp.zeros(1, jnp.int32)}
        return split_adapters(Decoder(config).init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32), **start)["params"])

    return jax.eval_shape(init)


def planned(function, *args) -> int:
    """Bytes of arguments, results and temporaries."""
    plan = jax.jit(function).lower(*args).compile().memory_analysis()
    return plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes


def check(batch: int, prompt: int, copies: int, new: int, top_k: int) -> dict:
    """A gradient at the sizes of SmolLM2-135M: estimated and planned."""
    config, shape = adapted("SmolLM2-135M", "float32", 1, 8), jax.ShapeDtypeStruct
    body, adapters = shapes(config)
    adapter = jax.tree.map(lambda leaf: shape(leaf.shape[1:], jnp.float32), adapters)
    tokens, message = shape((batch, copies, new), jnp.float32), shape((batch, copies), jnp.float32)
    integers = [shape(one, jnp.int32) for one in ((batch, prompt), (batch,), (batch, copies, new))]
    found = planned(
        functools.partial(pack_gradient.__wrapped__, config, ratio="token", temperature=1.0, top_k=top_k),
        body,
        adapter,
        None,
        Pack(*integers, shape((batch, copies, new), bool)),
        Lessons(tokens, tokens, tokens, message, message),
        LossWeights(0.2, 0.28, 0.0, 0.0, 0.5, 0.2),
        0.0,
    )
    estimate = gradient_memory(config, batch, prompt, new, copies=copies, limited=top_k > 0).total
    what = f"gradient, {batch} prompts of {prompt}, {copies} x {new} tokens, top_k={top_k}"
    return checked(what, estimate, found)


def check_generation(prompts: int, prompt: int, new: int, group: int) -> dict:
    """Sampling at the sizes of SmolLM2-135M: estimated and planned."""
    config = dataclasses.replace(adapted("SmolLM2-135M", "float32", 1, 8), lora_rank=0, num_adapters=0)
    params = jax.eval_shape(Decoder(config).init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"]
    tokens, length = jax.ShapeDtypeStruct((prompts, prompt), jnp.int32), jax.ShapeDtypeStruct((prompts,), jnp.int32)

    def run(params, tokens, length, key):
        return generate(Decoder(config), params, tokens, length, key, max_new_tokens=new, group=group)

    found = planned(run, params, tokens, length, jax.random.key(0))
    estimate = generation_memory(config, prompts, prompt, new, group=group).total
    return checked(f"generation, {prompts} prompts of {prompt}, {group} x {new} tokens", estimate, found)


def checked(what: str, estimate: int, found: int) -> dict:
    return {
        "check": what,
        "estimated_gb": round(estimate / 1e9, 3),
        "planned_gb": round(found / 1e9, 3),
        "ratio": round(estimate / found, 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(MODELS), help="names of the table, or folders")
    parser.add_argument("--memory", nargs="+", type=float, default=[24.0, 80.0, 141.0], help="GB of a device")
    parser.add_argument("--length", nargs="+", type=int, default=[512, 2048, 8192], help="tokens of a sequence")
    parser.add_argument("--roles", nargs="+", type=int, default=[2, 8], help="policies, an adapter each")
    parser.add_argument("--usable", type=float, default=0.9, help="share of the memory that may be used")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--check", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--name", default="memory_table")
    args = parser.parse_args()
    rows = []
    for model in args.model:
        for memory in args.memory:
            for work in ("generation", "gradient", "gradient, top-k"):
                row = {"model": model, "memory_gb": memory, "work": work}
                for roles in args.roles:
                    config = adapted(model, args.dtype, roles, args.rank)
                    for length in args.length:
                        name = f"{length} tokens, {roles} roles"
                        row[name] = most(work, config, length, args.usable * memory * 1e9)
                rows.append(row)
    table = [
        {
            "model": row["model"],
            "memory, GB": f"{row['memory_gb']:g}",
            "work": row["work"],
        }
        | {
            f"{length:,} tokens": " / ".join(str(row[f"{length} tokens, {roles} roles"]) for roles in args.roles)
            for length in args.length
        }
        for row in rows
    ]
    print_table(table, title=f"Sequences at once with {' / '.join(map(str, args.roles))} roles")
    checks = []
    if args.check:
        checks = [check(4, 128, 8, 33, 0), check(4, 128, 8, 33, 5), check(4, 1024, 1, 65, 0)]
        checks += [check_generation(32, 37, 32, 1), check_generation(4, 256, 64, 8)]
        print_table(checks, title="SmolLM2-135M in float32 on this machine")
    path = write(args.name, rows + checks, usable=args.usable, dtype=args.dtype, rank=args.rank)
    lines = ["| " + " | ".join(table[0]) + " |", "|" + " --- |" * len(table[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in table]
    if checks:
        lines += ["", "| check | estimated, GB | planned, GB | ratio |", "| --- | --- | --- | --- |"]
        lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in checks]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
