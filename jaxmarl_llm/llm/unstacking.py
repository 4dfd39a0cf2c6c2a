"""Stacked layers one by one, laid out for loops that use them many times on a CPU."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax

from jaxmarl_llm.llm.config import LAYERS, DecoderConfig
from jaxmarl_llm.llm.decoder import Cache, Decoder
from jaxmarl_llm.llm.decoder_layer import KernelLayout, lay_out


def unstack(module: Decoder, params: Mapping[str, Any], rows: int) -> tuple[Decoder, Any]:
    """The same decoder with its layers one after the other, laid out for steps of so many rows on a CPU.

    XLA's CPU compiler copies each layer's kernels out of the stack before it multiplies with them: a step with one row
    takes twice as long. `generate` therefore copies them all before its loop, which costs as much as a few steps; it
    takes what is given here as it is, which saves that in each call. Not for training, nor for saving.

    Args:
      module: a decoder.
      params: its parameters.
      rows: B, those that are drawn at once. Others have the same results, and take longer.

    Returns:
      `(module, params)`, of which the parameters take as much memory again; as they were for layers that are not
      stacked, and on other platforms. Each layer has its own `layers_0`, `layers_1`, ..., with a kernel for all
      projections of the same vectors, see `lay_out`: for one row `query_key_value_0` is `[E, (H + 2 K) D]` and
      `gate_up_0` `[E, 2 F]` (F being the `intermediate_size`), else both halves of their outputs are apart and
      turned, such as `gate_up_0` and `gate_up_1` `[F, E]`. The output's kernel is `[E, V]` for one row, tied or not,
      else `[V, E]`, or the embedding where it is tied.
    """
    if not unstacks(module.config):
        return module, params
    layout = _layout_for(rows)
    return _unstacked(module, layout), _unstack(params, layout, module.config.num_layers)


def unstacks(config: DecoderConfig) -> bool:
    """Whether `unstack` changes such a decoder."""
    return config.scan_layers and jax.default_backend() == "cpu"


def _layout_for(rows: int) -> KernelLayout:
    # A single row waits for the kernels from memory, fastest for few large ones [inputs, outputs]. Several rows are
    # multiplied 1.2 times as fast by kernels [outputs, inputs], and 1.1 times again by two at a time.
    return KernelLayout(products=1) if rows == 1 else KernelLayout(products=2, turned=True)


def _unstacked(module: Decoder, layout: KernelLayout) -> Decoder:
    tied = module.config.tied_embeddings and layout.turned
    return Decoder(dataclasses.replace(module.config, scan_layers=False, tied_embeddings=tied), layout)


# Jitted, since the operations one by one would be compiled each.
@functools.partial(jax.jit, static_argnums=(1, 2))
def _unstack(params, layout, num_layers):
    params = dict(params)
    stack = params.pop(LAYERS)
    for index in range(num_layers):
        params[f"{LAYERS}_{index}"] = lay_out(jax.tree.map(lambda leaf, at=index: leaf[at], stack), layout)
    if "output" not in params and not layout.turned:
        params["output"] = {"kernel": params["embedding"].T}
    elif "output" in params and layout.turned:
        params["output"] = {"kernel": params["output"]["kernel"].T}
    return params


def unstack_adapters(adapters: Mapping[str, Any]) -> dict[str, Any]:
    """Adapters of stacked layers for a body of `unstack`; leaves `[P, ...]` as they are."""
    adapters = dict(adapters)
    stack = adapters.pop(LAYERS, {})
    for index in range(max((leaf.shape[1] for leaf in jax.tree.leaves(stack)), default=0)):
        adapters[f"{LAYERS}_{index}"] = jax.tree.map(lambda leaf, at=index: leaf[:, at], stack)
    return adapters


def unstack_cache(cache: Cache) -> Cache:
    """The cache of stacked layers for a decoder of `unstack`."""
    prefix = None if cache.prefix is None else unstack_cache(cache.prefix)
    return dataclasses.replace(cache, keys=tuple(cache.keys), values=tuple(cache.values), prefix=prefix)


def bind_in_loop(module: Decoder, params: Mapping[str, Any], step: jax.Array) -> Decoder:
    """The decoder bound for a step of a loop, where it has to be bound anew."""
    if module.layout:
        # Tied to the step, since the compiler would turn kernels back once, before the loop.
        kernels = {name: part for name, part in params.items() if name.startswith((LAYERS, "output"))}
        tied, _ = jax.lax.optimization_barrier((kernels, step))
        params = {**params, **tied}
    return module.bind({"params": params})


class UnstackedBody:
    """A body unstacked, kept for the next call while it stays the same object.

    Whoever draws from one body shares one of these: samplers that are made anew for each version of the adapters, or
    for teams of other numbers.
    """

    def __init__(self):
        self._of: tuple[Any, KernelLayout] | None = None
        self._found: Any = None

    def of(self, module: Decoder, body: Mapping[str, Any], rows: int) -> tuple[Decoder, Any]:
        """What `unstack` gives; decoders of one body differ in their adapters alone."""
        if not unstacks(module.config):
            return module, body
        layout = _layout_for(rows)
        if self._of is None or self._of[0] is not body or self._of[1] != layout:
            # Freed before there is another.
            self._of = self._found = None
            self._found, self._of = _unstack(body, layout, module.config.num_layers), (body, layout)
        return _unstacked(module, layout), self._found
