"""A fine-tuned run as it is used afterwards: to talk to, to evaluate, to serve elsewhere. Axes: R roles, P policies."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.llm.adapters import merge_adapter
from jaxmarl_llm.llm.checkpoints import LanguageModel, load_model, save_adapter
from jaxmarl_llm.llm.devices import model_mesh
from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.training.runs import sound_checkpoint
from jaxmarl_llm.workflows import make_workflow
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.loading import adapt_team
from jaxmarl_llm.workflows.finetuning.model import AdaptedModel
from jaxmarl_llm.workflows.finetuning.owner import check_inputs, check_owner
from jaxmarl_llm.workflows.finetuning.run import FinetuneResult, load_finetuned
from jaxmarl_llm.workflows.finetuning.state import init_state
from jaxmarl_llm.workflows.graph import Workflow
from jaxmarl_llm.workflows.policies import frozen_policies, policy_names
from jaxmarl_llm.workflows.team import TeamPolicy
from jaxmarl_llm.workflows.text.sampler import Sampler


@dataclasses.dataclass(frozen=True, eq=False)
class FinetunedTeam:
    """A base model and the adapters that a run has given to its roles.

    Attributes:
      config: of the run.
      model: the base.
      workflow: that the roles were trained in.
      adapted: the base with room for adapters.
      policy_of_role: R policy indices.
      adapters: of all layers, pytree of `[P, ...]`.
      iteration: after which they were saved.
    """

    config: FinetuneConfig
    model: LanguageModel
    workflow: Workflow
    adapted: AdaptedModel
    policy_of_role: tuple[int, ...]
    adapters: Any
    iteration: int

    @functools.cached_property
    def policy_names(self) -> tuple[str, ...]:
        """P names, see `policies.policy_names`."""
        return policy_names(self.workflow.roles, self.policy_of_role)

    @functools.cached_property
    def team(self) -> TeamPolicy:
        """The policies; frozen ones are the base."""
        frozen = frozen_policies(self.workflow, self.config.sharing)
        return TeamPolicy(Decoder(self.adapted.config), self.workflow.roles, self.policy_of_role, frozen)

    @property
    def learned(self) -> tuple[int, ...]:
        """Policies that were trained."""
        return self.team.learning

    def policy_of(self, role: str) -> int:
        """The policy of a role.

        Raises:
          UserError: no such role.
        """
        return self.team.policy_of(role)

    def merged(self, policy: int) -> LanguageModel:
        """The base with one policy's adapter added into its weights."""
        return self.model.with_params(merge_adapter(self.adapted.config, self.model.params, self.adapters, policy))

    def save_adapters(self, folder: Path, policies: Iterable[int] | None = None) -> list[Path]:
        """Writes policies in PEFT's format, each in a folder of its name.

        Args:
          folder: holds these folders.
          policies: which; all that were trained by default.

        Raises:
          UserError: it cannot be written.
        """
        chosen = self.learned if policies is None else policies
        adapted = self.adapted
        return [
            save_adapter(
                folder,
                self.model,
                adapted.config,
                self.adapters,
                policy,
                self.policy_names[policy],
                trained_layers=adapted.trained_layers,
            )
            for policy in chosen
        ]

    def sampler(self, workflow: Workflow | None = None, base_roles: Sequence[str] = ()) -> Sampler:
        """The team at play.

        Args:
          workflow: with the same roles, perhaps in other numbers; the run's own by default.
          base_roles: roles that the base model plays instead.

        Raises:
          UserError: a workflow with other roles, or no such role.
        """
        workflow = workflow or self.workflow
        if workflow.roles != self.workflow.roles:
            raise UserError(
                f"workflow '{workflow.name}' has the roles {', '.join(workflow.roles)}, the run has "
                f"{', '.join(self.workflow.roles)}: choose one with the same"
            )
        for role in base_roles:
            self.policy_of(role)
        replaced = [role in base_roles for role in workflow.roles]
        table, count = self.policy_of_role, len(self.policy_names)
        kept = {policy for policy, is_base in zip(table, replaced, strict=True) if not is_base}
        # An adapter that adds nothing is the base; one more where others still use the policy, so that the programs of
        # the whole team serve the base too.
        table = tuple(
            count if is_base and policy in kept else policy for policy, is_base in zip(table, replaced, strict=True)
        )
        weight = np.asarray([float(policy in kept) for policy in range(max(table) + 1)], np.float32)

        def chosen(leaf):
            leaf = jnp.pad(leaf, ((0, len(weight) - count),) + ((0, 0),) * (leaf.ndim - 1))
            return leaf * weight.reshape(-1, *[1] * (leaf.ndim - 1)).astype(leaf.dtype)

        decoder = dataclasses.replace(self.adapted.config, num_adapters=len(weight))
        team = TeamPolicy(Decoder(decoder), workflow.roles, table)
        tokenizer = self.model.tokenizer
        assert tokenizer is not None
        return Sampler(
            team,
            self.adapted.body,
            jax.tree.map(chosen, self.adapters),
            stop_tokens=tokenizer.stop_tokens,
            pad_token=tokenizer.pad_token,
            versions=(0,) * len(weight),
            unstacked=self.adapted.unstacked,
        )


def best_team(result: FinetuneResult) -> FinetunedTeam | None:
    """The team of a run that has just ended, with its best adapters; None where its model was not loaded.

    Raises:
      UserError: the best checkpoint is gone or damaged.
    """
    trainer = result.trainer
    if trainer.base is None:
        return None
    _, state = load_finetuned(result.folder, "best", trainer)
    return FinetunedTeam(
        trainer.config,
        trainer.base,
        trainer.bound.workflow,
        trainer.model,
        trainer.policy_of_role,
        trainer.model.whole(state.adapters),
        int(state.iteration),
    )


def load_finetuned_team(
    folder: str | Path, config: FinetuneConfig, checkpoint: str = "best", *, max_length: int | None = None
) -> FinetunedTeam:
    """Reads a run's base model and adapters; its task and its formats need not be there.

    Args:
      folder: of the run.
      config: of the run.
      checkpoint: `"best"`, `"last"` or the number of an iteration.
      max_length: most tokens of a sequence; as in training by default.

    Raises:
      UserError: no such checkpoint, a damaged one or one of another configuration, or a base model that is not the
        run's.
    """
    path = sound_checkpoint(Path(folder), checkpoint, command="finetune")
    check_owner(path, config)
    workflow = make_workflow(config.workflow, **config.workflow_args)
    # What was trained on many devices may be used on fewer.
    mesh = model_mesh(min(config.num_devices, jax.device_count()))
    model = load_model(config.model, dtype=config.dtype, mesh=mesh, max_length=max_length or config.max_length)
    if model.tokenizer is None:
        raise UserError(f"{config.model} has no tokenizer: add its tokenizer.json")
    check_inputs(path, {"fingerprint": model.fingerprint}, config)
    adapted, table = adapt_team(config, model.config, model.params, workflow)
    loaded = checkpoints.load(path, init_state(config, adapted), None)
    adapters = adapted.whole(loaded.state.adapters)
    return FinetunedTeam(config, model, workflow, adapted, table, adapters, loaded.update)
