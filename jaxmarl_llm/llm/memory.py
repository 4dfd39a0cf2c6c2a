"""How much memory generation and gradients take, estimated before anything is allocated."""

import dataclasses
import math
import os

import jax
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.config import DecoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes at the peak, by what they are for.

    Attributes:
      weights: parameters, and what of them is copied.
      cache: keys and values.
      logits: of a step, or of all completions for a gradient.
      activations: of the prompts, or what a gradient keeps of each layer.
    """

    weights: int
    cache: int
    logits: int
    activations: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(dataclasses.astuple(self))


def generation_memory(
    config: DecoderConfig, prompts: int, prompt_length: int, new_tokens: int, *, group: int = 1
) -> MemoryEstimate:
    """What `generate` takes, over its prompts or in its loop, whichever is more.

    Args:
      config: of the decoder.
      prompts: Q.
      prompt_length: L, padding included.
      new_tokens: M.
      group: G, completions of each prompt.
    """
    rows, tokens = prompts * group, prompts * prompt_length
    weights = config.num_parameters * _size(config.param_dtype)
    slot = 2 * config.num_layers * config.num_kv_heads * config.head_dim * _size(config.dtype)
    scores = 8 * prompts * config.num_heads * prompt_length**2
    vector = tokens * _size(config.dtype)
    prompt = MemoryEstimate(
        weights=weights,
        cache=slot * tokens,
        logits=0,
        activations=vector * 2 * config.hidden_size
        + max(vector * 3 * config.intermediate_size, vector * 2 * config.hidden_size + scores),
    )
    # With stacked layers on a CPU, each layer's kernels are copied out of the stack, see `unstacked`.
    has_copies = config.scan_layers and jax.default_backend() == "cpu"
    loop = MemoryEstimate(
        weights=weights + has_copies * _layer_bytes(config) * (config.num_layers + 1),
        cache=slot * (tokens + rows * (new_tokens + prompt_length * (group == 1))),
        logits=3 * 4 * rows * config.vocab_size,
        activations=0,
    )
    return max(prompt, loop, key=lambda estimate: estimate.total)


def gradient_memory(config: DecoderConfig, batch: int, prompt_length: int, new_tokens: int) -> MemoryEstimate:
    """What the gradient of `score` in the adapters alone takes, the body being frozen.

    Logits are counted in full, as with `top_k`; without such limits those of a large vocabulary take next to nothing.

    Args:
      config: of the decoder.
      batch: B.
      prompt_length: L, padding included.
      new_tokens: M.
    """
    length = prompt_length + new_tokens - 1
    heads = config.num_heads * config.head_dim + config.num_kv_heads * config.head_dim
    size = _size(config.dtype)
    # Stacked layers keep less of each, and compute the rest again for one layer at a time.
    kept = size * (2 * config.intermediate_size + 2 * config.hidden_size + 2 * heads)
    once = size * 4 * config.intermediate_size + 12 * config.num_heads * length
    return MemoryEstimate(
        weights=config.num_parameters * _size(config.param_dtype) + 2 * _layer_bytes(config),
        cache=0,
        logits=4 * 4 * batch * new_tokens * config.vocab_size,
        activations=batch
        * length
        * (config.num_layers * kept + (1 if config.scan_layers else config.num_layers) * once),
    )


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


def available_memory() -> float:
    """Bytes of memory of one device, of the machine for a CPU; infinite where it is not known."""
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / jax.local_device_count()
    return (device.memory_stats() or {}).get("bytes_limit", math.inf)


def _size(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else np.dtype(dtype).itemsize


def _layer_bytes(config: DecoderConfig) -> int:
    """Of one layer's kernels."""
    attention = 2 * (config.num_heads + config.num_kv_heads) * config.head_dim
    return config.hidden_size * (attention + 3 * config.intermediate_size) * _size(config.param_dtype)
