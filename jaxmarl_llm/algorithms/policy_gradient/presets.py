"""Named algorithms as settings of the policy-gradient learner."""

from typing import Any

import jax

from jaxmarl_llm.algorithms.policy_gradient.credit import BRANCHING, CREDITS
from jaxmarl_llm.algorithms.policy_gradient.learner import PolicyGradient
from jaxmarl_llm.algorithms.schedules import SCHEDULES
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.networks.build import build_actor_critic
from jaxmarl_llm.networks.team import TeamNetwork

_CRITICS = ("observation", "global_state", "action")
_TRUST_REGIONS = ("clip", "penalty", "gate", "penalty_and_gate")
_ORDERS = ("simultaneous", "sequential")
_RESAMPLE = ("every", "never", "importance")


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


def coma(env: Environment, **settings: Any) -> PolicyGradient:
    """COMA (Foerster et al. 2018): a central critic values each agent's own actions, the others' fixed.

    Args:
      env: the raw environment.
      **settings: see `policy_gradient`.
    """
    settings.setdefault("critic", "action")
    settings.setdefault("credit", "coma")
    settings.setdefault("gae_lambda", 0.8)
    return policy_gradient(env, **settings)


def happo(env: Environment, **settings: Any) -> PolicyGradient:
    """HAPPO (Kuba et al. 2022): policies in random order, each with the factor of those updated before it.

    Args:
      env: the raw environment.
      **settings: see `policy_gradient`.
    """
    settings.setdefault("resample", "importance")
    return _sequential(env, **settings)


def hatrpo(env: Environment, **settings: Any) -> PolicyGradient:
    """HATRPO (Kuba et al. 2022): as HAPPO, each policy by a natural gradient step within a divergence.

    Args:
      env: the raw environment.
      **settings: see `policy_gradient`.
    """
    settings.setdefault("trust_region", "gate")
    return happo(env, **settings)


def teamtr(env: Environment, **settings: Any) -> PolicyGradient:
    """TeamTR (arXiv 2605.15207): policies one after the other, each from a fresh rollout and within a divergence.

    Args:
      env: the raw environment.
      **settings: see `policy_gradient`.
    """
    settings.setdefault("resample", "every")
    settings.setdefault("trust_region", "penalty_and_gate")
    return _sequential(env, **settings)


def _sequential(env: Environment, **settings: Any) -> PolicyGradient:
    settings.setdefault("sharing", "isolated")
    settings.setdefault("update_order", "sequential")
    return mappo(env, **settings)


def policy_gradient(
    env: Environment,
    *,
    critic: str = "observation",
    credit: str = "gae",
    trust_region: str = "clip",
    update_order: str = "simultaneous",
    resample: str | int = "every",
    random_order: bool = True,
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
    kl_radius: float = 0.01,
    penalty_coefficient: float = 1.0,
    fisher_damping: float = 0.1,
    counterfactual_horizon: int = 8,
    counterfactual_replays: int = 1,
    default_action: int = 0,
    role_gradient_rows: int = 128,
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
      critic: what the critic sees: `"observation"` (own), `"global_state"` (central) or `"action"` (central, with a
        value for each own action).
      sharing: `"shared"` (one policy for all), `"isolated"` (one an agent), or a policy index for each agent.
      network, hidden_sizes, activation, gru_size: see `networks.build_actor_critic`.
      agent_id: tell the networks the agent's index (useful with a shared policy).
      entropy_coefficient_final: weight of the entropy bonus at `total_steps`; `None` keeps it constant.

    The other arguments are described at `PolicyGradient`.

    Raises:
      UserError: a setting that cannot work, with what to do.
    """
    choices = {
        "critic": (critic, _CRITICS),
        "credit": (credit, CREDITS),
        "trust_region": (trust_region, _TRUST_REGIONS),
        "update_order": (update_order, _ORDERS),
        "learning_rate_schedule": (learning_rate_schedule, SCHEDULES),
    }
    for name, (choice, known) in choices.items():
        if choice not in known:
            raise unknown_name(name, choice, known)
    if isinstance(resample, str) and resample not in _RESAMPLE:
        raise unknown_name("resample", resample, _RESAMPLE)
    table = _sharing_table(sharing, env.num_agents)
    _check_choices(critic, credit, trust_region, update_order, resample, network, table, num_envs)
    for name, number in {"kl_radius": kl_radius, "fisher_damping": fisher_damping}.items():
        if not isinstance(number, jax.Array) and not number > 0:
            raise UserError(f"{name} must be positive, got {number}")
    if not 0 <= default_action < env.action_space.n:
        raise UserError(f"default_action must be one of the {env.action_space.n} actions, got {default_action}")
    if counterfactual_horizon < 0 or role_gradient_rows < 0 or counterfactual_replays < 1:
        raise UserError(
            "counterfactual_horizon and role_gradient_rows must be at least 0 and counterfactual_replays at least 1, "
            f"got {counterfactual_horizon}, {role_gradient_rows} and {counterfactual_replays}"
        )
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
        central_critic=critic != "observation",
        action_critic=critic == "action",
        agent_id=agent_id,
    )
    return PolicyGradient(
        env=env,
        network_module=TeamNetwork(module, table),
        num_envs=num_envs,
        rollout_length=rollout_length,
        num_epochs=num_epochs,
        num_minibatches=num_minibatches,
        credit=credit,
        trust_region=trust_region,
        update_order=update_order,
        resample=resample,
        random_order=random_order,
        counterfactual_horizon=counterfactual_horizon,
        counterfactual_replays=counterfactual_replays,
        default_action=default_action,
        role_gradient_rows=role_gradient_rows,
        kl_radius=kl_radius,
        penalty_coefficient=penalty_coefficient,
        fisher_damping=fisher_damping,
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


def _check_choices(critic, credit, trust_region, update_order, resample, network, table, num_envs) -> None:
    """Refuses choices that do not go together."""
    if (critic == "action") != (credit == "coma"):
        raise UserError(f'critic="action" and credit="coma" go together, got critic={critic} and credit={credit}')
    if credit in BRANCHING and network == "gru":
        raise UserError(f"credit={credit} plays on from single states, without memory: choose network=mlp or cnn")
    if credit == "leave_one_out" and num_envs < 2:
        raise UserError("credit=leave_one_out compares environments: use num_envs of at least 2")
    if not isinstance(resample, str) and resample < 1:
        raise UserError(f"resample must be every, never, importance or turns a rollout of at least 1, got {resample}")
    if network == "coordinator" and (update_order == "sequential" or trust_region in ("gate", "penalty_and_gate")):
        raise UserError("the coordinator's policy and value share layers and agents: use update_order=simultaneous and "
                        "trust_region=clip or penalty")  # fmt: skip
    if update_order == "sequential" and max(table) == 0 and len(table) > 1:
        raise UserError(
            "update_order=sequential updates one policy after the other, but all agents share one: choose "
            "sharing=isolated, or a policy index for each agent"
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
