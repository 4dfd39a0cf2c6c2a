"""Checkpoints of language models: Hugging Face folders, GGUF files, and adapters in PEFT's format."""

from jaxmarl_llm.llm.checkpoints.load import load_model
from jaxmarl_llm.llm.checkpoints.model import LanguageModel, fingerprint
from jaxmarl_llm.llm.checkpoints.peft import load_adapter, save_adapter
from jaxmarl_llm.llm.checkpoints.placement import parameter_shardings
from jaxmarl_llm.llm.checkpoints.save import save_model

__all__ = [
    "LanguageModel",
    "fingerprint",
    "load_adapter",
    "load_model",
    "parameter_shardings",
    "save_adapter",
    "save_model",
]
