#!/usr/bin/env python
"""Startup time: fresh interpreters that import the package or print the command line's help.

usage: python bench/startup.py [--repeats 5]
"""

import argparse

from pairs import console, write

from jaxmarl_llm.benchmark.startup import run_startup_benchmark
from jaxmarl_llm.benchmark.table import print_table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    results = run_startup_benchmark(parser.parse_args().repeats)
    print_table(results, title="Startup")
    console.print(f"wrote {write('startup', results)}")


if __name__ == "__main__":
    main()
