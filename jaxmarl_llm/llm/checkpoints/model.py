"""A loaded language model."""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxmarl_llm.llm.checkpoints.names import leaves
from jaxmarl_llm.llm.config import DecoderConfig
from jaxmarl_llm.llm.decoder import Decoder
from jaxmarl_llm.llm.memory import kept_bytes
from jaxmarl_llm.llm.tokenizer import Tokenizer
from jaxmarl_llm.llm.unstacking import unstack

# Numbers of each parameter that enter a fingerprint: enough that any training changes some of them.
_SAMPLES = 4096
# What does not change the function that a model computes.
_IRRELEVANT = ("max_length", "dtype", "param_dtype", "scan_layers", "lora_targets", "lora_alpha")


@dataclasses.dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model and what belongs to it.

    Attributes:
      config: of its decoder; stacked layers, no adapters.
      params: of its decoder.
      tokenizer: None where the checkpoint holds none.
      family: `"llama"`, `"mistral"`, `"qwen2"` or `"qwen3"`.
      source: where it came from.
      fingerprint: tells the models apart that adapters belong to; the same whatever the file format and dtype.
      trained_length: most tokens of a sequence that it was trained on, at least `max_length` of its decoder; None for
        just that.
    """

    config: DecoderConfig
    params: Any
    tokenizer: Tokenizer | None
    family: str
    source: str
    fingerprint: str
    trained_length: int | None = None

    @functools.cached_property
    def decoder(self) -> Decoder:
        """The module that `params` belong to."""
        return Decoder(self.config)

    @functools.cached_property
    def for_one_row(self) -> tuple[Decoder, Any]:
        """`decoder` and `params` as they are fastest for one row; kept if that takes little of the memory."""
        if not kept_bytes(self.config, self.params, 1):
            return self.decoder, self.params
        return unstack(self.decoder, self.params, 1)

    def with_params(self, params: Any) -> "LanguageModel":
        """The model with other parameters, such as those of `merge_adapter`, and their fingerprint."""
        return dataclasses.replace(self, params=params, fingerprint=fingerprint(self.config, params))


def fingerprint(config: DecoderConfig, params: Any) -> str:
    """The fingerprint of a decoder with stacked layers; for parameters that have changed since they were loaded."""
    return combined(config, (leaf_digest(path, leaf) for path, leaf in leaves(params)))


def leaf_digest(path: tuple[str, ...], array: np.ndarray | jax.Array) -> str:
    """What one parameter contributes to a fingerprint; of an array on devices only some numbers leave them."""
    chosen = np.arange(0, array.size, max(1, array.size // _SAMPLES))
    # By places on each axis, since an index of a whole array may be too large for 32 bits.
    places = np.unravel_index(chosen, array.shape)
    sample = on_host(_at(array, places)) if isinstance(array, jax.Array) else array[places]
    # Rounded, so that a model is the same in both dtypes.
    return hashlib.sha256("/".join(path).encode() + sample.astype(ml_dtypes.bfloat16).tobytes()).hexdigest()


# Jitted, since several processes may share the array.
@jax.jit
def _at(array: jax.Array, places: tuple[np.ndarray, ...]) -> jax.Array:
    return array[places]


def combined(config: DecoderConfig, digests: Iterable[str]) -> str:
    """A fingerprint from the configuration and the digests of all parameters, in any order."""
    settings = {name: value for name, value in dataclasses.asdict(config).items() if name not in _IRRELEVANT}
    text = json.dumps([settings, sorted(digests)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def on_host(leaf: Any) -> np.ndarray:
    """The numbers of an array, gathered from all processes where several share it."""
    if getattr(leaf, "is_fully_addressable", True):
        return np.asarray(leaf)
    from jax.experimental import multihost_utils

    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
