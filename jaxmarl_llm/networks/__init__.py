"""Flax modules: first layers, recurrent core, actor and critic, transformer coordinator, who shares what."""

from jaxmarl_llm.networks.actor_critic import ActorCritic
from jaxmarl_llm.networks.attention import attention_maps, masked_attention
from jaxmarl_llm.networks.attention_critic import AttentionCritic
from jaxmarl_llm.networks.build import build_actor_critic
from jaxmarl_llm.networks.coordinator import Coordinator
from jaxmarl_llm.networks.entities import EntityInput
from jaxmarl_llm.networks.inputs import ConvolutionInput, DenseInput, FactoredInput, InputLayer, one_hot_factors
from jaxmarl_llm.networks.mixers import JointActionValue, QMixer
from jaxmarl_llm.networks.q_network import QNetwork, build_q_network
from jaxmarl_llm.networks.random_distillation import RandomDistillation
from jaxmarl_llm.networks.recurrent import RecurrentCore
from jaxmarl_llm.networks.team import TeamModule, TeamNetwork
from jaxmarl_llm.networks.team_input import TeamInput

__all__ = [
    "ActorCritic",
    "AttentionCritic",
    "ConvolutionInput",
    "Coordinator",
    "DenseInput",
    "EntityInput",
    "FactoredInput",
    "InputLayer",
    "JointActionValue",
    "QMixer",
    "QNetwork",
    "RandomDistillation",
    "RecurrentCore",
    "TeamInput",
    "TeamModule",
    "TeamNetwork",
    "attention_maps",
    "build_actor_critic",
    "build_q_network",
    "masked_attention",
    "one_hot_factors",
]
