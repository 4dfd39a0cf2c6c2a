#!/usr/bin/env python
"""Generated tokens per second of a decoder with the sizes of SmolLM2-135M, and tokens per second of a gradient of its
adapters, ours beside PyTorch with transformers and PEFT, in turns.

usage: python bench/language_model.py [--peer-python PATH] [--what generate gradient] [--batch 1 32]

Weights are random on both sides, float32. Both draw from the whole distribution at temperature 1; ours gives
log-probabilities too. Without --peer-python it measures ours alone. See bench/README.md.
"""

import argparse
import contextlib
import sys

from pairs import alternate, compact, console, ratio_statistics, start_peer, start_worker, write

from jaxmarl_llm.benchmark.serve import serve
from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import rate_statistics

# The names of Hugging Face's configuration.
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}


def decoder_config(model, **changes):
    """Our configuration of a model."""
    from jaxmarl_llm.llm import DecoderConfig

    return DecoderConfig(
        vocab_size=model["vocab_size"],
        hidden_size=model["hidden_size"],
        num_layers=model["num_hidden_layers"],
        num_heads=model["num_attention_heads"],
        num_kv_heads=model["num_key_value_heads"],
        intermediate_size=model["intermediate_size"],
        max_length=model["max_position_embeddings"],
        rope_base=model["rope_theta"],
        scan_layers=True,
        **changes,
    )


def prepare(settings):
    """Our side: `settings` as for the peer's."""
    import time

    import jax
    import jax.numpy as jnp

    from jaxmarl_llm.benchmark.machine import machine_report
    from jaxmarl_llm.benchmark.timing import Program, compile_timed
    from jaxmarl_llm.llm import Decoder, generate, init_adapters, join_adapters, score, unstack

    batch, length = settings["batch"], settings["length"]
    config = decoder_config(settings["model"])
    keys = jax.random.split(jax.random.key(0), 3)
    body = jax.jit(Decoder(config).init)(keys[0], jnp.zeros((1, 1), jnp.int32))["params"]
    prepared = {}
    if settings["what"] == "generate":
        group, steps = settings["group"], settings["new_tokens"]
        prompt = jax.random.randint(keys[1], (batch // group, length), 3, config.vocab_size)
        lengths = jnp.full(batch // group, length)

        def laid_out():
            start = time.perf_counter()
            module, params = unstack(Decoder(config), body, batch)
            return module, jax.block_until_ready(params), time.perf_counter() - start

        # As a sampler does it: once for all calls. The first time is that of compilation.
        first = laid_out()[-1]
        module, body, again = laid_out()
        prepared = {"unstack_s": again, "unstack_compile_s": first - again}

        def sample(body, prompt, lengths, key):
            return generate(module, body, prompt, lengths, key, max_new_tokens=steps, group=group)

        compiled, compile_s = compile_timed(sample, body, prompt, lengths, keys[2])

        def run_sample(seed):
            drawn = compiled(body, prompt, lengths, jax.random.key(seed))
            return {"checksum": int(jnp.sum(drawn.tokens)) + float(jnp.sum(drawn.log_prob))}

        program = Program(compile_s, batch * steps, run_sample)
    else:
        rank = settings["rank"]
        config = decoder_config(
            settings["model"], lora_rank=rank, lora_alpha=8.0, lora_targets=("query", "value"), num_adapters=1
        )
        adapters = init_adapters(config, keys[2])
        tokens = jax.random.randint(keys[1], (batch, length), 3, config.vocab_size)

        def loss(adapters, body, tokens):
            rows = jnp.zeros(batch, jnp.int32)
            prompt, completion = tokens[:, :1], tokens[:, 1:]
            found = score(
                Decoder(config),
                join_adapters(body, adapters),
                prompt,
                jnp.ones(batch, jnp.int32),
                completion,
                jnp.ones(completion.shape, bool),
                adapter=rows,
            )
            return -jnp.mean(found.log_prob)

        compiled, compile_s = compile_timed(jax.value_and_grad(loss), adapters, body, tokens)

        def run_gradient(_):
            value, gradient = compiled(adapters, body, tokens)
            return {"checksum": float(value) + float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(gradient)))}

        program = Program(compile_s, batch * length, run_gradient)
    return {"compile_s": compile_s, **prepared, "steps": program.steps, "machine": machine_report()}, program.run


def compare(work, peer, repeats):
    """One row, both sides in fresh processes."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(start_worker([sys.executable, __file__, "--serve"], "ours"))
        theirs = stack.enter_context(start_peer(peer, "torch_language_model.py")) if peer else None
        mine = ours.ask(prepare=work)
        yours = theirs.ask(prepare=work) if theirs else {}
        label = f"{work['what']} B={work['batch']} G={work['group']}"
        ours_runs, theirs_runs = alternate(ours, theirs, repeats, label)
        row = {name: work[name] for name in ("what", "batch", "group", "length")}
        row |= rate_statistics(mine["steps"], [run["seconds"] for run in ours_runs])
        row |= {name: mine[name] for name in ("compile_s", "unstack_compile_s", "unstack_s") if name in mine}
        row |= {"peak_mib": ours.ask(memory=True)["peak_mib"]}
        row |= {"checksum": ours_runs[-1]["checksum"]}
        if theirs:
            speed = rate_statistics(yours["steps"], [run["seconds"] for run in theirs_runs])
            row |= {"theirs": speed["steps_per_s"], "theirs_peak_mib": theirs.ask(memory=True)["peak_mib"]}
            row |= {"checksum_theirs": theirs_runs[-1]["checksum"]}
            row |= ratio_statistics(ours_runs, theirs_runs, mine["steps"], yours["steps"])
        return row, yours.get("machine")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter that has torch, transformers and peft")
    parser.add_argument("--what", nargs="+", choices=("generate", "gradient"), default=["generate", "gradient"])
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 32], help="rows to generate")
    parser.add_argument("--prompt-length", type=int, default=37)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--gradient-batch", type=int, default=4)
    parser.add_argument("--gradient-length", type=int, default=128)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs, after an uncounted one")
    parser.add_argument("--name", default="language_model", help="name of the result file")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(prepare)
        return
    shared = {"model": SMOLLM2, "group": 1, "new_tokens": args.new_tokens, "rank": args.rank}
    works = []
    if "generate" in args.what:
        # Each batch with prompts of their own, and as completions of one prompt.
        for batch in args.batch:
            for group in sorted({1, batch}):
                works.append({"what": "generate", "batch": batch, "length": args.prompt_length, "group": group})
    if "gradient" in args.what:
        works.append({"what": "gradient", "batch": args.gradient_batch, "length": args.gradient_length})
    results, peer_machine = [], None
    for work in works:
        row, peer_machine = compare(shared | work, args.peer_python, args.repeats)
        results.append(row)
        path = write(args.name, results, peer=peer_machine, model=SMOLLM2, new_tokens=args.new_tokens, rank=args.rank)
    print_table(compact(results), title="Tokens per second")
    path.with_suffix(".md").write_text(markdown_table(compact(results)).replace("steps/s", "tokens/s") + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
