"""Trust-region steps: exact values, NumPy twins, the gate, and how stale data drifts with the number of agents."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import algorithms as alg


def positive_definite(seed, size):
    factor = np.random.default_rng(seed).normal(size=(size, size))
    return factor @ factor.T + 0.5 * np.eye(size)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_conjugate_gradient_solves_and_takes_pytrees(size):
    matrix = positive_definite(size, size).astype(np.float32)
    vector = np.random.default_rng(0).normal(size=size).astype(np.float32)
    split = {"a": jnp.asarray(vector[: size // 2]), "b": jnp.asarray(vector[size // 2 :])}

    def matvec(tree):
        product = matrix @ jnp.concatenate([tree["a"], tree["b"]])
        return {"a": product[: size // 2], "b": product[size // 2 :]}

    solution = jax.jit(lambda v: alg.conjugate_gradient(matvec, v, num_iterations=4 * size))(split)
    solution = np.concatenate([solution["a"], solution["b"]])
    np.testing.assert_allclose(solution, np.linalg.solve(matrix, vector), rtol=1e-3, atol=1e-4)
    zeros = alg.conjugate_gradient(matvec, jax.tree.map(jnp.zeros_like, split))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(zeros))


def softmax_policy(seed, states=5, actions=7):
    """A tabular policy of logits, advantages of its actions, and what a gate needs: `evaluate(logits)`."""
    rng = np.random.default_rng(seed)
    logits, advantage = rng.normal(size=(2, states, actions)).astype(np.float32)
    return jnp.asarray(logits), jnp.asarray(advantage)


def evaluate_policy(old, advantage):
    def evaluate(logits):
        objective = jnp.mean(jnp.sum(jax.nn.softmax(logits) * advantage, -1))
        return objective, jnp.mean(alg.categorical_kl(old, logits))

    return evaluate


def test_natural_gradient_equals_the_dense_solution():
    logits, advantage = softmax_policy(0)
    evaluate = evaluate_policy(logits, advantage)
    divergence = lambda params: evaluate(params)[1]  # noqa: E731
    gradient = jax.grad(lambda params: evaluate(params)[0])(logits)
    step, expected = jax.jit(
        lambda p, g: alg.natural_gradient(divergence, p, g, radius=0.01, damping=0.1, num_iterations=40)
    )(logits, gradient)
    fisher = np.zeros((35, 35))
    for s, row in enumerate(np.asarray(jax.nn.softmax(logits), np.float64)):
        fisher[7 * s : 7 * s + 7, 7 * s : 7 * s + 7] = (np.diag(row) - np.outer(row, row)) / 5
    flat = np.asarray(gradient, np.float64).reshape(-1)
    direction = np.linalg.solve(fisher + 0.1 * np.eye(35), flat)
    wanted = np.sqrt(2 * 0.01 / (flat @ direction)) * direction
    np.testing.assert_allclose(step.reshape(-1), wanted, rtol=2e-3, atol=1e-5)
    assert float(expected) == pytest.approx(flat @ wanted, rel=1e-3)
    vector = jnp.asarray(np.random.default_rng(1).normal(size=(5, 7)), jnp.float32)
    product = alg.fisher_vector_product(divergence, logits, vector, damping=0.3)
    dense = (fisher + 0.3 * np.eye(35)) @ np.asarray(vector).reshape(-1)
    np.testing.assert_allclose(product.reshape(-1), dense, atol=1e-5)
    nothing, expected = alg.natural_gradient(divergence, logits, jnp.zeros_like(logits), radius=0.01)
    assert not np.any(nothing) and float(expected) == 0


def line_search_by_loop(evaluate, params, step, radius, expected, ratio):
    start = evaluate(params)[0]
    for trial in range(10):
        fraction = 0.5**trial
        objective, divergence = evaluate(params + fraction * step)
        improvement = objective - start
        if divergence <= radius and improvement > 0 and improvement >= ratio * fraction * expected:
            return fraction
    return 0.0


def test_gate_over_two_hundred_random_updates():
    """An accepted divergence is never above the radius; a refused step leaves the parameters bit for bit."""
    num, radius = 200, 1e-3
    rng = np.random.default_rng(0)
    old, advantage, step = rng.normal(size=(3, num, 5, 7)).astype(np.float32)
    step *= np.float32(10) ** rng.uniform(-3, 1.5, size=(num, 1, 1)).astype(np.float32)
    step[::41] = np.nan
    slope = np.asarray(jax.vmap(jax.grad(lambda x, a: jnp.mean(jnp.sum(jax.nn.softmax(x) * a, -1))))(old, advantage))
    expected = np.nan_to_num((slope * step).sum((1, 2)))

    def search(old, advantage, step, expected):
        evaluate = evaluate_policy(old, advantage)
        return alg.backtracking_line_search(evaluate, old, step, radius=radius, expected_improvement=expected)

    result = jax.jit(jax.vmap(search))(old, advantage, step, expected)
    accepted = np.asarray(result.accepted)
    assert 40 < accepted.sum() < 160 and len(set(np.asarray(result.fraction).tolist())) > 5

    def kl_by_loop(one, two):
        one, two = (np.exp(x - x.max(-1, keepdims=True)) for x in (one.astype(float), two.astype(float)))
        p, q = one / one.sum(-1, keepdims=True), two / two.sum(-1, keepdims=True)
        return np.mean(np.sum(p * np.log(p / q), -1))

    for i in range(num):
        new = np.asarray(result.params[i])
        if accepted[i]:
            assert float(result.divergence[i]) <= radius and float(result.improvement[i]) > 0
            assert kl_by_loop(old[i], new) <= radius + 1e-7
        else:
            assert new.tobytes() == old[i].tobytes() and float(result.fraction[i]) == 0

        def evaluate(logits, i=i):
            with np.errstate(invalid="ignore"):
                shifted = np.exp(logits.astype(float) - logits.max(-1, keepdims=True))
            probs = shifted / shifted.sum(-1, keepdims=True)
            return np.mean(np.sum(probs * advantage[i], -1)), kl_by_loop(old[i], logits)

        assert line_search_by_loop(evaluate, old[i], step[i], radius, expected[i], 0.5) == float(result.fraction[i]), i


def test_natural_steps_through_the_gate_improve_within_the_radius():
    def update(logits, _):
        evaluate = evaluate_policy(logits, advantage)
        gradient = jax.grad(lambda params: evaluate(params)[0])(logits)
        step, expected = alg.natural_gradient(lambda params: evaluate(params)[1], logits, gradient, radius=0.01)
        result = alg.backtracking_line_search(evaluate, logits, step, radius=0.01, expected_improvement=expected)
        return result.params, (evaluate(logits)[0], result.divergence, result.accepted)

    first, advantage = softmax_policy(3)
    logits, (objective, divergence, accepted) = jax.lax.scan(update, first, length=50)
    assert float(divergence.max()) <= 0.01 and bool(accepted[:20].all())
    assert bool(jnp.all(jnp.diff(objective) >= 0))
    best = float(advantage.max(-1).mean())
    assert float(objective[-1]) > 0.8 * best + 0.2 * float(objective[0]) and not np.array_equal(logits, first)


def test_negative_radii_are_rejected():
    with pytest.raises(ValueError, match=r"radius must not be negative, got -0\.1"):
        alg.backtracking_line_search(lambda p: (p, p), 0.0, 0.0, radius=-0.1)
    with pytest.raises(ValueError, match="radius must not be negative"):
        alg.natural_gradient(jnp.sum, jnp.zeros(3), jnp.zeros(3), radius=-1.0)
    with pytest.raises(ValueError, match="divergence_radii must not be negative"):
        alg.occupancy_drift_bound([0.1, -0.1], discount=0.9)
    with pytest.raises(ValueError, match="below 1"):
        alg.occupancy_drift_bound([0.1], discount=1.0)


def test_adapt_penalty():
    divergence = jnp.array([0.1, 0.0151, 0.014, 0.0067, 0.0066, 0.0])
    adapted = alg.adapt_penalty(jnp.full(6, 3.0), divergence, target=0.01)
    np.testing.assert_allclose(adapted, [6, 6, 3, 3, 1.5, 1.5])
    assert float(alg.adapt_penalty(jnp.float32(9e3), jnp.float32(1.0), target=0.01)) == 1e4


def test_effective_sample_size():
    weights = np.random.default_rng(0).gamma(0.5, size=(7, 5, 3))
    expected = weights.sum((0, 2)) ** 2 / np.square(weights).sum((0, 2))
    np.testing.assert_allclose(alg.effective_sample_size(jnp.log(weights) + 500, axis=(0, 2)), expected, rtol=1e-4)
    assert float(alg.effective_sample_size(jnp.zeros(11))) == pytest.approx(11)
    assert float(alg.effective_sample_size(jnp.array([0.0, -jnp.inf, -jnp.inf]))) == 1.0


def test_occupancy_drift_bound_published_value():
    assert float(alg.occupancy_drift_bound(jnp.full(3, 0.01), discount=0.9)) == pytest.approx(3.818377, abs=1e-5)
    radii = np.random.default_rng(0).random((7, 3))
    expected = [np.sqrt(2) * 0.8 / 0.2 * sum(np.sqrt(r) for r in row) for row in radii]
    np.testing.assert_allclose(alg.occupancy_drift_bound(jnp.asarray(radii), discount=0.8), expected, rtol=1e-5)


@pytest.mark.parametrize("seed", range(5))
def test_occupancy_drift_bound_holds(seed):
    """Five agents take turns in a random Markov chain of 7 states; each in turn changes within its radius."""
    rng = np.random.default_rng(seed)
    discount, num_agents, radius = 0.9, 5, 0.01
    start, dynamics = rng.dirichlet(np.ones(7)), rng.dirichlet(np.full(7, 0.2), size=(7, 3))
    speaker = rng.integers(num_agents, size=7)
    logits = rng.normal(size=(7, 3))

    def occupancy(logits):
        policy = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        transition = np.einsum("sa,sat->st", policy, dynamics)
        return (1 - discount) * np.linalg.solve(np.eye(7) - discount * transition.T, start)

    before, radii = occupancy(logits), []
    for agent in range(num_agents):
        new = np.where(speaker[:, None] == agent, logits + rng.normal(size=(7, 3)), logits)
        while True:
            per_state = np.asarray(alg.categorical_kl(jnp.asarray(logits), jnp.asarray(new)))
            if per_state.max() <= radius:
                break
            new = logits + 0.8 * (new - logits)
        logits = new
        radii.append(max(float(per_state.max()), 0.0))
        drift = np.abs(occupancy(logits) - before).sum()
        assert drift <= float(alg.occupancy_drift_bound(jnp.asarray(radii), discount=discount))
    assert drift > 1e-3


def exact_step(p, radius):
    """The success probability above `p` whose Bernoulli divergence from `p` is the radius, by bisection."""
    low, high = p, 1 - 1e-12
    for _ in range(100):
        middle = 0.5 * (low + high)
        divergence = p * np.log(p / middle) + (1 - p) * np.log((1 - p) / (1 - middle))
        low, high = (middle, high) if divergence < radius else (low, middle)
    return low


def error_chain_drift(num_agents, *, fresh, keep=0.9, radius=1e-3, discount=1.0):
    """How far the data of a stage is from the team it is used for, on the error chain, summed over its updates.

    The chain: a right answer is handed on by `num_agents` agents in a row. Each keeps it right with probability `keep`
    and spoils it otherwise; a spoilt answer stays wrong. The state is the agent's place and whether the answer that
    reaches it is right; its occupancy is the discounted probability of each state, normalised over the places.
    In a stage the agents are updated in the order of the chain, each by a step of exactly `radius` nats towards more
    right answers. Stale: all learn from rollouts of the first team, so agent i's data are off by the L1 distance
    between the occupancies of the team before its update and of the first team. Fresh: each learns from rollouts of
    the team as it then is, and its data are off by no more than its own update's move.
    """
    better = exact_step(keep, radius)
    weight = discount ** np.arange(num_agents)
    weight = weight / weight.sum()

    def right(updated):
        """Probability of each place and a right answer there, when the first `updated` agents have changed."""
        probs = np.where(np.arange(num_agents) < updated, better, keep)
        return weight * np.concatenate([[1.0], np.cumprod(probs)[:-1]])

    def distance(one, two):
        # A wrong answer's probability moves by as much as a right one's.
        return 2 * np.abs(right(one) - right(two)).sum()

    return sum(distance(i + 1, i) if fresh else distance(i, 0) for i in range(num_agents))


@pytest.mark.parametrize("discount", [1.0, 0.99])
@pytest.mark.parametrize("radius", [1e-4, 1e-3])
def test_stale_data_drift_as_the_square_of_the_number_of_agents_and_fresh_data_linearly(discount, radius):
    sizes = np.array([2, 3, 4, 5, 6, 8])
    exponent = {}
    for fresh in (False, True):
        drift = [error_chain_drift(n, fresh=fresh, radius=radius, discount=discount) for n in sizes]
        exponent[fresh] = np.polyfit(np.log(sizes), np.log(drift), 1)[0]
    assert exponent[False] >= 1.8 and exponent[True] <= 1.3
    assert exponent[False] == pytest.approx(2.30, abs=0.01) and exponent[True] == pytest.approx(1.12, abs=0.01)
