"""From the gradients of roles to the steps of policies.

Axes: R roles, P policies, F parameters of a policy in one vector.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.algorithms.diagnostics import coherence_scale
from jaxmarl_llm.errors import unknown_name

ROLE_WEIGHTINGS = ("sequences", "equal", "equal_mass")


def combine_roles(
    gradients: jax.Array,
    count: jax.Array,
    policy_of_role: tuple[int, ...] | jax.Array,
    *,
    weighting: str = "sequences",
    num_policies: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The gradient of each policy from those of its roles.

    Args:
      gradients: `[R, F]` float32, each of the mean loss of a role's completions.
      count: `[R]` float32, how many completions each role has; a role without any has no part.
      policy_of_role: R policy indices; where they are traced, `num_policies` must be given.
      weighting: `"sequences"`, by their numbers of completions, which is the mean over all completions of a policy;
        `"equal"`, alike; `"equal_mass"`, as `"sequences"` but with the contributions of a policy's roles scaled to
        their mean norm, so that each has the same share of the gradient mass.
      num_policies: P; one more than the last index, if not given.

    Returns:
      `(gradient [P, F], weight [R])`: the gradient is the weighted sum.

    Raises:
      UserError: unknown weighting.
    """
    if weighting not in ROLE_WEIGHTINGS:
        raise unknown_name("role_weighting", weighting, ROLE_WEIGHTINGS)
    table = jnp.asarray(policy_of_role)
    num_policies = int(max(policy_of_role)) + 1 if num_policies is None else num_policies
    member = (jnp.arange(num_policies)[:, None] == table[None, :]).astype(jnp.float32)

    def share(amount):
        total = jnp.sum(member * amount[None], axis=1)
        return amount / jnp.where(total > 0, total, 1.0)[table]

    there = (count > 0).astype(jnp.float32)
    weight = share(there if weighting == "equal" else count.astype(jnp.float32))
    if weighting == "equal_mass":
        norm = weight * jnp.linalg.norm(gradients, axis=-1)
        moving = (norm > 0).astype(jnp.float32)
        mean_norm = (jnp.sum(member * norm[None], 1) / jnp.maximum(jnp.sum(member * moving[None], 1), 1.0))[table]
        weight = weight * jnp.where(norm > 0, mean_norm / jnp.where(norm > 0, norm, 1.0), 0.0)
    return jnp.matmul(member * weight[None], gradients, precision="highest"), weight


def clip_each(gradients: jax.Array, max_norm: jax.typing.ArrayLike) -> jax.Array:
    """Scales each row of `[R, F]` down to a norm of at most `max_norm`."""
    norm = jnp.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * jnp.minimum(1.0, max_norm / jnp.maximum(norm, jnp.finfo(jnp.float32).tiny))


def damp_coherent(
    gradients: jax.Array,
    average: jax.Array,
    *,
    strength: Any,
    floor: Any = 0.0,
    window: Any = 32.0,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Damps each role's steps in the direction that it has been going (Zeng et al. 2026, intervention I6).

    Args:
      gradients: `[R, F]`.
      average: `[R, F]`, running averages of damped gradients; 0 before the first, whose cosine is 1.
      strength: share of a fully aligned gradient that is taken away.
      floor: least factor; above 0 a strength of 1 cannot freeze the parameters for good.
      window: the average forgets over about so many steps.

    Returns:
      `(gradients [R, F], average [R, F], cosine [R])`. A role without a gradient leaves its average as it is.
    """
    norm = jnp.linalg.norm(gradients, axis=-1)
    average_norm = jnp.linalg.norm(average, axis=-1)
    product = jnp.sum(gradients * average, axis=-1)
    known = (norm > 0) & (average_norm > 0)
    cosine = jnp.where(known, product / jnp.where(known, norm * average_norm, 1.0), (norm > 0).astype(jnp.float32))
    damped = gradients * coherence_scale(cosine, strength=strength, floor=floor)[:, None]
    # The first gradient is the average as it is: damped to nothing it would have no direction.
    keep = 1.0 - 1.0 / window
    moved = jnp.where((average_norm > 0)[:, None], keep * average + (1.0 - keep) * damped, gradients)
    return damped, jnp.where((norm > 0)[:, None], moved, average), cosine
