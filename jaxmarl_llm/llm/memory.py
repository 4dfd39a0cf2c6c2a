"""How much memory generation and gradients take, estimated before anything is allocated."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.adapters import without_adapters
from jaxmarl_llm.llm.config import DecoderConfig, num_trained_layers
from jaxmarl_llm.llm.devices import replicated_like
from jaxmarl_llm.llm.distribution import MANY_TOKENS
from jaxmarl_llm.llm.unstacking import unstacks
from jaxmarl_llm.llm.vocabulary import BLOCK
from jaxmarl_llm.machine import machine_memory

# Copies of the logits, in float32, that a gradient makes: of all tokens, or of those that limits leave.
_LOGIT_COPIES, _LIMITED_COPIES = 6, 9
# An unstacked body is kept between calls where it takes at most this part of the memory.
_KEPT_PART = 1 / 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes at the peak, by what they are for.

    Attributes:
      weights: parameters without adapters, and what of them is copied.
      cache: keys and values.
      logits: of a step, or of the completions for a gradient.
      activations: of the prompts, or what a gradient keeps of each layer.
      adapters: in float32, and while they are trained what belongs to them.
    """

    weights: int
    cache: int
    logits: int
    activations: int
    adapters: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))


def generation_memory(
    config: DecoderConfig,
    prompts: int,
    prompt_length: int,
    new_tokens: int,
    *,
    group: int = 1,
    kept: int = 0,
    platform: str | None = None,
) -> MemoryEstimate:
    """What `generate` takes, over its prompts or in its loop, whichever is more.

    Args:
      config: of the decoder.
      prompts: Q.
      prompt_length: L, padding included.
      new_tokens: M.
      group: G, completions of each prompt.
      kept: bytes of the body that `unstack` gave, where it is used and the body is kept too.
      platform: of the devices, such as `"cpu"` or `"gpu"`; the present ones' by default.

    Returns:
      Bytes of one device that has all parameters.
    """
    on_cpu = (platform or jax.default_backend()) == "cpu"
    rows, tokens = prompts * group, prompts * prompt_length
    weights, adapters = _parameter_bytes(config)
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * _size(config.dtype)
    scores = 8 * prompts * config.num_heads * prompt_length**2
    vector = tokens * _size(config.dtype)
    prompt = MemoryEstimate(
        weights=weights + kept,
        cache=slot * tokens,
        logits=0,
        activations=vector * 2 * config.hidden_size
        + max(vector * 3 * config.intermediate_size, vector * 2 * config.hidden_size + scores),
        adapters=adapters,
    )
    # With stacked layers on a CPU, each layer's kernels are copied out of the stack, see `unstack`.
    copied = _unstacked_bytes(config, rows) + _layer_bytes(config) if config.scan_layers and on_cpu else 0
    loop = MemoryEstimate(
        weights=weights + (kept or copied),
        cache=slot * (tokens + rows * (new_tokens + prompt_length * (group == 1))),
        logits=3 * 4 * rows * config.vocab_size,
        activations=0,
        adapters=adapters,
    )
    return max(prompt, loop, key=lambda estimate: estimate.total)


def gradient_memory(
    config: DecoderConfig,
    batch: int,
    prompt_length: int,
    new_tokens: int,
    *,
    copies: int = 1,
    trained_layers: int = 0,
    limited: bool = False,
    candidates: int = 0,
    kept: int = 0,
    platform: str | None = None,
) -> MemoryEstimate:
    """What the gradient in one adapter takes, the body being frozen.

    It is most either where the logits are, or in the backward pass of the last layer, while all others are kept. With
    `num_adapters` the adapters of all policies are there, with two moments and a gradient each.

    Args:
      config: of the decoder.
      batch: B.
      prompt_length: L, padding included.
      new_tokens: M.
      copies: C, completions packed behind each prompt.
      trained_layers: the last ones, which have adapters; 0 for all.
      limited: `top_k`, `top_p` or `allowed` say what may be drawn: logits of all tokens are then made, else those of a
        large vocabulary in blocks.
      candidates: K, the most tokens that any of them may be where `score_among` is told which; 0 where it is not.
      kept: bytes that others keep meanwhile, such as a sampler, see `kept_bytes`.
      platform: as for `generation_memory`.

    Returns:
      Bytes of one device that has all parameters.

    Raises:
      UserError: more trained layers than there are.
    """
    on_cpu = (platform or jax.default_backend()) == "cpu"
    length = prompt_length + copies * (new_tokens - 1)
    tokens, scored = batch * length, batch * copies * new_tokens
    trained = num_trained_layers(config, trained_layers)
    weights, adapters = _parameter_bytes(config)
    # XLA's CPU compiler turns what is in bfloat16 into float32.
    size = 4 if on_cpu else _size(config.dtype)
    weights *= 1 + 2 * (on_cpu and config.param_dtype == "bfloat16")
    weights += 2 * _layer_bytes(config) + (trained < config.num_layers) * trained * _layer_bytes(config)
    heads = (config.num_heads + config.num_kv_heads) * config.head_dim
    # Stacked layers keep less of each, and compute the rest again for one layer at a time.
    stored = size * (2 * config.intermediate_size + 2 * config.hidden_size + 2 * heads)
    once = size * 4 * config.intermediate_size + 16 * config.num_heads * length
    stack = tokens * trained * (stored if config.scan_layers else stored + once)
    copied = _LIMITED_COPIES if limited else _LOGIT_COPIES
    in_blocks = not limited and config.vocab_size >= MANY_TOKENS
    of_token = 4 * (4 * BLOCK if in_blocks else copied * config.vocab_size)
    if candidates:
        # Each token's candidates are rows of the table, which the backward pass reads again.
        of_token = candidates * (size * config.hidden_size + 4 * _LIMITED_COPIES)
    parts = {"weights": weights + kept, "cache": 0, "adapters": 4 * adapters}
    output = MemoryEstimate(
        **parts,
        logits=scored * of_token,
        activations=stack,
    )
    layer = MemoryEstimate(**parts, logits=0, activations=stack + config.scan_layers * tokens * once)
    return max(output, layer, key=lambda estimate: estimate.total)


def check_fits(estimate: MemoryEstimate, what: str, *, shards: float = 1) -> None:
    """Refuses what does not fit into the memory of this machine, or of one of its devices.

    Args:
      estimate: for one device that has all parameters.
      what: names the work.
      shards: by how much less of the parameters a device holds, see `num_shards`. What is computed from them is taken
        to be on every device.

    Raises:
      UserError: what takes how much, and how much there is.
    """
    there = available_memory()
    estimate = dataclasses.replace(estimate, weights=int(estimate.weights / shards))
    if estimate.total > there:
        parts = ", ".join(f"{name} {part / 1e9:,.1f}" for name, part in dataclasses.asdict(estimate).items() if part)
        raise UserError(
            f"{what} takes about {estimate.total / 1e9:,.1f} GB ({parts}), and there are {there / 1e9:,.1f}: choose "
            "fewer or shorter sequences, or a smaller model"
        )


def kept_bytes(config: DecoderConfig, body: Any, rows: int) -> int:
    """How much a sampler keeps of the body that `unstack` gives it; 0 where it does not.

    Args:
      config: of the decoder.
      body: its parameters; what several devices share is not kept.
      rows: B, of a step.
    """
    taken = _unstacked_bytes(config, rows)
    fits = taken <= _KEPT_PART * available_memory()
    return taken if fits and unstacks(config) and replicated_like(body) is None else 0


def available_memory() -> float:
    """Bytes of memory of one device; infinite where it is not known.

    For a CPU it is the device's part of the machine's memory, or of what its container may take of it.
    """
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return machine_memory() / jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit", math.inf)


def _size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _parameter_bytes(config: DecoderConfig) -> tuple[int, int]:
    """Of the body in its dtype, and of all adapters and value heads in float32."""
    body = without_adapters(config).num_parameters
    return body * _size(config.param_dtype), 4 * (config.num_parameters - body)


def _unstacked_bytes(config: DecoderConfig, rows: int) -> int:
    """Of what `unstack` copies."""
    output = (
        config.vocab_size * config.hidden_size * _size(config.param_dtype) * ((rows == 1) == config.tied_embeddings)
    )
    return config.num_layers * _layer_bytes(config) + output


def _layer_bytes(config: DecoderConfig) -> int:
    """Of one layer's kernels."""
    attention = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    return config.hidden_size * (attention + 3 * config.intermediate_size) * _size(config.param_dtype)
