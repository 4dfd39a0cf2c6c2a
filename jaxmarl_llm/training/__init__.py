"""The loop around jitted updates: configuration, evaluation, checkpoints, records, devices.

Names are loaded on first use, so that the command line can print its help without importing JAX.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxmarl_llm.training.build import build_environment as build_environment
    from jaxmarl_llm.training.build import build_learner as build_learner
    from jaxmarl_llm.training.config import TrainConfig as TrainConfig
    from jaxmarl_llm.training.config import load_preset as load_preset
    from jaxmarl_llm.training.config import preset_names as preset_names
    from jaxmarl_llm.training.evaluation import EvaluationResult as EvaluationResult
    from jaxmarl_llm.training.evaluation import evaluate as evaluate
    from jaxmarl_llm.training.loop import TrainingDiverged as TrainingDiverged
    from jaxmarl_llm.training.loop import TrainingInterrupted as TrainingInterrupted
    from jaxmarl_llm.training.loop import TrainResult as TrainResult
    from jaxmarl_llm.training.loop import train as train
    from jaxmarl_llm.training.runs import TrainedRun as TrainedRun
    from jaxmarl_llm.training.runs import load_run as load_run

_HOME = {
    "EvaluationResult": "evaluation",
    "TrainConfig": "config",
    "TrainResult": "loop",
    "TrainedRun": "runs",
    "TrainingDiverged": "loop",
    "TrainingInterrupted": "loop",
    "build_environment": "build",
    "build_learner": "build",
    "evaluate": "evaluation",
    "load_preset": "config",
    "load_run": "runs",
    "preset_names": "config",
    "train": "loop",
}

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jaxmarl_llm.training.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jaxmarl_llm.training' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__})
