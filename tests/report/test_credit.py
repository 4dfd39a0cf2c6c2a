"""The comparison of credit estimators on games with known values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm import make, report
from jaxmarl_llm.report import compare_credit, write_credit_report
from jaxmarl_llm.report.credit import _mean_correlation


def test_comparison_on_the_climbing_game(tmp_path):
    env, num = make("matrix_game", game="climbing"), 61
    payoff = jnp.asarray(env.payoff_tensor()[..., 0])
    logits = jnp.log(jnp.array([[0.5, 0.2, 0.3], [0.1, 0.6, 0.3]]))
    policy = lambda timestep: logits  # noqa: E731
    decisions = report.visited_decisions(env, policy, jax.random.key(0), num)
    estimators = report.credit_estimators(
        env,
        policy,
        horizon=0,
        q_values=lambda timestep, state, action: jnp.stack([payoff[:, action[1]], payoff[action[0]]]),
    )
    estimators = {name: estimators[name] for name in ("shared_return", "coma", "counterfactual", "leave_one_out")}
    settings = {"horizon": 0, "reference_replays": 2, "num_repeats": 3}
    comparison = compare_credit(env, policy, decisions, estimators, jax.random.key(1), **settings)
    probs, action = np.asarray(jax.nn.softmax(logits)), np.asarray(decisions.action)
    for b, (row, column) in enumerate(action):
        exact = [payoff[row, column] - probs[0] @ payoff[:, column], payoff[row, column] - probs[1] @ payoff[row]]
        np.testing.assert_allclose(comparison.exact[b], exact, atol=1e-4)
    rows = {row.name: row for row in comparison.rows}
    assert list(rows) == list(estimators)
    for name in ("coma", "counterfactual"):
        np.testing.assert_allclose([rows[name].pearson, rows[name].spearman], 1.0, atol=1e-5)
    assert rows["leave_one_out"].variance > 0.1 and rows["counterfactual"].variance < 1e-20
    assert 0.6 < rows["leave_one_out"].pearson < 0.999
    assert rows["shared_return"].pearson < 0.95
    steps = {"shared_return": 1, "coma": 0, "counterfactual": 6, "leave_one_out": 9}
    assert {name: row.env_steps for name, row in rows.items()} == steps
    assert all(row.seconds > 0 for row in comparison.rows)
    table, picture = write_credit_report(comparison, tmp_path / "report")
    assert table.read_text().count("\n") == 2 + len(rows) and "| coma | 1 | 1 | 0 | 0 |" in table.read_text()
    assert picture.stat().st_size > 10_000


def test_correlations_equal_scipy():
    from scipy import stats

    rng = np.random.default_rng(0)
    samples, exact = rng.integers(5, size=(3, 41)).astype(np.float32), rng.normal(size=41).astype(np.float32)
    pearson = np.mean([stats.pearsonr(sample, exact).statistic for sample in samples])
    spearman = np.mean([stats.spearmanr(sample, exact).statistic for sample in samples])
    assert _mean_correlation(samples, exact) == pytest.approx(pearson, abs=1e-5)
    assert _mean_correlation(samples, exact, of_ranks=True) == pytest.approx(spearman, abs=1e-5)
    constant = np.full((3, 41), 0.1, np.float32)
    assert np.isnan(_mean_correlation(constant, exact)) and np.isnan(_mean_correlation(constant, exact, of_ranks=True))


def test_a_variance_needs_two_repeats():
    with pytest.raises(ValueError, match="num_repeats must be at least 2"):
        compare_credit(None, None, None, {}, jax.random.key(0), horizon=0, num_repeats=1)
