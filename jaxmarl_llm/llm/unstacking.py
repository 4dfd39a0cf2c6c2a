"""Stacked layers one by one, for loops that use them many times on a CPU."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax

from jaxmarl_llm.llm.decoder import Cache, Decoder
from jaxmarl_llm.llm.decoder_layer import join_projections


def unstacked(module: Decoder, params: Any, cache: Cache) -> tuple[Decoder, Callable[[jax.Array], Any], Cache]:
    """The same decoder, parameters and cache with layers one after the other, on a CPU; elsewhere as they are.

    XLA's CPU compiler copies each layer's kernels out of the stack before it multiplies with them: a step with one row
    takes twice as long. Copied once before a loop, they cost as much as in a few of its steps, and can be laid out as
    is fastest. A single row waits for the kernels from memory, fastest for few large ones `[inputs, outputs]`. Several
    rows are multiplied 1.2 times as fast by kernels `[outputs, inputs]`, and 1.1 times again by two at a time.

    Args:
      module: the decoder.
      params: its parameters.
      cache: of the rows that the loop goes on with.

    Returns:
      `(module, params_at, cache)`; `params_at(step)` gives the parameters inside the loop.
    """
    config = module.config
    if not config.scan_layers or jax.default_backend() != "cpu":
        return module, lambda _: params, cache
    turn, products = (lambda part: part, 1) if cache.valid.shape[0] == 1 else (_turned, 2)

    def separate_layer(index):
        return turn(join_projections(jax.tree.map(lambda leaf: leaf[index], params["layers"]), products))

    layers = {f"layers_{index}": separate_layer(index) for index in range(config.num_layers)}
    others = {name: part for name, part in params.items() if name != "layers"}

    def params_at(step):
        # Tied to the step, since the compiler would turn them back once, before the loop.
        tied, _ = jax.lax.optimization_barrier((layers, step))
        return others | turn(tied)

    def separate(cache: Cache) -> Cache:
        prefix = None if cache.prefix is None else separate(cache.prefix)
        return dataclasses.replace(cache, keys=tuple(cache.keys), values=tuple(cache.values), prefix=prefix)

    return Decoder(dataclasses.replace(config, scan_layers=False), products), params_at, separate(cache)


def _turned(layer: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _turned(part) if isinstance(part, Mapping) else part.T if name == "kernel" else part
        for name, part in layer.items()
    }
