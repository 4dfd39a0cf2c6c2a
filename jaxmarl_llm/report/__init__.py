"""Metrics, plots and animations of a run folder.

Names are loaded on first use, so that importing the package costs no Matplotlib.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxmarl_llm.report.animation import Episode as Episode
    from jaxmarl_llm.report.animation import record_episode as record_episode
    from jaxmarl_llm.report.animation import write_episode_gif as write_episode_gif
    from jaxmarl_llm.report.metrics import RunMetrics as RunMetrics
    from jaxmarl_llm.report.metrics import read_metrics as read_metrics
    from jaxmarl_llm.report.plots import write_plots as write_plots
    from jaxmarl_llm.report.statistics import bootstrap_interval as bootstrap_interval

_HOME = {
    "Episode": "animation",
    "RunMetrics": "metrics",
    "bootstrap_interval": "statistics",
    "read_metrics": "metrics",
    "record_episode": "animation",
    "write_episode_gif": "animation",
    "write_plots": "plots",
}

__all__ = [*_HOME]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    if name in _HOME:
        return getattr(importlib.import_module(f"jaxmarl_llm.report.{_HOME[name]}"), name)
    raise AttributeError(f"module 'jaxmarl_llm.report' has no attribute '{name}'")


def __dir__():
    return sorted({*globals(), *__all__})
