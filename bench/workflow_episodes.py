#!/usr/bin/env python
"""Episodes of workflows per second against the number of episodes that are played at once.

usage: python bench/workflow_episodes.py [--workflows voting eval_opt] [--episodes 64 256 1024 4096]

Untrained teams of a preset size play fresh arithmetic problems in one program: drawing the problems, prompts, sampling
of all calls, verification. Tokens are those that were asked for and drawn, each completion's end included.
"""

import argparse

from pairs import compact, console, write

from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import compile_timed, rate_statistics
from jaxmarl_llm.training.devices import place, use_cpu_cores


def measure(name, preset, num_episodes, num_devices, repeats):
    """Rates of one workflow at one number of episodes."""
    import time

    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import PartitionSpec

    from jaxmarl_llm import mesh, workflows
    from jaxmarl_llm.llm import Decoder, decoder_config

    bound = workflows.bind(workflows.make_workflow(name), workflows.make_task("arithmetic", level=2))
    config = decoder_config(preset, len(bound.vocabulary), bound.context_length, qk_norm=True)
    team = workflows.make_team(bound.workflow, Decoder(config), "isolated")
    placement = place(num_devices, num_episodes)

    def play(params, key):
        key_problems, key_play = jax.random.split(key)
        keys = mesh.local_keys(key_problems, num_episodes // mesh.num_devices())
        episodes = workflows.play(team, params, bound, key_play, jax.vmap(bound.task.sample)(keys))
        tokens = [jnp.sum(samples.mask, dtype=jnp.float32) for samples in episodes.calls]
        return mesh.sum_over_devices(jnp.stack([jnp.sum(episodes.outcome), *tokens]))

    whole = PartitionSpec()
    params, key = jax.device_put((jax.jit(team.init)(jax.random.key(0)), jax.random.key(1)), placement.replicated)
    shared = placement.share(play, (whole, whole), whole)
    program, compile_s = compile_timed(shared, params, key, compiler_options=placement.compiler_options)
    seconds, tokens = [], 0.0
    for seed in range(repeats + 1):
        key = jax.device_put(jax.random.key(seed), placement.replicated)
        start = time.perf_counter()
        tokens = float(np.asarray(program(params, key))[1:].sum())
        seconds.append(time.perf_counter() - start)
    found = rate_statistics(num_episodes, seconds[1:])
    return found | {"tokens_per_episode": tokens / num_episodes, "compile_s": compile_s}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workflows", nargs="+", default=["voting", "eval_opt"])
    parser.add_argument("--preset", default="tiny")
    parser.add_argument("--episodes", nargs="+", type=int, default=[64, 256, 1024, 4096])
    parser.add_argument("--num-devices", type=int, default=0, help="devices that share the episodes; 0 for all")
    parser.add_argument("--repeats", type=int, default=7, help="runs, after an uncounted one")
    args = parser.parse_args()
    use_cpu_cores()
    results = []
    for name in args.workflows:
        for num_episodes in args.episodes:
            found = measure(name, args.preset, num_episodes, args.num_devices, args.repeats)
            results.append({"workflow": name, "preset": args.preset, "batch": num_episodes, **found})
            console.print(f"  {name} B={num_episodes}: {found['steps_per_s']:,.0f} episodes/s")
            # A long measurement that is cut short keeps what it has.
            path = write("workflow_episodes", results)
    print_table(compact(results), title="Episodes per second")
    path.with_suffix(".md").write_text(markdown_table(compact(results)).replace("steps/s", "episodes/s") + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
