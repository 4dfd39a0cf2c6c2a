"""Which policy each role uses."""

from collections.abc import Mapping, Sequence

import numpy as np

from jaxmarl_llm.arguments import check_kind, shown
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.networks.sharing import sharing_table
from jaxmarl_llm.workflows.graph import Workflow

FROZEN = "frozen"


def sharing(workflow: Workflow, how: str | Mapping[str, int | str] = "shared") -> tuple[int, ...]:
    """Policy index of each role of a workflow, in the order of `workflow.roles`.

    Args:
      workflow: whose roles.
      how: `"shared"` (SP, one policy for all), `"isolated"` (IP, one a role), or role to policy: either its index, or
        the name of a group, or `"frozen"` for roles that play as they are at the start and never learn. All of these
        have one policy, the last.

    Returns:
      `[R]` ints 0, 1, ... without a gap.

    Raises:
      UserError: an unknown way, a role that the table misses or that the workflow has not, indices and names in one
        table, indices with a gap, or nobody who learns.
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
    table = {role: how[role] for role in workflow.roles if how[role] != FROZEN}
    if not table:
        raise UserError(f"all roles of workflow '{workflow.name}' are frozen: leave one that learns")
    if all(isinstance(policy, str) for policy in table.values()):
        groups = list(dict.fromkeys(table.values()))
        table = {role: groups.index(policy) for role, policy in table.items()}
    if any(isinstance(policy, bool) or not isinstance(policy, int | np.integer) for policy in table.values()):
        raise UserError(
            f"the sharing table of workflow '{workflow.name}' must give all roles a policy's index, or all the name of "
            f"a group, got {shown(dict(how))}"
        )
    frozen = int(max(table.values())) + 1
    return sharing_table(tuple(int(table.get(role, frozen)) for role in workflow.roles), len(workflow.roles))


def policy_names(roles: Sequence[str], table: Sequence[int]) -> tuple[str, ...]:
    """P names: those of the roles that use a policy, or `shared` where all do.

    Args:
      roles: R names.
      table: R policy indices, see `sharing`.
    """
    names = []
    for policy in range(max(table) + 1):
        users = [role for role, used in zip(roles, table, strict=True) if used == policy]
        names.append("shared" if len(users) == len(roles) > 1 else "-".join(users))
    return tuple(names)


def frozen_policies(workflow: Workflow, how: str | Mapping[str, int | str] = "shared") -> tuple[int, ...]:
    """The policy of the frozen roles, if there are any; see `sharing`.

    Raises:
      UserError: as `sharing`.
    """
    table = sharing(workflow, how)
    return (max(table),) if isinstance(how, Mapping) and FROZEN in how.values() else ()
