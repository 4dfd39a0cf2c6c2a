"""Do roles need their own policies: the team is evaluated with the policies of two roles exchanged.

Axes: R roles, P policies, K = 1 + R (R - 1) / 2 teams, Q problems.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.workflows.tasks.base import Problem


@struct.dataclass
class RoleSwap:
    """What exchanging policies costs.

    Attributes:
      accuracy: `[R, R]` float32, symmetric: the team as it is on the diagonal, with the policies of roles i and j
        exchanged beside it.
      cost: `[R]` float32, the accuracy that is lost when a role's policy is exchanged, mean over its partners.
      specialisation: `[]` float32, the accuracy that is lost, mean over pairs of roles: 0 where roles share one policy,
        about 0 where policies differ and do the same; below 0 where another would do a role's work better.
    """

    accuracy: jax.Array
    cost: jax.Array
    specialisation: jax.Array


def swap_roles(learner, params: Any, key: jax.Array, problems: Problem, greedy: bool = True) -> RoleSwap:
    """Evaluates a team with the policies of every two roles exchanged; to be called inside `jax.jit`.

    All teams play the same problems with the same random numbers, so that exchanging equal policies changes nothing,
    bit for bit. It is one program, and costs K evaluations.

    Args:
      learner: whose team, workflow and sampling, a `WorkflowLearner`.
      params: `[P, ...]`.
      key: consumed.
      problems: `[Q]`, of this device.
      greedy: as in `WorkflowLearner.evaluate`.
    """
    team = learner.team
    num_roles = len(team.roles)
    pairs = list(itertools.combinations(range(num_roles), 2))
    tables = [list(team.policy_of_role) for _ in range(len(pairs) + 1)]
    for table, (i, j) in zip(tables[1:], pairs, strict=True):
        table[i], table[j] = table[j], table[i]
    # Each role has a place of its own, whoever's policy is in it, so that all teams are one program.
    alone = learner.replace(team=dataclasses.replace(team, policy_of_role=tuple(range(num_roles))))

    def evaluate(table):
        return alone.evaluate(jax.tree.map(lambda leaf: leaf[table], params), key, problems, greedy)["accuracy"]

    found = jax.lax.map(evaluate, jnp.asarray(tables))
    i, j = jnp.asarray(pairs, jnp.int32).reshape(-1, 2).T
    accuracy = jnp.full((num_roles, num_roles), found[0]).at[i, j].set(found[1:]).at[j, i].set(found[1:])
    lost = found[0] - accuracy
    partners = max(num_roles - 1, 1)
    return RoleSwap(accuracy, jnp.sum(lost, axis=1) / partners, jnp.sum(lost) / (num_roles * partners))
