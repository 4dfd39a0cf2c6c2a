#!/usr/bin/env python
"""Training steps per second of recurrent VDN, QMIX and MAPPO on MPE spread, ours beside JaxMARL's scripts, in turns.

usage: python bench/mpe.py [--peer-python PATH --checkout PATH] [--total-steps 1e5] [--repeats 5]

All train on JaxMARL's `MPE_simple_spread_v3`, ours through `from_jaxmarl`, so this interpreter needs JaxMARL too;
networks, sizes and hyper-parameters are those of JaxMARL's configurations for MPE. A whole training is one compiled
call on both sides.
"""

import argparse
import contextlib
import sys
import time

from pairs import _log, alternate, compact, console, ratio_statistics, start_peer, write

from jaxmarl_llm.benchmark.serve import Worker, serve
from jaxmarl_llm.benchmark.table import markdown_table, print_table
from jaxmarl_llm.benchmark.timing import rate_statistics

# JaxMARL compares no gradients of agents.
COMMON = {"network": "gru", "activation": "relu", "role_gradient_rows": 0}
# JaxMARL's baselines/QLearning/config/alg/ql_rnn_mpe.yaml, in our words.
VALUE = COMMON | {
    "num_envs": 8,
    "rollout_length": 26,
    "replay_size": 5000 * 26,
    "batch_size": 32,
    "gradient_steps": 1,
    "hidden_sizes": (64,),
    "gru_size": 64,
    "agent_id": True,
    "epsilon_final": 0.05,
    "max_grad_norm": 25.0,
    "target_update_interval": 200,
    "learning_rate": 0.005,
    "learning_starts": 10_000.0,
    "discount": 0.9,
}
# Likewise baselines/MAPPO/config/mappo_homogenous_rnn_mpe.yaml.
MAPPO = COMMON | {
    "num_envs": 16,
    "rollout_length": 128,
    "num_epochs": 4,
    "num_minibatches": 4,
    "hidden_sizes": (128, 128),
    "gru_size": 128,
    "learning_rate": 2e-3,
    "normalize_value": False,
}
SETTINGS = {"vdn": VALUE, "qmix": VALUE | {"embed_dim": 32, "hypernet_size": 128}, "mappo": MAPPO}


def make_learner(algorithm, total_steps):
    """The learner on JaxMARL's environment."""
    import jaxmarl

    from jaxmarl_llm import algorithms, from_jaxmarl

    hyper = {"total_steps": float(total_steps), **SETTINGS[algorithm]}
    if algorithm != "mappo":
        hyper["epsilon_steps"] = 0.1 * total_steps
    return getattr(algorithms, algorithm)(from_jaxmarl(jaxmarl.make("MPE_simple_spread_v3")), **hyper)


def prepare(settings):
    """Compiles a whole training as one call."""
    from jaxmarl_llm.training.devices import place, use_cpu_cores

    use_cpu_cores()
    import jax
    import jax.numpy as jnp

    learner = make_learner(settings["algorithm"], settings["total_steps"])
    placement = place(settings.get("num_devices", 0), learner.env_groups)
    num_updates = int(settings["total_steps"]) // learner.steps_per_update

    def train(state):
        state = jax.tree.map(lambda leaf: leaf[0], state)
        state, metrics = jax.lax.scan(lambda state, _: learner.update(state), state, length=num_updates)
        return jax.tree.map(lambda leaf: leaf[None], (state, metrics["episode_return"]))

    init = jax.jit(lambda seed: jax.tree.map(lambda leaf: leaf[None], learner.init(jax.random.key(seed))))
    shapes = jax.eval_shape(init, 0)
    shardings = placement.state_shardings(shapes)
    start = time.perf_counter()
    compiled = (
        jax.jit(placement.spread(train, shapes), in_shardings=(shardings,), donate_argnums=0)
        .lower(shapes)
        .compile(compiler_options=placement.compiler_options)
    )
    compile_s = time.perf_counter() - start

    def run(seed):
        start = time.perf_counter()
        state = jax.device_put(init(seed), shardings)
        state, returns = jax.block_until_ready(compiled(state))
        seconds = time.perf_counter() - start
        checksum = float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(state.params)))
        return {"seconds": seconds, "checksum": checksum, "final_return": float(jnp.nanmean(returns[0, -20:]))}

    steps = num_updates * learner.steps_per_update
    if settings["algorithm"] != "mappo":
        # To begin an episode of 25 steps takes one time step more.
        steps = steps * learner.env.max_steps // (learner.env.max_steps + 1)
    return {"compile_s": compile_s, "steps": steps, "num_devices": placement.num_devices}, run


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", help="interpreter that has JaxMARL and what its scripts import")
    parser.add_argument("--checkout", help="a checkout of the JaxMARL repository")
    parser.add_argument("--algorithm", nargs="+", default=[*SETTINGS], choices=[*SETTINGS])
    parser.add_argument("--total-steps", type=float, default=1e5, help="of VDN and QMIX; MAPPO does a quarter of it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--num-devices", type=int, default=0, help="devices of ours (0: as many as can share)")
    args = parser.parse_args()
    if bool(args.peer_python) != bool(args.checkout):
        parser.error("--peer-python and --checkout go together")
    rows = []
    for algorithm in args.algorithm:
        total_steps = args.total_steps / 4 if algorithm == "mappo" else args.total_steps
        work = {"algorithm": algorithm, "total_steps": total_steps}
        with contextlib.ExitStack() as stack:
            ours = stack.enter_context(Worker([sys.executable, __file__, "--serve"], _log("ours")))
            theirs = None
            if args.peer_python:
                theirs = stack.enter_context(start_peer(args.peer_python, "jaxmarl_mpe.py", args.checkout))
            mine = ours.ask(prepare=work | {"num_devices": args.num_devices})
            yours = theirs.ask(prepare=work) if theirs else None
            runs = alternate(ours, theirs, args.repeats, algorithm)
            row = {"algorithm": algorithm, "env": "MPE_simple_spread_v3", "num_devices": mine["num_devices"]}
            row |= rate_statistics(mine["steps"], [run["seconds"] for run in runs[0]])
            row |= {"compile_s": mine["compile_s"]}
            row["checksum"] = runs[0][-1]["checksum"]
            if yours:
                rate = rate_statistics(yours["steps"], [run["seconds"] for run in runs[1]])
                row |= {"theirs": rate["steps_per_s"], "theirs_compile_s": yours["compile_s"]}
                row |= ratio_statistics(*runs, mine["steps"], yours["steps"])
            rows.append(row)
    print_table(compact(rows), title="Training on MPE spread")
    path = write("mpe_speed", rows)
    path.with_suffix(".md").write_text(markdown_table(compact(rows)) + "\n")
    console.print(f"wrote {path}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(prepare)
    else:
        main()
