"""Named algorithms as settings of the policy-gradient learner."""

from typing import Any

from jaxmarl_llm.algorithms.policy_gradient.learner import PolicyGradient
from jaxmarl_llm.algorithms.schedules import SCHEDULES
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.networks.build import build_actor_critic
from jaxmarl_llm.networks.team import TeamNetwork


def ippo(env: Environment, **settings: Any) -> PolicyGradient:
    """Independent PPO (de Witt et al. 2020): each agent's critic sees that agent's own observation.

    Args:
      env: the raw environment.
      **settings: see `policy_gradient`.
    """
    settings.setdefault("critic", "observation")
    return policy_gradient(env, **settings)


def mappo(env: Environment, **settings: Any) -> PolicyGradient:
    """Multi-agent PPO (Yu et al. 2022): a central critic sees the global state; its targets are normalised.

    Args:
      env: the raw environment.
      **settings: see `policy_gradient`.
    """
    settings.setdefault("critic", "global_state")
    settings.setdefault("normalize_value", True)
    return policy_gradient(env, **settings)


def policy_gradient(
    env: Environment,
    *,
    critic: str = "observation",
    sharing: str | tuple[int, ...] = "shared",
    network: str = "mlp",
    hidden_sizes: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    gru_size: int = 64,
    agent_id: bool = False,
    num_envs: int = 16,
    rollout_length: int = 128,
    num_epochs: int = 4,
    num_minibatches: int = 4,
    learning_rate: float = 2.5e-4,
    learning_rate_schedule: str = "linear",
    adam_epsilon: float = 1e-5,
    max_grad_norm: float = 0.5,
    discount: float = 0.99,
    gae_lambda: float = 0.95,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    value_clip: float = 0.2,
    value_coefficient: float = 0.5,
    entropy_coefficient: float = 0.01,
    entropy_coefficient_final: float | None = None,
    normalize_advantage: bool = True,
    normalize_value: bool = False,
    shaped_reward_coefficient: float = 1.0,
    shaped_reward_horizon: float = 0.0,
    total_steps: float = 1e6,
) -> PolicyGradient:
    """Builds a learner from its independent choices.

    Args:
      env: the raw environment (no automatic reset).
      critic: what the critic sees: `"observation"` (own) or `"global_state"` (central).
      sharing: `"shared"` (one policy for all), `"isolated"` (one an agent), or a policy index for each agent.
      network, hidden_sizes, activation, gru_size: see `networks.build_actor_critic`.
      agent_id: tell the networks the agent's index (useful with a shared policy).
      entropy_coefficient_final: weight of the entropy bonus at `total_steps`; `None` keeps it constant.

    The other arguments are described at `PolicyGradient`.

    Raises:
      UserError: a setting that cannot work, with what to do.
    """
    if critic not in ("observation", "global_state"):
        raise unknown_name("critic", critic, ("observation", "global_state"))
    if learning_rate_schedule not in SCHEDULES:
        raise unknown_name("learning_rate_schedule", learning_rate_schedule, SCHEDULES)
    for name, count in {
        "num_envs": num_envs,
        "rollout_length": rollout_length,
        "num_epochs": num_epochs,
        "num_minibatches": num_minibatches,
    }.items():
        if count < 1:
            raise UserError(f"{name} must be at least 1, got {count}")
    rows = num_envs if network == "gru" else num_envs * rollout_length
    if rows % num_minibatches:
        what = "num_envs" if network == "gru" else "num_envs x rollout_length"
        raise UserError(
            f"num_minibatches={num_minibatches} does not divide {what} = {rows}: "
            f"choose one of {', '.join(str(d) for d in _nearest_divisors(rows, num_minibatches))}"
        )
    module = build_actor_critic(
        env.observation_space,
        env.action_space.n,
        env.num_agents,
        network=network,
        hidden_sizes=hidden_sizes,
        activation=activation,
        gru_size=gru_size,
        central_critic=critic == "global_state",
        agent_id=agent_id,
    )
    return PolicyGradient(
        env=env,
        network_module=TeamNetwork(module, _sharing_table(sharing, env.num_agents)),
        num_envs=num_envs,
        rollout_length=rollout_length,
        num_epochs=num_epochs,
        num_minibatches=num_minibatches,
        learning_rate_schedule=learning_rate_schedule,
        normalize_advantage=normalize_advantage,
        normalize_value=normalize_value,
        learning_rate=learning_rate,
        adam_epsilon=adam_epsilon,
        max_grad_norm=max_grad_norm,
        discount=discount,
        gae_lambda=gae_lambda,
        clip_low=clip_low,
        clip_high=clip_high,
        value_clip=value_clip,
        value_coefficient=value_coefficient,
        entropy_coefficient=entropy_coefficient,
        entropy_coefficient_final=entropy_coefficient
        if entropy_coefficient_final is None
        else entropy_coefficient_final,
        shaped_reward_coefficient=shaped_reward_coefficient,
        shaped_reward_horizon=shaped_reward_horizon,
        total_steps=total_steps,
    )


def _nearest_divisors(number: int, wanted: int) -> list[int]:
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    return sorted(sorted(divisors, key=lambda d: abs(d - wanted))[:3])


def _sharing_table(sharing: str | tuple[int, ...], num_agents: int) -> tuple[int, ...]:
    if sharing == "shared":
        return (0,) * num_agents
    if sharing == "isolated":
        return tuple(range(num_agents))
    if isinstance(sharing, str):
        raise unknown_name("sharing", sharing, ("shared", "isolated"))
    table = tuple(int(policy) for policy in sharing)
    if len(table) != num_agents or set(table) != set(range(max(table, default=-1) + 1)):
        raise UserError(
            f"sharing={list(table)} must give each of the {num_agents} agents a policy index, "
            "and the indices must be 0, 1, ... without a gap"
        )
    return table
