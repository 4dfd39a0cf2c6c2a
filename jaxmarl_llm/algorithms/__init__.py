"""Pure functions to import into your own JAX code, and the learners that compose them."""

from jaxmarl_llm.algorithms.categorical import (
    categorical_entropy,
    categorical_from_uniform,
    categorical_log_prob,
    categorical_mode,
    categorical_sample,
    masked_logits,
)
from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss, clipped_value_loss
from jaxmarl_llm.algorithms.masking import masked_mean, masked_standardize
from jaxmarl_llm.algorithms.policy_gradient import LearnerState, PolicyGradient, ippo, mappo, policy_gradient
from jaxmarl_llm.algorithms.returns import gae, td_lambda
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.algorithms.value_normalization import (
    ValueStatistics,
    denormalize_value,
    init_value_statistics,
    normalize_value,
    update_value_statistics,
)

__all__ = [
    "LearnerState",
    "PolicyGradient",
    "ValueStatistics",
    "anneal",
    "categorical_entropy",
    "categorical_from_uniform",
    "categorical_log_prob",
    "categorical_mode",
    "categorical_sample",
    "clipped_surrogate_loss",
    "clipped_value_loss",
    "denormalize_value",
    "gae",
    "init_value_statistics",
    "ippo",
    "mappo",
    "masked_logits",
    "masked_mean",
    "masked_standardize",
    "normalize_value",
    "policy_gradient",
    "td_lambda",
    "update_value_statistics",
]
