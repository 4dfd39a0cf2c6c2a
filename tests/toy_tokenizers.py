"""Small tokenizers trained on a few sentences, as Hugging Face folders and as GGUF metadata."""

import json

import gguf
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "What is 12 + 30? The answer is 42. It's 3 times 14!",
    "def double(values):\n    return [2 * value for value in values]\n",
    "Äpfel, naïve Straßen and 東京 are fine; 🙂 too.",
] * 3

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# System text by default; a block of reasoning that can be switched off; tools as JSON.
QWEN_LIKE = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{{- '<|im_end|>\\n' }}
{%- elif messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' and not loop.last %}
        {%- set text = message.content.split('</think>')[-1].lstrip('\\n') %}
    {%- else %}
        {%- set text = message.content %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' + text + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

# Starts with the first token, trims, refuses unknown roles and stops a loop.
LLAMA3_LIKE = """{{- bos_token }}
{%- if date is not defined %}{% set date = '1 Jan 2026' %}{% endif %}
{%- set space = namespace(seen=false) %}
{%- for message in messages %}
    {%- if message['role'] not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('no such role: ' ~ message['role']) }}
    {%- endif %}
    {%- if loop.index > 6 %}
        {%- break %}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {%- if not space.seen %}
        {{- 'Today: ' + date + '\\n\\n' }}
        {%- set space.seen = true %}
    {%- endif %}
    {%- generation %}{{- message['content'] | trim + '<|eot_id|>' }}{%- endgeneration %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""


def byte_level(special=SPECIAL, vocab_size=420):
    """A byte-level BPE tokenizer that splits digits, as SmolLM's does."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    return backend


def sentence_piece_fields(vocab_size=120, **changes):
    """What a GGUF file says of a SentencePiece tokenizer with bytes to fall back on, as Llama 2's is."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    backend.train_from_iterator(SENTENCES[:3], trainers.BpeTrainer(vocab_size=vocab_size, show_progress=False))
    model = json.loads(backend.to_str())["model"]
    merged = ["".join(pair) for pair in model["merges"]]
    letters = [token for token in model["vocab"] if token not in merged]
    fixed = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return {
        "ggml_model": "llama",
        "ggml_tokens": [*fixed, *merged, *letters],
        "ggml_token_type": [2, 3, 3, *[6] * 256, *[1] * (len(merged) + len(letters))],
        "ggml_scores": [*[0.0] * len(fixed), *(-float(rank) for rank in range(len(merged) + len(letters)))],
        "ggml_unknown_token_id": 0,
        "ggml_bos_token_id": 1,
        "ggml_eos_token_id": 2,
    } | changes


def write_folder(folder, backend=None, *, template=CHATML, generation=None, model=None, **settings):
    """A Hugging Face folder with the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    (backend or byte_level()).save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", **settings}
    if template is not None:
        settings["chat_template"] = template
    for name, contents in (("tokenizer_config", settings), ("generation_config", generation), ("config", model)):
        if contents is not None:
            (folder / f"{name}.json").write_text(json.dumps(contents), encoding="utf-8")
    return folder


def gguf_fields(file, **values):
    """Metadata written to a GGUF file and read from it; `ggml_x` stands for `tokenizer.ggml.x`."""
    writer = gguf.GGUFWriter(file, "llama")
    for name, value in values.items():
        key = name.replace("ggml_", "tokenizer.ggml.") if name.startswith("ggml_") else name.replace("__", ".")
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return gguf.GGUFReader(file).fields


def byte_level_fields(backend, *, pre="smollm", special=SPECIAL, user_defined=()):
    """What a GGUF file says of a byte-level tokenizer, as keywords of `gguf_fields`."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__) + list(user_defined)
    kinds = {token: 3 for token in special} | {token: 4 for token in user_defined}
    return {
        "ggml_model": "gpt2",
        "ggml_pre": pre,
        "ggml_tokens": tokens,
        "ggml_token_type": [kinds.get(token, 1) for token in tokens],
        "ggml_merges": [" ".join(pair) for pair in model["merges"]],
        "ggml_bos_token_id": 1,
        "ggml_eos_token_id": 2,
        "tokenizer__chat_template": CHATML,
    }
