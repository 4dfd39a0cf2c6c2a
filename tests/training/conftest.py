import pytest
from training.fake_learner import FakeLearner

from jaxmarl_llm.training import TrainConfig
from jaxmarl_llm.training import loop as loop_module
from jaxmarl_llm.training import runs as runs_module
from jaxmarl_llm.training.build import build_environment


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
    settings = {}

    def build(config):
        return FakeLearner(
            build_environment(config), num_envs=config.num_envs, rollout_length=config.rollout_length, **settings
        )

    monkeypatch.setattr(loop_module, "build_learner", build)
    monkeypatch.setattr(runs_module, "build_learner", build)
    return settings
