#!/usr/bin/env python
"""Trains the presets of docs/learning_curves.md over five seeds, prints its tables and draws its pictures.

usage: python docs/make_learning_curves.py [--runs DIR] [--seeds 5]

A run that lies in DIR already, in a folder of its preset's name, is read and not trained again.
"""

import argparse
import dataclasses
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

import jaxmarl_llm
from jaxmarl_llm.algorithms import categorical_sample, masked_logits
from jaxmarl_llm.envs.gridworld.escape_room import EscapeRoomState
from jaxmarl_llm.report.plots import COLORS, INK, new_figure, style_axes
from jaxmarl_llm.training import load_preset, train
from jaxmarl_llm.training.build import build_environment
from jaxmarl_llm.training.evaluation import evaluate
from jaxmarl_llm.training.metrics import read_metrics
from jaxmarl_llm.training.statistics import bootstrap_interval

IMAGES = Path(__file__).parent / "images"
ALGORITHMS = ("mappo", "happo", "coma", "qmix")
ENVIRONMENTS = ("foraging", "escape_room")


def best_return(env):
    """The best expected return of an escape room of two, by dynamic programming over all joint plans of `max_steps`."""
    room, size = env._map, env._map.rows * env._map.columns
    free = [cell for cell in range(size) if not (room.wall[cell] or room.exit[cell])]
    index = np.full(size + 2, len(free))  # one more place, for those that have left
    index[free] = range(len(free))
    places, flags = range(len(free) + 1), list(itertools.product((False, True), repeat=2 + len(room.door)))
    table = np.array([(*place, *flag) for place in itertools.product(places, repeat=2) for flag in flags])
    actions = jnp.array(list(itertools.product(range(5), repeat=2)))
    cells, held, doors = table[:, :2], table[:, 2:4] > 0, table[:, 4:] > 0
    cells = np.where(cells < len(free), np.array([*free, 0])[cells], size + np.arange(2))
    weights = 2 ** np.arange(2 + len(room.door))[::-1]

    @jax.jit
    def solve(key, map_):
        def move(cell, held, doors, action):
            state = EscapeRoomState(
                step=jnp.int32(0), cell=cell, item_cell=jnp.stack([key, map_]), holder=held - 1, door_open=doors
            )
            state, reward, *_ = env.transition(jax.random.key(0), state, action)
            place = jnp.asarray(index)[state.cell]
            flag = jnp.concatenate([state.holder >= 0, state.door_open])
            return (place[0] * len(places) + place[1]) * len(flags) + flag @ weights, jnp.mean(reward)

        each_action = jax.vmap(move, (None, None, None, 0))
        arrays = (jnp.asarray(cells, jnp.int32), jnp.asarray(held, jnp.int32), jnp.asarray(doors))
        after, reward = jax.vmap(each_action, (0, 0, 0, None))(*arrays, actions)
        return jax.lax.fori_loop(
            0, env.max_steps, lambda _, value: jnp.max(reward + value[after], 1), jnp.zeros(len(table))
        )

    starts = [(index[a] * len(places) + index[b]) * len(flags) for a, b in itertools.permutations(room.start, 2)]
    pairs = [jnp.array(pair, jnp.int32) for pair in itertools.product(room.key, room.map)]
    return float(np.mean([np.asarray(solve(*pair))[starts] for pair in pairs]))


@dataclasses.dataclass(frozen=True)
class RandomTeam:
    """Takes legal actions at random; what `evaluate` asks of a learner."""

    env: jaxmarl_llm.Environment

    def initial_memory(self, batch_shape=()):
        """There is none."""
        return ()

    def act(self, params, timestep, memory, key, greedy=False):
        """Uniform over the legal actions. The key is consumed."""
        return categorical_sample(
            key, masked_logits(jnp.zeros(timestep.action_mask.shape), timestep.action_mask)
        ), memory


def run(name, folder, num_seeds):
    """Metrics of a preset's run, which is trained first where its folder has none."""
    path = folder / name
    if not (path / "summary.json").exists():
        print(f"training {name}, {num_seeds} seeds", flush=True)
        train(dataclasses.replace(load_preset(name), num_seeds=num_seeds, out=str(path)))
    return read_metrics(path)


def evaluations(metrics):
    """`(steps [K], returns [K, S])`: the mean over the episodes of each evaluation."""
    steps, returns = metrics.series("evaluation", "return")
    return steps, returns.mean(-1)


def row(name, metrics):
    """A line of the table: the last three evaluations, and the time that the steps take at the run's median speed."""
    steps, returns = evaluations(metrics)
    last = returns[-3:].mean(0)
    speed = np.median(metrics.series("train", "steps_per_s")[1])
    algorithm, seconds = name.partition("_")[0].upper(), steps[-1] * last.size / speed
    return (
        f"| {algorithm} | `{name}` | {steps[-1]:,.0f} | "
        f"{last.mean():.3f} ({last.min():.3f} to {last.max():.3f}) | {seconds:.0f} |"
    )


def draw(environment, best, metrics):
    """The curves of the four algorithms on one pair of axes: mean over seeds, 95 % bootstrap interval of it."""
    figure = new_figure(6.4, 3.6, f"{environment}: mean of {metrics[ALGORITHMS[0]].num_seeds} seeds and 95 % interval")
    axes = figure.subplots()
    style_axes(axes, "environment steps per seed", "team return per episode, evaluation")
    for color, algorithm in zip(COLORS, ALGORITHMS, strict=False):
        steps, returns = evaluations(metrics[algorithm])
        axes.plot(steps, returns.mean(-1), color=color, linewidth=1.8, label=algorithm.upper())
        axes.fill_between(steps, *bootstrap_interval(returns), color=color, alpha=0.18, linewidth=0)
    axes.axhline(best, color="#777777", linewidth=1.0, linestyle="--", label=f"best possible, {best:.2f}")
    axes.set_xlim(left=0)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK, loc="lower right")
    path = IMAGES / f"curves_{environment}.png"
    figure.savefig(path, dpi=110)
    with Image.open(path) as image:
        # A palette is a third of the size.
        image.convert("RGB").quantize(128, kmeans=4, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path.relative_to(IMAGES.parent)}  {path.stat().st_size:,} bytes")


def main(arguments=None):
    """Trains what is missing, then prints and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=Path("runs/learning_curves"), help="folder of the runs")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    for environment in ENVIRONMENTS:
        names = {algorithm: f"{algorithm}_{environment}" for algorithm in ALGORITHMS}
        metrics = {algorithm: run(name, options.runs, options.seeds) for algorithm, name in names.items()}
        env = build_environment(load_preset(names["mappo"]))
        # All of a food's reward is 1; a room is solved by search.
        best = 1.0 if environment == "foraging" else best_return(env)
        chance = jax.jit(evaluate, static_argnums=(0, 3))(RandomTeam(env), {}, jax.random.key(0), 4096)
        print(f"{environment}: at best {best:.3f}, at random {float(chance.episode_return.mean()):.3f}")
        print("\n".join(row(name, metrics[algorithm]) for algorithm, name in names.items()))
        draw(environment, best, metrics)


if __name__ == "__main__":
    main()
