"""The value learner: IQL, VDN, QMIX and weighted QMIX are settings of it."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm import mesh
from jaxmarl_llm.algorithms.learner import Learner
from jaxmarl_llm.algorithms.rollout import begin_episodes, example_of
from jaxmarl_llm.algorithms.schedules import anneal
from jaxmarl_llm.algorithms.value import acting as actings
from jaxmarl_llm.algorithms.value import update as updates
from jaxmarl_llm.algorithms.value.replay import add_to_replay, init_replay, sample_replay, set_priority, take_sequences
from jaxmarl_llm.algorithms.value.state import Replay, RolloutState, ValueState
from jaxmarl_llm.envs.base import TimeStep
from jaxmarl_llm.envs.episodes import episode_metrics, episode_sums
from jaxmarl_llm.networks.mixers import JointActionValue, QMixer


@struct.dataclass(kw_only=True)
class ValueLearner(Learner):
    """A team that learns action values from replayed sequences; build one with `iql`, `vdn`, `qmix`, `weighted_qmix`.

    Attributes (beside those of every `Learner`):
      mixer: `"none"`, `"sum"`, `"monotonic"` or `"weighted"`.
      mixer_module: of the monotonic and the weighted mixer.
      central_module: unrestricted value of the joint action, of the weighted mixer.
      weighting: of the weighted mixer, `"optimistic"` or `"central"`.
      rollout_length: T, time steps an environment takes between updates and length of a replayed sequence. Beginning
        the next episode takes one, as in Gymnasium's next-step reset.
      gradient_steps: an update.
      batch_size: sequences of a gradient step.
      replay_size: time steps kept over all environments, rounded to whole rollouts, at least one.
      target_update_interval: gradient steps between updates of the target networks.
      double_q: the online network chooses the action that the target network values.
      td_lambda: weight of longer returns: 0 for one step, 1 for all that the sequence holds.
      target_update_rate: how far targets move to the online parameters: 1 is a hard update.
      weight_floor: weight of the joint actions that the weighted mixer holds for worse.
      epsilon, epsilon_final: probability of a random action at the start and after `epsilon_steps`.
      epsilon_steps: environment steps over which it falls, linearly.
      priority_exponent: 0 draws sequences uniformly, 1 in proportion to their temporal-difference error.
      priority_weight_exponent: how far importance weights correct for that.
      learning_starts: environment steps before the first gradient step.
    """

    mixer: str = struct.field(pytree_node=False)
    mixer_module: QMixer | None = struct.field(pytree_node=False)
    central_module: JointActionValue | None = struct.field(pytree_node=False)
    weighting: str = struct.field(pytree_node=False, default="central")
    gradient_steps: int = struct.field(pytree_node=False, default=8)
    batch_size: int = struct.field(pytree_node=False, default=32)
    replay_size: int = struct.field(pytree_node=False, default=100_000)
    target_update_interval: int = struct.field(pytree_node=False, default=200)
    double_q: bool = struct.field(pytree_node=False, default=True)
    td_lambda: float = 0.0
    target_update_rate: float = 1.0
    weight_floor: float = 0.1
    epsilon: float = 1.0
    epsilon_final: float = 0.05
    epsilon_steps: float = 50_000.0
    priority_exponent: float = 0.0
    priority_weight_exponent: float = 0.4
    learning_starts: float = 0.0

    @property
    def env_groups(self) -> int:
        """Groups of environments that devices may share; each gives every batch the same number of sequences."""
        return math.gcd(mesh.env_groups(self.num_envs, 1, 1), self.batch_size)

    @property
    def replay_capacity(self) -> int:
        """Sequences kept of each environment."""
        return max(1, round(self.replay_size / self.steps_per_update))

    def init(self, key: jax.Array) -> ValueState:
        key_params, key_acting, key = jax.random.split(key, 3)
        acting = begin_episodes(self.env, self.initial_memory((self.num_envs,)), key_acting, self.num_envs)
        params = self._init_params(key_params, *example_of(self.env, acting))
        collect = functools.partial(actings.collect, self, epsilon=0.0, shaped_weight=0.0)
        sequences = jax.eval_shape(collect, params, acting, key)[1]
        optimizer = self.make_optimizer()
        state = ValueState(
            params=params,
            target_params=params,
            optimizer_state={name: jax.vmap(optimizer.init)(tree) for name, tree in params.items()},
            rollout=RolloutState(acting=acting, replay=init_replay(sequences, self.replay_capacity)),
            key=key,
            update=jnp.zeros((), jnp.int32),
        )
        # A buffer that is held twice cannot be donated.
        return jax.tree.map(jnp.copy, state)

    def _init_params(self, key: jax.Array, observation, global_state: jax.Array) -> dict:
        key_agents, key_mixer, key_central = jax.random.split(key, 3)
        num_agents = self.env.num_agents
        action = jnp.zeros((num_agents,), jnp.int32)
        if "last_action" in self.initial_memory():
            observation = (observation, action)
        params = {"agents": self.network_module.init(key_agents, observation, global_state)}
        modules = {
            "mixer": (self.mixer_module, key_mixer, (jnp.zeros((num_agents,)), global_state)),
            "central": (self.central_module, key_central, (action, action == 0, global_state)),
        }
        for name, (module, key_module, inputs) in modules.items():
            if module is not None:
                one = module.init(key_module, *inputs)["params"]
                params[name] = jax.tree.map(lambda leaf: leaf[None], one)
        return params

    def update(self, state: ValueState) -> tuple[ValueState, dict[str, jax.Array]]:
        key_collect, key_learn, key = jax.random.split(state.key, 3)
        steps_done, rate, shaped_weight = self.progress(state.update)
        epsilon = anneal(self.epsilon, self.epsilon_final, steps_done / jnp.maximum(self.epsilon_steps, 1.0))
        acting, sequences, record = actings.collect(
            self, state.params, state.rollout.acting, key_collect, epsilon=epsilon, shaped_weight=shaped_weight
        )
        replay = add_to_replay(state.rollout.replay, sequences, state.update)
        # All batches are read at once: a loop that held the replay would make the compiler copy it.
        index, batches = self._draw(replay, key_learn)

        def learn(networks, batches, priority, sums):
            networks, size, metrics, sums = updates.learn(self, networks, batches, state.update, rate, sums)
            return networks, set_priority(priority, index, size), metrics, sums

        def wait(networks, batches, priority, sums):
            metrics = jax.eval_shape(learn, networks, batches, priority, sums)[2]
            nothing = {name: jnp.full(leaf.shape, jnp.nan, leaf.dtype) for name, leaf in metrics.items()}
            return networks, priority, nothing | {"total_loss": jnp.zeros(())}, mesh.sum_over_devices(sums)

        networks = (state.params, state.target_params, state.optimizer_state)
        started = steps_done + self.steps_per_update >= self.learning_starts
        networks, priority, metrics, sums = jax.lax.cond(
            started, learn, wait, networks, batches, replay.priority, episode_sums(record)
        )
        params, target_params, optimizer_state = networks
        metrics |= episode_metrics(sums)
        metrics |= {"epsilon": epsilon, "learning_rate": rate, "shaped_reward_weight": shaped_weight}
        state = ValueState(
            params=params,
            target_params=target_params,
            optimizer_state=optimizer_state,
            rollout=RolloutState(acting=acting, replay=Replay(replay.sequences, priority)),
            key=key,
            update=state.update + 1,
        )
        return state, metrics

    def _draw(self, replay: Replay, key: jax.Array):
        """What the gradient steps of an update read: indices `[G, K]`, and sequences with their weights."""

        def draw(key):
            return sample_replay(
                key,
                replay.priority,
                self.batch_size,
                num_groups=self.env_groups,
                exponent=self.priority_exponent,
                weight_exponent=self.priority_weight_exponent,
            )

        index, weight = jax.vmap(draw)(jax.random.split(key, self.gradient_steps))
        batch_major = take_sequences(replay, index)
        memory = batch_major.memory
        time_major = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 1, 2), batch_major.replace(memory=()))
        return index, (time_major.replace(memory=memory), weight)

    def initial_memory(self, batch_shape: tuple[int, ...] = ()) -> Any:
        return actings.initial_memory(self.network_module, batch_shape)

    def act(
        self, params: Any, timestep: TimeStep, memory: Any, key: jax.Array, greedy: bool = True
    ) -> tuple[jax.Array, Any]:
        uniform = None if greedy else jax.random.uniform(key, (2, *timestep.active.shape))
        return actings.choose(self.network_module, params["agents"], timestep, memory, uniform, self.epsilon_final)
