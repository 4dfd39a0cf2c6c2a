import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import struct

from jaxmarl_llm.workflows import RollBack, WorkflowState

SEEDS, DIMENSIONS = 5, 3


@struct.dataclass
class Descent:
    """Adam or plain descent down a bowl of curvature 1: steps above 2 climb it."""

    learning_rate: float
    kl_coefficient: float = 0.0
    optimizer: str = struct.field(pytree_node=False, default="sgd")

    def scale(self):
        return optax.scale_by_adam() if self.optimizer == "adam" else optax.identity()

    def start(self, key):
        params = jax.random.uniform(key, (1, DIMENSIONS), minval=0.3, maxval=0.6)
        moments = jax.vmap(self.scale().init)(params)
        nothing = jnp.zeros((1, 0))
        return WorkflowState(
            params=params,
            base_params=params,
            optimizer_state=moments,
            gradient_average=nothing,
            kl_coefficient=jnp.zeros(1),
            base_reading=nothing,
            key=key,
            update=jnp.zeros((), jnp.int32),
        )

    def update(self, state):
        noise_key, key = jax.random.split(state.key)
        gradient = state.params + 0.01 * jax.random.normal(noise_key, state.params.shape)
        updates: Any
        updates, moments = jax.vmap(self.scale().update)(gradient, state.optimizer_state)
        params = state.params - self.learning_rate * updates
        return dataclasses.replace(state, params=params, optimizer_state=moments, key=key, update=state.update + 1), {}


def accuracy_of(params):
    return jnp.exp(-jnp.sum(jnp.square(params)) / DIMENSIONS)


def train(roll_back, key, updates):
    """`(state, accuracies [updates], alarms [updates])` of one seed."""

    def step(state, _):
        state, metrics = roll_back.update(state)
        accuracy = accuracy_of(state.training.params)
        state, alarm = roll_back.observe(state, accuracy)
        return state, (accuracy, alarm, metrics["roll_backs"])

    start = roll_back.learner.start(key)
    state = roll_back.init(start, accuracy_of(start.params))
    return jax.lax.scan(step, state, length=updates)


@pytest.mark.parametrize("rate", [2.5, 1e25])
def test_steps_that_are_too_large_end_well(rate, key):
    """A rate that climbs, and one that overflows to numbers that are none."""

    def run(roll_back):
        state, curves = jax.jit(jax.vmap(lambda key: train(roll_back, key, 60)))(jax.random.split(key, SEEDS))
        return jax.tree.map(np.asarray, (state.replace(training=None), curves))

    learner = Descent(rate)
    settings = {"limit": 0.05, "factor": 0.3 if rate < 10 else 1e-25, "memory": 0.2}
    state, (accuracy, alarms, counts) = run(RollBack(learner=learner, most=3, **settings))
    without, (fallen, none, _) = run(RollBack(learner=learner, most=0, **settings))
    assert not none.any() and (fallen[:, -1] < 0.01).all() | np.isnan(fallen[:, -1]).all()
    assert (alarms.sum(1) == state.count).all() and (state.count >= 1).all() and (state.count <= 3).all()
    assert (counts[:, -1] == state.count - alarms[:, -1]).all()
    # The end is at least as good as the best on the way, but for noise.
    assert (accuracy[:, -1] >= np.nanmax(accuracy, axis=1) - 0.01).all() and (accuracy[:, -1] > 0.95).all()
    assert (state.best >= without.best).all()
    np.testing.assert_allclose(state.scale, settings["factor"] ** state.count.astype(np.float32), rtol=1e-5)


def test_every_observation_against_a_twin(key):
    learner = Descent(0.1, kl_coefficient=0.5, optimizer="adam")
    roll_back = RollBack(learner=learner, limit=0.1, factor=0.5, most=2, memory=0.5)
    observe = jax.jit(roll_back.observe)
    state = roll_back.init(learner.start(key), 0.4)
    best = smooth = 0.4
    best_params, scale, count = np.asarray(state.best_params), 1.0, 0
    # A rise, a lone bad draw, a fall, a value that is none, and a fall after the last return.
    for accuracy in (0.6, 0.8, 0.65, 0.9, 0.5, 0.7, float("nan"), 0.7, 0.1, 0.1):
        state = dataclasses.replace(state, training=learner.update(state.training)[0])
        params = np.asarray(state.training.params)
        state, alarm = observe(state, accuracy)
        now = 0.5 * smooth + 0.5 * accuracy
        expected = count < 2 and (np.isnan(accuracy) or best - now > 0.1)
        assert bool(alarm) == expected
        moments = [leaf for leaf in jax.tree.leaves(state.training.optimizer_state) if leaf.any()]
        assert bool(moments) == (not expected)
        if expected:
            params, smooth, scale, count = best_params, best, 0.5 * scale, count + 1
        elif not np.isnan(accuracy):
            smooth = now
            if now > best:
                best, best_params = now, params
        np.testing.assert_array_equal(state.training.params, params)
        np.testing.assert_array_equal(state.best_params, best_params)
        assert [float(state.best), float(state.smooth), float(state.scale)] == pytest.approx([best, smooth, scale])
    assert count == state.count == 2 and state.training.update == 10


def test_seeds_do_not_disturb_each_other(key):
    """Settings and seeds side by side give what each gives alone."""
    rates = jnp.asarray([0.5, 2.5])

    def run(rate, key):
        return train(RollBack(learner=Descent(rate), limit=0.05, memory=0.2), key, 17)[0]

    keys = jax.random.split(key, 2)
    both = jax.jit(jax.vmap(run))(rates, keys)
    for index in range(2):
        alone = run(rates[index], keys[index])
        np.testing.assert_allclose(both.training.params[index], alone.training.params, atol=1e-6)
        assert both.count[index] == alone.count
    assert both.count[0] == 0 and both.count[1] > 0
