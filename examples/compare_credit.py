#!/usr/bin/env python
"""How well do GAE, COMA and their rivals find out whose action earned a soup? Measured against the exact value.

usage: python examples/compare_credit.py [--steps 200000] [--seeds 1] [--decisions 32] [--out runs/credit]

Two cooks of Overcooked's cramped room are trained by IPPO, and then stay as they are. GAE and COMA get critics that are
fitted to these cooks by TD(lambda) on the same rollouts: V(state), and Q(state, the others' actions, own action).
Decisions are drawn from further episodes, and at each of them every alternative of every cook is played out hundreds of
times. That is the exact credit, up to the noise of a mean, which the estimators are compared with. The reward is that
of the soups, shared by both cooks.

Axes: T steps, B environments, N agents, A actions, G features of the state.
"""

import argparse
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxmarl_llm
from jaxmarl_llm import algorithms, report

# 40 steps, the default horizon, hold 99 % of the weight at this discount.
DISCOUNT, TD_LAMBDA = 0.9, 0.8
STAY = 4  # the action of "doing nothing", for difference rewards and Shapley values
START = time.monotonic()
BATCH = 1024  # time steps in a minibatch of a critic


class Critic(nn.Module):
    """Values of each agent, `[..., N, outputs]`, from the state `[..., G]` and the others' actions `[..., N]`.

    Attributes:
      num_actions: A.
      outputs: A for values of the agent's own actions, 1 for the value of the state, which sees no action.
      scale: of the values.
    """

    num_actions: int
    outputs: int
    scale: float

    @nn.compact
    def __call__(self, state, action):
        """Evaluates all agents: each has the state, its own index and what the others do."""
        num_agents = action.shape[-1]
        of_agent = [jnp.broadcast_to(state[..., None, :], (*action.shape, state.shape[-1]))]
        of_agent.append(jnp.broadcast_to(jnp.eye(num_agents), (*action.shape, num_agents)))
        if self.outputs > 1:
            # Row i holds all actions but agent i's own.
            shown = jnp.einsum("ij,...ja->...ija", 1.0 - jnp.eye(num_agents), jax.nn.one_hot(action, self.num_actions))
            of_agent.append(shown.reshape(*action.shape, -1))
        x = jnp.concatenate(of_agent, axis=-1)
        for _ in range(2):
            x = nn.relu(nn.Dense(128)(x))
        return self.scale * nn.Dense(self.outputs)(x)


def train(env, steps, key):
    """Trains cooks by IPPO; returns their policy. The key is consumed."""
    learner = algorithms.ippo(
        env,
        num_envs=64,
        rollout_length=32,
        learning_rate=2e-3,
        total_steps=float(steps),
        shaped_reward_horizon=float(steps),
    )
    state, update = jax.jit(learner.init)(key), jax.jit(learner.update, donate_argnums=0)
    for _ in range(max(1, steps // learner.steps_per_update)):
        state, _ = update(state)
    params = state.params

    def policy(timestep):
        return learner.logits(params, timestep, {})[0]

    return policy


def state_features(env, state):
    """`[G]`: the global state and the clock, since an episode's last steps have less left to earn."""
    return jnp.append(env.global_state(state), state.step / env.max_steps)


def play(env, policy, num_envs, key):
    """Whole episodes of B teams: features `[T, B, G]`, actions and rewards `[T, B, N]`. The key is consumed."""
    act = report.sampling_policy(policy)

    def episode(key):
        key_reset, key_steps = jax.random.split(key)

        def step(carry, key):
            timestep, state = carry
            key_action, key_step = jax.random.split(key)
            action = act(timestep, key_action)
            timestep, after = env.step(key_step, state, action)
            return (timestep, after), (state_features(env, state), action, timestep.reward)

        return jax.lax.scan(step, env.reset(key_reset), jax.random.split(key_steps, env.max_steps))[1]

    return jax.jit(jax.vmap(episode, out_axes=1))(jax.random.split(key, num_envs))


def value_of_action(critic, params, state, action):
    """`[..., N]`, the value of what was done, from either kind of critic."""
    values = critic.apply(params, state, action)
    return algorithms.at_action(values, action) if critic.outputs > 1 else values[..., 0]


def returns_of(reward, value, td_lambda):
    """`[T, B, N]` lambda-returns of whole episodes: the time limit ends them, and nothing is earned after it."""
    last = jnp.zeros(reward.shape, bool).at[-1].set(True)
    next_value = jnp.concatenate([value[1:], jnp.zeros_like(value[:1])])
    return algorithms.td_lambda(reward, next_value, last, last, discount=DISCOUNT, td_lambda=td_lambda)


def fit(critic, rollouts, sweeps, key):
    """Regresses a critic on its own TD(lambda) targets, computed anew in each sweep over the rollouts.

    Args:
      critic: the module.
      rollouts: from `play`.
      sweeps: passes over the rollouts.
      key: consumed.

    Returns:
      Its parameters.
    """
    state, action, reward = rollouts
    key_init, key_sweeps = jax.random.split(key)
    rows = reward.shape[0] * reward.shape[1]
    num_batches = max(1, rows // BATCH)
    optimizer = optax.adam(optax.cosine_decay_schedule(2e-3, sweeps * num_batches))

    def loss(params, batch):
        state, action, target = batch
        return jnp.mean(jnp.square((value_of_action(critic, params, state, action) - target) / critic.scale))

    def sweep(carry, key):
        value = jax.lax.map(lambda step: value_of_action(critic, carry[0], *step), (state, action))
        samples = state, action, returns_of(reward, value, TD_LAMBDA)
        samples = jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:]), samples)

        def step(carry, index):
            params, optimizer_state = carry
            gradient = jax.grad(loss)(params, jax.tree.map(lambda leaf: leaf[index], samples))
            changes, optimizer_state = optimizer.update(gradient, optimizer_state)
            return (optax.apply_updates(params, changes), optimizer_state), None

        index = jax.random.permutation(key, rows)[: num_batches * min(BATCH, rows)].reshape(num_batches, -1)
        return jax.lax.scan(step, carry, index)[0], None

    params = critic.init(key_init, state[0, 0], action[0, 0])
    run = jax.jit(lambda carry, keys: jax.lax.scan(sweep, carry, keys)[0])
    return run((params, optimizer.init(params)), jax.random.split(key_sweeps, sweeps))[0]


def explained_variance(critic, params, rollouts):
    """Share of the returns' variance that a critic explains."""
    state, action, reward = rollouts
    returns = returns_of(reward, jnp.zeros_like(reward), 1.0)
    return float(1.0 - jnp.var(returns - value_of_action(critic, params, state, action)) / jnp.var(returns))


def say(text):
    """Prints a line of progress at once, with the time since the start."""
    print(f"{time.monotonic() - START:6.0f} s  {text}", flush=True)


def compare(env, options, seed):
    """Trains a team and its critics, and compares the estimators; prints what is worth knowing on the way."""
    key_train, key_play, key_test, key_value, key_q, key_decide, key_compare = jax.random.split(jax.random.key(seed), 7)
    say(f"seed {seed}: training the cooks for {options.steps:,} steps")
    policy = train(env, options.steps, key_train)
    say(f"seed {seed}: playing {options.episodes} episodes, and fitting two critics to them")
    rollouts, test = play(env, policy, options.episodes, key_play), play(env, policy, 16, key_test)
    state_critic = Critic(env.num_actions, 1, env.delivery_reward)
    action_critic = Critic(env.num_actions, env.num_actions, env.delivery_reward)
    v_params = fit(state_critic, rollouts, options.sweeps, key_value)
    q_params = fit(action_critic, rollouts, options.sweeps, key_q)
    say(
        f"seed {seed}: return of an episode {float(test[2].sum(0).mean()):.0f}; explained variance of new returns: "
        f"V {explained_variance(state_critic, v_params, test):.2f}, "
        f"Q {explained_variance(action_critic, q_params, test):.2f}"
    )

    def value(timestep, state):
        del timestep
        no_action = jnp.zeros(env.num_agents, jnp.int32)
        return value_of_action(state_critic, v_params, state_features(env, state), no_action)

    def q_values(timestep, state, action):
        del timestep
        return action_critic.apply(q_params, state_features(env, state), action)

    settings = {"horizon": options.horizon, "discount": DISCOUNT}
    estimators = report.credit_estimators(env, policy, value=value, q_values=q_values, default_action=STAY, **settings)
    more = report.credit_estimators(env, policy, num_replays=options.replays, **settings)
    estimators[f"counterfactual_{options.replays}"] = more["counterfactual"]
    say(f"seed {seed}: playing out the alternatives of {options.decisions} decisions, the longest part")
    decisions = jax.jit(lambda key: report.visited_decisions(env, policy, key, options.decisions))(key_decide)
    return report.compare_credit(
        env,
        policy,
        decisions,
        estimators,
        key_compare,
        reference_replays=options.reference_replays,
        num_repeats=3,
        batch_size=8,
        **settings,
    )


def summary(comparisons):
    """A Markdown table: mean over seeds, and from the least to the greatest where there are several."""
    lines = ["| estimator | rank correlation | linear correlation | variance | environment steps |", "|---" * 5 + "|"]
    for rows in zip(*(comparison.rows for comparison in comparisons), strict=True):
        cells = [rows[0].name]
        for name in ("spearman", "pearson"):
            of_seeds = [getattr(row, name) for row in rows]
            spread = f" ({min(of_seeds):.2f} to {max(of_seeds):.2f})" if len(of_seeds) > 1 else ""
            cells.append(f"{np.mean(of_seeds):.2f}{spread}")
        cells += [f"{np.mean([row.variance for row in rows]):.2g}", f"{np.mean([row.env_steps for row in rows]):.0f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(arguments=None):
    """Compares on each seed, prints one table, writes tables and pictures; returns the comparisons."""
    parser = argparse.ArgumentParser(description="Estimators of credit against the exact value, on Overcooked.")
    parser.add_argument("--steps", type=int, default=200_000, help="environment steps of training")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--decisions", type=int, default=32, help="decisions compared, each of both agents")
    parser.add_argument("--horizon", type=int, default=40, help="steps played after a decision")
    parser.add_argument("--episodes", type=int, default=128, help="episodes that the critics are fitted to")
    parser.add_argument("--sweeps", type=int, default=15, help="passes over these episodes")
    parser.add_argument("--replays", type=int, default=16, help="of the better counterfactual estimate")
    parser.add_argument("--reference-replays", type=int, default=256, help="of the exact value")
    parser.add_argument("--max-steps", type=int, default=400, help="length of an episode")
    parser.add_argument("--out", type=Path, default=Path("runs/credit"))
    options = parser.parse_args(arguments)

    env = jaxmarl_llm.make("overcooked", layout="cramped_room", observation="factored", max_steps=options.max_steps)
    comparisons = []
    for seed in range(options.seeds):
        comparisons.append(compare(env, options, seed))
        report.write_credit_report(comparisons[-1], options.out / f"seed_{seed}")
    print(f"\n{summary(comparisons)}\n\n{options.out}")
    return comparisons


if __name__ == "__main__":
    main()
