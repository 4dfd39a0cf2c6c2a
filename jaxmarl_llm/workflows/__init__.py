"""Teams of language-model roles: tasks, graphs of calls, prompts and teachers, all inside jit.

Names are loaded on first use, so that importing the package costs nothing.
"""

from typing import TYPE_CHECKING

from jaxmarl_llm.lazy import lazy_names

if TYPE_CHECKING:
    from jaxmarl_llm.workflows.base_evaluation import evaluate_base as evaluate_base
    from jaxmarl_llm.workflows.base_policies import base_policy as base_policy
    from jaxmarl_llm.workflows.bound import BoundWorkflow as BoundWorkflow
    from jaxmarl_llm.workflows.bound import bind as bind
    from jaxmarl_llm.workflows.bound import build_vocabulary as build_vocabulary
    from jaxmarl_llm.workflows.builtin import make_workflow as make_workflow
    from jaxmarl_llm.workflows.builtin import register_workflow as register_workflow
    from jaxmarl_llm.workflows.builtin import workflow_factory as workflow_factory
    from jaxmarl_llm.workflows.builtin import workflow_names as workflow_names
    from jaxmarl_llm.workflows.graph import NUMBER as NUMBER
    from jaxmarl_llm.workflows.graph import PROBLEM as PROBLEM
    from jaxmarl_llm.workflows.graph import Call as Call
    from jaxmarl_llm.workflows.graph import Last as Last
    from jaxmarl_llm.workflows.graph import Loop as Loop
    from jaxmarl_llm.workflows.graph import Selected as Selected
    from jaxmarl_llm.workflows.graph import Slot as Slot
    from jaxmarl_llm.workflows.graph import Turn as Turn
    from jaxmarl_llm.workflows.graph import Until as Until
    from jaxmarl_llm.workflows.graph import Workflow as Workflow
    from jaxmarl_llm.workflows.instructions import Instructions as Instructions
    from jaxmarl_llm.workflows.learner import WorkflowLearner as WorkflowLearner
    from jaxmarl_llm.workflows.learner import WorkflowState as WorkflowState
    from jaxmarl_llm.workflows.messages import Addressed as Addressed
    from jaxmarl_llm.workflows.messages import Choice as Choice
    from jaxmarl_llm.workflows.messages import Message as Message
    from jaxmarl_llm.workflows.messages import Solution as Solution
    from jaxmarl_llm.workflows.messages import Strategies as Strategies
    from jaxmarl_llm.workflows.messages import Synthesis as Synthesis
    from jaxmarl_llm.workflows.messages import Verdict as Verdict
    from jaxmarl_llm.workflows.policies import sharing as sharing
    from jaxmarl_llm.workflows.pretraining import Pretraining as Pretraining
    from jaxmarl_llm.workflows.pretraining import make_pretraining as make_pretraining
    from jaxmarl_llm.workflows.pretraining import pretrain as pretrain
    from jaxmarl_llm.workflows.replay import replay_message as replay_message
    from jaxmarl_llm.workflows.role_swap import RoleSwap as RoleSwap
    from jaxmarl_llm.workflows.role_swap import swap_roles as swap_roles
    from jaxmarl_llm.workflows.roll_back import RollBack as RollBack
    from jaxmarl_llm.workflows.roll_back import RollBackState as RollBackState
    from jaxmarl_llm.workflows.rollout import CallSamples as CallSamples
    from jaxmarl_llm.workflows.rollout import Episodes as Episodes
    from jaxmarl_llm.workflows.rollout import play as play
    from jaxmarl_llm.workflows.tasks import Problem as Problem
    from jaxmarl_llm.workflows.tasks import Task as Task
    from jaxmarl_llm.workflows.tasks import check_task as check_task
    from jaxmarl_llm.workflows.tasks import make_task as make_task
    from jaxmarl_llm.workflows.tasks import register_task as register_task
    from jaxmarl_llm.workflows.tasks import task_names as task_names
    from jaxmarl_llm.workflows.teaching import Exchange as Exchange
    from jaxmarl_llm.workflows.teaching import teach as teach
    from jaxmarl_llm.workflows.team import TeamPolicy as TeamPolicy
    from jaxmarl_llm.workflows.team import make_team as make_team
    from jaxmarl_llm.workflows.transcript import Completions as Completions
    from jaxmarl_llm.workflows.transcript import Transcript as Transcript
    from jaxmarl_llm.workflows.vocabulary import Vocabulary as Vocabulary

_MODULES = {
    "base_evaluation": ("evaluate_base",),
    "base_policies": ("base_policy",),
    "bound": ("BoundWorkflow", "bind", "build_vocabulary"),
    "builtin": ("make_workflow", "register_workflow", "workflow_factory", "workflow_names"),
    "graph": ("NUMBER", "PROBLEM", "Call", "Last", "Loop", "Selected", "Slot", "Turn", "Until", "Workflow"),
    "instructions": ("Instructions",),
    "learner": ("WorkflowLearner", "WorkflowState"),
    "messages": ("Addressed", "Choice", "Message", "Solution", "Strategies", "Synthesis", "Verdict"),
    "policies": ("sharing",),
    "pretraining": ("Pretraining", "make_pretraining", "pretrain"),
    "replay": ("replay_message",),
    "role_swap": ("RoleSwap", "swap_roles"),
    "roll_back": ("RollBack", "RollBackState"),
    "rollout": ("CallSamples", "Episodes", "play"),
    "tasks": ("Problem", "Task", "check_task", "make_task", "register_task", "task_names"),
    "teaching": ("Exchange", "teach"),
    "team": ("TeamPolicy", "make_team"),
    "transcript": ("Completions", "Transcript"),
    "vocabulary": ("Vocabulary",),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__all__ = [*_HOMES]  # pyright: ignore[reportUnsupportedDunderAll]
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
