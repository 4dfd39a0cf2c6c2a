"""The table of who uses which policy, from how users name it."""

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError, unknown_name


def sharing_table(sharing: str | tuple[int, ...], num_agents: int) -> tuple[int, ...]:
    """One policy index for each agent.

    Args:
      sharing: `"shared"` (one policy for all), `"isolated"` (one an agent), or the table itself.
      num_agents: N.

    Raises:
      UserError: unknown name, or a table of the wrong length, with gaps or of something else than whole numbers.
    """
    if sharing == "shared":
        return (0,) * num_agents
    if sharing == "isolated":
        return tuple(range(num_agents))
    if isinstance(sharing, str):
        raise unknown_name("sharing", sharing, ("shared", "isolated"))
    for policy in sharing:
        check_whole("a policy index of a sharing table", policy)
    table = tuple(int(policy) for policy in sharing)
    if len(table) != num_agents or set(table) != set(range(max(table, default=-1) + 1)):
        raise UserError(
            f"sharing={list(table)} must give each of the {num_agents} agents a policy index, "
            "and the indices must be 0, 1, ... without a gap"
        )
    return table
