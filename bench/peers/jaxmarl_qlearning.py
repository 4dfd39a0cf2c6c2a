#!/usr/bin/env python
"""Training speed of JaxMARL's own recurrent VDN and QMIX on MPE spread: the peer's side of `bench/value.py`.

usage: jaxmarl_qlearning.py CHECKOUT

Their scripts run as they are, with their configuration for MPE, in one jitted call; only the evaluation during training
and the logging to a web service are turned off.
Needs in this interpreter: jaxmarl flashbax distrax hydra-core omegaconf wandb matplotlib pyyaml safetensors
"""

import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
os.environ["WANDB_MODE"] = "disabled"
checkout = os.path.abspath(sys.argv[1])
sys.path.insert(0, checkout)
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "jaxmarl_llm", "benchmark"))
from serve import serve  # noqa: E402


def prepare(settings):
    import importlib

    import jax
    import jax.numpy as jnp
    import yaml

    script = importlib.import_module(f"baselines.QLearning.{settings['algorithm']}_rnn")
    with open(os.path.join(checkout, "baselines/QLearning/config/alg/ql_rnn_mpe.yaml")) as file:
        config = yaml.safe_load(file)
    config.update(TOTAL_TIMESTEPS=int(settings["total_steps"]), TEST_DURING_TRAINING=False, WANDB_MODE="disabled")
    env, _ = script.env_from_config(config)
    # Seeds are arrays of one key each: the script names its logs after the first number.
    keys = jax.random.split(jax.random.PRNGKey(0), 1)
    start = time.perf_counter()
    train = jax.jit(jax.vmap(script.make_train(config, env))).lower(keys).compile()
    compile_s = time.perf_counter() - start

    def run(seed):
        keys = jax.random.split(jax.random.PRNGKey(seed), 1)
        start = time.perf_counter()
        out = jax.block_until_ready(train(keys))
        seconds = time.perf_counter() - start
        params = out["runner_state"][0].params
        return {
            "seconds": seconds,
            "checksum": float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(params))),
        }

    steps = int(config["NUM_UPDATES"]) * config["NUM_ENVS"] * config["NUM_STEPS"]
    return {"compile_s": compile_s, "steps": steps}, run


if __name__ == "__main__":
    serve(prepare)
