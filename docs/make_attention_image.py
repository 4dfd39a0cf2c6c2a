#!/usr/bin/env python
"""Trains an attention critic on a toy with one relevant partner of five, and draws its attention for docs/networks.md.

usage: python docs/make_attention_image.py

Each of six agents sees its own badge and the badge that it must match: the value of its action is 1 if it equals the
action of the agent with that badge, else 0. Badges and partners are new in every example.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxmarl_llm.networks import AttentionCritic, DenseInput, InputLayer, TeamInput, attention_maps
from jaxmarl_llm.report.attention import plot_attention

NUM_AGENTS, NUM_ACTIONS = 6, 5
PATH = Path(__file__).parent / "images" / "attention.png"
CRITIC = AttentionCritic(InputLayer(DenseInput, (("event_ndims", (1,)),)), NUM_ACTIONS, width=32, num_heads=2)


def examples(key, batch):
    """`(inputs, partner, q)` of one step in `batch` environments; partner `[1, B, N]` is an agent's index."""
    key_badge, key_partner, key_action = jax.random.split(key, 3)
    shape = (1, batch, NUM_AGENTS)
    badge = jnp.argsort(jax.random.uniform(key_badge, shape), axis=-1)
    agent = jnp.arange(NUM_AGENTS).reshape(1, 1, -1)
    partner = (agent + jax.random.randint(key_partner, shape, 1, NUM_AGENTS)) % NUM_AGENTS
    action = jax.random.randint(key_action, shape, 0, NUM_ACTIONS)
    wanted = jnp.take_along_axis(badge, partner, axis=-1)
    inputs = TeamInput(
        observation=jnp.concatenate([jax.nn.one_hot(badge, NUM_AGENTS), jax.nn.one_hot(wanted, NUM_AGENTS)], axis=-1),
        global_state=None,
        reset=jnp.zeros(shape, bool),
        active=jnp.ones(shape, bool),
        action=action,
    )
    return inputs, partner, jax.nn.one_hot(jnp.take_along_axis(action, partner, axis=-1), NUM_ACTIONS)


def train(key, *, steps=300, batch=128, learning_rate=5e-3):
    """Parameters after regression on the values of all actions. The key is consumed."""
    key_init, key_steps = jax.random.split(key)
    agent_index = jnp.arange(NUM_AGENTS)
    inputs, *_ = examples(key_init, 1)
    params = CRITIC.init(key_init, {}, inputs, agent_index)["params"]
    optimizer = optax.adam(learning_rate)

    def loss(params, key):
        inputs, _, target = examples(key, batch)
        return jnp.mean(jnp.square(CRITIC.apply({"params": params}, {}, inputs, agent_index)[1] - target))

    def step(carry, key):
        params, optimizer_state = carry
        updates, optimizer_state = optimizer.update(jax.grad(loss)(params, key), optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state), None

    return jax.jit(jax.lax.scan, static_argnums=0)(
        step, (params, optimizer.init(params)), jax.random.split(key_steps, steps)
    )[0][0]


def partner_mass(params, key, *, batch=256):
    """`[H]` float32, mean weight of each head on the relevant partner, on new examples. The key is consumed."""
    inputs, partner, _ = examples(key, batch)
    weights = attention_maps(CRITIC, params, {}, inputs, jnp.arange(NUM_AGENTS))["attention"]
    index = jnp.broadcast_to(partner[:, :, None, :, None], (*weights.shape[:-1], 1))
    return jnp.take_along_axis(weights, index, axis=-1).mean((0, 1, 3, 4))


def main():
    """Trains, prints the attention on the partner, draws one example."""
    key_train, key_test, key_picture = jax.random.split(jax.random.key(0), 3)
    params = train(key_train)
    print("attention on the relevant partner, by head:", np.round(np.asarray(partner_mass(params, key_test)), 3))
    inputs, partner, _ = examples(key_picture, 1)
    weights = attention_maps(CRITIC, params, {}, inputs, jnp.arange(NUM_AGENTS))["attention"]
    plot_attention(
        weights[0, 0],
        PATH,
        queries=[f"agent {index}" for index in range(NUM_AGENTS)],
        marked=np.asarray(jax.nn.one_hot(partner[0, 0], NUM_AGENTS, dtype=bool)),
        mark_label="the partner whose action decides",
        title="Attention critic after 300 steps: one relevant partner of five",
    )
    print(f"{PATH.relative_to(PATH.parent.parent)}  {PATH.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
