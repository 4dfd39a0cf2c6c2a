"""Language models to Hugging Face folders."""

import json
import os
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.arguments import check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.checkpoints.hf_config import to_hf
from jaxmarl_llm.llm.checkpoints.model import LanguageModel, on_host
from jaxmarl_llm.llm.checkpoints.names import Leaf, decoder_leaves, leaves
from jaxmarl_llm.llm.checkpoints.safetensors_file import INDEX, SINGLE, Tensor, write_safetensors
from jaxmarl_llm.llm.checkpoints.whole_folder import whole_folder

_FILES = ("*.json", "*.safetensors", "*.jinja")


def save_model(model: LanguageModel, folder: str | os.PathLike, *, shard_bytes: int = 5 * 10**9) -> None:
    """Writes a model as a Hugging Face folder: `config.json`, safetensors, and the tokenizer's files.

    `load_model` with the model's dtype reads back the same bits. The folder is written whole or not at all; a model
    that was saved there before is replaced. Where several processes share the parameters, all must call it.

    Args:
      model: without adapters; `merge_adapter` adds one to its parameters.
      folder: where to.
      shard_bytes: most bytes of a weight file, unless one tensor has more.

    Raises:
      UserError: a decoder that no family describes, or a folder that cannot be written or holds other files.
    """
    check_whole("shard_bytes", shard_bytes, at_least=1)
    config, tokenizer = model.config, model.tokenizer
    if not config.scan_layers or config.lora_rank or config.value_head:
        raise UserError("only models with scan_layers and without adapters and value head can be saved: merge_adapter")
    ends = ((), None) if tokenizer is None else (tokenizer.stop_tokens, tokenizer.pad_token)
    content = to_hf(model.family, config, model.trained_length or config.max_length, *ends)
    params = dict(leaves(model.params))
    wanted = decoder_leaves(config)
    for leaf in wanted:
        found = params.get(leaf.path)
        if found is None or (found.shape, found.dtype.name) != (leaf.shape, leaf.dtype):
            raise UserError(f"parameter {'/'.join(leaf.path)} must be {leaf.dtype} of shape {list(leaf.shape)}")
    shards = _shards(wanted, shard_bytes)
    arrays = _arrays(wanted, params)
    if jax.process_index():
        for _ in arrays:
            pass
        return
    with whole_folder(folder, _FILES) as partial:
        (partial / "config.json").write_text(json.dumps(content, indent=2) + "\n")
        if tokenizer is not None:
            tokenizer.save(partial)
        for name, tensors in shards.items():
            write_safetensors(partial / name, tensors, (next(arrays) for _ in tensors))
        if len(shards) > 1:
            total = sum(tensor.num_bytes for tensors in shards.values() for tensor in tensors)
            places = {tensor.name: name for name, tensors in shards.items() for tensor in tensors}
            index = {"metadata": {"total_size": total}, "weight_map": places}
            (partial / INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _shards(wanted: list[Leaf], shard_bytes: int) -> dict[str, list[Tensor]]:
    """Tensors by the file that they go to, in the order of `_arrays`."""
    groups: list[list[Tensor]] = [[]]
    room = shard_bytes
    for leaf in wanted:
        for name in leaf.tensors("hf"):
            tensor = Tensor(name, leaf.tensor_shape, leaf.dtype)
            if groups[-1] and tensor.num_bytes > room:
                groups.append([])
                room = shard_bytes
            groups[-1].append(tensor)
            room -= tensor.num_bytes
    if len(groups) == 1:
        return {SINGLE: groups[0]}
    return {f"model-{number:05}-of-{len(groups):05}.safetensors": group for number, group in enumerate(groups, start=1)}


def _arrays(wanted: list[Leaf], params: dict[tuple[str, ...], Any]) -> Iterator[np.ndarray]:
    """The tensors as Hugging Face lays them out; one parameter at a time is on the host."""
    for leaf in wanted:
        array = on_host(params[leaf.path])
        for one in array if leaf.is_stacked else array[None]:
            yield one.T if leaf.is_kernel else one
