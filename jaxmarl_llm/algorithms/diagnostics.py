"""What training does to a team: gradients of its roles, and learning curves that fall off a cliff."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct


def coherence_scale(cosine, *, strength, floor=0.0):
    """Factor on a role's gradient that damps steps in the direction it has been going (gradient-coherence regulariser).

    Args:
      cosine: `[...]` float, cosine between the gradient and the running average of earlier ones.
      strength: how much of a fully aligned gradient is taken away, 0 to 1.
      floor: least factor; above 0 a strength of 1 cannot freeze the parameters for good.

    Returns:
      `[...]` float, `max(1 - strength * clip(cosine, 0, 1), floor)` (Zeng et al. 2026, intervention I6).
    """
    return jnp.maximum(1.0 - strength * jnp.clip(cosine, 0.0, 1.0), floor)


@struct.dataclass
class RoleGradientReport:
    """Gradients of R roles (or agents, or policies) compared.

    Attributes:
      norm: `[R]` float32, Euclidean norm over all parameters.
      mass_share: `[R]` float32, norm over the sum of norms; all 0 where every gradient is 0.
      cosine: `[R, R]` float32, cosines between roles; 0 where one of the gradients is 0.
    """

    norm: jax.Array
    mass_share: jax.Array
    cosine: jax.Array


def role_gradient_report(gradients_by_role: Any) -> RoleGradientReport:
    """Norms, mass shares and pairwise cosines of the roles' gradients.

    Under one shared policy a role with most of the mass captures it, and a negative cosine says that two roles pull
    the same parameters apart. Each role's gradient comes from its own samples; stack them over roles.

    Args:
      gradients_by_role: pytree of `[R, ...]` float, one gradient a role, all of the same parameters.

    Raises:
      ValueError: no leaves, or leaves of different R.
    """
    leaves = jax.tree.leaves(gradients_by_role)
    if not leaves or len({leaf.shape[:1] for leaf in leaves}) != 1 or leaves[0].ndim == 0:
        shapes = [jnp.shape(leaf) for leaf in leaves]
        raise ValueError(f"gradients_by_role needs leaves with one leading axis R, got shapes {shapes}")
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
    # Scaled to at most 1 first: squares of very small or large gradients would leave the range of float32.
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf), axis=-1) for leaf in flat]), axis=0)
    scale = jnp.where(largest > 0, largest, 1.0)
    scaled = [leaf / scale[:, None] for leaf in flat]
    product = sum((jnp.matmul(leaf, leaf.T, precision="highest") for leaf in scaled), jnp.zeros(()))
    length = jnp.sqrt(jnp.diagonal(product))
    lengths = length[:, None] * length[None, :]
    norm = scale * length
    total = jnp.sum(norm)
    return RoleGradientReport(
        norm=norm,
        mass_share=norm / jnp.where(total > 0, total, 1.0),
        cosine=jnp.clip(product / jnp.where(lengths > 0, lengths, 1.0), -1.0, 1.0),
    )


@struct.dataclass
class CliffReport:
    """Where a learning curve stands against its own peak; all `[...]`.

    Attributes:
      peak: best mean over a window.
      peak_step: int32, index of the last point of that window.
      final: mean over the last window.
      drop: `peak - final`, at least 0.
      drop_rate: drop per point from the peak to the end; 0 where the peak is the end.
      cliff: bool, the drop is more than `min_drop` and more than noise explains.
    """

    peak: jax.Array
    peak_step: jax.Array
    final: jax.Array
    drop: jax.Array
    drop_rate: jax.Array
    cliff: jax.Array


def detect_cliff(curve, *, window, min_drop=0.05) -> CliffReport:
    """Finds a late collapse of a learning curve.

    The noise of a point is estimated from second differences of the curve, of which the largest third is left out: a
    steady rise has none, and a fall has a few large ones. A mean over a window has the standard error
    e = noise / sqrt(window); the best of T / window such means lies about sqrt(2 log(T / window)) e too high by chance.
    A cliff is a drop of at least `min_drop`, and of 3.2 e more than that; 6 / (T - 2) e are added, since few points
    tell little of the noise. With normal noise of up to 0.6 `min_drop` fewer than one plateau in a hundred is called a
    cliff, with larger noise fewer than two.

    Args:
      curve: `[T, ...]` float, one evaluation a point, with any trailing axes.
      window: points to average.
      min_drop: least drop, in units of the curve.

    Raises:
      ValueError: the window is below 1 or longer than the curve.
    """
    length = jnp.shape(curve)[0]
    if not 1 <= window <= length:
        raise ValueError(f"window must be 1 to the number of points, {length}, got {window}")
    smooth = jnp.mean(curve[jnp.arange(length - window + 1)[:, None] + jnp.arange(window)[None, :]], axis=1)
    best = jnp.argmax(smooth, axis=0)
    peak, final = jnp.max(smooth, axis=0), smooth[-1]
    points = smooth.shape[0] - 1 - best
    noise = _noise(curve) if length > 2 else jnp.zeros_like(final)
    error = noise / window**0.5
    by_chance = (3.2 + 6.0 / max(length - 2, 1) + jnp.sqrt(2.0 * jnp.log(length / window))) * error
    drop = peak - final
    return CliffReport(
        peak=peak,
        peak_step=(best + window - 1).astype(jnp.int32),
        final=final,
        drop=drop,
        drop_rate=drop / jnp.maximum(points, 1),
        cliff=drop > jnp.maximum(min_drop, by_chance),
    )


def _noise(curve) -> jax.Array:
    """Standard deviation of the points `[T, ...]` of a curve about what is smooth in it, from T - 2 differences."""
    square = jnp.sort(jnp.square(jnp.diff(curve, n=2, axis=0)), axis=0)
    kept = square[: square.shape[0] - square.shape[0] // 3]
    # A second difference has the variance of six points; the smallest two thirds of squares have 0.2747 of their mean.
    return jnp.sqrt(jnp.mean(kept, axis=0) / (6.0 * 0.2747))
