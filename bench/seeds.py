#!/usr/bin/env python
"""Time of an update of many seeds in one compiled program, beside one seed's, in turns.

usage: python bench/seeds.py [--preset ippo_overcooked_cramped_room] [--num-seeds 16] [--repeats 7]
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
from pairs import console, write

from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.training.build import build_learner
from jaxmarl_llm.training.config import load_preset
from jaxmarl_llm.training.devices import place, use_cpu_cores
from jaxmarl_llm.training.program import compile_program


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="ippo_overcooked_cramped_room")
    parser.add_argument("--num-seeds", type=int, default=16)
    parser.add_argument(
        "--updates", type=int, default=2, help="updates of all seeds in a turn; one seed takes as many as all"
    )
    parser.add_argument("--repeats", type=int, default=7, help="pairs of turns, after an uncounted one")
    parser.add_argument("--name", default="seeds", help="name of the result file")
    args = parser.parse_args()

    use_cpu_cores()
    learner = build_learner(load_preset(args.preset))
    one, all_seeds = Runner(learner, 1), Runner(learner, args.num_seeds)
    one_s, all_s = [], []
    for i in range(args.repeats + 1):
        pair = one.seconds(args.updates * args.num_seeds), all_seeds.seconds(args.updates)
        if i == 0:
            continue
        one_s.append(pair[0])
        all_s.append(pair[1])
        console.print(f"  run {i}: one seed {pair[0] * 1e3:.1f} ms, {args.num_seeds} seeds {pair[1] * 1e3:.1f} ms")
    ratios = [b / a for a, b in zip(one_s, all_s, strict=True)]
    row = {
        "preset": args.preset,
        "num_seeds": args.num_seeds,
        "one_seed_ms": statistics.median(one_s) * 1e3,
        "all_seeds_ms": statistics.median(all_s) * 1e3,
        "times_one_seed": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
        "compile_s": all_seeds.program.compile_seconds,
        "checksum": all_seeds.checksum(),
    }
    print_table([row], title="Seeds in one program")
    path = write(args.name, [{**row, "pairs": ratios}])
    path.with_suffix(".md").write_text(markdown_table([row]) + "\n")
    console.print(f"wrote {path}")


class Runner:
    """The compiled update of S seeds, and the state that it has reached."""

    def __init__(self, learner, num_seeds: int):
        seeds = np.arange(num_seeds, dtype=np.uint32)
        self.program = compile_program(learner, place(0, learner.env_groups), seeds, num_episodes=1, greedy=False)
        self.state = self.program.init()

    def seconds(self, updates: int) -> float:
        """Seconds an update, over some updates that are waited for."""
        jax.block_until_ready(self.state)
        start = time.perf_counter()
        for _ in range(updates):
            self.state, packed = self.program.update(self.state)
        jax.block_until_ready((self.state, packed))
        return (time.perf_counter() - start) / updates

    def checksum(self) -> float:
        """Sum of the magnitudes of all seeds' parameters."""
        return float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(self.state.params)))


if __name__ == "__main__":
    main()
