import importlib
import itertools
import random

import pytest
from tokenizers import AddedToken
from toy_tokenizers import (
    CHATML,
    LLAMA3_LIKE,
    QWEN_LIKE,
    SENTENCES,
    byte_level,
    byte_level_fields,
    gguf_fields,
    sentence_piece_fields,
    write_folder,
)

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.chat_template import render_chat
from jaxmarl_llm.llm.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "What is 12 + 30?"}]


@pytest.fixture(scope="module")
def backend():
    return byte_level()


@pytest.fixture(scope="module")
def tokenizer(backend, tmp_path_factory):
    return Tokenizer.from_folder(write_folder(tmp_path_factory.mktemp("folder"), backend))


@pytest.fixture(scope="module")
def piece_fields(tmp_path_factory):
    return gguf_fields(tmp_path_factory.mktemp("gguf") / "pieces.gguf", **sentence_piece_fields())


@pytest.fixture(scope="module")
def sentence_piece(piece_fields):
    return Tokenizer.from_gguf(piece_fields)


def texts(count, seed=0):
    """Random texts: letters of the sentences, words, characters from all over Unicode, blanks and digits."""
    draw = random.Random(seed)
    words = [*" ".join(SENTENCES[:4]).split(" "), "<|im_end|>", "½", "é", "e\u0301", "\u3000", "I'LL", "\r\n"]
    kinds = (
        lambda: draw.choice(" ".join(SENTENCES)),
        lambda: draw.choice(words) + draw.choice(["", " ", "  ", "\n"]),
        lambda: chr(draw.choice([draw.randrange(32, 0xD800), draw.randrange(0xE000, 0x20000)])),
        lambda: draw.choice(" \n\t0123456789'aB."),
    )
    return ["".join(kinds[index % 4]() for _ in range(draw.randrange(23))) for index in range(count)]


def test_a_folder_and_a_gguf_file_of_one_vocabulary_give_the_same_tokens(backend, tokenizer, tmp_path):
    other = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **byte_level_fields(backend)))
    for text in texts(400):
        tokens = tokenizer.encode(text)
        assert tokens == other.encode(text) == backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokens, skip_special=False) == other.decode(tokens, skip_special=False) == text
    assert other.stop_tokens == tokenizer.stop_tokens == (2,)
    assert other.vocab_size == tokenizer.vocab_size == backend.get_vocab_size()
    assert other.chat(HELLO) == tokenizer.chat(HELLO)


def test_special_tokens_are_recognised_and_left_out_of_texts(tokenizer):
    tokens = tokenizer.encode("<|im_start|>fox<|im_end|>")
    assert (tokens[0], tokens[-1]) == (1, 2)
    assert tokenizer.decode(tokens) == "fox"
    assert tokenizer.decode(tokens, skip_special=False) == "<|im_start|>fox<|im_end|>"
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a?b")


def sentence_piece_twin(fields, text):
    """SentencePiece's rule: merge the pair with the best score, the leftmost of equals; bytes of unknown letters."""
    tokens, scores = fields["ggml_tokens"], fields["ggml_scores"]
    number = {token: index for index, token in enumerate(tokens)}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [(scores[number[a + b]], -i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in number]
        if not pairs:
            break
        at = -max(pairs)[1]
        parts[at : at + 2] = ["".join(parts[at : at + 2])]
    found = []
    for part in parts:
        found += [number[part]] if part in number else [number[f"<0x{byte:02X}>"] for byte in part.encode()]
    return found


def test_sentence_piece_tokens_follow_scores_and_fall_back_to_bytes(sentence_piece):
    fields = sentence_piece_fields()
    merged = 0
    for text in texts(300, seed=1):
        text = text.replace("<|im_end|>", "")
        tokens = sentence_piece.encode(text)
        assert tokens == sentence_piece_twin(fields, text)
        assert sentence_piece.decode(tokens) == text
        merged += len(text) > len(tokens)
    assert merged > 40
    assert sentence_piece.encode("☃")[1:] == [3 + byte for byte in "☃".encode()]
    # The blank in front of a text is none of its own; each text between special tokens has one.
    assert sentence_piece.decode(sentence_piece.encode("a</s>b"), skip_special=False) == "a</s> b"


def test_the_first_token_is_added_where_the_file_says_so(tmp_path, sentence_piece, backend):
    assert sentence_piece.encode("fox", add_special=True) == [1, *sentence_piece.encode("fox")]
    off = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **sentence_piece_fields(ggml_add_bos_token=False)))
    assert off.encode("fox", add_special=True) == off.encode("fox")
    fields = byte_level_fields(backend) | {"ggml_add_bos_token": True, "ggml_add_eos_token": True}
    both = Tokenizer.from_gguf(gguf_fields(tmp_path / "b.gguf", **fields))
    assert both.encode("fox", add_special=True) == [1, *both.encode("fox"), 2]


def test_without_a_blank_in_front(tmp_path):
    plain = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **sentence_piece_fields(ggml_add_space_prefix=False)))
    assert plain.encode("") == [] and plain.decode(plain.encode(" fox")) == " fox"
    assert plain.encode(" fox") != plain.encode("fox")


SPLIT_TEXT = "It'LL cost 1234½ €; see  HTTPServers.\n\n  ok"
SPLITS = {
    "gpt-2": ["It", "'", "LL", " cost", " 1234½", " €;", " see", " ", " HTTPServers", ".", "\n\n ", " ok"],
    "smollm": ["It", "'", "LL", " cost", " ", *"1234½", " €;", " see", " ", " HTTPServers", ".", "\n\n ", " ok"],
    "llama-bpe": ["It", "'LL", " cost", " ", "123", "4½", " €;", " see", " ", " HTTPServers", ".\n\n", " ", " ok"],
    "qwen2": ["It", "'LL", " cost", " ", *"1234½", " €;", " see", " ", " HTTPServers", ".\n\n", " ", " ok"],
    "tekken": ["It", "'LL", " cost", " ", *"1234½", " €;", " see", " ", " HTTPServers", ".\n\n", " ", " ok"],
    "default": [
        "It",
        "'",
        "LL",
        " cost",
        " ",
        "123",
        "4½",
        " €",
        ";",
        " see",
        " ",
        " HTTPServers",
        ".",
        "\n\n ",
        " ok",
    ],
}
SAME = {"deepseek-r1-qwen": "qwen2", "llama-v3": "llama-bpe", "smaug-bpe": "llama-bpe", "starcoder": "smollm"}


@pytest.mark.parametrize("name", [*SPLITS, *SAME])
def test_texts_are_split_as_the_named_rule_says(name, backend, tmp_path):
    fields = byte_level_fields(backend, pre=name)
    split = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **fields)).backend.pre_tokenizer.pre_tokenize_str
    assert [SPLIT_TEXT[start:end] for _, (start, end) in split(SPLIT_TEXT)] == SPLITS[SAME.get(name, name)]


def test_rules_that_differ_in_more_than_splitting(backend, tmp_path):
    def build(name):
        return Tokenizer.from_gguf(gguf_fields(tmp_path / f"{name}.gguf", **fields | {"ggml_pre": name}))

    fields = byte_level_fields(backend)
    # A token that no merge makes.
    fields["ggml_tokens"].append("zebra")
    fields["ggml_token_type"].append(1)
    last = len(fields["ggml_tokens"]) - 1
    assert build("llama-bpe").encode("zebra") == build("tekken").encode("zebra") == [last]
    assert last not in build("qwen2").encode("zebra")
    # Qwen composes letters and their accents.
    assert build("qwen2").encode("e\u0301") == build("qwen2").encode("\u00e9") != build("gpt-2").encode("e\u0301")
    # Llama 3 starts a text with its first token without being told.
    assert build("llama-bpe").encode("a", add_special=True)[0] == 1
    assert build("qwen2").encode("a", add_special=True) == build("qwen2").encode("a")


def test_user_defined_tokens_are_recognised_and_kept_in_texts(backend, tmp_path):
    fields = byte_level_fields(backend, user_defined=["<think>"])
    defined = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **fields))
    tokens = defined.encode("a<think>b")
    assert tokens[1] == defined.vocab_size - 1 and defined.decode(tokens) == "a<think>b"


def same(first, second):
    return (
        first.backend.to_str() == second.backend.to_str()
        and first.stop_tokens == second.stop_tokens
        and first.pad_token == second.pad_token
        and first.chat_template == second.chat_template
        and first.settings == second.settings
        and first.pieces == second.pieces
    )


@pytest.mark.parametrize("origin", ["folder", "gguf", "sentence_piece"])
def test_what_is_saved_is_read_back(origin, backend, sentence_piece, tmp_path):
    if origin == "folder":
        folder = write_folder(
            tmp_path / "a", backend, template=LLAMA3_LIKE, generation={"eos_token_id": [2, 0], "top_p": 0.9},
            model={"eos_token_id": 7, "pad_token_id": 5}, bos_token={"content": "<|im_start|>", "lstrip": False},
        )  # fmt: skip
        first = Tokenizer.from_folder(folder)
        assert (first.stop_tokens, first.pad_token) == ((2, 0, 7), 5)
    elif origin == "gguf":
        first = Tokenizer.from_gguf(gguf_fields(tmp_path / "a.gguf", **byte_level_fields(backend)))
    else:
        first = sentence_piece
    first.save(tmp_path / "saved")
    second = Tokenizer.from_folder(tmp_path / "saved")
    assert same(first, second)
    if origin == "folder":
        assert second.generation["top_p"] == 0.9
    for text in texts(50, seed=2):
        assert first.encode(text, add_special=True) == second.encode(text, add_special=True)


def test_saving_over_another_tokenizer_leaves_no_template_behind(tokenizer, sentence_piece, tmp_path):
    tokenizer.save(tmp_path)
    sentence_piece.save(tmp_path)
    assert Tokenizer.from_folder(tmp_path).chat_template is None


def test_stop_tokens_join_settings_and_the_end_of_a_turn(tmp_path):
    backend = byte_level(special=("<|begin|>", "<|end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"))
    folder = write_folder(tmp_path, backend, template=LLAMA3_LIKE, eos_token="<|end|>", bos_token="<|begin|>")
    found = Tokenizer.from_folder(folder)
    assert (found.stop_tokens, found.pad_token) == ((1, 4), 1)
    # The file of its own wins over the template in tokenizer_config.json.
    (folder / "chat_template.jinja").write_text(CHATML.replace("<|im_end|>", "<|end|>"))
    assert Tokenizer.from_folder(folder).stop_tokens == (1,)


def test_the_end_of_a_turn_need_not_be_declared_special(tmp_path):
    backend = byte_level(special=("<|endoftext|>", "<|im_start|>"))
    backend.add_tokens([AddedToken("<|im_end|>", special=False, normalized=False)])
    found = Tokenizer.from_folder(write_folder(tmp_path, backend, eos_token="<|endoftext|>"))
    end = found.encode("<|im_end|>")
    assert found.stop_tokens == (0, *end)
    assert found.decode([*found.encode("fox"), *end]) == "fox"
    assert found.decode(end, skip_special=False) == "<|im_end|>"


def test_tokens_that_only_the_settings_know_are_added(backend, tmp_path):
    size = backend.get_vocab_size()
    token = {"content": "<|pad|>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
    listed = {str(size): token, "2": {**token, "content": "<|im_end|>"}}
    found = Tokenizer.from_folder(write_folder(tmp_path, backend, added_tokens_decoder=listed, pad_token="<|pad|>"))
    assert found.encode("<|pad|>") == [size] == [found.pad_token] and found.vocab_size == size + 1
    folder = write_folder(tmp_path, backend, added_tokens_decoder={str(size + 3): token})
    with pytest.raises(UserError, match=f"token {size + 3} is not at its place"):
        Tokenizer.from_folder(folder)


def test_chat_templates_have_what_they_use(tmp_path):
    assert render_chat(QWEN_LIKE, HELLO).endswith("30?<|im_end|>\n<|im_start|>assistant\n")
    assert render_chat(QWEN_LIKE, HELLO, enable_thinking=False).endswith("<think>\n\n</think>\n\n")
    assert '{"name": "é<"}' in render_chat(QWEN_LIKE, HELLO, tools=[{"name": "é<"}])
    talk = [{"role": "user", "content": f" {number} "} for number in range(9)]
    text = render_chat(LLAMA3_LIKE, talk, bos_token="<s>", add_generation_prompt=False)
    assert text.startswith("<s><|start_header_id|>user<|end_header_id|>\n\nToday: 1 Jan 2026\n\n0<|eot_id|><|start")
    assert text.count("Today") == 1 and text.endswith("5<|eot_id|>")
    assert len(render_chat("{{ strftime_now('%Y-%m-%d') }}", [])) == 10


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for %}", "damaged in line 1"),
        ("\n{{ raise_exception('no\n systems') }}", "refuses these messages: no systems"),
        ("{{ messages[7].content.x }}", "refuses these messages: list object has no element 7"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ 'a' * 'b' }}", "refuses"),
    ],
)
def test_templates_that_fail_say_so_in_one_line(template, said, backend, tmp_path):
    broken = Tokenizer.from_folder(write_folder(tmp_path, backend, template=template))
    with pytest.raises(UserError, match=said) as caught:
        broken.chat(HELLO)
    assert "\n" not in str(caught.value)


def test_messages_need_a_role_and_a_content(tokenizer, sentence_piece):
    assert tokenizer.chat_ids(HELLO) == tokenizer.encode(tokenizer.chat(HELLO))
    assert tokenizer.chat_ids(HELLO)[0] == 1
    assert tokenizer.chat(HELLO, add_generation_prompt=False).endswith("<|im_end|>\n")
    with pytest.raises(ValueError, match="message 1 needs"):
        tokenizer.chat([*HELLO, {"role": "user"}])
    with pytest.raises(UserError, match=r"has no chat template: put one in chat_template.jinja"):
        sentence_piece.chat(HELLO)


def test_a_list_of_named_templates(backend, tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert Tokenizer.from_folder(write_folder(tmp_path, backend, template=named)).chat(HELLO) == "plain"


@pytest.mark.parametrize("which", ["byte_level", "sentence_piece"])
def test_a_stream_gives_whole_characters_and_the_whole_text(which, tokenizer, sentence_piece):
    used = tokenizer if which == "byte_level" else sentence_piece
    split = 0
    for text in [*texts(100, seed=3), "🙂🙂", " a", "  b"]:
        tokens = used.encode(text)
        parts = list(used.decode_stream(iter(tokens)))
        assert "".join(parts) == used.decode(tokens)
        assert all(parts) and not any("\ufffd" in part for part in parts)
        split += len(parts) < len(tokens)
    assert split > 10
    # A text that stops in the middle of a character ends as `decode` ends it; the same of bytes that are none.
    cut = used.encode("fox ☃")[:-1]
    assert "".join(used.decode_stream(cut)) == used.decode(cut)
    assert "\ufffd" in used.decode(cut)
    assert list(used.decode_stream([])) == list(used.decode_stream([2])) == []


def test_pieces_are_the_bytes_that_tokens_write(tokenizer, sentence_piece):
    for used in (tokenizer, sentence_piece):
        assert len(used.pieces) == used.vocab_size
        for text in texts(60, seed=4):
            text = text.replace("<|im_end|>", "")
            written = b"".join(used.pieces[token] for token in used.encode(text)).decode()
            assert written == (" " + text if used is sentence_piece and text else text)
        assert used.pieces[2] == b""


def test_folders_that_are_no_tokenizers_are_refused_in_one_line(backend, tmp_path):
    def refuse(folder, said):
        with pytest.raises(UserError, match=said) as caught:
            Tokenizer.from_folder(folder)
        assert "\n" not in str(caught.value)

    refuse(tmp_path / "none", "there is no folder")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", "has no tokenizer.json: load")
    (tmp_path / "empty" / "tokenizer.model").touch()
    refuse(tmp_path / "empty", "has no tokenizer.json, only tokenizer.model: load")
    folder = write_folder(tmp_path / "a", backend)
    for name, contents in (
        ("config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("generation_config.json", "\ufeff{"),
    ):
        before = (folder / name).read_bytes() if (folder / name).exists() else b"{}"
        (folder / name).write_text(contents, encoding="utf-8")
        refuse(folder, f"{name} is damaged")
        (folder / name).write_bytes(before)
    (folder / "config.json").write_text('{"eos_token_id": "two"}')
    refuse(folder, "eos_token_id of .* must be a token or a list of tokens, got 'two'")
    (folder / "config.json").write_text("{}")
    whole = (folder / "tokenizer.json").read_text(encoding="utf-8")
    (folder / "tokenizer.json").write_text(whole[:1000], encoding="utf-8")
    refuse(folder, "tokenizer.json is damaged")
    refuse(write_folder(tmp_path / "b", backend, eos_token="<|gone|>"), "eos_token '<|gone|>' of .* is not in its voc")
    refuse(
        write_folder(tmp_path / "c", backend, added_tokens_decoder={"x": 1}), "added_tokens_decoder of .* is damaged"
    )


def test_gguf_files_without_a_usable_tokenizer_are_refused_in_one_line(backend):
    def refuse(said, fields):
        fields = {name.replace("ggml_", "tokenizer.ggml."): value for name, value in fields.items()}
        with pytest.raises(UserError, match=said) as caught:
            Tokenizer.from_gguf(fields)
        assert "\n" not in str(caught.value)

    good = byte_level_fields(backend)
    refuse("holds no tokenizer", {})
    refuse("unknown tokenizer.ggml.model 'bert'", good | {"ggml_model": "bert"})
    refuse("unknown tokenizer.ggml.pre 'smolm': did you mean smollm", good | {"ggml_pre": "smolm"})
    refuse("no tokenizer.ggml.merges", {name: value for name, value in good.items() if name != "ggml_merges"})
    refuse("damaged", good | {"ggml_merges": ["no such"]})
    refuse("damaged", good | {"ggml_merges": ["one"]})
    refuse("token types", good | {"ggml_token_type": [1]})
    refuse("eos token 99999 is not in the vocabulary", good | {"ggml_eos_token_id": 99999})
    pieces = sentence_piece_fields()
    refuse("needs tokenizer.ggml.scores", pieces | {"ggml_scores": [0.0]})
    refuse("damaged", pieces | {"ggml_unknown_token_id": 10**6})


def test_absent_packages_are_named(backend, tmp_path, monkeypatch):
    folder = write_folder(tmp_path, backend)

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(UserError, match=r"jaxmarl-llm\[llm\]"):
        Tokenizer.from_folder(folder)
