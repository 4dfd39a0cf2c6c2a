"""The examples run, learn what they say, and print it."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def load(monkeypatch):
    """Loads an example by its name; most of the time here is the compiler's."""

    def load(name):
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.mark.slow
def test_ippo_from_functions_reaches_the_best_return(load, capsys):
    example = load("ippo_from_functions")
    returns = example.main(["--steps", "20000", "--seed", "3"])
    assert len(returns) == 19 and np.nanmean(returns[:2]) < 0
    assert np.nanmean(returns[-5:]) == pytest.approx(example.BEST_RETURN, abs=0.03)
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 11 and table[-1].split()[0] == "19,456"


@pytest.mark.slow
def test_learning_rates(load, capsys, monkeypatch, tmp_path):
    example = load("learning_rates")
    monkeypatch.setattr(example, "LEARNING_RATES", (1e-4, 1e-2))
    returns = example.main(["--steps", "6000", "--seeds", "2", "--picture", str(tmp_path / "new" / "rates.png")])
    assert returns.shape == (2, 2, 11)
    # The same seeds, so the same first rollout; then the greater rate learns more.
    np.testing.assert_array_equal(returns[0, :, 0], returns[1, :, 0])
    assert np.all(np.nanmean(returns[1, :, -3:], -1) > np.nanmean(returns[0, :, -3:], -1) + 0.3)
    assert len(capsys.readouterr().out.splitlines()) == 5
    assert (tmp_path / "new" / "rates.png").stat().st_size > 10_000


def test_the_fitted_critic_does_not_see_an_agents_own_action(load):
    critic = load("compare_credit").Critic(num_actions=3, outputs=3, scale=2.0)
    state, action = jax.numpy.ones((7,)), jax.numpy.array([0, 1])
    params = critic.init(jax.random.key(0), state, action)
    values = critic.apply(params, state, action)
    changed = critic.apply(params, state, action.at[0].set(2))
    np.testing.assert_array_equal(changed[0], values[0])
    assert values.shape == (2, 3) and np.all(np.abs(changed[1] - values[1]) > 1e-4)


@pytest.mark.slow
def test_compare_credit(load, capsys, tmp_path):
    sizes = "--steps 2048 --decisions 3 --horizon 2 --episodes 8 --sweeps 2 --replays 2 --reference-replays 3"
    example = load("compare_credit")
    comparisons = example.main([*sizes.split(), "--max-steps", "20", "--out", str(tmp_path)])
    assert [comparison.exact.shape for comparison in comparisons] == [(3, 2)]
    names = [row.name for row in comparisons[0].rows]
    assert {"gae", "coma", "counterfactual", "counterfactual_2"} <= set(names)
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].strip("| ") for line in table[1:]] == names
    assert (tmp_path / "seed_0" / "credit.png").stat().st_size > 10_000
    assert example.summary(comparisons * 2).count(" to ") == 2 * len(names)
