"""Checkpoints of language models: Hugging Face folders, GGUF files, and adapters in PEFT's format."""

from jaxmarl_llm.llm.checkpoints.load import load_model
from jaxmarl_llm.llm.checkpoints.model import LanguageModel, fingerprint
from jaxmarl_llm.llm.checkpoints.placement import parameter_shardings

__all__ = ["LanguageModel", "fingerprint", "load_model", "parameter_shardings"]
