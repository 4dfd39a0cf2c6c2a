"""Every learner on every environment: one update runs, every policy learns, no axis is taken for another."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmarl_llm
from jaxmarl_llm import algorithms

# Teams and time limits as small as they get; sizes of axes are distinct primes where the environment lets them be.
ENVIRONMENTS = {
    "matrix_game": {"game": "climbing", "max_steps": 3},
    "two_step": {},
    "grid_4x4": {"max_steps": 5},
    "grid_race": {"max_steps": 5},
    "switch_riddle": {"num_agents": 3},
    "overcooked": {"max_steps": 5},
    "escape_room": {"max_steps": 5},
    "foraging": {"max_steps": 5},
    "warehouse": {"max_steps": 5},
    "coin_game": {"max_steps": 5},
}
BATCH = {"num_envs": 2, "hidden_sizes": (13, 17)}
GRADIENT = {"rollout_length": 11, "num_minibatches": 1, "num_epochs": 1}
VALUE = {"rollout_length": 11, "batch_size": 2, "gradient_steps": 1, "replay_size": 22}
LEARNERS = {
    "ippo": GRADIENT,
    "mappo": GRADIENT | {"sharing": "isolated", "network": "gru", "gru_size": 19},
    "coma": GRADIENT,
    "happo": GRADIENT,
    "hatrpo": GRADIENT,
    "teamtr": GRADIENT,
    "ippo counterfactual": GRADIENT | {"credit": "counterfactual", "counterfactual_horizon": 2},
    "ippo coordinator": GRADIENT | {"network": "coordinator", "hidden_sizes": (12,)},
    "vdn": VALUE,
    "ippo decoder": GRADIENT | {"network": "coordinator", "hidden_sizes": (12,), "decoder": True},
    "qmix": VALUE | {"network": "gru", "gru_size": 19},
    "weighted_qmix": VALUE,
    "qmix coordinator": VALUE | {"network": "coordinator", "hidden_sizes": (12,), "memory_size": 7, "memory_tokens": 3},
    "coma attention": GRADIENT | {"critic": "attention"},
}


def build(environment, learner):
    try:
        env = jaxmarl_llm.make(environment, **ENVIRONMENTS[environment])
    except TypeError:
        env = jaxmarl_llm.make(environment)
    settings = BATCH | LEARNERS[learner]
    return getattr(algorithms, learner.split()[0])(env, **settings)


def check_metrics(learner, metrics):
    num_agents = learner.env.num_agents
    assert metrics["agent_return"].shape == (num_agents,)
    for name, value in metrics.items():
        assert value.shape == ((num_agents,) if name.startswith("agent_") else ()), name


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_shapes_of_every_learner(environment):
    """Traced only: axes that are taken for another do not fit, as ranks may not be promoted."""
    for name in LEARNERS:
        learner = build(environment, name)
        state = jax.eval_shape(learner.init, jax.random.key(0))
        new, metrics = jax.eval_shape(learner.update, state)
        assert jax.tree.structure(new) == jax.tree.structure(state), name
        for old_leaf, new_leaf in zip(jax.tree.leaves(state), jax.tree.leaves(new), strict=True):
            assert (old_leaf.shape, old_leaf.dtype) == (new_leaf.shape, new_leaf.dtype), name
        check_metrics(learner, metrics)


# Each learner once, each environment at least once: compiling all pairs would take a quarter of an hour.
PAIRS = [(list(ENVIRONMENTS)[3 * i % len(ENVIRONMENTS)], learner) for i, learner in enumerate(LEARNERS)]


@pytest.mark.slow
@pytest.mark.parametrize(("environment", "learner"), PAIRS)
def test_one_update(environment, learner):
    learner = build(environment, learner)
    # Compilation is what takes the time here, and nothing is timed.
    options = {"xla_backend_optimization_level": 0}
    key = jax.random.key(0)
    init = jax.jit(learner.init).lower(key).compile(compiler_options=options)
    state = init(key)
    update = jax.jit(learner.update).lower(state).compile(compiler_options=options)
    new, metrics = state, {}
    for _ in range(2):
        new, metrics = update(new)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert jax.tree.map(jnp.shape, new) == jax.tree.map(jnp.shape, state)
    check_metrics(learner, metrics)
    for leaf in jax.tree.leaves(new.params):
        assert np.isfinite(leaf).all()
    moved = {
        jax.tree_util.keystr(path): bool((old != new).any())
        for (path, old), new in zip(jax.tree.leaves_with_path(state.params), jax.tree.leaves(new.params), strict=True)
    }
    # Who has a single active agent to attend to has nothing to ask for.
    moved = {name: change for name, change in moved.items() if not re.search(r"'(query|norm_attention)'", name)}
    assert all(moved.values()), [name for name, change in moved.items() if not change]
    timestep, _ = jax.vmap(learner.env.reset)(jax.random.split(key, 5))
    action, _ = learner.act(new.params, timestep, learner.initial_memory((5,)), key, greedy=False)
    assert action.shape == (5, learner.env.num_agents)
    assert np.take_along_axis(np.asarray(timestep.action_mask), np.asarray(action)[..., None], -1).all()
