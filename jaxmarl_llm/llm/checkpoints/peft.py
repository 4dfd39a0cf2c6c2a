"""Adapters in the format of PEFT, `adapter_config.json` and `adapter_model.safetensors`, for serving elsewhere."""

import dataclasses
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import check_kind, check_number, check_whole, elements, shown
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.limits import LARGEST_FLOAT
from jaxmarl_llm.llm.checkpoints.model import LanguageModel, on_host
from jaxmarl_llm.llm.checkpoints.names import abstract_params, hf_module, leaves, put
from jaxmarl_llm.llm.checkpoints.safetensors_file import SafetensorsFiles, Tensor, write_safetensors
from jaxmarl_llm.llm.checkpoints.whole_folder import whole_folder
from jaxmarl_llm.llm.config import LORA_TARGETS, DecoderConfig, num_trained_layers
from jaxmarl_llm.user_files import read_object, user_path

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_MATRICES = {"lora_a": "lora_A", "lora_b": "lora_B"}
_NAME = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(.+)\.(lora_A|lora_B)\.weight")
_BASE = "base_fingerprint"
# What the hub, and so PEFT, calls a base model that has another name here.
_HUB_NAMES = {"smollm2": "HuggingFaceTB/SmolLM2-135M-Instruct"}
# Settings of PEFT under which an adapter adds something else than alpha / r times A B.
_REFUSED = ("use_dora", "lora_bias", "modules_to_save", "rank_pattern", "alpha_pattern", "fan_in_fan_out")


def save_adapter(
    folder: str | os.PathLike,
    model: LanguageModel,
    config: DecoderConfig,
    adapters: Mapping[str, Any],
    index: int,
    name: str,
    *,
    trained_layers: int = 0,
) -> Path:
    """Writes one adapter in PEFT's format, without the value head; whole or not at all. All processes must call it.

    Args:
      folder: holds a folder for each adapter.
      model: the base; its fingerprint is stored.
      config: the base's with `lora_rank`, `lora_targets` and `num_adapters`.
      adapters: leaves `[P, num_layers, ...]`, see `split_adapters`.
      index: of the adapter.
      name: of the adapter and its folder, such as the role's.
      trained_layers: K, only the last K layers are written, those below add nothing; 0 for all.

    Returns:
      The adapter's folder.

    Raises:
      UserError: there is no such adapter or layer, or the folder cannot be written.
    """
    check_whole("index of the adapter", index, at_least=0)
    if index >= config.num_adapters or not config.lora_rank:
        raise UserError(f"there is no adapter {index}: the configuration has {config.num_adapters} of them")
    if not name or Path(name).name != name:
        raise UserError(f"an adapter's name must be the name of a folder, got '{name}'")
    layers = range(config.num_layers - num_trained_layers(config, trained_layers), config.num_layers)
    tensors, arrays = [], []
    for path, leaf in leaves(adapters):
        if path[-1] not in _MATRICES:
            continue
        # Layers on the first axis, matrices as PyTorch keeps them: `[outputs, inputs]`.
        stacked = np.swapaxes(on_host(leaf[index]), 1, 2)
        for layer in layers:
            matrix = stacked[layer]
            tensors.append(Tensor(_tensor_name(layer, path), matrix.shape, matrix.dtype.name))
            arrays.append(matrix)
    content = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": _HUB_NAMES.get(model.source, model.source),
        "r": config.lora_rank,
        "lora_alpha": config.lora_alpha,
        "target_modules": [hf_module(target).rpartition(".")[2] for target in config.lora_targets],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    if len(layers) < config.num_layers:
        content["layers_to_transform"] = list(layers)
    target = user_path(folder, "the folder of adapters") / name
    if jax.process_index():
        return target
    with whole_folder(target, (_CONFIG, _WEIGHTS)) as partial:
        (partial / _CONFIG).write_text(json.dumps(content, indent=2) + "\n")
        write_safetensors(partial / _WEIGHTS, tensors, arrays, {_BASE: model.fingerprint})
    return target


def load_adapter(
    folder: str | os.PathLike | Sequence[str | os.PathLike], model: LanguageModel
) -> tuple[DecoderConfig, dict[str, Any]]:
    """Reads adapters in PEFT's format.

    Args:
      folder: of an adapter, or several of adapters of the same rank, alpha and modules.
      model: the base.

    Returns:
      `(config, adapters)`: the base's configuration with the adapters' settings and `num_adapters` P, and leaves
      `[P, num_layers, ...]` for `join_adapters`. PEFT's variants with other formulas are refused.

    Raises:
      UserError: files are missing or damaged, the adapter belongs to another base, or is of an unsupported kind.
    """
    folders = elements("the folders of adapters", folder, str, os.PathLike)
    if not folders:
        raise UserError("no folder of an adapter was given")
    check_kind("the base of an adapter", model, LanguageModel)
    found = [_load_one(user_path(one, "the folder of an adapter"), model) for one in folders]
    config = found[0][0]
    for one, (other, _) in zip(folders, found, strict=True):
        if other != config:
            raise UserError(f"{one} has another rank, alpha or other modules than {folders[0]}: load them apart")
    params: dict[str, Any] = {}
    for path in found[0][1]:
        put(params, path, jnp.asarray(np.stack([arrays[path] for _, arrays in found])))
    return dataclasses.replace(config, num_adapters=len(found)), params


def _load_one(folder: Path, model: LanguageModel) -> tuple[DecoderConfig, dict[tuple[str, ...], np.ndarray]]:
    for name in (_CONFIG, _WEIGHTS):
        if not (folder / name).is_file():
            raise UserError(f"{folder} holds no {name}: it is no adapter in PEFT's format with safetensors")
    given, tensors = _settings(folder / _CONFIG), SafetensorsFiles([folder / _WEIGHTS])
    base = tensors.metadata.get(_BASE)
    if base not in (None, model.fingerprint):
        raise UserError(f"{folder} is an adapter of another base model than {model.source}: load the one it was for")
    modules = {hf_module(target): target for target in LORA_TARGETS}
    parts = {name: _NAME.fullmatch(name) for name in sorted(tensors.names)}
    unknown = [name for name, match in parts.items() if match is None or match[2] not in modules]
    if unknown or not parts:
        raise UserError(f"{folder}: tensor {(unknown or ['of an adapter'])[0]} is not supported or missing")
    present = {modules[match[2]] for match in parts.values() if match is not None}
    ranks = {tensors.shape(name)[:1] for name, match in parts.items() if match is not None and match[3] == "lora_A"}
    if ranks != {(given["r"],)}:
        raise UserError(
            f"{folder} is damaged: {_CONFIG} says r {shown(given['r'])}, and {_WEIGHTS} holds matrices of another rank"
        )
    config = dataclasses.replace(
        model.config,
        lora_rank=given["r"],
        lora_alpha=float(given["lora_alpha"]) * (math.sqrt(given["r"]) if given.get("use_rslora") else 1.0),
        lora_targets=tuple(target for target in LORA_TARGETS if target in present),
        num_adapters=1,
    )
    # An adapter of some layers only adds nothing in the others.
    chosen = given.get("layers_to_transform")
    arrays, used = {}, set()
    for path, leaf in leaves(abstract_params(config)):
        if path[-1] not in _MATRICES:
            continue
        num_layers, _, rows, columns = leaf.shape
        array = np.zeros((num_layers, rows, columns), leaf.dtype)
        for layer in range(num_layers) if chosen is None else chosen:
            name = _tensor_name(layer, path)
            if name not in tensors.names:
                raise UserError(f"{folder}: tensor {name} is missing")
            shape = tensors.shape(name)
            if layer >= num_layers or shape != (columns, rows):
                raise UserError(
                    f"{folder}: tensor {name} has shape {list(shape)} where {model.source} needs {[columns, rows]} in "
                    f"{num_layers} layers: it belongs to another base model"
                )
            array[layer] = tensors.rows(name, 0, columns).T
            used.add(name)
        arrays[path] = array
    if tensors.names - used:
        raise UserError(f"{folder}: {model.source} has no place for tensor {min(tensors.names - used)}")
    return config, arrays


def _settings(path: Path) -> dict[str, Any]:
    given = read_object(path)
    try:
        kind, rank, alpha = (given[name] for name in ("peft_type", "r", "lora_alpha"))
    except KeyError as error:
        raise UserError(f"{path} is damaged: it has no {error}; download it again") from None
    if kind != "LORA":
        raise UserError(f"{path}: adapters of kind {kind} are not supported: only LORA is")
    refused = [name for name in _REFUSED if given.get(name)]
    if refused or given.get("bias", "none") != "none":
        raise UserError(f"{path}: {(refused or ['bias'])[0]} is not supported")
    check_whole(f"{path}: r", rank, at_least=1)
    check_number(f"{path}: lora_alpha", alpha, at_least=-LARGEST_FLOAT, at_most=LARGEST_FLOAT)
    layers = given.get("layers_to_transform")
    if layers is not None:
        given["layers_to_transform"] = elements(f"{path}: layers_to_transform", layers, int)
        for layer in given["layers_to_transform"]:
            check_whole(f"{path}: layers_to_transform: each", layer, at_least=0)
    return given


def _tensor_name(layer: int, path: tuple[str, ...]) -> str:
    target = path[1].removesuffix("_projection")
    return f"base_model.model.model.layers.{layer}.{hf_module(target)}.{_MATRICES[path[-1]]}.weight"
