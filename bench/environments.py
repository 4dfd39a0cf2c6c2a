#!/usr/bin/env python
"""Environment steps per second, ours beside JaxMARL's, in turns.

usage: python bench/environments.py [--peer-python PATH] [--envs ...] [--num-envs ...] [--modes ...] [--consume ...]

Without --peer-python it measures ours alone. See bench/README.md for what the modes mean.
"""

import argparse
import contextlib

from pairs import alternate, compact, console, ratio_statistics, start_ours, start_peer, write

from jaxmarl_llm.benchmark.environments import CONSUME, MODES, steps_for
from jaxmarl_llm.benchmark.serve import WorkerError
from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import rate_statistics

# Where both engines have the same game under the same name; each side's settings make it the same.
SHARED = {
    "overcooked": ({"layout": "cramped_room"}, {"layout": "cramped_room"}),
    "coin_game": ({}, {}),
    "switch_riddle": ({}, {}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter that has JaxMARL")
    parser.add_argument("--envs", nargs="+", default=list(SHARED))
    parser.add_argument("--num-envs", nargs="+", type=int, default=[1, 128, 1024, 4096, 16384, 65536])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--consume", nargs="+", choices=CONSUME, default=list(CONSUME))
    parser.add_argument(
        "--num-steps", type=int, default=200, help="steps of a run; more for small batches, fewer for huge ones"
    )
    parser.add_argument("--repeats", type=int, default=5, help="pairs of runs, after an uncounted one")
    parser.add_argument("--name", default="environments", help="name of the result file")
    args = parser.parse_args()

    results = []
    for name in args.envs:
        ours_args, theirs_args = SHARED.get(name, ({}, {}))
        for num_envs in args.num_envs:
            for mode in args.modes:
                for consume in args.consume if mode.startswith("observe") else ["none"]:
                    work = {
                        "name": name,
                        "num_envs": num_envs,
                        "num_steps": steps_for(num_envs, args.num_steps),
                        "mode": mode,
                        "consume": consume if consume != "none" else "carry",
                    }
                    peer = args.peer_python if name in SHARED else None
                    result = {"env": name, "mode": mode, "consume": consume, "num_envs": num_envs}
                    result |= compare(work, ours_args, theirs_args, peer, args.repeats)
                    results.append(result)
                    # A long measurement that is cut short keeps what it has.
                    write(args.name, results)
    print_table(compact(results), title="Environment steps per second")
    path = write(args.name, results)
    path.with_suffix(".md").write_text(markdown_table(compact(results)) + "\n")
    console.print(f"wrote {path}")


def compare(work, ours_args, theirs_args, peer, repeats):
    """One row: both sides prepared in fresh processes, so that peak memory is that of this work alone."""
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(start_ours())
        mine = ours.ask(prepare={"what": "environment", **work, "env_args": ours_args})
        theirs, yours = None, None
        if peer:
            theirs = stack.enter_context(start_peer(peer, "jaxmarl_env.py"))
            try:
                yours = theirs.ask(prepare={**work, "env_args": theirs_args})
            except WorkerError as error:
                console.print(f"  {work['name']}: the peer cannot do this: {error}")
                theirs = None
        label = f"{work['name']} B={work['num_envs']} {work['mode']}/{work['consume']}"
        ours_runs, theirs_runs = alternate(ours, theirs, repeats, label)
        row = {
            **rate_statistics(mine["steps"], [run["seconds"] for run in ours_runs]),
            "compile_s": mine["compile_s"],
            "peak_mib": ours.ask(memory=True)["peak_mib"],
            "checksum": ours_runs[-1]["checksum"],
        }
        if theirs:
            speed = rate_statistics(yours["steps"], [run["seconds"] for run in theirs_runs])
            row |= {
                "theirs": speed["steps_per_s"],
                "theirs_compile_s": yours["compile_s"],
                "theirs_peak_mib": theirs.ask(memory=True)["peak_mib"],
                "checksum_theirs": theirs_runs[-1]["checksum"],
                **ratio_statistics(ours_runs, theirs_runs, mine["steps"], yours["steps"]),
            }
        return row


if __name__ == "__main__":
    main()
