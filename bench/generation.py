#!/usr/bin/env python
"""Generated tokens per second of decoders of several sizes, and tokens per second of a gradient of their scores.

usage: python bench/generation.py [--presets tiny ...] [--batch 64 256 1024] [--num-devices 1 2]

Prompts have 1 to --prompt-length random tokens, completions --new-tokens sampled ones, no stop token. The gradient is
that of log-probabilities, entropies and values of those completions. Compilation is timed apart.
"""

import argparse

from pairs import compact, console, write

from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import Program, rate_statistics
from jaxmarl_llm.training.devices import place, use_cpu_cores


def programs(preset, batch, prompt_length, new_tokens, num_devices):
    """`(generate, gradient)`, compiled programs that share the batch among the devices."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    from jaxmarl_llm.benchmark.timing import compile_timed
    from jaxmarl_llm.llm import Decoder, decoder_config, generate, score

    placement = place(num_devices, batch)
    module = Decoder(decoder_config(preset, 64, prompt_length + new_tokens, value_head=True))
    whole, split = PartitionSpec(), PartitionSpec("env")

    def compile_shared(function, in_specs, out_specs, *inputs):
        mapped = jax.shard_map(function, mesh=placement.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
        return compile_timed(mapped, *inputs, compiler_options=placement.compiler_options)

    def sample(params, key, prompt, length, row):
        return generate(module, params, prompt, length, key, max_new_tokens=new_tokens, row=row)

    def gradient(params, prompt, length, tokens, mask):
        def loss(params):
            found = score(module, params, prompt, length, tokens, mask)
            return jnp.sum(found.log_prob + found.entropy + found.value)

        return jax.lax.psum(jax.grad(loss)(params), "env")

    keys = jax.random.split(jax.random.key(0), 3)
    params = jax.jit(module.init)(keys[0], jnp.zeros((1, 2), jnp.int32))["params"]
    prompt = jax.random.randint(keys[1], (batch, prompt_length), 0, 64)
    length = jax.random.randint(keys[2], (batch,), 1, prompt_length + 1)
    params, key = jax.device_put((params, keys[0]), placement.replicated)
    rows = jax.device_put((prompt, length, jnp.arange(batch)), NamedSharding(placement.mesh, split))
    sampled, sample_s = compile_shared(sample, (whole, whole, split, split, split), split, params, key, *rows)
    drawn = sampled(params, key, *rows)
    inputs = (params, *rows[:2], drawn.tokens, drawn.mask)
    graded, gradient_s = compile_shared(gradient, (whole, split, split, split, split), whole, *inputs)

    def run_sample(seed):
        key = jax.device_put(jax.random.key(seed), placement.replicated)
        return {"checksum": int(jnp.sum(sampled(params, key, *rows).tokens))}

    def run_gradient(_):
        return {"checksum": float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(graded(*inputs))))}

    return (
        Program(sample_s, batch * new_tokens, run_sample),
        Program(gradient_s, batch * (prompt_length + new_tokens), run_gradient),
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["tiny", "small", "base", "medium"])
    parser.add_argument("--batch", nargs="+", type=int, default=[64, 256, 1024])
    parser.add_argument("--prompt-length", type=int, default=16)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--num-devices", nargs="+", type=int, default=[1, 2], help="devices that share the batch")
    parser.add_argument("--repeats", type=int, default=7, help="runs, after an uncounted one")
    args = parser.parse_args()
    use_cpu_cores()
    results = []
    for preset in args.presets:
        for batch in args.batch:
            for num_devices in args.num_devices:
                both = programs(preset, batch, args.prompt_length, args.new_tokens, num_devices)
                for what, program in zip(("generate", "gradient"), both, strict=True):
                    runs = [program.run(seed) for seed in range(args.repeats + 1)][1:]
                    result = {"preset": preset, "what": what, "batch": batch, "num_devices": num_devices}
                    result |= rate_statistics(program.steps, [run["seconds"] for run in runs])
                    result |= {"compile_s": program.compile_s, "checksum": runs[-1]["checksum"]}
                    console.print(
                        f"  {preset} {what} B={batch} on {num_devices}: {result['steps_per_s']:,.0f} tokens/s"
                    )
                    results.append(result)
                # A long measurement that is cut short keeps what it has.
                path = write("generation", results, prompt_length=args.prompt_length, new_tokens=args.new_tokens)
    print_table(compact(results), title="Tokens per second")
    path.with_suffix(".md").write_text(markdown_table(compact(results)).replace("steps/s", "tokens/s") + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
