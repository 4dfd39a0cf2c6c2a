"""Reinforcement learning of a team of language-model roles: a pure update to be jitted, vmapped and sharded.

Axes: Q problems, G episodes of each, B = Q * G episodes, R roles, P policies; T rounds, C copies, M tokens of rows.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct
from jax.flatten_util import ravel_pytree

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.group_advantage import GROUP_SCALES
from jaxmarl_llm.algorithms.schedules import SCHEDULES, anneal
from jaxmarl_llm.algorithms.trust_region import adapt_penalty
from jaxmarl_llm.arguments import check_number, concrete
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.limits import LARGEST_FLOAT
from jaxmarl_llm.llm import Score
from jaxmarl_llm.settings import check_choices, check_counts, check_finite, check_flags, check_numbers
from jaxmarl_llm.workflows import diagnostics
from jaxmarl_llm.workflows.assessment import CREDITS, assess
from jaxmarl_llm.workflows.body import BODIES, map_body, merge_base
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.gradients import ROLE_WEIGHTINGS
from jaxmarl_llm.workflows.graph import Call
from jaxmarl_llm.workflows.grouping import GROUPINGS
from jaxmarl_llm.workflows.loss import LossWeights, score_samples
from jaxmarl_llm.workflows.rewards import REWARDS
from jaxmarl_llm.workflows.rollout import CallSamples, Episodes, play
from jaxmarl_llm.workflows.tasks.base import Problem
from jaxmarl_llm.workflows.team import TeamPolicy
from jaxmarl_llm.workflows.update import run_steps, step_schedule

OPTIMIZERS = {"adam": optax.scale_by_adam, "sgd": lambda eps: optax.identity()}


@struct.dataclass
class WorkflowState:
    """Everything that training changes, and the base policies.

    Attributes:
      params, base_params: pytrees with a leading axis P.
      optimizer_state: pytree with a leading axis P; with `body="joint"` a pair, the second of the body, axis 1.
      gradient_average: `[R, F]`, running averages of the roles' gradients; `[R, 0]` without `coherence`.
      kl_coefficient: `[R]` float32, weights of the anchors to the base policies.
      base_reading: `[R, V]` float32, what the roles read in the first update, see `diagnostics.prompt_tokens`.
      key: the random key of the next update.
      update: `[]` int32, number of updates done.
    """

    params: Any
    base_params: Any
    optimizer_state: Any
    gradient_average: jax.Array
    kl_coefficient: jax.Array
    base_reading: jax.Array
    key: jax.Array
    update: jax.Array


@struct.dataclass(kw_only=True)
class WorkflowLearner:
    """Trains a team on a workflow; GRPO by default, PPO with `credit="value"`.

    A frozen pytree: the float hyper-parameters are leaves, so learners can be vmapped over them; everything that shapes
    the program is static. All methods are pure.

    Attributes:
      bound: the workflow at work on its task.
      team: who plays.
      num_problems: Q, fresh problems an update.
      group_size: G, episodes of each problem.
      num_epochs, num_minibatches: passes over the episodes of an update, and gradient steps a pass.
      normalize_by_copies: all copies of a role are averaged in each step. If not, a step learns from one copy of each
        role, one after the other, so that a role of N copies takes N times as many steps (Zeng et al. 2026).
      credit: `"group"` (GRPO), `"leave_one_out"` (RLOO) or `"value"` (PPO, token by token, with the decoder's
        value head).
      grouping: which completions are compared, see `row_groups`.
      advantage_scale: of `"group"`, see `group_relative_advantage`.
      reward: see `assign_rewards`.
      role_weighting: how the roles of a policy share it, see `combine_roles`.
      coherence: damp steps in the direction that a role has been going, see `damp_coherent`.
      clip_roles: clip each role's gradient to `role_max_grad_norm`.
      adapt_kl: adapt the anchors' weights so that the divergence from the base policy stays about `kl_target`.
      body: what is learned of a policy but for its adapters and its value head: `"own"`, all, as of any parameter;
        `"joint"`, one step of all roles for all policies, whose copies stay the same where they start the same;
        `"frozen"`, nothing. Adapters are learned policy by policy always. See `DecoderConfig.lora_rank`.
      optimizer: `"adam"` or `"sgd"`. Adam undoes any factor on the whole gradient of a policy that does not change.
      learning_rate_schedule: `"constant"`, `"linear"` or `"cosine"`, down to 0 over `total_updates`.
      constrained: only tokens of a call's format can be drawn.
      early_stop: see `llm.generate`; False is better under `vmap`.
      diagnostic_episodes: episodes from which slots' gradients and the drift of an update are measured; 0 for neither.
      tied: `[P]` int32, numbers below P: policies of one number all take the step that the roles of all of them make
        for one, and stay the same where they start the same. So an isolated team is trained as a shared one, or as one
        of groups, by the program that trains it isolated: `policies.sharing` has the numbers. None ties no policies.
      learning_rate, adam_epsilon, max_grad_norm: of the optimiser.
      warmup_updates: over which the learning rate rises.
      total_updates: of the whole run, for the schedule.
      temperature: of sampling, and of the log-probabilities that are learned.
      clip_low, clip_high: the ratio is clipped to `[1 - clip_low, 1 + clip_high]` (Yu et al. 2025, clip-higher).
      kl_coefficient: weight of the anchor to the base policy at the start; one number, or R of them.
      kl_target: in nats a token.
      entropy_coefficient: weight of the entropy bonus.
      own_weight, format_weight: see `assign_rewards`.
      gae_lambda, value_coefficient, value_clip: of `credit="value"`.
      role_max_grad_norm: see `clip_roles`.
      coherence_strength, coherence_floor, coherence_window: see `damp_coherent`.
      coherence_warmup: updates over which the strength rises.
    """

    bound: BoundWorkflow = struct.field(pytree_node=False)
    team: TeamPolicy = struct.field(pytree_node=False)
    num_problems: int = struct.field(pytree_node=False, default=64)
    group_size: int = struct.field(pytree_node=False, default=8)
    num_epochs: int = struct.field(pytree_node=False, default=1)
    num_minibatches: int = struct.field(pytree_node=False, default=1)
    normalize_by_copies: bool = struct.field(pytree_node=False, default=True)
    credit: str = struct.field(pytree_node=False, default="group")
    grouping: str = struct.field(pytree_node=False, default="slot")
    advantage_scale: str = struct.field(pytree_node=False, default="std")
    reward: str = struct.field(pytree_node=False, default="outcome")
    role_weighting: str = struct.field(pytree_node=False, default="sequences")
    coherence: bool = struct.field(pytree_node=False, default=False)
    clip_roles: bool = struct.field(pytree_node=False, default=False)
    adapt_kl: bool = struct.field(pytree_node=False, default=False)
    body: str = struct.field(pytree_node=False, default="own")
    optimizer: str = struct.field(pytree_node=False, default="adam")
    learning_rate_schedule: str = struct.field(pytree_node=False, default="constant")
    constrained: bool = struct.field(pytree_node=False, default=True)
    early_stop: bool = struct.field(pytree_node=False, default=True)
    diagnostic_episodes: int = struct.field(pytree_node=False, default=32)
    tied: Any = None
    learning_rate: float = 5e-4
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    warmup_updates: float = 0.0
    total_updates: float = 1000.0
    temperature: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    kl_coefficient: Any = 0.0
    kl_target: float = 0.05
    entropy_coefficient: float = 0.0
    own_weight: float = 0.5
    format_weight: float = 0.0
    gae_lambda: float = 1.0
    value_coefficient: float = 0.5
    value_clip: float = 0.2
    role_max_grad_norm: float = 1.0
    coherence_strength: float = 0.3
    coherence_floor: float = 0.0
    coherence_window: float = 32.0
    coherence_warmup: float = 0.0

    @property
    def copies_of_role(self) -> tuple[int, ...]:
        """`[R]`, the most copies that any call of a role has."""
        calls = self.bound.workflow.calls
        return tuple(max(call.copies for call in calls if call.role == role) for role in self.team.roles)

    @property
    def updates_per_iteration(self) -> tuple[int, ...]:
        """`[R]`, optimiser steps of an update in which each role has a part."""
        return tuple(int(steps) for steps in step_schedule(self)[1].sum(0))

    @property
    def env_groups(self) -> int:
        """Groups of problems that devices may share, each with all its episodes; minibatches are drawn within them."""
        return mesh.env_groups(self.num_problems, self.group_size, self.num_minibatches)

    def check(self) -> None:
        """Raises `UserError` where a setting is wrong, or does not go with others."""
        self.team.check_fits(self.bound)
        check_choices(
            self,
            credit=CREDITS,
            grouping=GROUPINGS,
            advantage_scale=GROUP_SCALES,
            reward=REWARDS,
            role_weighting=ROLE_WEIGHTINGS,
            body=BODIES,
            optimizer=OPTIMIZERS,
            learning_rate_schedule=SCHEDULES,
        )
        check_counts(self, "num_problems", "group_size", "num_epochs", "num_minibatches")
        check_counts(self, "diagnostic_episodes", at_least=0)
        check_numbers(self, "clip_low", "own_weight", "gae_lambda", "coherence_strength", "coherence_floor")
        check_numbers(self, "learning_rate", "adam_epsilon", "max_grad_norm", "role_max_grad_norm", above=0.0)
        check_numbers(self, "temperature", "total_updates", above=0.0)
        check_numbers(self, "coherence_window", above=1.0)
        check_flags(self)
        check_finite(self.replace(kl_coefficient=0.0), signed=("value_clip",))  # pyright: ignore[reportAttributeAccessIssue]
        if self.num_problems * self.group_size % self.num_minibatches:
            raise UserError(
                f"num_minibatches {self.num_minibatches} must divide the {self.num_problems * self.group_size} "
                "episodes of an update (num_problems times group_size)"
            )
        if self.credit != "value" and self.group_size < 2 and self.grouping in ("slot", "turn"):
            raise UserError(
                f"grouping='{self.grouping}' compares episodes of one problem: set group_size to at least 2, or "
                "credit='value'"
            )
        if self.credit == "leave_one_out" and (self.grouping == "episode" or self.group_size < 2):
            raise UserError(
                "credit='leave_one_out' compares episodes of one problem: set group_size to at least 2 and another "
                "grouping than 'episode'"
            )
        if self.credit == "value" and not self.team.decoder.config.value_head:
            raise UserError("credit='value' needs a decoder with value_head=True")
        if self.body != "own" and not self.team.decoder.config.lora_rank:
            raise UserError(f"body='{self.body}' needs a decoder with adapters: set its lora_rank to at least 1")
        if self.team.frozen and (self.body == "joint" or self.tied is not None):
            raise UserError("frozen roles share no body and no steps with others: leave out body='joint' and tied")
        num_policies = self.team.num_policies
        if self.tied is not None and jnp.shape(self.tied) != (num_policies,):
            raise UserError(
                f"tied must have one number for each of the {num_policies} policies, got shape {jnp.shape(self.tied)}"
            )
        known = None if self.tied is None else concrete(self.tied)
        if known is not None and not ((known >= 0) & (known < num_policies)).all():
            raise UserError(f"tied must hold numbers from 0 to {num_policies - 1}, got {known.tolist()}")
        anchors = self.kl_coefficient
        if not isinstance(anchors, list | tuple):
            known = concrete(anchors)
            anchors = () if known is None else np.ravel(known)
        for anchor in anchors:
            check_number("kl_coefficient", anchor, at_most=LARGEST_FLOAT)
        shape = np.shape(self.kl_coefficient)
        if shape not in ((), (len(self.team.roles),)):
            raise UserError(f"kl_coefficient must be one number or one for each role, got shape {shape}")

    def make_optimizer(self) -> optax.GradientTransformation:
        """Gradient clipping and the optimiser, without the learning rate, of one policy's parameters as one vector."""
        scale = OPTIMIZERS[self.optimizer](eps=self.adam_epsilon)
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), scale)

    def loss_weights(self, kl: jax.typing.ArrayLike) -> LossWeights:
        """The numbers of the loss, with a role's anchor."""
        # A clip of 0 or less means none.
        value_clip = jnp.where(jnp.asarray(self.value_clip) > 0, self.value_clip, jnp.inf)
        return LossWeights(
            self.clip_low, self.clip_high, kl, self.entropy_coefficient, self.value_coefficient, value_clip
        )

    def score(self, policy_params: Any, call: Call, samples: CallSamples) -> Score:
        """What one policy says about samples of a call."""
        if self.body == "frozen":
            policy_params = map_body(jax.lax.stop_gradient, policy_params)
        return score_samples(
            self.team,
            policy_params,
            self.bound,
            call,
            samples,
            temperature=self.temperature,
            constrained=self.constrained,
        )

    def init(self, key: jax.Array, base_params: Any = None) -> WorkflowState:
        """Everything that training changes, at the start.

        Args:
          key: consumed.
          base_params: `[P, ...]`, where training starts, such as `team.replicate(...)` of a pretrained policy; random
            if not given. Where they lack adapters or a value head, these are added, and change nothing at the start.

        Raises:
          UserError: a setting is wrong, or the parameters are not those of the team.
        """
        self.check()
        key_params, key = jax.random.split(key)
        params = self.team.init(key_params)
        if self.body != "own" or base_params is not None:
            # Policies that are tied stay the same where they start the same, in what the base lacks too.
            params = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), params)
        if base_params is not None:
            params = merge_base(params, base_params)
        size = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], params))[0].size if self.coherence else 0
        flat = jax.vmap(lambda one: ravel_pytree(one)[0])(params)
        moments = jax.vmap(self.make_optimizer().init)
        num_roles = len(self.team.roles)
        state = WorkflowState(
            params=params,
            base_params=params,
            optimizer_state=(moments(flat), moments(flat[:1])) if self.body == "joint" else moments(flat),
            gradient_average=jnp.zeros((num_roles, size)),
            kl_coefficient=jnp.broadcast_to(jnp.asarray(self.kl_coefficient, jnp.float32), (num_roles,)),
            base_reading=jnp.zeros((num_roles, len(self.bound.vocabulary))),
            key=key,
            update=jnp.zeros((), jnp.int32),
        )
        # A buffer that is held twice cannot be donated.
        return jax.tree.map(jnp.copy, state)

    def update(self, state: WorkflowState) -> tuple[WorkflowState, dict[str, jax.Array]]:
        """Plays fresh problems and learns from them: pure, to be jitted, the state may be donated.

        Args:
          state: from `init` or an earlier `update`.

        Returns:
          The next state, and metrics: scalars, `role_*` `[R]` or `[R, R]`, `slot_*` `[K]` or `[K, K]` (see
          `diagnostics`); all of the policies before the update, but for `role_update_kl` and `role_update_chi2`.
        """
        key_problems, key_play, key_steps, key = jax.random.split(state.key, 4)
        problems = jax.vmap(self.bound.task.sample)(
            mesh.local_keys(key_problems, self.num_problems // mesh.num_devices())
        )
        episodes = self.play(state.params, key_play, problems, self.group_size)
        rows, advantages = assess(self, state, episodes)
        done = state.update.astype(jnp.float32)
        rate = anneal(self.learning_rate, 0.0, done / self.total_updates, schedule=self.learning_rate_schedule)
        rate = rate * jnp.minimum(1.0, (done + 1.0) / jnp.maximum(self.warmup_updates, 1.0))
        strength = self.coherence_strength * jnp.minimum(1.0, (done + 1.0) / jnp.maximum(self.coherence_warmup, 1.0))
        params, optimizer_state, average, steps = run_steps(
            self,
            state.params,
            state.optimizer_state,
            state.gradient_average,
            rows,
            key_steps,
            rate,
            state.kl_coefficient,
            strength,
        )
        metrics = diagnostics.episode_metrics(self.bound, episodes) | advantages
        reading = diagnostics.prompt_tokens(self.bound, episodes)
        base_reading = jnp.where(state.update == 0, reading, state.base_reading)
        metrics["role_prompt_shift"] = diagnostics.total_variation(reading, base_reading)
        if self.diagnostic_episodes:
            few = diagnostics.few_episodes(rows, self.diagnostic_episodes)
            metrics |= diagnostics.slot_gradient_metrics(self, state.params, few, state.kl_coefficient)
            metrics |= diagnostics.drift_metrics(self, params, few)
        metrics |= {f"role_{name}": value for name, value in steps.items()}
        metrics |= {
            "total_loss": jnp.sum(steps["loss"] * steps["weight"]),
            "learning_rate": rate,
            "role_kl_coefficient": state.kl_coefficient,
            "role_updates": jnp.asarray(self.updates_per_iteration, jnp.float32),
        }
        kl = state.kl_coefficient
        if self.adapt_kl:
            kl = adapt_penalty(kl, steps["base_kl"], target=self.kl_target)
        state = dataclasses.replace(
            state,
            params=params,
            optimizer_state=optimizer_state,
            gradient_average=average,
            kl_coefficient=kl,
            base_reading=base_reading,
            key=key,
            update=state.update + 1,
        )
        return state, metrics

    def evaluate(self, params: Any, key: jax.Array, problems: Problem, greedy: bool = True) -> dict[str, jax.Array]:
        """How a team does on given problems, each played once.

        Args:
          params: `[P, ...]`.
          key: consumed.
          problems: `[Q]`, such as `task.held_out(Q)`.
          greedy: the likeliest tokens; else samples at the learner's temperature.

        Returns:
          See `diagnostics.episode_metrics`.
        """
        episodes = self.play(params, key, problems, 1, temperature=0.0 if greedy else self.temperature)
        return diagnostics.episode_metrics(self.bound, episodes)

    def play(
        self,
        params: Any,
        key: jax.Array,
        problems: Problem,
        group_size: int,
        temperature: jax.typing.ArrayLike | None = None,
    ) -> Episodes:
        """Episodes with the learner's settings; see `rollout.play`."""
        return play(
            self.team,
            params,
            self.bound,
            key,
            problems,
            group_size=group_size,
            temperature=self.temperature if temperature is None else temperature,
            constrained=self.constrained,
            early_stop=self.early_stop,
        )
