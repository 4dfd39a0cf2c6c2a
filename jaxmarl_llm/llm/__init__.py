"""Language models: one decoder, sampling, streaming and scoring of completions."""

from jaxmarl_llm.llm.adapters import init_adapters, join_adapters, merge_adapter, split_adapters, unmerge_adapter
from jaxmarl_llm.llm.automata import RowConstraints, TokenAutomaton, TokenConstraint, constrain_rows
from jaxmarl_llm.llm.buckets import length_bucket
from jaxmarl_llm.llm.config import DecoderConfig, RopeScaling, decoder_config
from jaxmarl_llm.llm.decoder import Cache, Decoder, init_cache
from jaxmarl_llm.llm.distribution import token_log_probs
from jaxmarl_llm.llm.memory import MemoryEstimate, check_fits, generation_memory, gradient_memory
from jaxmarl_llm.llm.sampling import Generation, generate
from jaxmarl_llm.llm.scoring import Score, score
from jaxmarl_llm.llm.streaming import stream_tokens
from jaxmarl_llm.llm.unstacking import unstack

__all__ = [
    "Cache",
    "Decoder",
    "DecoderConfig",
    "Generation",
    "MemoryEstimate",
    "RopeScaling",
    "RowConstraints",
    "Score",
    "TokenAutomaton",
    "TokenConstraint",
    "check_fits",
    "constrain_rows",
    "decoder_config",
    "generate",
    "generation_memory",
    "gradient_memory",
    "init_adapters",
    "init_cache",
    "join_adapters",
    "length_bucket",
    "merge_adapter",
    "score",
    "split_adapters",
    "stream_tokens",
    "token_log_probs",
    "unmerge_adapter",
    "unstack",
]
