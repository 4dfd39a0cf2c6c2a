#!/usr/bin/env python
"""Training steps per second of recurrent VDN and QMIX on MPE spread, ours beside JaxMARL's own scripts, in turns.

usage: python bench/value.py [--peer-python PATH --checkout PATH] [--total-steps 1.5e5] [--repeats 5]

Both train on JaxMARL's `MPE_simple_spread_v3`, ours through `from_jaxmarl`, so this interpreter needs JaxMARL too; the
sizes and hyper-parameters are those of JaxMARL's configuration for MPE.
"""

import argparse
import contextlib
import sys
import time

from pairs import _log, alternate, compact, console, ratio_statistics, start_peer, write

from jaxmarl_llm.benchmark.serve import Worker, serve
from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import rate_statistics

# JaxMARL's baselines/QLearning/config/alg/ql_rnn_mpe.yaml, in our words.
SETTINGS = {
    "num_envs": 8,
    "rollout_length": 26,
    "replay_size": 5000 * 26,
    "batch_size": 32,
    "gradient_steps": 1,
    "network": "gru",
    "hidden_sizes": (64,),
    "gru_size": 64,
    "activation": "relu",
    "agent_id": True,
    "epsilon_final": 0.05,
    "max_grad_norm": 25.0,
    "target_update_interval": 200,
    "learning_rate": 0.005,
    "learning_starts": 10_000.0,
    "discount": 0.9,
}
MIXER = {"embed_dim": 32, "hypernet_size": 128}


def prepare(settings):
    """Compiles one update; a run calls it from the host once a rollout, as the training loop does."""
    import jax
    import jax.numpy as jnp
    import jaxmarl
    import numpy as np

    from jaxmarl_llm import algorithms, from_jaxmarl
    from jaxmarl_llm.training.devices import place, use_cpu_cores
    from jaxmarl_llm.training.program import compile_program

    use_cpu_cores()
    env = from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3"))
    total = settings["total_steps"]
    hyper = SETTINGS | (MIXER if settings["algorithm"] == "qmix" else {})
    make = getattr(algorithms, settings["algorithm"])
    learner = make(env, total_steps=float(total), epsilon_steps=0.1 * total, **hyper)
    placement = place(settings.get("num_devices", 1), learner.env_groups)
    program = compile_program(learner, placement, np.zeros(1, np.uint32), num_episodes=1, greedy=True)
    num_updates = int(total) // learner.steps_per_update

    def run(seed):
        del seed
        state = jax.block_until_ready(program.init())
        packed = None
        start = time.perf_counter()
        for _ in range(num_updates):
            state, packed = program.update(state)
        jax.block_until_ready(state.params)
        seconds = time.perf_counter() - start
        checksum = float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(state.params)))
        last = float(program.unpack(packed)[0]["episode_return"][0])
        return {"seconds": seconds, "checksum": checksum, "final_return": last}

    return {"compile_s": program.compile_seconds, "steps": num_updates * learner.steps_per_update}, run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter that has JaxMARL and what its scripts import")
    parser.add_argument("--checkout", help="a checkout of the JaxMARL repository")
    parser.add_argument("--algorithm", nargs="+", default=["vdn", "qmix"], choices=["vdn", "qmix"])
    parser.add_argument("--total-steps", type=float, default=1.5e5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-devices", type=int, default=1, help="devices of ours (0: as many as can share)")
    args = parser.parse_args()
    if bool(args.peer_python) != bool(args.checkout):
        parser.error("--peer-python and --checkout go together")
    rows = []
    for algorithm in args.algorithm:
        work = {"algorithm": algorithm, "total_steps": args.total_steps}
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(Worker([sys.executable, __file__, "--serve"], _log("ours")))
            theirs = None
            if args.peer_python:
                theirs = stack.enter_context(start_peer(args.peer_python, "jaxmarl_qlearning.py", args.checkout))
            mine = ours.ask(prepare=work | {"num_devices": args.num_devices})
            yours = theirs.ask(prepare=work) if theirs else None
            runs = alternate(ours, theirs, args.repeats, algorithm)
            row = {"algorithm": algorithm, "env": "MPE_simple_spread_v3", "num_devices": args.num_devices}
            row |= rate_statistics(mine["steps"], [run["seconds"] for run in runs[0]])
            row |= {"compile_s": mine["compile_s"]}
            row["checksum"] = runs[0][-1]["checksum"]
            if yours:
                rate = rate_statistics(yours["steps"], [run["seconds"] for run in runs[1]])
                row |= {"theirs": rate["steps_per_s"], "theirs_compile_s": yours["compile_s"]}
                row |= ratio_statistics(*runs, mine["steps"], yours["steps"])
            rows.append(row)
    print_table(compact(rows), title="Training of the value family")
    path = write("value_speed", rows)
    path.with_suffix(".md").write_text(markdown_table(compact(rows)) + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(prepare)
    else:
        main()
