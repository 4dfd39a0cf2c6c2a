#!/usr/bin/env python
"""How often `detect_cliff` finds a fall, and how often it raises a false alarm, on drawn learning curves.

usage: python bench/cliff_power.py [--num-curves 10000]

A curve rises by 0.3 over its first 30 %, stays, and falls from one point to the next after 65 %; each point has normal
noise.
"""

import argparse

import jax.numpy as jnp
import numpy as np
from pairs import console, write

from jaxmarl_llm.algorithms import detect_cliff
from jaxmarl_llm.benchmark.table import markdown_table, print_table

LENGTHS = (10, 16, 30)
NOISES = (0.01, 0.03)
FALLS = (0.0, 0.1, 0.15)
WINDOWS = (3, 5)


def share_found(length: int, noise: float, fall: float, window: int, num_curves: int, seed: int) -> float:
    """The share of drawn curves in which a cliff is seen."""
    time = np.arange(length)[:, None]
    clean = 0.3 + 0.3 * np.minimum(time / (0.3 * length), 1.0) - fall * (time >= 0.65 * length)
    curves = clean + noise * np.random.default_rng(seed).normal(size=(length, num_curves))
    return float(detect_cliff(jnp.asarray(curves, jnp.float32), window=window).cliff.mean())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-curves", type=int, default=10_000, help="curves of each kind")
    parser.add_argument("--name", default="cliff_power", help="name of the result file")
    args = parser.parse_args()
    rows = []
    for window in WINDOWS:
        for length in LENGTHS:
            row: dict = {"window": window, "points": length}
            for fall in FALLS:
                for noise in NOISES:
                    found = share_found(length, noise, fall, window, args.num_curves, seed=len(rows))
                    row[f"fall {fall:g}, noise {noise:g}"] = f"{found:.3f}"
            rows.append(row)
    print_table(rows, title="Share of curves with a cliff")
    path = write(args.name, rows, num_curves=args.num_curves)
    path.with_suffix(".md").write_text(markdown_table(rows) + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    main()
