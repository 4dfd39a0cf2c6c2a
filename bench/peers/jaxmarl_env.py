#!/usr/bin/env python
"""Environment steps per second of JaxMARL under random play: the peer's side of `bench/environments.py`.

Runs in an interpreter that has JaxMARL and none of this package, and loads `serve.py` of this package by path.
The loop is the same as `jaxmarl_llm.benchmark.environments` has: one draw of 32 bits an action, reward and end of
episode of every step in the checksum, observations kept in the carry and, with consume = "sum", added up on the next
step.
"""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "..", "jaxmarl_llm", "benchmark"))
from serve import serve


def prepare(settings):
    import jax
    import jax.numpy as jnp
    import jaxmarl

    env_args = dict(settings.get("env_args") or {})
    if settings["name"] == "overcooked" and "layout" in env_args:
        from jaxmarl.environments.overcooked import overcooked_layouts

        env_args["layout"] = overcooked_layouts[env_args["layout"]]
    env = jaxmarl.make(settings["name"], **env_args)
    num_envs, num_steps = settings["num_envs"], settings["num_steps"]
    mode, consume = settings["mode"], settings["consume"]
    uses_observations = mode.startswith("observe")
    counts = jnp.asarray([int(env.action_space(agent).n) for agent in env.agents], jnp.uint32)

    def random_actions(key):
        bits = jax.random.bits(key, (num_envs, len(env.agents)), jnp.uint32)
        high, low = bits >> 16, bits & 0xFFFF
        action = ((high * counts + ((low * counts) >> 16)) >> 16).astype(jnp.int32)
        return {agent: action[:, i] for i, agent in enumerate(env.agents)}

    def checksum(tree):
        total = jnp.float32(0)
        for leaf in jax.tree.leaves(tree):
            kind = jnp.int32 if leaf.dtype == jnp.bool_ else leaf.dtype
            columns = jnp.sum(leaf, axis=0, dtype=kind)
            total = total + jnp.sum(columns.astype(jnp.float32))
        return total

    one_step = jax.vmap(env.step_env if mode == "step" else env.step)

    def rollout(key):
        key_reset, key_run = jax.random.split(key)
        observation, state = jax.vmap(env.reset)(jax.random.split(key_reset, num_envs))
        if mode == "observe_staggered":
            limit = getattr(env, "max_steps", 100)
            state = state.replace(step=(jnp.arange(num_envs) % limit).astype(jnp.int32))
        # Counters that start as Python numbers would change type in the loop.
        state = jax.tree.map(lambda leaf: jax.lax.convert_element_type(leaf, leaf.dtype), state)

        def step(carry, _):
            state, observation, key, total = carry
            key, key_action, key_step = jax.random.split(key, 3)
            keys = jax.random.split(key_step, num_envs)
            if uses_observations and consume == "sum":
                total = total + checksum(observation)
            observation, state, reward, done, _ = one_step(keys, state, random_actions(key_action))
            reward = [reward[agent] for agent in env.agents]
            total = total + checksum((reward, done["__all__"]))
            return (state, observation if uses_observations else (), key, total), None

        carry = (state, observation if uses_observations else (), key_run, jnp.float32(0))
        (state, observation, _, total), _ = jax.lax.scan(step, carry, None, num_steps)
        return total, checksum(observation), jax.tree.leaves(state)

    start = time.perf_counter()
    compiled = jax.jit(rollout).lower(jax.random.PRNGKey(0)).compile()
    compile_s = time.perf_counter() - start

    def run(seed):
        start = time.perf_counter()
        total, last, _ = jax.block_until_ready(compiled(jax.random.PRNGKey(seed)))
        return {"seconds": time.perf_counter() - start, "checksum": float(total), "last": float(last)}

    from importlib.metadata import version

    description = {
        "compile_s": compile_s,
        "steps": num_envs * num_steps,
        "machine": {"device": str(jax.devices()[0]), "jax": jax.__version__, "jaxmarl": version("jaxmarl")},
    }
    return description, run


if __name__ == "__main__":
    serve(prepare)
