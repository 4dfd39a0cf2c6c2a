"""A team of language-model roles: one decoder, and which set of parameters each role uses.

Axes: R roles, P policies.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.graph import Workflow
from jaxmarl_llm.workflows.policies import frozen_policies
from jaxmarl_llm.workflows.policies import sharing as sharing_of


@dataclasses.dataclass(frozen=True)
class TeamPolicy:
    """The decoder of all policies, and the policy of each role; hashable. See `make_team`.

    Parameters are a pytree with a leading axis P on every leaf.

    Attributes:
      decoder: the module of one policy.
      roles: R names.
      policy_of_role: R policy indices: `(0, 0)` shared, `(0, 1)` isolated, `(0, 0, 1)` by group.
      frozen: policies that never learn.
    """

    decoder: Decoder
    roles: tuple[str, ...]
    policy_of_role: tuple[int, ...]
    frozen: tuple[int, ...] = ()

    @property
    def num_policies(self) -> int:
        """P."""
        return max(self.policy_of_role) + 1

    @property
    def learning(self) -> tuple[int, ...]:
        """Policies that learn."""
        return tuple(policy for policy in range(self.num_policies) if policy not in self.frozen)

    def policy_of(self, role: str) -> int:
        """The policy index of a role.

        Raises:
          UserError: no such role.
        """
        if role not in self.roles:
            raise unknown_name("role", role, self.roles)
        return self.policy_of_role[self.roles.index(role)]

    def params_of(self, params: Any, role: str) -> Any:
        """The parameters that a role uses, without the axis P."""
        policy = self.policy_of(role)
        return jax.tree.map(lambda leaf: leaf[policy], params)

    def init(self, key: jax.Array) -> Any:
        """Random parameters `[P, ...]`, of each policy its own. The key is consumed."""
        token = jnp.zeros((1, 1), jnp.int32)
        return jax.vmap(lambda key: self.decoder.init(key, token)["params"])(jax.random.split(key, self.num_policies))

    def replicate(self, params: Any) -> Any:
        """The parameters of one policy, such as a base policy, as those of all: `[...]` to `[P, ...]`."""
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[None], (self.num_policies, *leaf.shape)), params)

    def check_fits(self, bound: BoundWorkflow) -> None:
        """Refuses a workflow that this team cannot play.

        Raises:
          UserError: other roles, a vocabulary of another size, or prompts that the decoder's context cannot hold.
        """
        if self.roles != bound.workflow.roles:
            raise UserError(
                f"the team has the roles {', '.join(self.roles)}, but workflow '{bound.workflow.name}' has "
                f"{', '.join(bound.workflow.roles)}: build the team with make_team(workflow, ...)"
            )
        config, size = self.decoder.config, len(bound.vocabulary)
        if config.vocab_size != size:
            raise UserError(
                f"the decoder has a vocabulary of {config.vocab_size} tokens and the workflow one of {size}: "
                f"set vocab_size={size}"
            )
        if config.max_length < bound.context_length:
            raise UserError(
                f"prompts with their completions can have {bound.context_length} tokens, but the decoder holds "
                f"{config.max_length}: set max_length={bound.context_length}"
            )


def make_team(workflow: Workflow, decoder: Decoder, sharing: str | Mapping[str, int | str] = "shared") -> TeamPolicy:
    """A team that plays a workflow.

    Args:
      workflow: whose roles.
      decoder: of all policies.
      sharing: `"shared"` (SP), `"isolated"` (IP), or role to policy or `"frozen"`, see `workflows.sharing`.

    Raises:
      UserError: a sharing table that is wrong.
    """
    return TeamPolicy(decoder, workflow.roles, sharing_of(workflow, sharing), frozen_policies(workflow, sharing))
