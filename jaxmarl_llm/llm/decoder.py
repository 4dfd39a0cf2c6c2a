"""The decoder-only transformer, the same one for training, for prompts and for one token after the other."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from jaxmarl_llm.arguments import as_array, check_whole, concrete
from jaxmarl_llm.llm.config import DecoderConfig
from jaxmarl_llm.llm.decoder_layer import DecoderLayer, KernelLayout, linear_layer, of_token, rms_norm, scaled_init
from jaxmarl_llm.llm.layers import KEPT, rotary_angles
from jaxmarl_llm.llm.layout import prompt_slots
from jaxmarl_llm.networks.dense import ChosenDense, dense


@struct.dataclass
class Cache:
    """What the tokens so far have left for those that follow.

    Attributes:
      keys, values: a tuple with one `[B, K, S, D]` a layer, or with `scan_layers` one array `[num_layers, B, K, S, D]`:
        K heads, S slots.
      valid: `[B, S]` bool, slots that hold a token, not padding.
      length: `[]` int32, slots filled so far; the next tokens go behind them.
      prefix: what comes before, kept once for every G rows next to each other: a cache of B / G rows; None for nothing.
    """

    keys: tuple[jax.Array, ...] | jax.Array
    values: tuple[jax.Array, ...] | jax.Array
    valid: jax.Array
    length: jax.Array
    prefix: "Cache | None" = None

    def grow(self, slots: int) -> "Cache":
        """The same cache with so many more empty slots."""

        def pad(x):
            return jnp.pad(x, ((0, 0),) * (x.ndim - 2) + ((0, slots), (0, 0)))

        keys, values = jax.tree.map(pad, (self.keys, self.values))
        return dataclasses.replace(self, keys=keys, values=values, valid=jnp.pad(self.valid, ((0, 0), (0, slots))))

    def share(self, group: int, slots: int) -> "Cache":
        """An empty cache of so many slots for `group` rows to each of this one, which becomes their prefix."""

        def empty(x):
            return jnp.zeros((*x.shape[:-4], group * x.shape[-4], x.shape[-3], slots, x.shape[-1]), x.dtype)

        keys, values = jax.tree.map(empty, (self.keys, self.values))
        valid = jnp.zeros((group * self.valid.shape[0], slots), bool)
        return Cache(keys, values, valid, jnp.zeros((), jnp.int32), self)


def init_cache(config: DecoderConfig, batch: int, length: int, dtype: str | None = None) -> Cache:
    """An empty cache.

    Args:
      config: of the decoder.
      batch: B.
      length: S, number of slots.
      dtype: of keys and values; the configuration's by default.

    Returns:
      A cache of no filled slot: keys and values `[B, K, S, D]` of 0, one of each a layer, or `[num_layers, B, K, S, D]`
      with `scan_layers`; `valid` `[B, S]` false.

    Raises:
      ValueError: no sequence, or no slot.
    """
    check_whole("batch", batch, at_least=1)
    check_whole("length", length, at_least=1)
    shape = (batch, config.num_kv_heads, length, config.head_dim)
    if config.scan_layers:
        empty = jnp.zeros((config.num_layers, *shape), dtype or config.dtype)
    else:
        empty = (jnp.zeros(shape, dtype or config.dtype),) * config.num_layers
    return Cache(empty, empty, jnp.zeros((batch, length), bool), jnp.zeros((), jnp.int32))


class Decoder(nn.Module):
    """A decoder-only transformer of the Llama family (Touvron et al. 2023).

    Norms before the parts of a layer, rotary positions, grouped queries, a gated layer (Shazeer 2020), all by `config`.
    A token attends to the valid tokens in its own slot and in earlier ones; its position is given apart from its slot,
    so that padding may lie between a prompt and its completion.

    Attributes:
      config: sizes and variants.
      layout: of the kernels that `unstack` gives; None for parameters as they are trained and saved.
    """

    config: DecoderConfig
    layout: KernelLayout | None = None

    def setup(self):
        config = self.config
        table = (config.vocab_size, config.hidden_size)
        embedding_init = nn.initializers.normal(config.hidden_size**-0.5)
        self.embedding = self.param("embedding", embedding_init, table, config.param_dtype)
        if config.scan_layers:
            axes: Any = (nn.broadcast,) * 4 + (0,)
            # Fewer vectors of each layer are kept than a backward pass would ask for: to write them to memory takes
            # longer than to compute them again.
            policy = jax.checkpoint_policies.save_only_these_names(KEPT)
            scanned = nn.scan(
                nn.remat(DecoderLayer, policy=policy, prevent_cse=False),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                in_axes=axes,
                length=config.num_layers,
            )
            self.layers: Any = scanned(config)
        else:
            self.layers = [DecoderLayer(config, self.layout) for _ in range(config.num_layers)]
        self.norm = rms_norm(config)
        if not config.tied_embeddings:
            self.output = linear_layer(config, config.vocab_size, turned=bool(self.layout and self.layout.turned))
        if config.value_head:
            if config.num_adapters:
                self.value_output: Any = ChosenDense(1, config.num_adapters, scaled_init(0.1), dtype="float32")
            else:
                self.value_output = dense(1, scaled_init(0.1), dtype="float32")

    def __call__(
        self,
        tokens: jax.Array,
        position: jax.Array | None = None,
        valid: jax.Array | None = None,
        cache: Cache | None = None,
        adapter: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array | None, Cache | None]:
        """Logits for the token after each, and values.

        Args:
          tokens: `[B, L]` int32.
          position: `[B, L]` int32, counted from 0 at each sequence's first token; `0 ... L - 1` by default.
          valid: `[B, L]` bool, tokens rather than padding; all by default.
          cache: of the tokens before these; it has L free slots.
          adapter: `[B]` int32, the number of each row's adapter, below `num_adapters`; None without them.

        Returns:
          `(logits [B, L, V] float32, value [B, L] float32 or None, cache)`. What stands at padding means nothing. With
          a cache that turns out to be full inside jit, logits and values are nan.

        Raises:
          ValueError: no `[B, L]` integers, more tokens than `max_length`, a cache that is known to be full, or adapters
            without their numbers, or numbers without adapters.
        """
        hidden, cache = self.hidden(tokens, position, valid, cache, adapter)
        return self.logits(hidden), self.value(hidden, adapter), cache

    def hidden(
        self,
        tokens: jax.Array,
        position: jax.Array | None = None,
        valid: jax.Array | None = None,
        cache: Cache | None = None,
        adapter: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache | None]:
        """The normed vectors `[B, L, E]` that `logits` and `value` read, and the cache; arguments as for a call."""
        config = self.config
        tokens, position, valid = self._checked(tokens, position, valid)
        if cache is None:
            return self._layers(tokens, position, [_causal(valid)], adapter)[0], None
        length, start = tokens.shape[1], cache.length
        slots, filled = cache.valid.shape[1], concrete(cache.length)
        if length + (0 if filled is None else filled) > slots:
            raise ValueError(f"a cache of {slots} slots has no room for {length} more tokens: make it longer by grow")
        is_full = start + length > slots if filled is None else None
        written = jax.lax.dynamic_update_slice_in_dim(cache.valid, valid, start, axis=1)
        if config.scan_layers:
            # What is old and what is new apart: layers that gave back all their slots would copy them at every step.
            masks = [cache.valid[:, None], _causal(valid)]
        else:
            masks = [written[:, None] & _earlier(slots, start, length)]
        if cache.prefix is not None:
            masks.insert(0, cache.prefix.valid[:, None])
        hidden, (keys, values) = self._layers(tokens, position, masks, adapter, cache)
        if config.scan_layers:
            keys, values = _write(cache, (keys, values))
        cache = dataclasses.replace(cache, keys=keys, values=values, valid=written, length=start + length)
        # How many slots are filled is not known before compilation; what is written past the end would hide the tokens
        # there without a trace.
        return hidden if is_full is None else jnp.where(is_full, jnp.nan, hidden), cache

    def prefill(
        self, prompt: jax.Array, prompt_length: jax.Array, adapter: jax.Array | None = None
    ) -> tuple[jax.Array, Cache]:
        """What is needed to go on behind prompts.

        Args:
          prompt: `[B, L]` int32, padded on the right.
          prompt_length: `[B]` int32, at least 1.
          adapter: as for a call.

        Returns:
          `(hidden, cache)`: what `hidden` gives for the last token of each prompt, `[B, E]`, and a full cache of the L
          tokens.

        Raises:
          ValueError: as for a call.
        """
        prompt, position, _ = self._checked(prompt, None, None)
        valid = prompt_slots(prompt, prompt_length)[1]
        hidden, (keys, values) = self._layers(prompt, position, [_causal(valid)], adapter, read=prompt_length - 1)
        return hidden[:, 0], Cache(keys, values, valid, jnp.full((), prompt.shape[1], jnp.int32))

    def _checked(self, tokens, position, valid):
        tokens = as_array("tokens", tokens, jnp.integer)
        if tokens.ndim != 2:
            raise ValueError(f"tokens must have shape [B, L], got {tokens.shape}")
        if tokens.shape[1] > self.config.max_length:
            raise ValueError(f"{tokens.shape[1]} tokens exceed max_length {self.config.max_length} of the decoder")
        if position is None:
            position = jnp.broadcast_to(jnp.arange(tokens.shape[1])[None], tokens.shape)
        return tokens, position, jnp.ones(tokens.shape, bool) if valid is None else valid

    def _layers(self, tokens, position, masks, adapter, cache=None, read=None):
        """The normed vectors, of the one token of each row in `read` or of all, and the layers' keys and values."""
        config = self.config
        chosen = self.chosen(adapter, tokens.shape[0])
        angles = rotary_angles(position, config.head_dim, config.rope_base, config.rope_scaling)
        x = self.embedding.astype(config.dtype)[tokens]
        start = None if cache is None or config.scan_layers else cache.length
        caches = [] if cache is None else [one for one in (cache.prefix, cache) if one is not None]
        if config.scan_layers:
            x, found = self.layers(x, angles, masks, chosen, start, [(one.keys, one.values) for one in caches])
            x = x if read is None else of_token(x, read)
        else:
            pairs = []
            for index, layer in enumerate(self.layers):
                stored = [(one.keys[index], one.values[index]) for one in caches]
                # Of all other tokens the last layer needs no more than keys and values. Stacked layers are all alike.
                last = index + 1 == config.num_layers
                x, both = layer(x, angles, masks, chosen, start, stored, read if last else None)
                pairs.append(both)
            found = tuple(zip(*pairs, strict=True))
        return self.norm(x), found

    def logits(self, hidden: jax.Array) -> jax.Array:
        """`[..., E]` to `[..., V]` float32."""
        if not self.config.tied_embeddings:
            return self.output(hidden).astype(jnp.float32)
        rows = hidden.reshape(-1, hidden.shape[-1]) @ self.embedding.astype(hidden.dtype).T
        return rows.reshape(*hidden.shape[:-1], -1).astype(jnp.float32)

    def output_table(self) -> jax.Array:
        """The matrix of `logits`: `[V, E]` with tied embeddings, else `[E, V]`."""
        if self.config.tied_embeddings:
            return self.embedding
        kernel = self.variables["params"]["output"]["kernel"]
        return kernel.T if self.layout and self.layout.turned else kernel

    def value(self, hidden: jax.Array, adapter: jax.Array | None = None) -> jax.Array | None:
        """`[B, ..., E]` to `[B, ...]` float32, with the heads of the rows' adapters; None without a value head."""
        if not self.config.value_head:
            return None
        hidden, chosen = hidden.astype(jnp.float32), self.chosen(adapter, hidden.shape[0])
        out = self.value_output(hidden) if chosen is None else self.value_output(hidden, chosen)
        return out[..., 0]

    def chosen(self, adapter: jax.Array | None, batch: int) -> jax.Array | None:
        """`[B, P]` float32, 1 at each row's adapter; None where rows have none of their own."""
        count = self.config.num_adapters
        if adapter is None and count and self.is_initializing():
            adapter = jnp.zeros(batch, jnp.int32)
        if (adapter is None) == (count > 0):
            raise ValueError(
                f"the decoder has num_adapters={count}: "
                + ("give each row's number in adapter" if count else "no row has one")
            )
        if adapter is None:
            return None
        if adapter.shape != (batch,):
            raise ValueError(f"adapter must have shape [B] = {(batch,)}, got {adapter.shape}")
        return jax.nn.one_hot(adapter, count)


def _earlier(slots, start, length):
    """`[1, L, S]` bool: slots up to the own one of L tokens from `start` on."""
    return (jnp.arange(slots)[None] <= start + jnp.arange(length)[:, None])[None]


def _causal(valid):
    """`[B, L, L]` bool: valid tokens in slots up to the own one."""
    return valid[:, None] & _earlier(valid.shape[1], 0, valid.shape[1])


def _write(cache, new):
    """Keys and values of a cache of stacked layers with new ones behind what it holds."""
    return jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new.astype(old.dtype), cache.length, axis=3),
        (cache.keys, cache.values),
        new,
    )
