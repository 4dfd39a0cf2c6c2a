"""Named algorithms as settings of the value learner."""

from typing import Any

from jaxmarl_llm.algorithms.schedules import SCHEDULES
from jaxmarl_llm.algorithms.value.learner import ValueLearner
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.networks.mixers import JointActionValue, QMixer
from jaxmarl_llm.networks.q_network import build_q_network
from jaxmarl_llm.networks.sharing import sharing_table
from jaxmarl_llm.networks.team import TeamNetwork

MIXERS = ("none", "sum", "monotonic", "weighted")
WEIGHTINGS = ("optimistic", "central")


def iql(env: Environment, **settings: Any) -> ValueLearner:
    """Independent Q-learning (Tan 1993): each agent learns from its own reward, as if the others were scenery.

    Args:
      env: the raw environment.
      **settings: see `value_learner`.
    """
    return value_learner(env, mixer="none", **settings)


def vdn(env: Environment, **settings: Any) -> ValueLearner:
    """Value decomposition networks (Sunehag et al. 2018): the team's value is the sum of the agents' values.

    Args:
      env: the raw environment.
      **settings: see `value_learner`.
    """
    return value_learner(env, mixer="sum", **settings)


def qmix(env: Environment, **settings: Any) -> ValueLearner:
    """QMIX (Rashid et al. 2018): the team's value grows with each agent's value, in a way that the state chooses.

    Args:
      env: the raw environment.
      **settings: see `value_learner`.
    """
    return value_learner(env, mixer="monotonic", **settings)


def weighted_qmix(env: Environment, **settings: Any) -> ValueLearner:
    """Weighted QMIX (Rashid et al. 2020): QMIX that gives joint actions it holds for worse a lower weight.

    Its targets come from an unrestricted value of the joint action, so it can find the best joint action where no
    monotonic value fits the game.

    Args:
      env: the raw environment.
      **settings: see `value_learner`.
    """
    return value_learner(env, mixer="weighted", **settings)


def value_learner(
    env: Environment,
    *,
    mixer: str = "none",
    sharing: str | tuple[int, ...] = "shared",
    network: str = "mlp",
    hidden_sizes: tuple[int, ...] = (64, 64),
    activation: str = "tanh",
    gru_size: int = 64,
    agent_id: bool = False,
    last_action: bool = False,
    embed_dim: int = 32,
    hypernet_size: int = 64,
    central_hidden_sizes: tuple[int, ...] = (64, 64),
    weighting: str = "central",
    weight_floor: float = 0.1,
    num_envs: int = 16,
    rollout_length: int = 128,
    gradient_steps: int = 8,
    batch_size: int = 32,
    replay_size: int = 100_000,
    learning_starts: float = 0.0,
    target_update_interval: int = 200,
    target_update_rate: float = 1.0,
    double_q: bool = True,
    td_lambda: float = 0.0,
    epsilon: float = 1.0,
    epsilon_final: float = 0.05,
    epsilon_steps: float = 50_000.0,
    priority_exponent: float = 0.0,
    priority_weight_exponent: float = 0.4,
    learning_rate: float = 2.5e-4,
    learning_rate_schedule: str = "linear",
    adam_epsilon: float = 1e-5,
    max_grad_norm: float = 0.5,
    discount: float = 0.99,
    shaped_reward_coefficient: float = 1.0,
    shaped_reward_horizon: float = 0.0,
    total_steps: float = 1e6,
) -> ValueLearner:
    """Builds a learner from its independent choices.

    Args:
      env: the raw environment (no automatic reset).
      mixer: `"none"` (each agent its own value), `"sum"`, `"monotonic"`, or `"weighted"` (monotonic, with a central
        value and weights).
      sharing: `"shared"` (one network for all), `"isolated"` (one an agent), or a policy index for each agent.
      network, hidden_sizes, activation, gru_size: see `networks.build_actor_critic`.
      agent_id: tell the networks the agent's index (useful with shared networks).
      last_action: tell the networks the agent's last action.
      embed_dim, hypernet_size: widths of the monotonic mixer, see `networks.QMixer`.
      central_hidden_sizes: widths of the central value of the weighted mixer.
      weighting: of the weighted mixer: `"optimistic"` gives full weight where the target is above the monotonic value;
        `"central"` where the joint action is the best one, or its target above the central value of that.
      weight_floor: the other weights, above 0 and at most 1.
      replay_size: time steps kept over all environments, rounded to whole rollouts, at least one.

    The other arguments are described at `ValueLearner`.

    Raises:
      UserError: a setting that cannot work, with what to do.
    """
    for name, value, choices in (
        ("mixer", mixer, MIXERS),
        ("weighting", weighting, WEIGHTINGS),
        ("learning_rate_schedule", learning_rate_schedule, SCHEDULES),
    ):
        if value not in choices:
            raise unknown_name(name, value, choices)
    counts = {
        "num_envs": num_envs,
        "rollout_length": rollout_length,
        "gradient_steps": gradient_steps,
        "batch_size": batch_size,
        "replay_size": replay_size,
        "target_update_interval": target_update_interval,
        "embed_dim": embed_dim,
        "hypernet_size": hypernet_size,
    }
    for name, count in counts.items():
        if count < 1 or int(count) != count:
            raise UserError(f"{name} must be a whole number of at least 1, got {count}")
    shares = {
        "epsilon": epsilon,
        "epsilon_final": epsilon_final,
        "td_lambda": td_lambda,
        "discount": discount,
        "target_update_rate": target_update_rate,
        "weight_floor": weight_floor,
    }
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise UserError(f"{name} must lie between 0 and 1, got {share}")
    module = build_q_network(
        env.observation_space,
        env.action_space.n,
        env.num_agents,
        network=network,
        hidden_sizes=hidden_sizes,
        activation=activation,
        gru_size=gru_size,
        agent_id=agent_id,
        last_action=last_action,
    )
    monotonic = mixer in ("monotonic", "weighted")
    central = JointActionValue(env.action_space.n, tuple(central_hidden_sizes))
    return ValueLearner(
        env=env,
        network_module=TeamNetwork(module, sharing_table(sharing, env.num_agents)),
        mixer=mixer,
        mixer_module=QMixer(env.num_agents, embed_dim, hypernet_size) if monotonic else None,
        central_module=central if mixer == "weighted" else None,
        weighting=weighting,
        num_envs=num_envs,
        rollout_length=rollout_length,
        gradient_steps=int(gradient_steps),
        batch_size=int(batch_size),
        replay_capacity=max(1, round(replay_size / (num_envs * rollout_length))),
        target_update_interval=int(target_update_interval),
        double_q=double_q,
        learning_rate_schedule=learning_rate_schedule,
        learning_rate=learning_rate,
        adam_epsilon=adam_epsilon,
        max_grad_norm=max_grad_norm,
        discount=discount,
        td_lambda=td_lambda,
        target_update_rate=target_update_rate,
        weight_floor=weight_floor,
        epsilon=epsilon,
        epsilon_final=epsilon_final,
        epsilon_steps=epsilon_steps,
        priority_exponent=priority_exponent,
        priority_weight_exponent=priority_weight_exponent,
        learning_starts=learning_starts,
        shaped_reward_coefficient=shaped_reward_coefficient,
        shaped_reward_horizon=shaped_reward_horizon,
        total_steps=total_steps,
    )
