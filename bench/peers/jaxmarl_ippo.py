#!/usr/bin/env python
"""Training speed and learning curve of JaxMARL's own feed-forward IPPO on Overcooked: the peer's side of
`bench/training.py`.

usage: jaxmarl_ippo.py CHECKOUT

CHECKOUT is a checkout of the JaxMARL repository, since its training scripts are not in its package. Their script is run
as it is, with its own configuration, in its one jitted call; only its logging to a web service is made to do nothing.
Needs in this interpreter: jaxmarl distrax hydra-core omegaconf wandb matplotlib pyyaml imageio seaborn six
"""

import time

from checkout import read_config
from serve import serve


def prepare(settings):
    import importlib

    import jax
    import jax.numpy as jnp
    import jaxmarl
    import numpy as np
    from jaxmarl.environments.overcooked import overcooked_layouts

    script = importlib.import_module("baselines.IPPO.ippo_ff_overcooked")
    config = read_config("baselines/IPPO/config/ippo_ff_overcooked.yaml")
    # YAML 1.1 reads 2.5e-4 as a number and 2.5e6 as text.
    config = {name: _number(value) for name, value in config.items()}
    config.update(
        TOTAL_TIMESTEPS=float(settings["total_steps"]),
        ENV_KWARGS={"layout": overcooked_layouts[settings["layout"]]},
        **settings.get("hyper", {}),
    )
    key = jax.random.PRNGKey(0)
    start = time.perf_counter()
    train = jax.jit(script.make_train(dict(config))).lower(key).compile()
    compile_s = time.perf_counter() - start
    steps_per_update = int(config["NUM_ENVS"]) * int(config["NUM_STEPS"])
    num_updates = int(config["TOTAL_TIMESTEPS"]) // steps_per_update
    episodes = settings.get("eval_episodes", 0)
    env = jaxmarl.make("overcooked", **config["ENV_KWARGS"])
    network = script.ActorCritic(env.action_space(env.agents[0]).n, activation=config["ACTIVATION"])

    @jax.jit
    def evaluate(params, key):
        """Mean return of first episodes, with sampled actions."""
        key_reset, key_run = jax.random.split(key)
        observation, state = jax.vmap(env.reset)(jax.random.split(key_reset, episodes))

        def step(carry, key):
            observation, state = carry
            keys = jax.random.split(key, len(env.agents) + 1)
            actions = {}
            for i, agent in enumerate(env.agents):
                policy, _ = network.apply(params, observation[agent].reshape(episodes, -1))
                actions[agent] = policy.sample(seed=keys[i])
            step_keys = jax.random.split(keys[-1], episodes)
            observation, state, reward, _, _ = jax.vmap(env.step_env)(step_keys, state, actions)
            return (observation, state), reward["agent_0"]

        rewards = jax.lax.scan(step, (observation, state), jax.random.split(key_run, env.max_steps))[1]
        return rewards.sum(0).mean()

    def run(seed):
        start = time.perf_counter()
        out = jax.block_until_ready(train(jax.random.PRNGKey(seed)))
        seconds = time.perf_counter() - start
        curve = np.asarray(out["metrics"]["returned_episode_returns"])
        curve = curve.reshape(len(curve), -1).mean(1)
        params = out["runner_state"][0].params
        found = {
            "seconds": seconds,
            "checksum": float(sum(jnp.abs(leaf).sum() for leaf in jax.tree.leaves(params))),
            "curve": [[steps_per_update * (i + 1), float(value)] for i, value in enumerate(curve)],
        }
        if episodes:
            found["evaluation_return"] = float(evaluate(params, jax.random.PRNGKey(seed + 1_000_003)))
        return found

    from importlib.metadata import version

    description = {
        "compile_s": compile_s,
        "steps": num_updates * steps_per_update,
        "machine": {"device": str(jax.devices()[0]), "jax": jax.__version__, "jaxmarl": version("jaxmarl")},
    }
    return description, run


def _number(value):
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


if __name__ == "__main__":
    serve(prepare)
