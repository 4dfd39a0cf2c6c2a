"""Estimates of the divergence between two policies from the actions of one."""

import jax.numpy as jnp

from jaxmarl_llm.arguments import of_one_shape
from jaxmarl_llm.errors import unknown_name

KL_ESTIMATORS = ("k1", "k2", "k3")


def kl_estimate(log_prob, reference_log_prob, *, kind="k3"):
    """Estimates of KL(policy || reference) from samples of the policy, per element (Schulman 2020).

    Args:
      log_prob: `[...]` float, log-probability of the sample under the policy that drew it.
      reference_log_prob: `[...]` float, the same under the reference.
      kind: `"k1"`, the log-ratio: unbiased, high variance, may be negative. `"k2"`, half its square: biased, low
        variance. `"k3"`, `r - 1 - log r` with `r = reference / policy`: unbiased and at least 0.

    Returns:
      `[...]` float; its mean is the estimate.

    Raises:
      ValueError: unknown kind, or shapes that differ.
    """
    of_one_shape(log_prob=log_prob, reference_log_prob=reference_log_prob)
    log_ratio = reference_log_prob - log_prob
    if kind == "k1":
        return -log_ratio
    if kind == "k2":
        return 0.5 * jnp.square(log_ratio)
    if kind == "k3":
        return jnp.expm1(log_ratio) - log_ratio
    raise unknown_name("kind", kind, KL_ESTIMATORS)
