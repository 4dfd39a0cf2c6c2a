"""The loop around jitted updates: configuration, evaluation, checkpoints, records, devices.

Names are loaded on first use, so that the command line can print its help without importing JAX.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

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

_HOMES = {
    "EvaluationResult": "jaxmarl_llm.training.evaluation",
    "TrainConfig": "jaxmarl_llm.training.config",
    "TrainResult": "jaxmarl_llm.training.loop",
    "TrainedRun": "jaxmarl_llm.training.runs",
    "TrainingDiverged": "jaxmarl_llm.training.loop",
    "TrainingInterrupted": "jaxmarl_llm.training.loop",
    "build_environment": "jaxmarl_llm.training.build",
    "build_learner": "jaxmarl_llm.training.build",
    "evaluate": "jaxmarl_llm.training.evaluation",
    "load_preset": "jaxmarl_llm.training.config",
    "load_run": "jaxmarl_llm.training.runs",
    "preset_names": "jaxmarl_llm.training.config",
    "train": "jaxmarl_llm.training.loop",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
