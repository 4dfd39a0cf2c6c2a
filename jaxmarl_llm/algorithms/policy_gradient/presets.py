"""Named algorithms as settings of the policy-gradient learner."""

from typing import Any

from jaxmarl_llm.algorithms.policy_gradient.credit import BRANCHING, CREDITS
from jaxmarl_llm.algorithms.policy_gradient.learner import PolicyGradient
from jaxmarl_llm.arguments import check_kind
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.errors import UserError, nearest_divisors, unknown_name
from jaxmarl_llm.networks.build import CRITICS, build_actor_critic
from jaxmarl_llm.networks.sharing import sharing_table
from jaxmarl_llm.networks.team import TeamNetwork
from jaxmarl_llm.settings import check_choices, check_counts, check_numbers, split_settings, takes_settings_of

_CRITICS = (*CRITICS, "action")
_TRUST_REGIONS = ("clip", "penalty", "gate", "penalty_and_gate")
_ORDERS = ("simultaneous", "sequential")
# What the choices of critic and credit decide.
_NOT_SETTINGS = ("critic", "action_critic")
_RESAMPLE = ("every", "never", "importance")


def ippo(env: Environment, **settings: Any) -> PolicyGradient:
    """Independent PPO (de Witt et al. 2020): each agent's critic sees its own observation. See `policy_gradient`."""
    return policy_gradient(env, **{"critic": "observation", **settings})


def mappo(env: Environment, **settings: Any) -> PolicyGradient:
    """Multi-agent PPO (Yu et al. 2022): a central critic with normalised targets. See `policy_gradient`."""
    return policy_gradient(env, **{"critic": "global_state", "normalize_value": True, **settings})


def coma(env: Environment, **settings: Any) -> PolicyGradient:
    """COMA (Foerster et al. 2018): a central critic values each agent's own actions. See `policy_gradient`."""
    return policy_gradient(env, **{"critic": "action", "credit": "coma", "gae_lambda": 0.8, **settings})


def happo(env: Environment, **settings: Any) -> PolicyGradient:
    """HAPPO (Kuba et al. 2022): policies in random order, each with the factor of those updated before it.

    See `policy_gradient`.
    """
    return _sequential(env, **{"resample": "importance", **settings})


def hatrpo(env: Environment, **settings: Any) -> PolicyGradient:
    """HATRPO (Kuba et al. 2022): HAPPO by natural gradient steps within a divergence. See `policy_gradient`."""
    return happo(env, **{"trust_region": "gate", **settings})


def teamtr(env: Environment, **settings: Any) -> PolicyGradient:
    """TeamTR (arXiv 2605.15207): policies one after the other, each from a fresh rollout and within a divergence.

    See `policy_gradient`.
    """
    return _sequential(env, **{"resample": "every", "trust_region": "penalty_and_gate", **settings})


def _sequential(env: Environment, **settings: Any) -> PolicyGradient:
    return mappo(env, **{"sharing": "isolated", "update_order": "sequential", **settings})


@takes_settings_of(PolicyGradient, build_actor_critic, without=_NOT_SETTINGS)
def policy_gradient(
    env: Environment,
    *,
    critic: str = "observation",
    sharing: str | tuple[int, ...] = "shared",
    **settings: Any,
) -> PolicyGradient:
    """Builds a learner from its independent choices.

    Args:
      env: the raw environment (no automatic reset).
      critic: what the critic sees: `"observation"` (own), `"global_state"` (central), `"attention"` (what the other
        agents observe, by attention) or `"action"` (central, with a value for each own action). With `credit="coma"`
        the attention is to the others' observations and actions, and there is a value for each own action.
      sharing: `"shared"` (one policy for all), `"isolated"` (one an agent), or a policy index for each agent.
      **settings: fields of `PolicyGradient`, and arguments of `networks.build_actor_critic`, such as
        `network` and `hidden_sizes`; described there.

    Raises:
      UserError: a setting that cannot work, with what to do.
    """
    check_kind("env", env, Environment)
    if critic not in _CRITICS:
        raise unknown_name("critic", critic, _CRITICS)
    network, settings = split_settings(settings, build_actor_critic, without=_NOT_SETTINGS)
    module = build_actor_critic(
        env.observation_space,
        env.action_space.n,
        env.num_agents,
        critic="global_state" if critic == "action" else critic,
        action_critic=critic == "action" or settings.get("credit") == "coma",
        **network,
    )
    table = sharing_table(sharing, env.num_agents)
    learner = PolicyGradient(env=env, network_module=TeamNetwork(module, table), **settings)
    _check_settings(learner)
    _check_together(learner, critic, network.get("network", "mlp"))
    return learner


def _check_settings(learner: PolicyGradient) -> None:
    """Refuses choices and numbers that are wrong by themselves."""
    check_choices(learner, credit=CREDITS, trust_region=_TRUST_REGIONS, update_order=_ORDERS)
    if isinstance(learner.resample, str):
        check_choices(learner, resample=_RESAMPLE)
    else:
        check_counts(learner, "resample")
    check_counts(learner, "num_epochs", "num_minibatches", "counterfactual_replays")
    check_counts(learner, "counterfactual_horizon", at_least=0)
    check_numbers(learner, "gae_lambda", "clip_low")
    check_numbers(learner, "kl_radius", "fisher_damping", above=0.0)
    learner.check()
    num_actions = learner.env.action_space.n
    if not 0 <= learner.default_action < num_actions:
        raise UserError(f"default_action must be one of the {num_actions} actions, got {learner.default_action}")


def _check_together(learner: PolicyGradient, critic: str, network: str) -> None:
    """Refuses choices that do not go together."""
    credit, num_envs, table = learner.credit, learner.num_envs, learner.network_module.policy_of_agent
    if critic != "attention" and (critic == "action") != (credit == "coma"):
        raise UserError(
            'critic="action" and credit="coma" go together (or coma with critic="attention"), '
            f"got critic={critic} and credit={credit}"
        )
    recurrent = learner.network_module.recurrent
    if credit in BRANCHING and recurrent:
        raise UserError(f"credit={credit} plays on from single states: choose a network without memory")
    if credit in BRANCHING and learner.network_module.module.decoder:
        raise UserError(f"credit={credit} changes one agent's action alone, a decoder's next agents follow: choose "
                        "credit=gae or leave_one_out")  # fmt: skip
    if credit == "leave_one_out" and num_envs < 2:
        raise UserError("credit=leave_one_out compares environments: use num_envs of at least 2")
    sequential = learner.update_order == "sequential"
    if network == "coordinator" and learner.by_turns:
        raise UserError("the coordinator's policy and value share layers and agents: use update_order=simultaneous and "
                        "trust_region=clip or penalty")  # fmt: skip
    if sequential and max(table) == 0 and len(table) > 1:
        raise UserError(
            "update_order=sequential updates one policy after the other, but all agents share one: choose "
            "sharing=isolated, or a policy index for each agent"
        )
    rows = num_envs if recurrent else num_envs * learner.rollout_length
    if rows % learner.num_minibatches:
        what = "num_envs" if recurrent else "num_envs x rollout_length"
        raise UserError(
            f"num_minibatches={learner.num_minibatches} does not divide {what} = {rows}: "
            f"choose one of {', '.join(str(d) for d in nearest_divisors(rows, learner.num_minibatches))}"
        )
