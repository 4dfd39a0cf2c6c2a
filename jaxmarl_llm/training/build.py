"""Environment and learner of a configuration."""

import importlib
import os
import sys
from typing import Any

from jaxmarl_llm.envs.base import Environment
from jaxmarl_llm.envs.registry import call_factory, environment_factory
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.training.config import TrainConfig, check_config, learner_settings


def _hashable(value: Any) -> Any:
    """Lists, as YAML has them, to tuples: environments are hashable."""
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def import_factory(path: str) -> Any:
    """Imports an environment of the user's own.

    Args:
      path: `package.module:Name`; the working folder is searched too.

    Raises:
      UserError: no such module or name.
    """
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"cannot import environment '{path}': {error}") from None
    if not hasattr(module, attribute):
        names = [name for name in dir(module) if not name.startswith("_")]
        raise unknown_name(f"environment in module {module_name}", attribute, names)
    return getattr(module, attribute)


def build_environment(config: TrainConfig) -> Environment:
    """The raw environment of a configuration.

    Raises:
      UserError: no such environment or setting, or a setting that the environment refuses.
    """
    settings = {name: _hashable(value) for name, value in config.env_args.items()}
    factory = import_factory(config.env) if ":" in config.env else environment_factory(config.env)
    try:
        env = call_factory(config.env, factory, settings)
    except TypeError as error:
        raise UserError(f"environment {config.env} refuses its settings {settings}: {error}") from None
    if not isinstance(env, Environment):
        raise UserError(f"{config.env} makes a {type(env).__name__}, not a jaxmarl_llm.Environment")
    return env


def build_learner(config: TrainConfig):
    """The learner of a configuration, around its environment.

    Raises:
      UserError: a value is out of range, or the values do not fit together.
    """
    check_config(config)
    env = build_environment(config)
    algorithms = importlib.import_module("jaxmarl_llm.algorithms")
    return getattr(algorithms, config.algorithm)(env, **learner_settings(config))
