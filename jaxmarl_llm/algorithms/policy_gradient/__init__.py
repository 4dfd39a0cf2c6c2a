"""The policy-gradient family: one learner, named algorithms as settings of it."""

from jaxmarl_llm.algorithms.policy_gradient.learner import PolicyGradient
from jaxmarl_llm.algorithms.policy_gradient.presets import ippo, mappo, policy_gradient
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState

__all__ = ["LearnerState", "PolicyGradient", "ippo", "mappo", "policy_gradient"]
