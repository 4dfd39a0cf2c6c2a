"""The value family: one learner, named algorithms as settings of it."""

from jaxmarl_llm.algorithms.value.learner import ValueLearner
from jaxmarl_llm.algorithms.value.presets import iql, qmix, value_learner, vdn, weighted_qmix
from jaxmarl_llm.algorithms.value.state import ValueState

__all__ = ["ValueLearner", "ValueState", "iql", "qmix", "value_learner", "vdn", "weighted_qmix"]
