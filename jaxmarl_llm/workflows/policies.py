"""Which policy each role uses."""

from collections.abc import Mapping

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
      UserError: an unknown way, a role that the table misses or that the workflow has not, or indices with a gap.
    """
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
    if not all(isinstance(policy, int) for policy in table):
        groups = list(dict.fromkeys(table))
        table = [groups.index(policy) for policy in table]
    return sharing_table(tuple(int(policy) for policy in table), len(table))
