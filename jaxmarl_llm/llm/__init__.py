"""Language models: one decoder, sampling and scoring of completions."""

from jaxmarl_llm.llm.config import DecoderConfig, decoder_config
from jaxmarl_llm.llm.decoder import Cache, Decoder, init_cache
from jaxmarl_llm.llm.distribution import token_log_probs
from jaxmarl_llm.llm.sampling import Generation, generate
from jaxmarl_llm.llm.scoring import Score, score

__all__ = [
    "Cache",
    "Decoder",
    "DecoderConfig",
    "Generation",
    "Score",
    "decoder_config",
    "generate",
    "init_cache",
    "score",
    "token_log_probs",
]
