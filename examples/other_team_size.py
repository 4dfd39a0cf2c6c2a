#!/usr/bin/env python
"""A team of three learns, a team of four uses its parameters: the transformer coordinator on level-based foraging.

usage: python examples/other_team_size.py [--steps 400000] [--seed 0] [--num-seeds 1]

On a field of 5 by 5 cells lie two foods, and each takes three agents at once. An agent sees the whole field around
itself, as a picture of one size whatever the team's. No parameter of the coordinator depends on the number of agents,
so the parameters fit a team of four, which was never trained. Success is the share of the food that a team gathers in
30 steps, measured before training too: then agents act nearly at random, and gather next to nothing.
"""

import argparse

import jax
import numpy as np

import jaxmarl_llm
from jaxmarl_llm.algorithms import ippo
from jaxmarl_llm.training.evaluation import evaluate

TRAINED, OTHER = 3, 4


def learner_of(num_agents, total_steps):
    """IPPO with the coordinator for a team of this size."""
    env = jaxmarl_llm.make(
        "foraging",
        num_agents=num_agents,
        rows=5,
        columns=5,
        max_steps=30,
        max_agent_level=1,
        cooperative=True,
        shared_reward=True,
        grid_observation=True,
        sight=4,
    )
    return ippo(
        env,
        network="coordinator",
        hidden_sizes=(32,),  # tokens of width 32, one layer of attention
        num_envs=64,
        rollout_length=30,
        learning_rate=2e-3,
        max_grad_norm=1.0,
        discount=0.95,
        total_steps=float(total_steps),
    )


def success(learner, params, num_episodes=512):
    """Mean share of the food that the team gathers, and its standard error."""
    run = jax.jit(evaluate, static_argnums=(0, 3))
    # The rewards of an episode add up to the share; all agents get the same.
    share = np.asarray(run(learner, params, jax.random.key(1), num_episodes).episode_return)
    return share.mean(), share.std() / num_episodes**0.5


def main(arguments=None):
    """Trains the team of three and evaluates both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400_000, help="environment steps of training")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--num-seeds", type=int, default=1, help="seeds, one run after the other")
    options = parser.parse_args(arguments)
    learner, other = (learner_of(size, options.steps) for size in (TRAINED, OTHER))
    init, update = jax.jit(learner.init), jax.jit(learner.update, donate_argnums=0)
    num_updates = max(1, options.steps // learner.steps_per_update)

    shares = {}
    for seed in range(options.seed, options.seed + options.num_seeds):
        if options.num_seeds > 1:
            print(f"seed {seed}")
        start = state = init(jax.random.key(seed))
        start = jax.tree.map(np.asarray, start.params)
        for done in range(1, num_updates + 1):
            state, metrics = update(state)
            if done % 20 == 0 or done == num_updates:
                steps = done * learner.steps_per_update
                print(f"{steps:9,} steps  return {float(metrics['episode_return']):.3f}", flush=True)

        for name, params in (("before training", start), ("after training", state.params)):
            for team, size in ((learner, TRAINED), (other, OTHER)):
                mean, error = success(team, params)
                note = "trained" if size == TRAINED else "same parameters"
                print(f"{name}: {size} agents ({note}) gather {mean:.3f} of the food, standard error {error:.3f}")
                shares.setdefault((name, size), []).append(mean)
    if options.num_seeds > 1:
        for (name, size), share in shares.items():
            spread = f"{np.mean(share):.3f} ({min(share):.3f} to {max(share):.3f})"
            print(f"{name}, {size} agents, {len(share)} seeds: {spread}")


if __name__ == "__main__":
    main()
