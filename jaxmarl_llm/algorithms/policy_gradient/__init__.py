"""The policy-gradient family: one learner, named algorithms as settings of it."""

from jaxmarl_llm.algorithms.policy_gradient.learner import PolicyGradient
from jaxmarl_llm.algorithms.policy_gradient.presets import coma, happo, hatrpo, ippo, mappo, policy_gradient, teamtr
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState

__all__ = [
    "LearnerState",
    "PolicyGradient",
    "coma",
    "happo",
    "hatrpo",
    "ippo",
    "mappo",
    "policy_gradient",
    "teamtr",
]
