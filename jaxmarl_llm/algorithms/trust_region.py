"""Steps that stay within a divergence: natural gradient, line search, adaptive penalty, and what drift they allow."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.arguments import check_not_negative, concrete


def conjugate_gradient(matvec: Callable, vector: Any, *, num_iterations=10, tolerance=1e-10) -> Any:
    """Solves `matvec(x) = vector` for a positive definite matrix (Hestenes and Stiefel 1952).

    Args:
      matvec: linear function from a pytree to one of the same structure.
      vector: pytree of float; zeros give zeros.
      num_iterations: most iterations.
      tolerance: stops when the residual's norm is below `tolerance` times that of `vector`.

    Returns:
      Pytree like `vector`.
    """
    solution, _ = jax.scipy.sparse.linalg.cg(matvec, vector, tol=tolerance, maxiter=num_iterations)
    return solution


def fisher_vector_product(mean_divergence: Callable, params: Any, vector: Any, *, damping=0.1) -> Any:
    """`(F + damping) vector`, where F is the Hessian of the divergence at `params`: the Fisher information matrix.

    Args:
      mean_divergence: from parameters to the mean KL of the old policy from the new one, `[]`; at `params` it is 0.
      params: pytree of float.
      vector: pytree like `params`.
      damping: added to the diagonal.

    Returns:
      Pytree like `params`.
    """
    _, product = jax.jvp(jax.grad(mean_divergence), (params,), (vector,))
    return jax.tree.map(lambda product, entry: product + damping * entry, product, vector)


def natural_gradient(
    mean_divergence: Callable, params: Any, gradient: Any, *, radius, damping=0.1, num_iterations=10
) -> tuple[Any, jax.Array]:
    """The step that improves most within a divergence, to second order (Schulman et al. 2015, TRPO, app. C).

    Args:
      mean_divergence: as in `fisher_vector_product`.
      params: pytree of float.
      gradient: pytree like `params`, of the objective that is to grow.
      radius: δ, largest mean divergence in nats.
      damping: added to the Fisher matrix's diagonal.
      num_iterations: of the conjugate gradient.

    Returns:
      `(step, expected_improvement)`: `sqrt(2 δ / (gᵀ H⁻¹ g)) H⁻¹ g`, to be added to `params`, and `gᵀ step`, `[]`.
      A gradient of zero gives zeros.

    Raises:
      ValueError: a negative radius.
    """
    check_not_negative("radius", radius)

    def matvec(vector):
        return fisher_vector_product(mean_divergence, params, vector, damping=damping)

    direction = conjugate_gradient(matvec, gradient, num_iterations=num_iterations)
    products = jax.tree.map(lambda one, two: jnp.sum(one * two), gradient, direction)
    slope = sum(jax.tree.leaves(products), jnp.zeros(()))
    size = jnp.where(slope > 0, jnp.sqrt(2.0 * radius / jnp.where(slope > 0, slope, 1.0)), 0.0)
    return jax.tree.map(lambda entry: size * entry, direction), size * slope


@struct.dataclass
class LineSearchResult:
    """What `backtracking_line_search` found.

    Attributes:
      params: the accepted parameters, or exactly those it was given.
      accepted: `[]` bool.
      fraction: `[]` float32, of the whole step; 0 where it was refused.
      improvement: `[]` float32, of the objective; 0 where it was refused.
      divergence: `[]` float32, of the accepted parameters; 0 where it was refused.
    """

    params: Any
    accepted: jax.Array
    fraction: jax.Array
    improvement: jax.Array
    divergence: jax.Array


def backtracking_line_search(
    evaluate: Callable,
    params: Any,
    step: Any,
    *,
    radius,
    expected_improvement: jax.Array | float = 0.0,
    accept_ratio: float | None = 0.5,
    shrink=0.5,
    max_trials=10,
) -> LineSearchResult:
    """The longest of the steps `shrink**k * step` that stays within the radius and improves (TRPO).

    A trial is accepted if its divergence is at most `radius`, the objective grows, and it grows by at least
    `accept_ratio` of what the gradient promised for a step of that length. If none is, the parameters come back bit
    for bit. Values that are not finite are refused.

    Args:
      evaluate: from parameters to `(objective, divergence)`, both `[]` float; the divergence is from the old policy.
      params: pytree of arrays, the old parameters.
      step: pytree like `params`, the whole step.
      radius: largest divergence.
      expected_improvement: `[]` float, of the whole step; 0 asks for any improvement.
      accept_ratio: least share of the expected improvement; `None` asks for no improvement, only for the radius.
      shrink: factor from one trial to the next.
      max_trials: evaluations before the step is refused.

    Returns:
      `LineSearchResult`.

    Raises:
      ValueError: a negative radius.
    """
    check_not_negative("radius", radius)
    objective, _ = evaluate(params)
    zero = jnp.zeros_like(objective)
    refused = LineSearchResult(params, jnp.zeros((), bool), zero, zero, zero)

    def searching(carry):
        trial, result = carry
        return (trial < max_trials) & ~result.accepted

    def try_step(carry):
        trial, _ = carry
        fraction = jnp.asarray(shrink, zero.dtype) ** trial
        candidate = jax.tree.map(lambda old, change: (old + fraction * change).astype(old.dtype), params, step)
        new_objective, divergence = evaluate(candidate)
        improvement = new_objective - objective
        accepted = (divergence <= radius) & jnp.isfinite(improvement)
        if accept_ratio is not None:
            accepted &= (improvement > 0) & (improvement >= accept_ratio * fraction * expected_improvement)
        found = LineSearchResult(candidate, accepted, fraction, improvement, divergence)
        return trial + 1, jax.tree.map(lambda new, old: jnp.where(accepted, new, old), found, refused)

    return jax.lax.while_loop(searching, try_step, (jnp.zeros((), jnp.int32), refused))[1]


def adapt_penalty(coefficient, divergence, *, target, tolerance=1.5, factor=2.0, minimum=1e-4, maximum=1e4):
    """Next weight of a divergence penalty (Schulman et al. 2017, sec. 4).

    Args:
      coefficient: `[...]` float, the weight so far.
      divergence: `[...]` float, measured after the update.
      target: divergence to aim at.
      tolerance: the weight grows above `target * tolerance` and falls below `target / tolerance`.
      factor: by which it grows or falls.
      minimum, maximum: the weight stays between them.

    Returns:
      `[...]` float.
    """
    grown = jnp.where(divergence > target * tolerance, coefficient * factor, coefficient)
    changed = jnp.where(divergence < target / tolerance, coefficient / factor, grown)
    return jnp.clip(changed, minimum, maximum)


def occupancy_drift_bound(divergence_radii, *, discount):
    """How far a team's discounted occupancy can move when its agents change one after another (TeamTR, sec. 3).

    Args:
      divergence_radii: `[..., K]` float, divergence in nats allowed to each of the K agents that have been updated.
      discount: γ, at least 0 and below 1.

    Returns:
      `[...]` float, bound on the L1 distance of normalised occupancies, `sqrt(2) γ / (1 - γ) * sum of sqrt(radius)`.

    Raises:
      ValueError: a negative radius, or a discount outside `[0, 1)`.
    """
    check_not_negative("divergence_radii", divergence_radii)
    if concrete(discount) is not None and not 0 <= discount < 1:
        raise ValueError(f"discount must be at least 0 and below 1 for the bound to exist, got {discount}")
    return 2**0.5 * discount / (1.0 - discount) * jnp.sum(jnp.sqrt(jnp.asarray(divergence_radii)), axis=-1)


def effective_sample_size(log_weight, *, axis=None):
    """How many equally weighted samples importance weights are worth (Kong 1992), `(Σ w)² / Σ w²`.

    Args:
      log_weight: `[...]` float, logarithms of the weights, up to a constant; minus infinity leaves a sample out.
      axis: axes of the samples; all by default.

    Returns:
      Float with `axis` removed, between 1 and the number of samples.
    """
    weight = jnp.exp(log_weight - jnp.max(log_weight, axis=axis, keepdims=True))
    return jnp.square(jnp.sum(weight, axis=axis)) / jnp.sum(jnp.square(weight), axis=axis)
