"""Named algorithms as settings of the value learner."""

from typing import Any

from jaxmarl_llm.algorithms.value.learner import ValueLearner
from jaxmarl_llm.arguments import check_kind
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.networks.build import build_actor_critic
from jaxmarl_llm.networks.mixers import JointActionValue, QMixer
from jaxmarl_llm.networks.q_network import build_q_network
from jaxmarl_llm.networks.sharing import sharing_table
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.settings import (
    check_choices,
    check_counts,
    check_numbers,
    check_widths,
    split_settings,
    takes_settings_of,
)

MIXERS = ("none", "sum", "monotonic", "weighted")
WEIGHTINGS = ("optimistic", "central")
_BUILDERS = (build_q_network, build_actor_critic)
# What concerns policies and critics.
_NOT_SETTINGS = ("critic", "action_critic", "decoder")


def iql(env: Environment, **settings: Any) -> ValueLearner:
    """Independent Q-learning (Tan 1993): each agent learns from its own reward alone. See `value_learner`."""
    return value_learner(env, mixer="none", **settings)


def vdn(env: Environment, **settings: Any) -> ValueLearner:
    """Value decomposition networks (Sunehag et al. 2018): the team's value is the sum of the agents' values.

    See `value_learner`.
    """
    return value_learner(env, mixer="sum", **settings)


def qmix(env: Environment, **settings: Any) -> ValueLearner:
    """QMIX (Rashid et al. 2018): the team's value grows with each agent's value, in a way that the state chooses.

    See `value_learner`.
    """
    return value_learner(env, mixer="monotonic", **settings)


def weighted_qmix(env: Environment, **settings: Any) -> ValueLearner:
    """Weighted QMIX (Rashid et al. 2020): QMIX that gives joint actions it holds for worse a lower weight.

    Its targets come from an unrestricted value of the joint action, so it can find the best joint action where no
    monotonic value fits the game. See `value_learner`.
    """
    return value_learner(env, mixer="weighted", **settings)


@takes_settings_of(ValueLearner, *_BUILDERS, without=_NOT_SETTINGS)
def value_learner(
    env: Environment,
    *,
    mixer: str = "none",
    sharing: str | tuple[int, ...] = "shared",
    embed_dim: int = 32,
    hypernet_size: int = 64,
    central_hidden_sizes: tuple[int, ...] = (64, 64),
    **settings: Any,
) -> ValueLearner:
    """Builds a learner from its independent choices.

    Args:
      env: the raw environment (no automatic reset).
      mixer: `"none"` (each agent its own value), `"sum"`, `"monotonic"`, or `"weighted"` (monotonic, with a central
        value and weights).
      sharing: `"shared"` (one network for all), `"isolated"` (one an agent), or a policy index for each agent.
      embed_dim, hypernet_size: widths of the monotonic mixer, see `networks.QMixer`.
      central_hidden_sizes: widths of the central value of the weighted mixer.
      **settings: fields of `ValueLearner`, and arguments of `networks.build_q_network` and `build_actor_critic`, such
        as `network` and `hidden_sizes`; described there.

    Raises:
      UserError: a setting that cannot work, with what to do.
    """
    check_kind("env", env, Environment)
    for name, width in {"embed_dim": embed_dim, "hypernet_size": hypernet_size}.items():
        check_widths(name, (width,))
    network, settings = split_settings(settings, *_BUILDERS, without=_NOT_SETTINGS)
    module = build_q_network(env.observation_space, env.action_space.n, env.num_agents, **network)
    monotonic = mixer in ("monotonic", "weighted")
    central = JointActionValue(env.action_space.n, check_widths("central_hidden_sizes", central_hidden_sizes))
    learner = ValueLearner(
        env=env,
        network_module=TeamNetwork(module, sharing_table(sharing, env.num_agents)),
        mixer=mixer,
        mixer_module=QMixer(env.num_agents, embed_dim, hypernet_size) if monotonic else None,
        central_module=central if mixer == "weighted" else None,
        **settings,
    )
    check_choices(learner, mixer=MIXERS, weighting=WEIGHTINGS)
    check_counts(learner, "gradient_steps", "batch_size", "replay_size", "target_update_interval")
    check_numbers(learner, "epsilon", "epsilon_final", "td_lambda", "target_update_rate", "weight_floor")
    check_numbers(learner, "priority_exponent", "priority_weight_exponent")
    learner.check()
    return learner
