#!/usr/bin/env python
"""IPPO from the library's functions alone: no learner, one jitted update, all in this file.

usage: python examples/ippo_from_functions.py [--steps 100000] [--seed 0]

Two agents of `grid_race` run from one corner of a grid to the other. The first arrival pays both 1 and ends the
episode, every other step costs 0.01, a collision 0.5. The best return is 1 - 5 * 0.01 = 0.95: one runs its six steps,
and the other stays out of its way. Both have the same weights, and both see the same at first: only by its index, which
is appended to what an agent sees, can they settle who runs. It takes about ten seconds on two CPU cores.

Read `main` first, then `update`. Axes: T steps, B environments, N agents, A actions, F features; time comes first.
"""

import argparse
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxmarl_llm
from jaxmarl_llm.algorithms import (
    categorical_entropy,
    categorical_log_prob,
    categorical_sample,
    clipped_surrogate_loss,
    clipped_value_loss,
    gae,
    masked_logits,
    masked_mean,
    masked_standardize,
)

BEST_RETURN = 0.95
NUM_ENVS, NUM_STEPS = 16, 64  # B and T: one update learns from B * T steps
NUM_EPOCHS, NUM_MINIBATCHES = 4, 4
LEARNING_RATE, DISCOUNT, GAE_LAMBDA = 2.5e-3, 0.99, 0.95
VALUE_WEIGHT, ENTROPY_WEIGHT = 0.5, 0.002


class ActorCritic(nn.Module):
    """Observations `[..., N, F]` to logits `[..., N, A]` and values `[..., N]`; all agents share the weights."""

    num_actions: int

    @nn.compact
    def __call__(self, observation):
        """Two towers with weights of their own."""
        num_agents = observation.shape[-2]
        index = jnp.broadcast_to(jnp.eye(num_agents), (*observation.shape[:-1], num_agents))
        seen = jnp.concatenate([observation, index], axis=-1)

        def tower(outputs, scale):
            x = seen
            for _ in range(2):
                x = nn.tanh(nn.Dense(64)(x))
            return nn.Dense(outputs, kernel_init=nn.initializers.normal(scale))(x)

        # Small weights of the policy's head: all actions are about equally likely at first.
        return tower(self.num_actions, 0.01), tower(1, 0.1)[..., 0]


class Rows(NamedTuple):
    """What a rollout keeps of each step, `[T, B, N, ...]`."""

    observation: jax.Array
    action_mask: jax.Array
    acting: jax.Array
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    reward: jax.Array
    terminated: jax.Array
    boundary: jax.Array
    final_observation: jax.Array


class Training(NamedTuple):
    """Everything that an update reads and changes."""

    params: Any
    optimizer_state: Any
    timestep: jaxmarl_llm.TimeStep
    env_state: Any
    key: jax.Array


def collect(envs, network, training, key):
    """Plays T steps: `(timestep, env_state, rows, episodes)`. The key is consumed."""

    def step(carry, key):
        now, env_state = carry
        key_action, key_step = jax.random.split(key)
        logits, value = network.apply(training.params, now.observation)
        logits = masked_logits(logits, now.action_mask)
        action = categorical_sample(key_action, logits)
        after, env_state = envs.step(key_step, env_state, action)
        rows = Rows(
            observation=now.observation,
            action_mask=now.action_mask,
            acting=now.active,
            action=action,
            log_prob=categorical_log_prob(logits, action),
            value=value,
            # Reward and flags are those of the step, even where `after` already begins another episode.
            reward=after.reward,
            terminated=after.terminated,
            boundary=after.boundary,
            final_observation=after.final_observation,
        )
        return (after, env_state), (rows, after.info["episode"])

    carry = training.timestep, training.env_state
    (timestep, env_state), (rows, episodes) = jax.lax.scan(step, carry, jax.random.split(key, NUM_STEPS))
    return timestep, env_state, rows, episodes


def loss_of(network, params, rows, advantage, target):
    """The loss of one minibatch, `[rows, N, ...]`."""
    logits, value = network.apply(params, rows.observation)
    logits = masked_logits(logits, rows.action_mask)
    log_prob = categorical_log_prob(logits, rows.action)
    advantage = masked_standardize(advantage, rows.acting)
    # Losses come one per element; the mask says which of them count.
    policy_loss = masked_mean(clipped_surrogate_loss(log_prob, rows.log_prob, advantage), rows.acting)
    value_loss = masked_mean(clipped_value_loss(value, rows.value, target), rows.acting)
    entropy = masked_mean(categorical_entropy(logits), rows.acting)
    return policy_loss + VALUE_WEIGHT * value_loss - ENTROPY_WEIGHT * entropy


def update(envs, network, optimizer, training):
    """One rollout and the learning from it, a pure function: `(training, mean return of the episodes that ended)`."""
    key, key_rollout, key_epochs = jax.random.split(training.key, 3)
    timestep, env_state, rows, episodes = collect(envs, network, training, key_rollout)

    # The observation after a step *in the same episode*: a time limit is bootstrapped from what it cut off, and `gae`
    # leaves the value out where an agent terminated.
    _, next_value = network.apply(training.params, rows.final_observation)
    ends = rows.terminated, rows.boundary
    advantage, target = gae(rows.reward, rows.value, next_value, *ends, discount=DISCOUNT, gae_lambda=GAE_LAMBDA)
    # T and B are one axis of rows from here on.
    samples = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (rows, advantage, target))

    def minibatch_step(carry, index):
        params, optimizer_state = carry
        minibatch = jax.tree.map(lambda leaf: leaf[index], samples)
        gradient = jax.grad(lambda params: loss_of(network, params, *minibatch))(params)
        changes, optimizer_state = optimizer.update(gradient, optimizer_state)
        return (optax.apply_updates(params, changes), optimizer_state), None

    # One random order of the rows an epoch, cut into minibatches.
    order = jax.vmap(lambda key: jax.random.permutation(key, NUM_STEPS * NUM_ENVS))
    index = order(jax.random.split(key_epochs, NUM_EPOCHS)).reshape(NUM_EPOCHS * NUM_MINIBATCHES, -1)
    carry = training.params, training.optimizer_state
    (params, optimizer_state), _ = jax.lax.scan(minibatch_step, carry, index)

    mean_return = masked_mean(episodes.episode_return.mean(-1), episodes.finished)
    mean_return = jnp.where(episodes.finished.any(), mean_return, jnp.nan)
    return Training(params, optimizer_state, timestep, env_state, key), mean_return


def main(arguments=None):
    """Trains, prints a table, returns the mean returns, one an update."""
    parser = argparse.ArgumentParser(description="IPPO from the library's functions alone.")
    parser.add_argument("--steps", type=int, default=100_000, help="environment steps to train for")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    num_updates = max(1, options.steps // (NUM_ENVS * NUM_STEPS))

    # Episodes begin anew on the step that ends one, their returns are added up, and B copies run side by side.
    env = jaxmarl_llm.LogEpisodes(env=jaxmarl_llm.auto_reset(jaxmarl_llm.make("grid_race")))
    envs = jaxmarl_llm.vectorize(env, NUM_ENVS)
    network = ActorCritic(env.num_actions)
    learning_rate = optax.linear_schedule(LEARNING_RATE, 0.0, num_updates * NUM_EPOCHS * NUM_MINIBATCHES)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(learning_rate, eps=1e-5))

    key_reset, key_params, key = jax.random.split(jax.random.key(options.seed), 3)
    timestep, env_state = envs.reset(key_reset)
    params = network.init(key_params, timestep.observation)
    training = Training(params, optimizer.init(params), timestep, env_state, key)

    run = jax.jit(lambda training: update(envs, network, optimizer, training))
    returns, lines = [], min(10, num_updates)
    print(f"{'steps':>9}  mean return (the best is {BEST_RETURN})")
    for line in range(1, lines + 1):
        first = len(returns)
        for _ in range(first, line * num_updates // lines):
            training, mean_return = run(training)
            returns.append(float(mean_return))
        print(f"{len(returns) * NUM_ENVS * NUM_STEPS:9,}  {np.nanmean(returns[first:]):.3f}")
    return returns


if __name__ == "__main__":
    main()
