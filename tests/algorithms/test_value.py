"""The value learner: targets against a slow twin, ends of episodes, masks, sharing, seeds, devices."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy_environments import ConstantReward, DyingAgents, MatchTarget, NumberedEpisodes, RememberCue

from jaxmarl_llm import algorithms
from jaxmarl_llm.algorithms.value import acting as actings
from jaxmarl_llm.algorithms.value import update as updates
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.networks.team_input import TeamInput

ALGORITHMS = {name: getattr(algorithms, name) for name in ("iql", "vdn", "qmix", "weighted_qmix")}
SMALL = {"num_envs": 4, "rollout_length": 11, "gradient_steps": 2, "batch_size": 8, "replay_size": 200}
SMALL |= {"role_gradient_rows": 0}
SMALL |= {"hidden_sizes": (16,), "embed_dim": 4, "hypernet_size": 8, "central_hidden_sizes": (8,)}


def init(learner, seed=0):
    return jax.jit(learner.init)(jax.random.key(seed))


def collect(learner, state, *, epsilon=0.5, seed=9):
    """One rollout of random and greedy actions: the state that follows, and its sequences `[T + 1, B, ...]`."""
    run = jax.jit(functools.partial(actings.collect, learner, shaped_weight=1.0))
    acting, sequences, _ = run(state.params, state.rollout.acting, jax.random.key(seed), epsilon=epsilon)
    time_major = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), sequences.replace(memory=()))
    return state.replace(rollout=state.rollout.replace(acting=acting)), time_major.replace(memory=sequences.memory)


def train(learner, num_updates, seed=0):
    state = init(learner, seed)
    run = jax.jit(lambda state: jax.lax.scan(lambda state, _: learner.update(state), state, None, num_updates))
    state, metrics = run(state)
    return state, jax.tree.map(lambda leaf: leaf[-1], metrics)


def values_step_by_step(learner, params, sequences):
    """`[T + 1, K, N, A]` by one call a step, with an explicit loop that forgets after the end of an episode."""
    network, sequences = learner.network_module, jax.tree.map(np.asarray, sequences)
    memory = dict(sequences.memory)
    length, count, num_agents = sequences.active.shape
    out = np.zeros((length, count, num_agents, learner.env.num_actions), np.float32)
    fresh = jax.tree.map(np.asarray, learner.initial_memory((count,)))
    apply = jax.jit(network.apply)
    for t in range(length):
        ended = sequences.done[t - 1] if t else np.zeros(count, bool)
        memory = {
            name: np.stack([fresh[name][k] if ended[k] else leaf[k] for k in range(count)])
            for name, leaf in memory.items()
        }
        observation = sequences.observation[t]
        if "last_action" in memory:
            observation = (observation, memory["last_action"])
        inputs = TeamInput(observation, None, np.zeros_like(sequences.active[t]), sequences.active[t])
        own = {name: leaf for name, leaf in memory.items() if name != "last_action"}
        own, q, _ = apply(params["agents"], own, jax.tree.map(lambda leaf: leaf[None], inputs))
        own = jax.tree.map(np.asarray, own)
        out[t] = q[0]
        if t < length - 1:
            memory = {name: sequences.action[t] if name == "last_action" else own[name] for name in memory}
    return out


def targets_in_numpy(learner, params, target_params, sequences):
    """Forward-view lambda-returns, episode by episode, one number at a time."""
    online, target = (values_step_by_step(learner, p, sequences) for p in (params, target_params))
    mask, active = np.asarray(sequences.action_mask), np.asarray(sequences.active)
    reward, terminated = np.asarray(sequences.reward), np.asarray(sequences.terminated)
    done = np.asarray(sequences.done)
    last, count, num_agents = reward.shape[0] - 1, reward.shape[1], reward.shape[2]
    team = learner.mixer != "none"
    width = 1 if team else num_agents
    apply_mixer, apply_central = (
        module and jax.jit(module.apply) for module in (learner.mixer_module, learner.central_module)
    )
    expected, counted = np.zeros((last, count, width)), np.zeros((last, count, width), bool)

    def successor_value(t, k):
        chooser = online if learner.double_q else target
        best = [
            max((a for a in range(mask.shape[-1]) if mask[t, k, i, a]), key=lambda a, i=i: chooser[t, k, i, a])
            for i in range(num_agents)
        ]
        q = np.array([target[t, k, i, best[i]] for i in range(num_agents)])
        if not team:
            return q
        counts = active[t, k] if active[t, k].any() else ~terminated[t, k]
        if learner.mixer == "sum":
            return np.array([q[counts].sum()])
        state = sequences.global_state[t, k]
        if learner.mixer == "weighted":
            apply, own, inputs = apply_central, "central", (jnp.array(best), jnp.asarray(counts), state)
        else:
            apply, own, inputs = apply_mixer, "mixer", (jnp.where(counts, q, 0.0), state)
        own = jax.tree.map(lambda leaf: leaf[0], target_params[own])
        return np.asarray(apply({"params": own}, *inputs))[None]

    for k in range(count):
        value = np.stack([successor_value(t, k) for t in range(last + 1)])
        for w in range(width):
            who = slice(None) if team else slice(w, w + 1)
            for t in range(last):
                counted[t, k, w] = not done[t, k] and not terminated[t, k, who].all()
                # All n-step returns from t to where the episode, the agent, or the sequence ends.
                returns, total, discount = [], 0.0, 1.0
                for s in range(t + 1, last + 1):
                    total += discount * reward[s, k, who].mean()
                    discount *= learner.discount
                    dead = terminated[s, k, who].all()
                    returns.append(total + (0.0 if dead else discount * value[s, w]))
                    if dead or done[s, k]:
                        break
                weights = [(1 - learner.td_lambda) * learner.td_lambda**n for n in range(len(returns) - 1)]
                weights.append(learner.td_lambda ** (len(returns) - 1))
                expected[t, k, w] = np.dot(weights, returns)
    return expected, counted


DYING, SHORT = DyingAgents(team_size=3, max_steps=4, poison=3.0), ConstantReward(terminates_at=3)


@pytest.mark.parametrize(
    ("env", "algorithm", "settings"),
    [
        (DYING, "iql", {"sharing": "isolated", "td_lambda": 0.7}),
        pytest.param(DYING, "iql", {"network": "gru", "double_q": False}, marks=pytest.mark.wide),
        pytest.param(SHORT, "vdn", {"td_lambda": 0.7}, marks=pytest.mark.wide),
        pytest.param(
            DYING,
            "vdn",
            {"network": "gru", "td_lambda": 0.7, "last_action": True, "agent_id": True},
            marks=pytest.mark.wide,
        ),
        (DYING, "qmix", {"network": "gru", "sharing": (0, 1, 0), "last_action": True}),
        pytest.param(SHORT, "qmix", {"network": "gru", "td_lambda": 1.0}, marks=pytest.mark.wide),
        pytest.param(
            DYING,
            "vdn",
            {"network": "coordinator", "hidden_sizes": (6,), "memory_size": 5, "memory_tokens": 2},
            marks=pytest.mark.wide,
        ),
        (DYING, "weighted_qmix", {"td_lambda": 0.3}),
    ],
)
def test_targets_equal_a_numpy_loop(env, algorithm, settings):
    sizes = (
        SMALL
        | {"num_envs": 3, "rollout_length": 13, "discount": 0.9}
        | ({"gru_size": 5} if "gru" in settings.values() else {})
    )
    learner = ALGORITHMS[algorithm](env, **sizes | settings)
    state = init(learner)
    # The second rollout starts inside an episode, from a memory that is not zero.
    state, _ = collect(learner, state, seed=3)
    other = init(learner, 1).params
    state, sequences = collect(learner, state)
    assert int(sequences.done[1:-1].sum()) >= 3 and not sequences.done[0].any()
    if "actor" in sequences.memory:
        assert float(jnp.abs(sequences.memory["actor"]).min()) > 0
    q = jax.jit(lambda params: actings.action_values(learner.network_module, params, sequences))(state.params["agents"])
    np.testing.assert_allclose(q, values_step_by_step(learner, state.params, sequences), atol=1e-5)
    target, counted = jax.jit(functools.partial(updates.targets, learner))(other, sequences, q)
    expected, expected_counted = targets_in_numpy(learner, state.params, other, sequences)
    np.testing.assert_array_equal(counted, expected_counted)
    np.testing.assert_allclose(np.where(counted, target, 0), np.where(counted, expected, 0), rtol=1e-4, atol=1e-4)


def test_streams_show_what_happened():
    env = MatchTarget(team_size=3, max_steps=4)
    learner = algorithms.iql(env, **SMALL | {"rollout_length": 23})
    _, sequences = collect(learner, init(learner))
    done = np.asarray(sequences.done)
    # Four steps, then one that only begins the next episode.
    assert done[4::5].all() and done.sum() == done[4::5].size
    seen = np.asarray(sequences.observation).argmax(-1)[:-1]
    right = (seen == np.asarray(sequences.action)) & ~done[:-1, :, None]
    np.testing.assert_array_equal(sequences.reward[1:], right.astype(np.float32))


def test_statistics_count_real_steps_only():
    _, metrics = train(algorithms.vdn(ConstantReward(max_steps=4), **SMALL | {"rollout_length": 10}), 1)
    assert float(metrics["episodes_finished"]) == 8
    assert float(metrics["episode_length"]) == 4 and float(metrics["episode_return"]) == 4


@pytest.mark.parametrize(
    ("algorithm", "network", "sharing"),
    [
        pytest.param("iql", "gru", "isolated", marks=pytest.mark.wide),
        pytest.param("vdn", "mlp", "shared", marks=pytest.mark.wide),
        ("qmix", "gru", (0, 1, 0)),
        pytest.param("weighted_qmix", "mlp", "shared", marks=pytest.mark.wide),
    ],
)
def test_every_axis_is_a_different_prime(algorithm, network, sharing):
    learner = ALGORITHMS[algorithm](
        MatchTarget(team_size=3, choices=2, max_steps=5),
        num_envs=11,
        rollout_length=7,
        gradient_steps=2,
        batch_size=23,
        replay_size=200,
        network=network,
        hidden_sizes=(13, 17),
        **({"gru_size": 19} if network == "gru" else {}),
        sharing=sharing,
        agent_id=True,
        last_action=True,
        embed_dim=29,
        hypernet_size=31,
        central_hidden_sizes=(37,),
        target_update_interval=1,
    )
    state = init(learner)
    before = jax.device_get(state.params)
    shapes = jax.eval_shape(lambda: state)
    state, metrics = jax.jit(learner.update)(state)
    assert jax.eval_shape(lambda: state) == shapes
    assert metrics["agent_return"].shape == metrics["agent_gradient_norm"].shape == (3,)
    assert all(np.isfinite(value).all() for value in jax.tree.leaves(metrics))
    for path, leaf in jax.tree_util.tree_leaves_with_path(
        jax.tree.map(np.subtract, jax.device_get(state.params), before)
    ):
        for policy in range(leaf.shape[0]):
            assert np.abs(leaf[policy]).max() > 0, f"{jax.tree_util.keystr(path)}[{policy}] never moves"
    jax.tree.map(np.testing.assert_array_equal, state.params, state.target_params)


@pytest.mark.parametrize("sharing", ["shared", pytest.param("isolated", marks=pytest.mark.wide)])
@pytest.mark.parametrize("algorithm", ["iql", "qmix"])
def test_agents_gradients_add_up(algorithm, sharing):
    env = MatchTarget(team_size=2, max_steps=5)
    learner = ALGORITHMS[algorithm](env, sharing=sharing, **SMALL | {"role_gradient_rows": 44})
    state = init(learner)
    run = jax.jit(functools.partial(actings.collect, learner, epsilon=1.0, shaped_weight=0.0))
    _, sequences, _ = run(state.params, state.rollout.acting, jax.random.key(1))
    batch = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), sequences), jnp.ones(4)

    @jax.jit
    def gradient(params):
        def mean_loss(params):
            loss, (_, sums) = updates.td_loss(learner, params, state.target_params, *batch)
            return loss / sums["count"]

        return jax.grad(mean_loss)(params)

    networks = (state.params, state.target_params, state.optimizer_state)
    report = jax.jit(functools.partial(updates.agent_gradients, learner))(networks, batch)
    norm, cosine = report["agent_gradient_norm"], report["agent_gradient_cosine"]
    of_policy = jax.vmap(optax.tree.norm)(gradient(state.params)["agents"])
    np.testing.assert_allclose(report["agent_gradient_share"], norm / norm.sum(), rtol=1e-5)
    if sharing == "isolated":
        np.testing.assert_allclose(norm, of_policy, rtol=1e-4)
    else:
        # The shared network's gradient is the sum of the agents'.
        square = norm[0] ** 2 + norm[1] ** 2 + 2 * norm[0] * norm[1] * cosine[0]
        np.testing.assert_allclose(jnp.sqrt(square), of_policy[0], rtol=1e-4)


def test_what_outlasts_an_episode_goes_on():
    env = NumberedEpisodes(team_size=2, max_steps=5)
    _, metrics = train(algorithms.vdn(env, **SMALL | {"rollout_length": 6}), 3)
    # Five steps and one to begin the next episode; the third episode earns 2 a step.
    assert float(metrics["episode_return"]) == 10.0


@pytest.mark.parametrize(
    ("team_size", "num_envs"),
    [(1, 1), pytest.param(2, 1, marks=pytest.mark.wide), pytest.param(1, 3, marks=pytest.mark.wide)],
)
def test_one_agent_and_one_environment(team_size, num_envs):
    env = MatchTarget(team_size=team_size, max_steps=5)
    _, metrics = train(algorithms.qmix(env, **SMALL | {"num_envs": num_envs, "rollout_length": 1}), 3)
    assert np.isfinite(metrics["total_loss"])


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[] if name == "vdn" else pytest.mark.wide) for name in ALGORITHMS]
)
@pytest.mark.wide
def test_what_dead_agents_see_reaches_no_loss(algorithm):
    def outcome(poison):
        # A shared reward is the team's to the end, so only what the dead see is poisoned for those who share one.
        env = DyingAgents(team_size=3, max_steps=5, poison=poison)
        learner = ALGORITHMS[algorithm](env, **SMALL)
        state = init(learner)
        _, sequences = collect(learner, state)
        dead = sequences.terminated[:-1]
        reward = sequences.reward if algorithm == "iql" else sequences.reward.at[1:].set(jnp.where(dead, 0.0, 1.0))
        state_without_dead = sequences.global_state
        if state_without_dead is not None:
            state_without_dead = jnp.zeros_like(state_without_dead)
        sequences = sequences.replace(reward=reward, global_state=state_without_dead)
        loss = functools.partial(
            updates.td_loss, learner, target_params=state.params, sequences=sequences, weight=jnp.ones((4,))
        )
        return jax.grad(lambda params: loss(params)[0])(state.params), loss(state.params)[0]

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), outcome(0.0), outcome(500.0))


def test_isolated_networks_do_not_touch_each_other():
    env = MatchTarget(team_size=3, max_steps=5)
    learner = algorithms.iql(env, **SMALL | {"sharing": "isolated"})
    state = init(learner)
    _, sequences = collect(learner, state)

    def gradient(sequences):
        def loss(params):
            return updates.td_loss(learner, params, state.params, sequences, jnp.ones((4,)))[0]

        return jax.grad(loss)(state.params)

    changed = gradient(sequences.replace(reward=sequences.reward.at[..., 1].add(2.0)))
    for a, b in zip(jax.tree.leaves(gradient(sequences)), jax.tree.leaves(changed), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[2], b[2])
        assert bool(jnp.any(a[1] != b[1]))


def test_exploration_is_legal_and_uniform():
    env = MatchTarget(team_size=2, choices=4)
    learner = algorithms.iql(env, **SMALL | {"epsilon_final": 0.6})
    params = init(learner).params
    timestep = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (4000, *leaf.shape)), env.reset(jax.random.key(0))[0])
    timestep = timestep.replace(action_mask=timestep.action_mask.at[..., 2].set(False))
    memory = learner.initial_memory((4000,))
    greedy, _ = learner.act(params, timestep, memory, jax.random.key(1))
    assert (greedy == greedy[:1]).all()
    action, _ = learner.act(params, timestep, memory, jax.random.key(1), greedy=False)
    share = np.stack([(np.asarray(action) == a).mean(0) for a in range(4)])
    np.testing.assert_array_equal(share[2], 0.0)
    np.testing.assert_allclose(share.max(0), 0.4 + 0.2, atol=0.03)
    np.testing.assert_allclose(np.sort(share, axis=0)[1:3], 0.2, atol=0.03)


@pytest.mark.wide
def test_targets_move_hard_and_soft():
    env = MatchTarget(team_size=2, max_steps=5)
    for interval, rate, gap in ((2, 1.0, 0.0), (3, 1.0, 1.0), (1, 0.25, 1.0)):
        learner = algorithms.vdn(env, **SMALL | {"target_update_interval": interval, "target_update_rate": rate})
        state = init(learner)
        first = state.target_params
        state, _ = jax.jit(learner.update)(state)
        distance = [
            sum(float(jnp.abs(a - b).sum()) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
            for pair in ((state.target_params, state.params), (state.target_params, first))
        ]
        assert (distance[0] > 0) == bool(gap)
        assert (distance[1] > 0) == (interval < 3)


@pytest.mark.wide
def test_nothing_is_learned_before_learning_starts():
    learner = algorithms.qmix(MatchTarget(max_steps=5), **SMALL | {"learning_starts": 2.0 * 4 * 11})
    state = init(learner)
    after, metrics = jax.jit(learner.update)(state)
    jax.tree.map(np.testing.assert_array_equal, state.params, after.params)
    assert float(metrics["total_loss"]) == 0
    after, metrics = jax.jit(learner.update)(after)
    assert float(metrics["total_loss"]) > 0


@pytest.mark.wide
def test_seeds_and_hyper_parameters_under_one_vmap():
    learner = algorithms.vdn(MatchTarget(max_steps=5), **SMALL)
    keys = jax.random.split(jax.random.key(0), 3)
    rates = jnp.array([0.0, 1e-3, 1e-2])
    sweep: Any = dataclasses.replace(learner, learning_rate=rates)
    axes = jax.tree.map(lambda _: None, sweep).replace(learning_rate=0)

    @jax.jit
    @functools.partial(jax.vmap, in_axes=(axes, 0))
    def run(learner, key):
        return learner.update(learner.init(key))

    state, metrics = run(sweep, keys)
    assert metrics["learning_rate"].tolist() == pytest.approx(rates.tolist())
    alone = dataclasses.replace(learner, learning_rate=1e-2)
    trained, _ = jax.jit(lambda key: alone.update(alone.init(key)))(keys[2])
    jax.tree.map(
        lambda many, one: np.testing.assert_allclose(many[2], one, rtol=1e-4, atol=1e-4), state.params, trained.params
    )


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=[] if name == "qmix" else pytest.mark.wide) for name in ALGORITHMS]
)
def test_learns_to_match(algorithm):
    env = MatchTarget(team_size=2, max_steps=10)
    learner = ALGORITHMS[algorithm](
        env,
        **SMALL
        | {
            "learning_rate": 1e-2,
            "gradient_steps": 8,
            "epsilon_steps": 1500.0,
            "discount": 0.5,
            "target_update_interval": 20,
            "total_steps": 1e5,
        },
    )
    _, metrics = train(learner, 60)
    assert float(metrics["episode_return"]) > 8.5


@pytest.mark.slow
def test_only_a_memory_solves_the_cue():
    def final_return(network):
        learner = algorithms.vdn(
            RememberCue(team_size=2),
            **SMALL
            | {
                "num_envs": 16,
                "rollout_length": 10,
                "network": network,
                **({"gru_size": 16} if network == "gru" else {}),
                "learning_rate": 5e-3,
                "gradient_steps": 4,
                "epsilon_steps": 1e4,
                "td_lambda": 0.8,
                "target_update_interval": 50,
                "replay_size": 5000,
            },
        )
        return float(train(learner, 250)[1]["episode_return"])

    assert final_return("gru") > 0.8
    assert final_return("mlp") < 0.6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixer": "sums"}, "did you mean sum"),
        ({"weighting": "centre"}, "did you mean central"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1"),
        ({"epsilon": 1.5}, "epsilon must lie between 0 and 1"),
        ({"sharing": (0, 2, 0)}, "without a gap"),
        ({"network": "cnn"}, "needs an observation of shape"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(UserError, match=message):
        algorithms.value_learner(MatchTarget(), **settings)
