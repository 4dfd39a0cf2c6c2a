#!/usr/bin/env python
"""Training speed of JaxMARL's own recurrent VDN, QMIX and MAPPO on MPE spread: the peer's side of `bench/mpe.py`.

usage: jaxmarl_mpe.py CHECKOUT

Their scripts run as they are, with their configurations for MPE, in one jitted call; only the evaluation during
training and the logging to a web service are turned off.
Needs in this interpreter: jaxmarl flashbax distrax hydra-core omegaconf wandb matplotlib pyyaml safetensors
"""

import time

from checkout import read_config
from serve import serve


def prepare(settings):
    import importlib

    import jax
    import jax.numpy as jnp

    mappo = settings["algorithm"] == "mappo"
    if mappo:
        script = importlib.import_module("baselines.MAPPO.mappo_rnn_mpe")
        path = "baselines/MAPPO/config/mappo_homogenous_rnn_mpe.yaml"
    else:
        script = importlib.import_module(f"baselines.QLearning.{settings['algorithm']}_rnn")
        path = "baselines/QLearning/config/alg/ql_rnn_mpe.yaml"
    config = read_config(path)
    config.update(TOTAL_TIMESTEPS=int(settings["total_steps"]), TEST_DURING_TRAINING=False, WANDB_MODE="disabled")
    if mappo:
        # YAML 1.1 reads 2e-3 as text.
        config["LR"] = float(config["LR"])
        train = script.make_train(config)
        make_keys = jax.random.PRNGKey
    else:
        # Seeds are arrays of one key each: the script names its logs after the first number.
        train = jax.vmap(script.make_train(config, script.env_from_config(config)[0]))

        def make_keys(seed):
            return jax.random.split(jax.random.PRNGKey(seed), 1)

    start = time.perf_counter()
    train = jax.jit(train).lower(make_keys(0)).compile()
    compile_s = time.perf_counter() - start

    def run(seed):
        keys = make_keys(seed)
        start = time.perf_counter()
        out = jax.block_until_ready(train(keys))
        seconds = time.perf_counter() - start
        trained = out["runner_state"][0][0] if mappo else out["runner_state"][0]
        params = [state.params for state in trained] if mappo else trained.params
        return {
            "seconds": seconds,
            "checksum": float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(params))),
        }

    steps = int(config["NUM_UPDATES"]) * config["NUM_ENVS"] * config["NUM_STEPS"]
    return {"compile_s": compile_s, "steps": steps}, run


if __name__ == "__main__":
    serve(prepare)
