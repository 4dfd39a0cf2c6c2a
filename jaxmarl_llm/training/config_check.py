"""What no run's configuration can have. Imports no JAX, so that help is instant."""

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.limits import LARGEST, LARGEST_FLOAT
from jaxmarl_llm.training.config import FIELDS, TrainConfig

_MINIMUM = {
    **dict.fromkeys(
        ("total_steps", "num_seeds", "num_envs", "rollout_length", "num_epochs", "num_minibatches", "gru_size"), 1
    ),
    **dict.fromkeys(("eval_episodes", "keep_checkpoints"), 1),
    **dict.fromkeys(("eval_every", "checkpoint_every"), -1),
    **dict.fromkeys(("seed", "num_devices", "log_every", "shaped_reward_horizon", "value_coefficient"), 0),
    "entropy_coefficient": 0,
}
# Steps are counted on the host, all other whole numbers are int32 on a device.
_STEPS = ("total_steps", "eval_every", "log_every", "checkpoint_every")
_LARGEST_STEPS = 10**15


def check_config(config: TrainConfig) -> None:
    """Refuses values that no run can have; what depends on the environment is checked when it is built.

    Raises:
      UserError: says which field, and what it takes.
    """
    for name, minimum in _MINIMUM.items():
        value = getattr(config, name)
        if not value >= minimum:
            raise UserError(f"{name} must be at least {minimum}, got {value}")
    for name in FIELDS:
        value = getattr(config, name)
        largest = _LARGEST_STEPS if name in _STEPS else LARGEST
        numbers = value if isinstance(value, tuple) else (value,)
        if any(type(number) is int and number > largest for number in numbers):
            raise UserError(f"{name} must be at most {largest}, got {value}")
        if isinstance(value, float) and not abs(value) <= LARGEST_FLOAT:
            raise UserError(f"{name} must be finite in 32 bits, got {value}")
    for name in ("discount", "gae_lambda"):
        if not 0 <= getattr(config, name) <= 1:
            raise UserError(f"{name} must lie between 0 and 1, got {getattr(config, name)}")
    for name in ("learning_rate", "adam_epsilon", "max_grad_norm", "clip_low", "clip_high"):
        if not getattr(config, name) > 0:
            raise UserError(f"{name} must be positive, got {getattr(config, name)}")
    if config.clip_low > 1:
        raise UserError(f"clip_low must be at most 1, or ratios below 0 would be allowed, got {config.clip_low}")
    if config.num_envs * config.rollout_length > LARGEST:
        raise UserError(
            f"num_envs times rollout_length must be at most {LARGEST}, got {config.num_envs * config.rollout_length}"
        )
    if any(size < 1 for size in config.hidden_sizes):
        raise UserError(f"hidden_sizes must be positive, got {config.hidden_sizes}")
    if config.seed + config.num_seeds > 2**31:
        raise UserError(f"seeds must stay below 2**31, got seed {config.seed}")
