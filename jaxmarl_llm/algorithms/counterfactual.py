"""Exact counterfactual returns: an environment is a pure function, so a state can be branched and played on.

Axes: N agents, A actions, K branches, M replays.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from jaxmarl_llm.errors import unknown_name

RETURNS_OF = ("team", "own")


@struct.dataclass
class Replays:
    """What branches of one state earned.

    Attributes:
      returns: `[M, K, N]` float32, each agent's discounted return, the bootstrap value included.
      steps: `[]` int32, environment steps taken by all branches and replays until their episodes ended.
    """

    returns: jax.Array
    steps: jax.Array


@struct.dataclass
class _Branch:
    """Where one branch of one replay stands.

    `alive` `[N]` is false from an agent's termination on; `running` is false from the episode's end on, and the time
    step and the state then stay what they were at the end.
    """

    timestep: Any
    state: Any
    memory: Any
    returns: jax.Array
    weight: jax.Array
    alive: jax.Array
    running: jax.Array
    steps: jax.Array


def replay(
    env: Any,
    policy: Callable,
    key: jax.Array,
    timestep: Any,
    state: Any,
    actions: jax.Array,
    *,
    horizon: int,
    discount=0.99,
    num_replays: int = 1,
    memory: Any = None,
    alive: jax.Array | None = None,
    reward: Callable | None = None,
    bootstrap: Callable | None = None,
) -> Replays:
    """Branches a state, takes another joint action in each branch, and lets the team play on.

    All branches of a replay share their random numbers, so that their differences carry less noise (common random
    numbers). A branch ends with its episode. Works on one state: `jax.vmap` it for a batch.

    Args:
      env: a raw environment, with `step(key, state, action) -> (timestep, state)`.
      policy: `policy(timestep, key) -> action [N]`; with `memory`, `policy(timestep, memory, key) -> (action, memory)`.
      key: consumed.
      timestep: what the agents see in the state.
      state: the state, of a running episode.
      actions: `[K, N]` int, the joint actions to try, legal.
      horizon: k, steps that the policy plays on after the joint action; `env.max_steps - 1` is always to the end.
      discount: discount factor.
      num_replays: M.
      memory: the policy's memory after it has seen this time step; `None` for a policy without.
      alive: `[N]` bool, agents whose episode goes on; `~timestep.terminated` by default. Give it for the time steps of
        an automatic reset, whose flags belong to the episode before.
      reward: from a time step to `[N]` float, what is summed; `timestep.reward` by default.
      bootstrap: `bootstrap(timestep, state) -> [N]` (with `memory` as a third argument where there is one), the value
        of what follows where the horizon or the time limit cuts a branch off; 0 by default. Terminated agents get none.

    Returns:
      `Replays`.

    Raises:
      ValueError: a negative horizon, or no replay.
    """
    if horizon < 0 or num_replays < 1:
        raise ValueError(f"horizon must be at least 0 and num_replays at least 1, got {horizon=} and {num_replays=}")

    def each(function):
        """Over replays and branches; the key is the replay's alone."""
        return jax.vmap(jax.vmap(function, in_axes=(None, 0)))

    def step(key, inputs):
        branch, action = inputs
        timestep, state = env.step(key, branch.state, action)
        gain = timestep.reward if reward is None else reward(timestep)
        counts = branch.running & branch.alive
        after = branch.replace(
            timestep=timestep,
            state=state,
            returns=branch.returns + jnp.where(counts, branch.weight * gain, 0.0),
            weight=branch.weight * discount,
            alive=branch.alive & ~timestep.terminated,
            running=branch.running & ~timestep.done,
            steps=branch.steps + 1,
        )
        return jax.tree.map(lambda new, old: jnp.where(branch.running, new, old), after, branch)

    def play(key, branch):
        key_action, key_step = jax.random.split(key)
        if memory is None:
            action, new_memory = policy(branch.timestep, key_action), None
        else:
            action, new_memory = policy(branch.timestep, branch.memory, key_action)
        return step(key_step, (branch.replace(memory=new_memory), action))

    keys = jax.random.split(key, num_replays)
    going = ~timestep.terminated if alive is None else alive
    start = _Branch(
        timestep=timestep,
        state=state,
        memory=memory,
        returns=jnp.zeros(going.shape),
        weight=jnp.ones(()),
        alive=going,
        running=jnp.any(going),
        steps=jnp.zeros((), jnp.int32),
    )
    num_branches = actions.shape[0]
    branches = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_replays, num_branches, *leaf.shape)), start)
    actions = jnp.broadcast_to(actions, (num_replays, *actions.shape))
    branches = each(step)(jax.vmap(lambda key: jax.random.fold_in(key, 0))(keys), (branches, actions))

    def going_on(carry):
        time, branches = carry
        return (time <= horizon) & jnp.any(branches.running)

    def play_on(carry):
        time, branches = carry
        return time + 1, each(play)(jax.vmap(lambda key: jax.random.fold_in(key, time))(keys), branches)

    if horizon > 0:
        branches = jax.lax.while_loop(going_on, play_on, (jnp.ones((), jnp.int32), branches))[1]
    returns = branches.returns
    if bootstrap is not None:
        after = (branches.timestep, branches.state) + (() if memory is None else (branches.memory,))
        value = jax.vmap(jax.vmap(bootstrap))(*after)
        returns = returns + jnp.where(branches.alive, branches.weight[..., None] * value, 0.0)
    return Replays(returns=returns, steps=jnp.sum(branches.steps))


def alternative_actions(timestep: Any, action: jax.Array, *, alive: jax.Array | None = None) -> jax.Array:
    """Joint actions in which one agent does something else.

    Args:
      timestep: of the decision.
      action: `[N]` int, the joint action that was taken.
      alive: as in `replay`.

    Returns:
      `[N, A, N]` int32: entry `[i, u]` is `action` with agent i's own replaced by u, or as it was where u is illegal or
      the agent is not asked to act.
    """
    going = ~timestep.terminated if alive is None else alive
    legal = timestep.action_mask & (timestep.active & going)[:, None]
    num_agents, num_actions = legal.shape
    own = jnp.where(legal, jnp.arange(num_actions)[None, :], action[:, None])
    same = jnp.broadcast_to(action, (num_agents, num_actions, num_agents))
    agent = jnp.eye(num_agents, dtype=bool)[:, None, :]
    return jnp.where(agent, own[:, :, None], same).astype(jnp.int32)


def counterfactual_returns(
    env: Any,
    policy: Callable,
    key: jax.Array,
    timestep: Any,
    state: Any,
    action: jax.Array,
    *,
    of: str = "team",
    **settings: Any,
) -> jax.Array:
    """What would have been earned had one agent done something else: action values without a critic.

    `counterfactual_advantage` of them is COMA's (Foerster et al. 2018) with the exact value in the critic's place. The
    mean over replays is exact where environment and policy are deterministic, and unbiased elsewhere. Works on one
    state: `jax.vmap` it for a batch.

    Args:
      env, policy, key, timestep, state: as in `replay`.
      action: `[N]` int, the joint action that was taken.
      of: `"team"`, the mean over agents of their returns (the shared return where rewards are shared), or `"own"`, the
        return of the agent whose action is replaced.
      **settings: of `replay`: `horizon`, `discount`, `num_replays`, `memory`, `alive`, `reward`, `bootstrap`.

    Returns:
      `[N, A]` float32; entries of illegal actions, and all of an agent that is not asked to act, hold the return of
      `action` itself.

    Raises:
      ValueError: unknown `of`, a negative horizon, or no replay.
    """
    if of not in RETURNS_OF:
        raise unknown_name("return", of, RETURNS_OF)
    joint = alternative_actions(timestep, action, alive=settings.get("alive"))
    num_agents, num_actions, _ = joint.shape
    replays = replay(env, policy, key, timestep, state, joint.reshape(-1, num_agents), **settings)
    returns = jnp.mean(replays.returns, axis=0).reshape(num_agents, num_actions, num_agents)
    return returns.mean(-1) if of == "team" else jnp.diagonal(returns, axis1=0, axis2=2).T
