"""The body of a policy, which roles may share, and what is a policy's own: its adapters and its value head.

Axes: P policies, F parameters of a policy in one vector.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.llm.adapters import ADAPTER_PARTS

BODIES = ("own", "joint", "frozen")


def map_body(function: Callable[[Any], Any], params: Any) -> Any:
    """Parameters of any leading axes, with a function applied to the leaves of the body."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: leaf if _is_own(path) else function(leaf), params)


def own_mask(params: Any) -> np.ndarray:
    """Which parameters are a policy's own, in the order of `ravel_pytree`.

    Args:
      params: `[P, ...]`.

    Returns:
      `[F]` bool.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return np.concatenate([np.full(math.prod(leaf.shape[1:]), _is_own(path)) for path, leaf in leaves])


def merge_base(params: Any, base: Any) -> Any:
    """Base parameters, with what they lack of adapters and of a value head from others.

    Args:
      params, base: `[P, ...]`.

    Raises:
      UserError: the base parameters lack something else, have something more, or have other shapes.
    """
    if not isinstance(params, Mapping):
        if jnp.shape(params) != jnp.shape(base):
            raise UserError(
                f"base_params do not fit the team: a leaf has shape {jnp.shape(base)} and not {jnp.shape(params)}; "
                "use team.replicate on the parameters of one policy"
            )
        return jnp.asarray(base)
    for name in base:
        if name not in params:
            raise unknown_name("part of base_params", name, params)
    for name in params:
        # When these are added, the base policy writes what it wrote before.
        if name not in base and name not in ADAPTER_PARTS:
            raise UserError(f"base_params do not fit the team: they lack '{name}'")
    return {name: merge_base(leaf, base[name]) if name in base else leaf for name, leaf in params.items()}


def _is_own(path) -> bool:
    return any(part.key in ADAPTER_PARTS for part in path)
