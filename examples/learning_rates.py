#!/usr/bin/env python
"""Many learning rates and seeds in one compiled program: a learner's float settings are leaves, so they can be vmapped.

usage: python examples/learning_rates.py [--steps 30000] [--seeds 3] [--picture runs/learning_rates.png]

Axes: K learning rates, S seeds, U updates.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxmarl_llm
from jaxmarl_llm.algorithms import ippo
from jaxmarl_llm.report.plots import COLORS, INK, new_figure, style_axes
from jaxmarl_llm.training.statistics import bin_curve, mean_without_nan

LEARNING_RATES = (1e-4, 3e-4, 1e-3, 1e-2, 1e-1)
BEST_RETURN = 0.95  # of `grid_race`: one agent runs its six steps, the other stays out of its way


def sweep(learner, learning_rates, num_seeds, key):
    """Trains K x S teams side by side; `[K, S, U]` mean returns of the episodes that ended in each update.

    Args:
      learner: the settings they have in common.
      learning_rates: K floats.
      num_seeds: S; all learning rates get the same seeds, so that luck is no difference between them.
      key: consumed.
    """
    learners = learner.replace(learning_rate=jnp.asarray(learning_rates))
    # The learning rate is the one leaf of the learner with an axis K.
    only_rate = jax.tree.map(lambda _: None, learner).replace(learning_rate=0)

    def of_seeds(function):
        return jax.vmap(function, in_axes=(None, 0))

    init = jax.vmap(of_seeds(lambda learner, key: learner.init(key)), in_axes=(only_rate, None))
    update = jax.vmap(of_seeds(lambda learner, state: learner.update(state)), in_axes=(only_rate, 0))
    states = jax.jit(init)(learners, jax.random.split(key, num_seeds))
    update = jax.jit(update, donate_argnums=1)
    returns = []
    for _ in range(max(1, int(learner.total_steps) // learner.steps_per_update)):
        states, metrics = update(learners, states)
        returns.append(np.asarray(metrics["episode_return"]))
    return np.stack(returns, axis=-1)


def draw(returns, steps_per_update, path):
    """A curve for each learning rate, thin ones for its seeds."""
    figure = new_figure(6.4, 4.0, f"IPPO on grid_race, {returns.shape[1]} seeds a learning rate and their mean")
    axes = figure.subplots()
    style_axes(axes, "environment steps", "team return per episode")
    for index, rate in enumerate(LEARNING_RATES):
        color = COLORS[index % len(COLORS)]
        steps = steps_per_update * np.arange(1, returns.shape[-1] + 1)
        steps, curves = bin_curve(steps, returns[index].T, 60)
        axes.plot(steps, curves, color=color, linewidth=0.6, alpha=0.4)
        axes.plot(steps, mean_without_nan(curves, -1), color=color, linewidth=1.8, label=f"{rate:g}")
    axes.set_ylim(-1.5, 1.1)
    axes.axhline(BEST_RETURN, color=INK, linewidth=0.8, linestyle=":")
    axes.legend(title="learning rate", fontsize=8, title_fontsize=8, frameon=False, labelcolor=INK, ncols=2)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144)


def main(arguments=None):
    """Sweeps, prints a table, draws the curves; returns them `[K, S, U]`."""
    parser = argparse.ArgumentParser(description="Many learning rates and seeds in one program.")
    parser.add_argument("--steps", type=int, default=30_000, help="environment steps of each team")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--picture", type=Path, default=Path("runs/learning_rates.png"))
    options = parser.parse_args(arguments)

    env = jaxmarl_llm.make("grid_race")
    # With shared weights it takes the agent's index to settle who runs.
    learner = ippo(env, num_envs=16, rollout_length=32, total_steps=float(options.steps), agent_id=True)
    returns = sweep(learner, LEARNING_RATES, options.seeds, jax.random.key(0))

    print(f"mean return in the last tenth of {options.steps:,} steps (the best is {BEST_RETURN})")
    print("learning rate   mean   " + "  ".join(f"seed {seed}" for seed in range(options.seeds)))
    last = mean_without_nan(returns[..., -max(1, returns.shape[-1] // 10) :], -1)
    for rate, of_seeds in zip(LEARNING_RATES, last, strict=True):
        print(f"{rate:13g}  {of_seeds.mean():5.2f}   " + "  ".join(f"{value:6.2f}" for value in of_seeds))
    draw(returns, learner.steps_per_update, options.picture)
    print(options.picture)
    return returns


if __name__ == "__main__":
    main()
