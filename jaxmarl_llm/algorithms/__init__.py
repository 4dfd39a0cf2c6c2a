"""Pure functions to import into your own JAX code, and the learners that compose them."""

from jaxmarl_llm.algorithms.categorical import (
    at_action,
    categorical_entropy,
    categorical_from_uniform,
    categorical_kl,
    categorical_log_prob,
    categorical_mode,
    categorical_sample,
    masked_logits,
)
from jaxmarl_llm.algorithms.counterfactual import (
    Replays,
    alternative_actions,
    counterfactual_returns,
    replay,
)
from jaxmarl_llm.algorithms.credit import (
    aristocrat_utility,
    counterfactual_advantage,
    counterfactual_baseline,
    difference_reward,
    leave_one_out_advantage,
    sampled_shapley_values,
    shapley_values,
)
from jaxmarl_llm.algorithms.credit_estimators import (
    Decision,
    credit_estimators,
    sampling_policy,
    visited_decisions,
)
from jaxmarl_llm.algorithms.diagnostics import (
    CliffReport,
    RoleGradientReport,
    coherence_scale,
    detect_cliff,
    role_gradient_report,
)
from jaxmarl_llm.algorithms.divergence import kl_estimate
from jaxmarl_llm.algorithms.group_advantage import group_relative_advantage
from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss, clipped_value_loss
from jaxmarl_llm.algorithms.masking import masked_mean, masked_standardize
from jaxmarl_llm.algorithms.mixing import vdn_mix
from jaxmarl_llm.algorithms.offline import (
    advantage_weights,
    bcq_action_mask,
    conservative_penalty,
    expectile_loss,
)
from jaxmarl_llm.algorithms.policy_gradient import LearnerState, PolicyGradient, ippo, mappo, policy_gradient
from jaxmarl_llm.algorithms.returns import gae, td_lambda
from jaxmarl_llm.algorithms.rewards import (
    RewardRange,
    history_shaped_reward,
    init_reward_range,
    mix_rewards,
    normalize_reward,
    novelty_reward,
    update_reward_range,
)
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.algorithms.tabular import q_learning_step, tabular_q_learning
from jaxmarl_llm.algorithms.trust_region import (
    LineSearchResult,
    adapt_penalty,
    backtracking_line_search,
    conjugate_gradient,
    effective_sample_size,
    fisher_vector_product,
    natural_gradient,
    occupancy_drift_bound,
)
from jaxmarl_llm.algorithms.value import ValueLearner, ValueState, iql, qmix, value_learner, vdn, weighted_qmix
from jaxmarl_llm.algorithms.value_normalization import (
    ValueStatistics,
    denormalize_value,
    init_value_statistics,
    normalize_value,
    preserve_outputs,
    update_value_statistics,
)

__all__ = [
    "CliffReport",
    "Decision",
    "LearnerState",
    "LineSearchResult",
    "PolicyGradient",
    "Replays",
    "RewardRange",
    "RoleGradientReport",
    "ValueLearner",
    "ValueState",
    "ValueStatistics",
    "adapt_penalty",
    "advantage_weights",
    "alternative_actions",
    "anneal",
    "aristocrat_utility",
    "at_action",
    "backtracking_line_search",
    "bcq_action_mask",
    "categorical_entropy",
    "categorical_from_uniform",
    "categorical_kl",
    "categorical_log_prob",
    "categorical_mode",
    "categorical_sample",
    "clipped_surrogate_loss",
    "clipped_value_loss",
    "coherence_scale",
    "conjugate_gradient",
    "conservative_penalty",
    "counterfactual_advantage",
    "counterfactual_baseline",
    "counterfactual_returns",
    "credit_estimators",
    "denormalize_value",
    "detect_cliff",
    "difference_reward",
    "effective_sample_size",
    "expectile_loss",
    "fisher_vector_product",
    "gae",
    "group_relative_advantage",
    "history_shaped_reward",
    "init_reward_range",
    "init_value_statistics",
    "ippo",
    "iql",
    "kl_estimate",
    "leave_one_out_advantage",
    "mappo",
    "masked_logits",
    "masked_mean",
    "masked_standardize",
    "mix_rewards",
    "natural_gradient",
    "normalize_reward",
    "normalize_value",
    "novelty_reward",
    "occupancy_drift_bound",
    "policy_gradient",
    "preserve_outputs",
    "q_learning_step",
    "qmix",
    "replay",
    "role_gradient_report",
    "sampled_shapley_values",
    "sampling_policy",
    "shapley_values",
    "tabular_q_learning",
    "td_lambda",
    "update_reward_range",
    "update_value_statistics",
    "value_learner",
    "vdn",
    "vdn_mix",
    "visited_decisions",
    "weighted_qmix",
]
