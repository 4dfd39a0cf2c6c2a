import pytest
from training.fake_learner import use_fake_learner

from jaxmarl_llm.training import TrainConfig


@pytest.fixture
def fake_config(tmp_path):
    """Ten updates of 20 steps on a matrix game."""
    return TrainConfig(
        env="matrix_game",
        env_args={"game": "coordination", "max_steps": 3},
        num_envs=4,
        rollout_length=5,
        total_steps=200,
        eval_every=80,
        eval_episodes=6,
        checkpoint_every=60,
        out=str(tmp_path / "run"),
    )


@pytest.fixture
def fake_learner(monkeypatch):
    """Lets `train` and `load_run` use the fake learner; `fake_learner["poison"] = k` makes update k diverge."""
    return use_fake_learner(monkeypatch)
