"""Tokenizers and chat templates against transformers and SentencePiece."""

import json
import random

import pytest
from toy_tokenizers import (
    CHATML,
    LLAMA3_LIKE,
    QWEN_LIKE,
    SENTENCES,
    SPECIAL,
    byte_level,
    byte_level_fields,
    gguf_fields,
    write_folder,
)

from jaxmarl_llm.llm.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers", reason="the extra parity is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")

TALKS = [
    [{"role": "user", "content": " What is 12 + 30? "}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "東京 <tag> & 'quotes' 🙂\n\n"}],
    [
        {"role": "user", "content": "fox"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ndog"},
        {"role": "user", "content": "{{ bos_token }}"},
    ],
]
SETTINGS = [{}, {"add_generation_prompt": True}, {"enable_thinking": False, "add_generation_prompt": True}]


def texts(count):
    draw = random.Random(0)
    words = [
        *" ".join(SENTENCES[:4]).split(" "),
        *SPECIAL,
        "½²",
        "e\u0301",
        "\u3000",
        "I'LL don\u2019t",
        "\r\n",
        "\n\n",
        "\t",
    ]
    made = ["".join(draw.choice(words) + draw.choice(["", " ", "  "]) for _ in range(17)) for _ in range(count)]
    anything = [*range(32, 0x3000), *range(0xFF00, 0xFFF0), *range(0x1F300, 0x1F700)]
    return made + ["".join(chr(draw.choice(anything)) for _ in range(19)) for _ in range(count)]


@pytest.mark.parametrize("template", [CHATML, QWEN_LIKE, LLAMA3_LIKE], ids=["smollm2", "qwen", "llama3"])
def test_chats_and_their_tokens(template, tmp_path):
    special = ("<|begin|>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    folder = write_folder(
        tmp_path, byte_level(special=special), template=template, bos_token="<|begin|>", pad_token="<|im_end|>",
        tokenizer_class="PreTrainedTokenizerFast",
    )  # fmt: skip
    ours, theirs = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    for talk in TALKS:
        for settings in SETTINGS:
            given = {"add_generation_prompt": False, **settings}
            text = theirs.apply_chat_template(talk, tokenize=False, **given)
            assert ours.chat(talk, **given) == text
            assert ours.chat_ids(talk, **given) == theirs.apply_chat_template(talk, return_dict=False, **given)
    if template == QWEN_LIKE:
        tools = [{"name": "é<b>", "list": [1, None, True]}]
        assert ours.chat(TALKS[0], tools=tools) == theirs.apply_chat_template(
            TALKS[0], tools=tools, tokenize=False, add_generation_prompt=True
        )


def test_a_saved_folder_is_read_by_transformers(tmp_path):
    ours = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **byte_level_fields(byte_level())))
    ours.save(tmp_path / "saved")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text in texts(200):
        tokens = ours.encode(text)
        assert tokens == theirs(text, add_special_tokens=False).input_ids
        assert ours.decode(tokens) == theirs.decode(tokens, skip_special_tokens=True)
    assert theirs.apply_chat_template(TALKS[1], tokenize=False) == ours.chat(TALKS[1], add_generation_prompt=False)
    assert theirs.eos_token_id == 2 and theirs.bos_token_id == 1
    settings = transformers.GenerationConfig.from_pretrained(tmp_path / "saved")
    assert (tuple(settings.eos_token_id), settings.pad_token_id) == (ours.stop_tokens, ours.pad_token)
    theirs.save_pretrained(tmp_path / "theirs")
    again = Tokenizer.from_folder(tmp_path / "theirs")
    assert again.stop_tokens == ours.stop_tokens and again.chat_template == ours.chat_template
    assert all(again.encode(text) == ours.encode(text) for text in texts(50))


def test_gguf_files_of_qwen2_split_as_qwen2(tmp_path):
    backend = byte_level()
    model = json.loads(backend.to_str())["model"]
    theirs = transformers.Qwen2TokenizerFast(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], unk_token=None,
        eos_token="<|im_end|>", pad_token="<|endoftext|>", additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    ours = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **byte_level_fields(backend, pre="qwen2")))
    for text in texts(300):
        assert ours.encode(text) == theirs(text, add_special_tokens=False).input_ids


def test_gguf_files_of_sentence_piece_give_its_tokens(tmp_path):
    library = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_prefix=str(tmp_path / "pieces"), model_type="bpe", vocab_size=420,
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
        hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / "pieces.model"))
    numbers = range(theirs.get_piece_size())

    def kind(number):
        checks = ((theirs.is_unknown, 2), (theirs.is_control, 3), (theirs.is_byte, 6))
        return next((kind for check, kind in checks if check(number)), 1)

    ours = Tokenizer.from_gguf(
        gguf_fields(
            tmp_path / "a.gguf",
            ggml_model="llama",
            ggml_tokens=[theirs.id_to_piece(number) for number in numbers],
            ggml_scores=[theirs.get_score(number) for number in numbers],
            ggml_token_type=[kind(number) for number in numbers],
            ggml_unknown_token_id=theirs.unk_id(),
            ggml_bos_token_id=theirs.bos_id(),
            ggml_eos_token_id=theirs.eos_id(),
        )
    )
    for text in texts(300):
        tokens = ours.encode(text)
        assert tokens == theirs.encode(text)
        assert ours.decode(tokens) == theirs.decode(tokens) == text
