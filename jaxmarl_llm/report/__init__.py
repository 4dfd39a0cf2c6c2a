"""Metrics, plots and animations of a run folder, pictures of attention and of workflows.

Names are loaded on first use, so that importing the package costs no Matplotlib.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

if TYPE_CHECKING:
    from jaxmarl_llm.report.animation import Episode as Episode
    from jaxmarl_llm.report.animation import record_episode as record_episode
    from jaxmarl_llm.report.animation import write_episode_gif as write_episode_gif
    from jaxmarl_llm.report.attention import plot_attention as plot_attention
    from jaxmarl_llm.report.credit import CreditComparison as CreditComparison
    from jaxmarl_llm.report.credit import CreditRow as CreditRow
    from jaxmarl_llm.report.credit import compare_credit as compare_credit
    from jaxmarl_llm.report.credit import write_credit_report as write_credit_report
    from jaxmarl_llm.report.estimators import Decision as Decision
    from jaxmarl_llm.report.estimators import credit_estimators as credit_estimators
    from jaxmarl_llm.report.estimators import sampling_policy as sampling_policy
    from jaxmarl_llm.report.estimators import visited_decisions as visited_decisions
    from jaxmarl_llm.report.plots import write_plots as write_plots
    from jaxmarl_llm.report.workflow_graph import draw_workflow as draw_workflow
    from jaxmarl_llm.training.metrics import RunMetrics as RunMetrics
    from jaxmarl_llm.training.metrics import read_metrics as read_metrics
    from jaxmarl_llm.training.statistics import bootstrap_interval as bootstrap_interval

_HOMES = {
    "CreditComparison": "jaxmarl_llm.report.credit",
    "CreditRow": "jaxmarl_llm.report.credit",
    "Decision": "jaxmarl_llm.report.estimators",
    "Episode": "jaxmarl_llm.report.animation",
    "RunMetrics": "jaxmarl_llm.training.metrics",
    "bootstrap_interval": "jaxmarl_llm.training.statistics",
    "compare_credit": "jaxmarl_llm.report.credit",
    "credit_estimators": "jaxmarl_llm.report.estimators",
    "draw_workflow": "jaxmarl_llm.report.workflow_graph",
    "plot_attention": "jaxmarl_llm.report.attention",
    "read_metrics": "jaxmarl_llm.training.metrics",
    "record_episode": "jaxmarl_llm.report.animation",
    "sampling_policy": "jaxmarl_llm.report.estimators",
    "visited_decisions": "jaxmarl_llm.report.estimators",
    "write_credit_report": "jaxmarl_llm.report.credit",
    "write_episode_gif": "jaxmarl_llm.report.animation",
    "write_plots": "jaxmarl_llm.report.plots",
}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
