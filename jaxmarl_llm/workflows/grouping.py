"""Which completions are compared with each other: groups of rows, and advantages within them.

Rows are kept call by call, `[T, B, C]`: T rounds, B episodes, C copies. All groups lie within one problem's episodes.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.algorithms.group_advantage import group_relative_advantage
from jaxmarl_llm.errors import unknown_name
from jaxmarl_llm.workflows.graph import Call, Workflow

# What two rows of one problem must have in common to be in one group; in "episode", the episode itself.
_KEYS: dict[str, Callable[[Call, int, int], Hashable]] = {
    "slot": lambda call, number, copy: (call.name, number, copy),
    "turn": lambda call, number, copy: (call.name, number),
    "agent": lambda call, number, copy: (call.role, copy),
    "role": lambda call, number, copy: call.role,
    "problem": lambda call, number, copy: (),
    "episode": lambda call, number, copy: (),
}
GROUPINGS = tuple(_KEYS)

Rows = Sequence[jax.Array]


def rounds_of(workflow: Workflow) -> tuple[int, ...]:
    """T of each of `workflow.calls`."""
    count = Counter(turn.call.name for turn in workflow.turns)
    return tuple(count[call.name] for call in workflow.calls)


def row_groups(
    workflow: Workflow, num_problems: int, group_size: int, grouping: str
) -> tuple[tuple[jax.Array, ...], int]:
    """The group of every row.

    Args:
      workflow: whose calls.
      num_problems: Q.
      group_size: G, episodes of a problem; `B = Q * G`.
      grouping: rows of one problem are in one group if they share: `"slot"`, the call, the round and the copy (arXiv
        2605.24202); `"turn"`, the call and the round, copies together (AT-GRPO, arXiv 2510.11062); `"agent"`, the role
        and the copy, rounds together (Dr. MAS, arXiv 2602.08847); `"role"`, the role; `"problem"`, nothing more (Shao
        et al. 2024); `"episode"`, the episode, which compares its roles with each other.

    Returns:
      `([T, B, C] int32 of each call, number of groups)`.

    Raises:
      UserError: unknown grouping.
    """
    if grouping not in GROUPINGS:
        raise unknown_name("grouping", grouping, GROUPINGS)
    keys: dict[Hashable, int] = {}
    tables = [
        np.asarray(
            [
                [keys.setdefault(_KEYS[grouping](call, number, copy), len(keys)) for copy in range(call.copies)]
                for number in range(rounds)
            ],
            np.int32,
        )
        for call, rounds in zip(workflow.calls, rounds_of(workflow), strict=True)
    ]
    episode = np.arange(num_problems * group_size, dtype=np.int32)
    block = episode if grouping == "episode" else episode // group_size
    groups = tuple(jnp.asarray(block[None, :, None] * len(keys) + table[:, None, :]) for table in tables)
    return groups, (int(block[-1]) + 1) * len(keys)


def group_advantages(
    reward: Rows, asked: Rows, group: Rows, num_groups: int, group_size: int, *, credit="group", scale="std"
) -> tuple[jax.Array, ...]:
    """Advantages of all rows over those of their group.

    Args:
      reward, asked, group: of each call, `[T, B, C]` float, bool and int; what is not asked counts nowhere.
      num_groups: as `row_groups` says.
      group_size: G, which divides B.
      credit: `"group"`, over the mean of the group (GRPO); `"leave_one_out"`, over the mean of the group's rows in
        other episodes (Ahmadian et al. 2024), 0 where there are none.
      scale: of `"group"`, see `group_relative_advantage`.

    Returns:
      `[T, B, C]` float32 of each call; 0 where not asked.
    """
    flat_reward, flat_asked, flat_group = (
        jnp.concatenate([part.reshape(-1) for part in parts]) for parts in (reward, asked, group)
    )
    flat_group = jnp.where(flat_asked, flat_group, num_groups)
    if credit == "leave_one_out":
        episode = jnp.concatenate(
            [
                jnp.broadcast_to(jnp.arange(part.shape[1])[None, :, None] % group_size, part.shape).reshape(-1)
                for part in reward
            ]
        )
        flat = _over_other_episodes(flat_reward, flat_group, episode, num_groups, group_size)
    else:
        flat = group_relative_advantage(flat_reward, flat_group, num_groups, scale=scale)
    ends = np.cumsum([part.size for part in reward])[:-1]
    return tuple(part.reshape(like.shape) for part, like in zip(jnp.split(flat, ends), reward, strict=True))


def _over_other_episodes(reward, group, episode, num_groups, group_size):
    """`[rows]`, rewards over the mean of the rows of their group in other episodes."""

    def total(values, segment, num_segments):
        return jax.ops.segment_sum(values, segment, num_segments)[segment]

    def others(values):
        of_group = total(values, group, num_groups + 1)
        return of_group - total(values, group * group_size + episode, (num_groups + 1) * group_size)

    count = others(jnp.ones_like(reward))
    return jnp.where((group < num_groups) & (count > 0), reward - others(reward) / jnp.maximum(count, 1.0), 0.0)
