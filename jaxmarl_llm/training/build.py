"""Environment and learner of a configuration."""

import functools
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

from jaxmarl_llm import user_code
from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.envs.registry import environment_factory
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.registry import call_factory
from jaxmarl_llm.training.config import FIELDS, TrainConfig, learner_settings
from jaxmarl_llm.training.config_check import check_config

_VALUE_FAMILY = ("iql", "vdn", "qmix", "weighted_qmix")
# What the environment and the name of the algorithm decide.
_FIXED = ("env", "mixer")
# Of the settings of the value family, those of some mixers alone.
_ONLY_OF = {
    **dict.fromkeys(("embed_dim", "hypernet_size"), ("qmix", "weighted_qmix")),
    **dict.fromkeys(("central_hidden_sizes", "weighting", "weight_floor"), ("weighted_qmix",)),
}


def _hashable(value: Any) -> Any:
    """Lists, as YAML has them, to tuples: environments are hashable."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def build_environment(config: TrainConfig) -> Environment:
    """The raw environment of a configuration; of one by import path, its first reset is checked too.

    Raises:
      UserError: no such environment or setting, a setting that the environment refuses, or an environment that breaks
        the contract.
    """
    settings = {name: _hashable(value) for name, value in config.env_args.items()}
    try:
        env = call_factory(config.env, environment_factory(config.env), settings)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        line = f"environment {config.env} refuses its settings {settings}: {user_code.describe(error)}"
        raise UserError(user_code.with_advice(line)) from error
    if not isinstance(env, Environment):
        raise UserError(f"{config.env} makes a {type(env).__name__}, not a jaxmarl_llm.Environment")
    if ":" in config.env:
        _check_environment(config.env, env)
    return env


def _check_environment(name: str, env: Environment) -> None:
    from jaxmarl_llm.envs.checks import EnvCheckError, check_beginning

    try:
        check_beginning(env)
    except UserError:
        raise
    except EnvCheckError as error:
        line = f"environment {name} breaks the contract: {error}"
        raise UserError(user_code.with_advice(line) if error.__cause__ else line) from error
    except (Exception, SystemExit) as error:
        raise UserError(user_code.with_advice(f"environment {name} fails: {user_code.describe(error)}")) from error


def _family(algorithm: str) -> Any:
    """The function that an algorithm is settings of."""
    name = "value_learner" if algorithm in _VALUE_FAMILY else "policy_gradient"
    return getattr(importlib.import_module("jaxmarl_llm.algorithms"), name)


def build_learner(config: TrainConfig) -> Any:
    """The learner of a configuration, around its environment.

    Raises:
      UserError: a value is out of range, or the values do not fit together.
    """
    check_config(config)
    env = build_environment(config)
    algorithms = importlib.import_module("jaxmarl_llm.algorithms")
    family = _family(config.algorithm)
    parameters = inspect.signature(family).parameters
    own = _own_settings(config, parameters)
    given = {name: _hashable(value) for name, value in config.algorithm_args.items()}
    for name in given:
        if name in FIELDS:
            raise UserError(f"{name} is an option of its own: give it as --{name.replace('_', '-')} instead")
        if name not in parameters or name in _FIXED:
            raise unknown_name(f"setting of {config.algorithm}", name, set(parameters) - set(FIELDS) - set(_FIXED))
        users = _ONLY_OF.get(name, (config.algorithm,))
        if config.algorithm not in users:
            raise UserError(f"{name} is a setting of {' and '.join(users)}, {config.algorithm} has no use for it: "
                            "leave it out")  # fmt: skip

    # The names and types of the settings are the family's.
    @functools.wraps(family)
    def factory(env, **settings):
        return getattr(algorithms, config.algorithm)(env, **settings)

    return call_factory(config.algorithm, factory, {"env": env, **own, **given})


def _own_settings(config: TrainConfig, parameters: Iterable[str]) -> dict[str, Any]:
    """The configuration's fields that the algorithm takes.

    Raises:
      UserError: a field that it does not take was changed.
    """
    settings = learner_settings(config)
    for name, value in learner_settings(TrainConfig()).items():
        if name not in parameters and settings.pop(name) != value:
            raise UserError(f"{name} is no setting of {config.algorithm}: leave it out")
    if "normalize_value" in settings and "normalize_value" not in parameters:
        raise UserError(f"normalize_value is no setting of {config.algorithm}: leave it out")
    return settings


def algorithm_settings(config: TrainConfig) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """What `algorithm_args` may hold, as it is in a configuration.

    Returns:
      `(values, sources)`: name to value, and what describes the names in its docstring.

    Raises:
      UserError: as `build_learner`.
    """
    from jaxmarl_llm.networks import build, coordinator, q_network

    learner = build_learner(config)
    module = learner.network_module.module
    family = _family(config.algorithm)
    values = {}
    for name, parameter in inspect.signature(family).parameters.items():
        if name in FIELDS or name in _FIXED or config.algorithm not in _ONLY_OF.get(name, (config.algorithm,)):
            continue
        value = getattr(learner, name, getattr(module, name, parameter.default))
        values[name] = config.algorithm_args.get(name, value)
    if getattr(module, "action_critic", False) and values["critic"] != "attention":
        values["critic"] = "action"
    sources = (*type(learner).__mro__, family, coordinator.Coordinator, q_network.QNetwork, build.build_actor_critic)
    return values, sources
