"""Pure functions to import into your own JAX code, and the learners that compose them."""

import inspect

from jaxmarl_llm.algorithms.categorical import at_action as at_action
from jaxmarl_llm.algorithms.categorical import categorical_entropy as categorical_entropy
from jaxmarl_llm.algorithms.categorical import categorical_from_uniform as categorical_from_uniform
from jaxmarl_llm.algorithms.categorical import categorical_kl as categorical_kl
from jaxmarl_llm.algorithms.categorical import categorical_log_prob as categorical_log_prob
from jaxmarl_llm.algorithms.categorical import categorical_mode as categorical_mode
from jaxmarl_llm.algorithms.categorical import categorical_sample as categorical_sample
from jaxmarl_llm.algorithms.categorical import masked_logits as masked_logits
from jaxmarl_llm.algorithms.counterfactual import Replays as Replays
from jaxmarl_llm.algorithms.counterfactual import alternative_actions as alternative_actions
from jaxmarl_llm.algorithms.counterfactual import counterfactual_returns as counterfactual_returns
from jaxmarl_llm.algorithms.counterfactual import replay as replay
from jaxmarl_llm.algorithms.credit import aristocrat_utility as aristocrat_utility
from jaxmarl_llm.algorithms.credit import counterfactual_advantage as counterfactual_advantage
from jaxmarl_llm.algorithms.credit import counterfactual_baseline as counterfactual_baseline
from jaxmarl_llm.algorithms.credit import difference_reward as difference_reward
from jaxmarl_llm.algorithms.credit import leave_one_out_advantage as leave_one_out_advantage
from jaxmarl_llm.algorithms.credit import sampled_shapley_values as sampled_shapley_values
from jaxmarl_llm.algorithms.credit import shapley_values as shapley_values
from jaxmarl_llm.algorithms.diagnostics import CliffReport as CliffReport
from jaxmarl_llm.algorithms.diagnostics import RoleGradientReport as RoleGradientReport
from jaxmarl_llm.algorithms.diagnostics import coherence_scale as coherence_scale
from jaxmarl_llm.algorithms.diagnostics import detect_cliff as detect_cliff
from jaxmarl_llm.algorithms.diagnostics import role_gradient_report as role_gradient_report
from jaxmarl_llm.algorithms.divergence import kl_estimate as kl_estimate
from jaxmarl_llm.algorithms.group_advantage import group_relative_advantage as group_relative_advantage
from jaxmarl_llm.algorithms.losses import clipped_surrogate_loss as clipped_surrogate_loss
from jaxmarl_llm.algorithms.losses import clipped_value_loss as clipped_value_loss
from jaxmarl_llm.algorithms.masking import masked_mean as masked_mean
from jaxmarl_llm.algorithms.masking import masked_standardize as masked_standardize
from jaxmarl_llm.algorithms.mixing import vdn_mix as vdn_mix
from jaxmarl_llm.algorithms.offline import advantage_weights as advantage_weights
from jaxmarl_llm.algorithms.offline import bcq_action_mask as bcq_action_mask
from jaxmarl_llm.algorithms.offline import conservative_penalty as conservative_penalty
from jaxmarl_llm.algorithms.offline import expectile_loss as expectile_loss
from jaxmarl_llm.algorithms.policy_gradient.learner import PolicyGradient as PolicyGradient
from jaxmarl_llm.algorithms.policy_gradient.presets import coma as coma
from jaxmarl_llm.algorithms.policy_gradient.presets import happo as happo
from jaxmarl_llm.algorithms.policy_gradient.presets import hatrpo as hatrpo
from jaxmarl_llm.algorithms.policy_gradient.presets import ippo as ippo
from jaxmarl_llm.algorithms.policy_gradient.presets import mappo as mappo
from jaxmarl_llm.algorithms.policy_gradient.presets import policy_gradient as policy_gradient
from jaxmarl_llm.algorithms.policy_gradient.presets import teamtr as teamtr
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState as LearnerState
from jaxmarl_llm.algorithms.returns import gae as gae
from jaxmarl_llm.algorithms.returns import td_lambda as td_lambda
from jaxmarl_llm.algorithms.rewards import RewardRange as RewardRange
from jaxmarl_llm.algorithms.rewards import history_shaped_reward as history_shaped_reward
from jaxmarl_llm.algorithms.rewards import init_reward_range as init_reward_range
from jaxmarl_llm.algorithms.rewards import mix_rewards as mix_rewards
from jaxmarl_llm.algorithms.rewards import normalize_reward as normalize_reward
from jaxmarl_llm.algorithms.rewards import novelty_reward as novelty_reward
from jaxmarl_llm.algorithms.rewards import update_reward_range as update_reward_range
from jaxmarl_llm.algorithms.schedules import anneal as anneal
from jaxmarl_llm.algorithms.tabular import q_learning_step as q_learning_step
from jaxmarl_llm.algorithms.tabular import tabular_q_learning as tabular_q_learning
from jaxmarl_llm.algorithms.trust_region import LineSearchResult as LineSearchResult
from jaxmarl_llm.algorithms.trust_region import adapt_penalty as adapt_penalty
from jaxmarl_llm.algorithms.trust_region import backtracking_line_search as backtracking_line_search
from jaxmarl_llm.algorithms.trust_region import conjugate_gradient as conjugate_gradient
from jaxmarl_llm.algorithms.trust_region import effective_sample_size as effective_sample_size
from jaxmarl_llm.algorithms.trust_region import fisher_vector_product as fisher_vector_product
from jaxmarl_llm.algorithms.trust_region import natural_gradient as natural_gradient
from jaxmarl_llm.algorithms.trust_region import occupancy_drift_bound as occupancy_drift_bound
from jaxmarl_llm.algorithms.value.learner import ValueLearner as ValueLearner
from jaxmarl_llm.algorithms.value.presets import iql as iql
from jaxmarl_llm.algorithms.value.presets import qmix as qmix
from jaxmarl_llm.algorithms.value.presets import value_learner as value_learner
from jaxmarl_llm.algorithms.value.presets import vdn as vdn
from jaxmarl_llm.algorithms.value.presets import weighted_qmix as weighted_qmix
from jaxmarl_llm.algorithms.value.state import ValueState as ValueState
from jaxmarl_llm.algorithms.value_normalization import ValueStatistics as ValueStatistics
from jaxmarl_llm.algorithms.value_normalization import denormalize_value as denormalize_value
from jaxmarl_llm.algorithms.value_normalization import init_value_statistics as init_value_statistics
from jaxmarl_llm.algorithms.value_normalization import normalize_value as normalize_value
from jaxmarl_llm.algorithms.value_normalization import preserve_outputs as preserve_outputs
from jaxmarl_llm.algorithms.value_normalization import update_value_statistics as update_value_statistics

# What is imported above, without the modules that Python adds on the way.
__all__ = sorted(  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in globals().items() if name[0] != "_" and not inspect.ismodule(value)
)
