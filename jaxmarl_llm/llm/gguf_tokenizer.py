"""Tokenizers from the metadata of GGUF files, which hold the vocabulary but only the name of the rule that splits text.

Keys and token types: the GGUF specification. Splitting rules: the regular expressions of the models' own tokenizers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from jaxmarl_llm.errors import UserError, unknown_name
from jaxmarl_llm.llm.extra import import_extra

# The values of `tokenizer.ggml.token_type` that matter here.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_LINES = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"

# Each expression splits what the ones before it have left; both matches and what lies between them are pieces.
_SPLITS = {
    "default": (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"),
    "gpt-2": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "llama-bpe": (_CONTRACTIONS + r"\p{N}{1,3}" + _LINES,),
    "qwen2": (_CONTRACTIONS + r"\p{N}" + _LINES,),
    "tekken": (_CASED + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",),
}
_SAME_AS = {
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "smaug-bpe": "llama-bpe",
    "deepseek-r1-qwen": "qwen2",
    "starcoder": "smollm",
    "refact": "smollm",
    "command-r": "smollm",
}
# A piece that is itself a token is not put together from others; a text starts with the first special token.
_WHOLE_PIECES = {"llama-bpe", "tekken"}


def gguf_backend(fields: Mapping[str, Any]) -> Any:
    """Builds the tokenizer that a GGUF file describes.

    Args:
      fields: metadata by key; plain values or the fields of `gguf.GGUFReader`.

    Returns:
      A `tokenizers.Tokenizer`.

    Raises:
      UserError: no tokenizer in the file, one of an unknown kind, or a damaged one.
    """
    tokens = gguf_value(fields, "tokenizer.ggml.tokens")
    if not tokens:
        raise UserError("the GGUF file holds no tokenizer (no tokenizer.ggml.tokens): use a file converted with one")
    kind = gguf_value(fields, "tokenizer.ggml.model")
    builders = {"gpt2": _byte_level, "llama": _sentence_piece}
    if kind not in builders:
        raise unknown_name("tokenizer.ggml.model", kind, builders)
    types = gguf_value(fields, "tokenizer.ggml.token_type") or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise UserError(f"the GGUF file's tokenizer is damaged: {len(tokens)} tokens, {len(types)} token types")
    try:
        backend, starts = builders[kind](fields, tokens, types)
        _add_special(backend, tokens, types)
        _frame(backend, fields, tokens, starts)
    except (UserError, ModuleNotFoundError):
        raise
    # What the library says of a vocabulary that does not fit together is a bare Exception.
    except Exception as error:
        raise UserError(f"the GGUF file's tokenizer is damaged: {' '.join(str(error).split())}") from error
    return backend


def gguf_settings(fields: Mapping[str, Any]) -> tuple[dict, dict, str | None]:
    """What stands beside the vocabulary.

    Args:
      fields: as of `gguf_backend`.

    Returns:
      The contents of `tokenizer_config.json` and of `generation_config.json`, and the chat template if there is one.
    """
    tokens = gguf_value(fields, "tokenizer.ggml.tokens") or []
    ids = {
        name: gguf_value(fields, f"tokenizer.ggml.{key}_token_id")
        for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
    }
    ends = {name: gguf_value(fields, f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")}
    for name, number in {**ids, **ends}.items():
        if number is not None and not (isinstance(number, int) and 0 <= number < len(tokens)):
            raise UserError(f"the GGUF file's tokenizer is damaged: its {name} token {number} is not in the vocabulary")
    settings = {f"{name}_token": tokens[number] for name, number in ids.items() if number is not None}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    context = gguf_value(fields, f"{gguf_value(fields, 'general.architecture')}.context_length")
    if context is not None:
        settings["model_max_length"] = context
    stops = (ids["eos"], ends["eot"], ends["eom"])
    generation = {"eos_token_id": [number for number in stops if number is not None]}
    return settings, generation, gguf_value(fields, "tokenizer.chat_template")


def gguf_value(fields: Mapping[str, Any], key: str) -> Any:
    """The plain value of a metadata key, or None."""
    field: Any = fields.get(key)
    return field.contents() if hasattr(field, "contents") else field


def _byte_level(fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> tuple[Any, bool]:
    tokenizers = import_extra("tokenizers")
    name = gguf_value(fields, "tokenizer.ggml.pre") or "default"
    if name not in _SPLITS and name not in _SAME_AS:
        raise unknown_name("tokenizer.ggml.pre", name, [*_SPLITS, *_SAME_AS])
    name = _SAME_AS.get(name, name)
    merges = gguf_value(fields, "tokenizer.ggml.merges")
    if merges is None:
        raise UserError("the GGUF file's tokenizer is damaged: it has no tokenizer.ggml.merges")
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            {token: number for number, token in enumerate(tokens)},
            [tuple(merge.split(" ")) for merge in merges],
            ignore_merges=name in _WHOLE_PIECES,
        )
    )
    if name == "qwen2":
        backend.normalizer = tokenizers.normalizers.NFC()
    splits = [
        tokenizers.pre_tokenizers.Split(tokenizers.Regex(expression), behavior="isolated")
        for expression in _SPLITS[name]
    ]
    as_bytes = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*splits, as_bytes])
    backend.decoder = tokenizers.decoders.ByteLevel()
    return backend, name in _WHOLE_PIECES


def _sentence_piece(fields: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]) -> tuple[Any, bool]:
    tokenizers = import_extra("tokenizers")
    scores = gguf_value(fields, "tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise UserError("the GGUF file's tokenizer is damaged: it needs tokenizer.ggml.scores, one for each token")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    unknown = gguf_value(fields, "tokenizer.ggml.unknown_token_id")
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocabulary,
            _merges_by_score(vocabulary, scores, types),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = gguf_value(fields, "tokenizer.ggml.add_space_prefix") is not False
    blank = "▁"
    rules, decoders = tokenizers.normalizers, tokenizers.decoders
    replaced = rules.Replace(" ", blank)
    backend.normalizer = rules.Sequence([rules.Prepend(blank), replaced]) if prefix else replaced
    steps = [decoders.Replace(blank, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefix else steps)
    return backend, True


def _merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float], types: Sequence[int]) -> list:
    """The merges that make each piece from two others, best score first: SentencePiece stores the scores alone."""
    merges = []
    for piece, number in vocabulary.items():
        if types[number] == _NORMAL:
            halves = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
            merges += [
                (-scores[number], number, pair) for pair in halves if pair[0] in vocabulary and pair[1] in vocabulary
            ]
    return [pair for *_, pair in sorted(merges, key=lambda merge: merge[:2])]


def _add_special(backend: Any, tokens: Sequence[str], types: Sequence[int]) -> None:
    """Declares the tokens that are recognised in a text as they stand; control tokens are the special ones."""
    tokenizers = import_extra("tokenizers")
    backend.add_tokens(
        [
            tokenizers.AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )


def _frame(backend: Any, fields: Mapping[str, Any], tokens: Sequence[str], starts: bool) -> None:
    """Puts the first and the last token around a text, where the caller asks for special tokens."""
    tokenizers = import_extra("tokenizers")
    whole, special = ["$A"], []
    for key, wanted in (("bos", starts), ("eos", False)):
        number = gguf_value(fields, f"tokenizer.ggml.{key}_token_id")
        given = gguf_value(fields, f"tokenizer.ggml.add_{key}_token")
        if number is not None and (wanted if given is None else given):
            whole = [tokens[number], *whole] if key == "bos" else [*whole, tokens[number]]
            special.append((tokens[number], number))
    if special:
        backend.post_processor = tokenizers.processors.TemplateProcessing(single=whole, special_tokens=special)
