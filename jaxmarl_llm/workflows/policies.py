"""Which policy each role uses."""

from collections.abc import Mapping

import numpy as np

from jaxmarl_llm.arguments import check_kind, shown
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.networks.sharing import sharing_table
from jaxmarl_llm.workflows.graph import Workflow


def sharing(workflow: Workflow, how: str | Mapping[str, int | str] = "shared") -> tuple[int, ...]:
    """Policy index of each role of a workflow, in the order of `workflow.roles`.

    Args:
      workflow: whose roles.
      how: `"shared"` (SP, one policy for all), `"isolated"` (IP, one a role), or role to policy: either its index, or
        the name of a group.

    Returns:
      `[R]` ints 0, 1, ... without a gap.

    Raises:
      UserError: an unknown way, a role that the table misses or that the workflow has not, indices and names in one
        table, or indices with a gap.
    """
    check_kind("sharing", how, str, Mapping)
    if isinstance(how, str):
        return sharing_table(how, len(workflow.roles))
    for role in how:
        if role not in workflow.roles:
            raise unknown_name(f"role of workflow '{workflow.name}'", role, workflow.roles)
    missing = [role for role in workflow.roles if role not in how]
    if missing:
        raise UserError(
            f"the sharing table of workflow '{workflow.name}' misses {', '.join(missing)}: give each role a policy"
        )
    table = [how[role] for role in workflow.roles]
    if all(isinstance(policy, str) for policy in table):
        groups = list(dict.fromkeys(table))
        table = [groups.index(policy) for policy in table]
    if any(isinstance(policy, bool) or not isinstance(policy, int | np.integer) for policy in table):
        raise UserError(
            f"the sharing table of workflow '{workflow.name}' must give all roles a policy's index, or all the name of "
            f"a group, got {shown(dict(how))}"
        )
    return sharing_table(tuple(int(policy) for policy in table), len(table))
