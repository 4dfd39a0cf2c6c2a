"""Workflows in words: the same graphs of calls, asked by templates and answered by a real language model.

Names are loaded on first use, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

if TYPE_CHECKING:
    from jaxmarl_llm.workflows.text.bound import Reply as Reply
    from jaxmarl_llm.workflows.text.bound import TextWorkflow as TextWorkflow
    from jaxmarl_llm.workflows.text.bound import bind_text as bind_text
    from jaxmarl_llm.workflows.text.coordination import instruction_report as instruction_report
    from jaxmarl_llm.workflows.text.evaluation import TextEvaluation as TextEvaluation
    from jaxmarl_llm.workflows.text.evaluation import episode_report as episode_report
    from jaxmarl_llm.workflows.text.evaluation import evaluate_text as evaluate_text
    from jaxmarl_llm.workflows.text.formats import RoleFormat as RoleFormat
    from jaxmarl_llm.workflows.text.formats import load_formats as load_formats
    from jaxmarl_llm.workflows.text.formats import show_formats as show_formats
    from jaxmarl_llm.workflows.text.replies import Reading as Reading
    from jaxmarl_llm.workflows.text.replies import read_reply as read_reply
    from jaxmarl_llm.workflows.text.rollout import TextEpisodes as TextEpisodes
    from jaxmarl_llm.workflows.text.rollout import TextSample as TextSample
    from jaxmarl_llm.workflows.text.rollout import play_text as play_text
    from jaxmarl_llm.workflows.text.sampler import Sampler as Sampler
    from jaxmarl_llm.workflows.text.sampler import ScriptedSampler as ScriptedSampler
    from jaxmarl_llm.workflows.text.sampler import make_sampler as make_sampler
    from jaxmarl_llm.workflows.text.tasks import make_text_task as make_text_task
    from jaxmarl_llm.workflows.text.tasks import register_text_task as register_text_task
    from jaxmarl_llm.workflows.text.tasks import text_task_names as text_task_names
    from jaxmarl_llm.workflows.text.transcripts import EpisodeRecord as EpisodeRecord
    from jaxmarl_llm.workflows.text.transcripts import StepRecord as StepRecord
    from jaxmarl_llm.workflows.text.transcripts import episode_records as episode_records
    from jaxmarl_llm.workflows.text.transcripts import read_transcripts as read_transcripts
    from jaxmarl_llm.workflows.text.transcripts import write_transcripts as write_transcripts

_MODULES = {
    "bound": ("Reply", "TextWorkflow", "bind_text"),
    "coordination": ("instruction_report",),
    "evaluation": ("TextEvaluation", "episode_report", "evaluate_text"),
    "formats": ("RoleFormat", "load_formats", "show_formats"),
    "replies": ("Reading", "read_reply"),
    "rollout": ("TextEpisodes", "TextSample", "play_text"),
    "sampler": ("Sampler", "ScriptedSampler", "make_sampler"),
    "tasks": ("make_text_task", "register_text_task", "text_task_names"),
    "transcripts": ("EpisodeRecord", "StepRecord", "episode_records", "read_transcripts", "write_transcripts"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
