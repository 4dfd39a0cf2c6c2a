#!/usr/bin/env python
"""Training steps per second and time to a return on Overcooked, ours beside JaxMARL's own IPPO, in turns.

usage: python bench/training.py speed  [--peer-python PATH --checkout PATH] [--total-steps 3e5]
       python bench/training.py return [--peer-python PATH --checkout PATH] [--layout coord_ring --target 210]

`speed` runs ours with JaxMARL's network, observation and hyper-parameters ("dense"), and with factored observations.
`return` runs ours with a preset of this package; JaxMARL runs its own defaults.
"""

import argparse
import contextlib
import dataclasses
import statistics

from pairs import alternate, compact, console, ratio_statistics, start_ours, start_peer, write

from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import rate_statistics
from jaxmarl_llm.benchmark.training import seconds_to_return
from jaxmarl_llm.training.config import learner_settings, load_preset

TARGETS = {"cramped_room": 230.0, "coord_ring": 210.0}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "return"])
    parser.add_argument("--peer-python", help="interpreter that has JaxMARL and what its IPPO script imports")
    parser.add_argument("--checkout", help="a checkout of the JaxMARL repository")
    parser.add_argument("--layout", nargs="+", default=["cramped_room"])
    parser.add_argument("--total-steps", type=float, help="steps of a run: 3e5 for speed, 1.5e6 for return")
    parser.add_argument("--preset", default="ippo_overcooked_{layout}", help="our preset for return")
    parser.add_argument("--target", type=float, help="return to reach; known for cramped_room and coord_ring")
    parser.add_argument("--repeats", type=int, default=None, help="pairs of runs: 5 for speed, 3 for return")
    parser.add_argument("--name", help="name of the result file")
    args = parser.parse_args()
    if bool(args.peer_python) != bool(args.checkout):
        parser.error("--peer-python and --checkout go together")
    results = []
    for layout in args.layout:
        results += speed(args, layout) if args.what == "speed" else [time_to_return(args, layout)]
    print_table(compact(results), title=f"Training, {args.what}")
    path = write(args.name or f"training_{args.what}", results)
    path.with_suffix(".md").write_text(markdown_table(compact(results)) + "\n")
    console.print(f"wrote {path}")


def peer(args, stack):
    if not args.peer_python:
        return None
    return stack.enter_context(start_peer(args.peer_python, "jaxmarl_ippo.py", args.checkout))


def speed(args, layout):
    """Rows for dense and factored observations; every other hyper-parameter as JaxMARL's script has it."""
    total = args.total_steps or 3e5
    # JaxMARL compares no gradients of agents.
    hyper = {"shaped_reward_horizon": 2.5e6, "num_envs": 16, "rollout_length": 128, "role_gradient_rows": 0}
    rows = []
    with contextlib.ExitStack() as stack:
        theirs = peer(args, stack)
        yours = theirs.ask(prepare={"layout": layout, "total_steps": total}) if theirs else None
        for observation in ("dense", "factored"):
            with start_ours() as ours:
                mine = ours.ask(
                    prepare={
                        "what": "training",
                        "name": "overcooked",
                        "total_steps": total,
                        "env_args": {"layout": layout, "observation": observation},
                        "hyper": hyper,
                    }
                )
                runs = alternate(ours, theirs, args.repeats or 5, f"{layout} {observation}")
                row = {"layout": layout, "observation": observation, "num_envs": 16}
                row |= rate_statistics(mine["steps"], [run["seconds"] for run in runs[0]])
                row |= {"compile_s": mine["compile_s"], "peak_mib": ours.ask(memory=True)["peak_mib"]}
                row["checksum"] = runs[0][-1]["checksum"]
                if theirs:
                    rate = rate_statistics(yours["steps"], [run["seconds"] for run in runs[1]])
                    row |= {"theirs": rate["steps_per_s"], "theirs_compile_s": yours["compile_s"]}
                    row |= ratio_statistics(*runs, mine["steps"], yours["steps"])
                rows.append(row)
    return rows


def time_to_return(args, layout):
    """One row: seconds until the training curve stands at the target, compilation apart."""
    total = args.total_steps or 1.5e6
    target = args.target or TARGETS.get(layout)
    if target is None:
        raise SystemExit(f"give --target for {layout}")
    config = load_preset(args.preset.format(layout=layout))
    with contextlib.ExitStack() as stack:
        theirs = peer(args, stack)
        yours = None
        if theirs:
            yours = theirs.ask(prepare={"layout": layout, "total_steps": total, "eval_episodes": 64})
        ours = stack.enter_context(start_ours())
        mine = ours.ask(prepare={"what": "training", "eval_episodes": 64, **ours_settings(config, layout, total)})
        runs = alternate(ours, theirs, args.repeats or 3, layout, warm_up=False)
    row = {"layout": layout, "target": target, "total_steps": int(total)}
    for prefix, found, description in (("", runs[0], mine), ("theirs_", runs[1], yours)):
        if not found:
            continue
        reached = [seconds_to_return(run["curve"], run["seconds"], target) for run in found]
        hits = [(seconds, steps) for seconds, steps in reached if seconds is not None]
        # One run that misses the target makes the time unknown.
        whole = len(hits) == len(found)
        row |= {
            f"{prefix}seconds_to_target": statistics.median(seconds for seconds, _ in hits) if whole else None,
            f"{prefix}steps_to_target": statistics.median(steps for _, steps in hits) if whole else None,
            f"{prefix}reached": f"{len(hits)} of {len(found)}",
            f"{prefix}compile_s": description["compile_s"],
            f"{prefix}whole_run_s": statistics.median(run["seconds"] for run in found),
            f"{prefix}evaluation_return": statistics.mean(run["evaluation_return"] for run in found),
            f"curve_{prefix or 'ours_'}runs": [run["curve"] for run in found],
        }
    return row


def ours_settings(config, layout, total):
    """What our worker needs of a preset."""
    settings = learner_settings(dataclasses.replace(config, total_steps=int(total)))
    settings.pop("total_steps")
    return {
        "name": "overcooked",
        "algorithm": config.algorithm,
        "total_steps": total,
        "env_args": {**config.env_args, "layout": layout},
        "hyper": settings,
    }


if __name__ == "__main__":
    main()
