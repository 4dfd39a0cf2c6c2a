"""Flax modules: first layers, recurrent core, actor and critic, and the table of who shares what."""

from jaxmarl_llm.networks.actor_critic import ActorCritic
from jaxmarl_llm.networks.build import build_actor_critic
from jaxmarl_llm.networks.inputs import ConvolutionInput, DenseInput, FactoredInput, one_hot_factors
from jaxmarl_llm.networks.random_distillation import RandomDistillation
from jaxmarl_llm.networks.recurrent import RecurrentCore
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.networks.team_input import TeamInput

__all__ = [
    "ActorCritic",
    "ConvolutionInput",
    "DenseInput",
    "FactoredInput",
    "RandomDistillation",
    "RecurrentCore",
    "TeamInput",
    "TeamNetwork",
    "build_actor_critic",
    "one_hot_factors",
]
