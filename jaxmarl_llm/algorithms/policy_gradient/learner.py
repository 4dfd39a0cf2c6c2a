"""The policy-gradient learner: IPPO, MAPPO, COMA, HAPPO, HATRPO and TeamTR are settings of it."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.categorical import masked_logits
from jaxmarl_llm.algorithms.learner import Learner
from jaxmarl_llm.algorithms.policy_gradient import credit
from jaxmarl_llm.algorithms.policy_gradient import order as turns
from jaxmarl_llm.algorithms.policy_gradient import rollout as rollouts
from jaxmarl_llm.algorithms.policy_gradient import update as updates
from jaxmarl_llm.algorithms.policy_gradient.per_policy import policy_counts, policy_means
from jaxmarl_llm.algorithms.policy_gradient.state import LearnerState, Samples, Trajectory
from jaxmarl_llm.algorithms.rollout import example_of, team_input
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.algorithms.trust_region import adapt_penalty, occupancy_drift_bound
from jaxmarl_llm.algorithms.value_normalization import (
    denormalize_value,
    init_value_statistics,
    normalize_value,
    update_value_statistics,
)
from jaxmarl_llm.envs.base import TimeStep
from jaxmarl_llm.envs.episodes import episode_metrics, episode_sums
from jaxmarl_llm.errors import UserError


@struct.dataclass(kw_only=True)
class PolicyGradient(Learner):
    """A team of policies trained by policy gradients; build one with a preset such as `ippo`.

    Attributes (beside those of every `Learner`):
      num_epochs: passes over a rollout.
      num_minibatches: gradient steps a pass.
      credit: whom the advantages credit: `"gae"`, `"coma"` (with a critic of actions), `"counterfactual"` (every other
        action is tried in the environment), `"difference"` (the reward lost had the agent done `default_action`, then
        gae) or `"leave_one_out"` (returns over those of the other environments at the same step).
      trust_region: `"clip"`; `"penalty"`, clip and an adaptive penalty on the divergence; `"gate"`, natural gradient
        with line search; `"penalty_and_gate"`, as penalty, and then only as far as the radius.
      update_order: `"simultaneous"` or `"sequential"`, one policy after the other.
      resample: for sequential updates: `"every"` (a fresh rollout before each policy's turn, TeamTR), a whole number
        (turns a rollout), `"never"` (all learn from one rollout) or `"importance"` (from one, weighted by the factor
        of the policies updated before, HAPPO).
      random_order: whether sequential updates draw the order anew each time.
      counterfactual_horizon: steps that the team plays on in each branch before the critic's value takes over.
      counterfactual_replays: replays of each branch.
      default_action: what an agent does in difference rewards.
      normalize_advantage: standardise advantages within each minibatch and policy.
      normalize_value: the critic predicts returns in units of their running statistics.
      gae_lambda: decay of generalised advantage estimation.
      clip_low, clip_high: clip range of the probability ratio below and above 1.
      kl_radius: divergence in nats that penalties aim at and gates enforce.
      penalty_coefficient: weight of the penalty at the start.
      fisher_damping: added to the diagonal of the Fisher matrix.
      value_clip: largest useful move of a value from its old prediction, in the critic's units; 0 or less turns it off.
      value_coefficient: weight of the value loss.
      entropy_coefficient, entropy_coefficient_final: weight of the entropy bonus at the start and at `total_steps`;
        `None` keeps it constant.
    """

    num_epochs: int = struct.field(pytree_node=False, default=4)
    num_minibatches: int = struct.field(pytree_node=False, default=4)
    credit: str = struct.field(pytree_node=False, default="gae")
    trust_region: str = struct.field(pytree_node=False, default="clip")
    update_order: str = struct.field(pytree_node=False, default="simultaneous")
    resample: str | int = struct.field(pytree_node=False, default="every")
    random_order: bool = struct.field(pytree_node=False, default=True)
    counterfactual_horizon: int = struct.field(pytree_node=False, default=8)
    counterfactual_replays: int = struct.field(pytree_node=False, default=1)
    default_action: int = struct.field(pytree_node=False, default=0)
    normalize_advantage: bool = struct.field(pytree_node=False, default=True)
    normalize_value: bool = struct.field(pytree_node=False, default=False)
    gae_lambda: float = 0.95
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_radius: float = 0.01
    penalty_coefficient: float = 1.0
    fisher_damping: float = 0.1
    value_clip: float = 0.2
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    entropy_coefficient_final: float | None = None

    @property
    def one_device(self) -> str:
        """Why no more than one device can update; empty where several can."""
        # Second derivatives, and means over the environments, are taken on one device.
        if self.trust_region == "gate" or self.credit == "leave_one_out":
            return "trust_region=gate (hatrpo) and credit=leave_one_out update on one device"
        return ""

    @property
    def env_groups(self) -> int:
        """Groups of environments that devices may share; minibatches are drawn within them."""
        if self.one_device:
            return 1
        recurrent = self.network_module.recurrent
        return mesh.env_groups(self.num_envs, 1 if recurrent else self.rollout_length, self.num_minibatches)

    @property
    def steps_per_update(self) -> int:
        """Environment steps of one update: `B * T` for each rollout."""
        num_rollouts = math.ceil(self.network_module.num_policies / self.turns_per_rollout)
        return self.num_envs * self.rollout_length * num_rollouts

    def init(self, key: jax.Array) -> LearnerState:
        key_params, key_rollout, key = jax.random.split(key, 3)
        network = self.network_module
        rollout = rollouts.init_rollout(self.env, network, key_rollout, self.num_envs)
        params = network.init(key_params, *example_of(self.env, rollout))
        state = LearnerState(
            params=params,
            optimizer_state=jax.vmap(self.make_optimizer().init)(params),
            value_statistics=init_value_statistics((network.num_policies,)),
            penalty=jnp.full((network.num_policies,), self.penalty_coefficient, jnp.float32),
            rollout=rollout,
            key=key,
            update=jnp.zeros((), jnp.int32),
        )
        # An observation may be a field of the state itself; a buffer that is held twice cannot be donated.
        return jax.tree.map(jnp.copy, state)

    def update(self, state: LearnerState) -> tuple[LearnerState, dict[str, jax.Array]]:
        key_rollout, key_epochs, key = jax.random.split(state.key, 3)
        steps_done, rate, shaped_weight = self.progress(state.update)
        entropy = self.entropy_coefficient
        if self.entropy_coefficient_final is not None:
            entropy = anneal(entropy, self.entropy_coefficient_final, steps_done / self.total_steps)
        coefficients = updates.Coefficients(learning_rate=rate, entropy=entropy, penalty=state.penalty)

        def fresh(state, key):
            return self._fresh_batch(state, key, shaped_weight, coefficients)

        divergence = proposed = None
        if self.by_turns:
            new, metrics = turns.take_turns(self, state, fresh, jax.random.fold_in(key_rollout, 1), coefficients)
            divergence, proposed = metrics.pop("policy_divergence"), metrics.pop("policy_proposed_divergence")
        else:
            new, batch = fresh(state, key_rollout)
            params, optimizer_state, metrics = updates.run_epochs(
                self, state.params, state.optimizer_state, batch.memory, batch.samples, key_epochs, coefficients
            )
            new = dataclasses.replace(new, params=params, optimizer_state=optimizer_state)
            metrics |= batch.metrics
            if self.trust_region != "clip":
                whole = updates.whole_batch(self, batch.samples, batch.memory)
                divergence = proposed = turns.policy_divergence(self, state.params, params, whole)
        penalty = state.penalty
        if divergence is not None:
            of_agent = divergence[jnp.asarray(self.network_module.policy_of_agent)]
            metrics["agent_divergence"] = of_agent
            # Without discount there is no bound.
            if isinstance(self.discount, jax.Array) or self.discount < 1:
                radii = jnp.maximum(of_agent, 0.0)
                metrics["occupancy_drift_bound"] = occupancy_drift_bound(radii, discount=self.discount)
        if self.trust_region in updates.PENALISED and proposed is not None:
            penalty = adapt_penalty(penalty, proposed, target=self.kl_radius)
            metrics["penalty"] = penalty.mean()
        metrics |= {"learning_rate": rate, "shaped_reward_weight": shaped_weight}
        return dataclasses.replace(new, penalty=penalty, key=key, update=state.update + 1), metrics

    @property
    def by_turns(self) -> bool:
        """Whether the policies are updated one after the other."""
        return self.update_order == "sequential" or self.trust_region in ("gate", "penalty_and_gate")

    @property
    def reweighs(self) -> bool:
        """Whether samples carry the factor of the policies updated before."""
        return self.update_order == "sequential" and self.resample == "importance"

    @property
    def turns_per_rollout(self) -> int:
        """How many policies learn from one rollout."""
        if self.update_order == "simultaneous" or self.resample in ("never", "importance"):
            return self.network_module.num_policies
        return 1 if self.resample == "every" else int(self.resample)

    def _fresh_batch(self, state, key, shaped_weight, coefficients):
        """A rollout with the team's present policies: `(state, batch)`."""
        memory, branch = state.rollout.memory, credit.brancher(self, state, shaped_weight)
        rollout, trajectory, record, last_value = rollouts.collect(
            self, state, key, shaped_weight=shaped_weight, branch=branch
        )
        samples, value_statistics, explained = self._assess(state, trajectory, last_value)
        if self.reweighs:
            samples = dataclasses.replace(samples, factor=jnp.ones(samples.advantage.shape))
        metrics = episode_metrics(mesh.sum_over_devices(episode_sums(record))) | {"explained_variance": explained}
        metrics |= updates.agent_gradients(self, state.params, memory, samples, coefficients)
        state = dataclasses.replace(state, rollout=rollout, value_statistics=value_statistics)
        return state, turns.Batch(memory=memory, samples=samples, metrics=metrics)

    def logits(self, params: Any, timestep: TimeStep, memory: Any) -> tuple[jax.Array, Any]:
        """The team's policies.

        Args:
          params, timestep, memory: as in `act`.

        Returns:
          `(logits [..., N, A] float32, memory)`; an illegal action has hardly any probability, see `masked_logits`.

        Raises:
          UserError: the policy is a decoder, whose logits depend on the actions of the agents before.
        """
        if self.network_module.module.decoder:
            raise UserError("a decoder's logits depend on the actions of the agents before: call act instead of logits")
        memory, logits, _ = self.network_module.apply_step(params, memory, team_input(timestep))
        return masked_logits(logits, timestep.action_mask), memory

    def act(
        self, params: Any, timestep: TimeStep, memory: Any, key: jax.Array, greedy: bool = True
    ) -> tuple[jax.Array, Any]:
        uniform = None if greedy else jax.random.uniform(key, timestep.active.shape)
        inputs, mask = team_input(timestep), timestep.action_mask
        memory, _, action, _ = rollouts.decide(self.network_module, params, memory, inputs, mask, uniform)
        return action, memory

    def _assess(self, state: LearnerState, trajectory: Trajectory, last_value):
        """Advantages and targets of a rollout, the critic's statistics after it, and the explained variance."""
        network, statistics = self.network_module, state.value_statistics
        table = network.policy_of_agent
        next_value = rollouts.next_values(trajectory, last_value)
        value, alternatives, logits = trajectory.value, trajectory.alternatives, None
        if self.credit in ("coma", "counterfactual"):
            _, logits, outputs = network.apply(state.params, state.rollout.memory, trajectory.inputs)
            alternatives = outputs if self.credit == "coma" else alternatives
        if self.normalize_value:
            of_agent = self._of_agent(statistics)
            value, next_value = denormalize_value(of_agent, value), denormalize_value(of_agent, next_value)
            if self.credit == "coma":
                alternatives = denormalize_value(jax.tree.map(lambda leaf: leaf[..., None], of_agent), alternatives)
        advantage, target = credit.assign_credit(self, trajectory, value, next_value, alternatives, logits)
        alive = trajectory.alive[None]
        explained = _explained_variance(target, value, trajectory.alive)
        if self.normalize_value:
            mean, mean_square = policy_means(table, jnp.stack([target, jnp.square(target)]), alive)
            statistics = update_value_statistics(statistics, mean, mean_square, policy_counts(table, alive)[0])
            target = normalize_value(self._of_agent(statistics), target)
        samples = Samples(trajectory=trajectory, advantage=advantage, target=target)
        return samples, statistics, explained

    def _of_agent(self, statistics):
        """Each agent's critic's statistics, `[1, 1, N]`."""
        table = jnp.asarray(self.network_module.policy_of_agent)
        return jax.tree.map(lambda leaf: leaf[table][None, None], statistics)


def _explained_variance(target, value, alive) -> jax.Array:
    """Share of the targets' variance `[T, B, N]` that the values explain, over all agents alive."""
    one_policy = (0,) * alive.shape[-1]

    def mean(values):
        return policy_means(one_policy, values[None], alive[None])[0, 0]

    return 1.0 - mean(jnp.square(target - value)) / (mean(jnp.square(target - mean(target))) + 1e-8)
