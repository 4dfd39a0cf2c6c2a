"""Text to tokens and back, with the chat format and the tokens that end an answer."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.chat_template import render_chat
from jaxmarl_llm.llm.extra import import_extra
from jaxmarl_llm.llm.gguf_tokenizer import gguf_backend, gguf_settings
from jaxmarl_llm.user_files import read_object

# What the library writes where bytes are no whole character.
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclasses.dataclass(frozen=True, eq=False)
class Tokenizer:
    """The tokenizer of a checkpoint; build it with `from_folder` or `from_gguf`.

    Attributes:
      backend: the `tokenizers.Tokenizer`.
      settings: contents of `tokenizer_config.json`, without the chat template.
      generation: contents of `generation_config.json`.
      chat_template: source of the Jinja template that `chat` renders; None where the checkpoint has none.
      stop_tokens: tokens that end an answer: the end of a text, and the template's end of a turn.
      pad_token: token for what is never read.
      source: where it comes from, for messages.
    """

    backend: Any
    settings: Mapping[str, Any]
    generation: Mapping[str, Any]
    chat_template: str | None
    stop_tokens: tuple[int, ...]
    pad_token: int
    source: str

    @classmethod
    def from_folder(cls, path: str | pathlib.Path) -> "Tokenizer":
        """Reads the tokenizer of a Hugging Face folder.

        Args:
          path: folder with `tokenizer.json`; `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json`
            and `config.json` are read where they exist.

        Raises:
          UserError: no such folder, no tokenizer in it, or a damaged file.
        """
        folder = pathlib.Path(path)
        file = folder / "tokenizer.json"
        if not folder.is_dir():
            raise UserError(f"there is no folder {folder}")
        if not file.is_file():
            pieces = sorted(found.name for found in folder.glob("*.model"))
            raise UserError(
                f"{folder} has no tokenizer.json"
                + (f", only {pieces[0]}" if pieces else "")
                + ": load it with transformers' AutoTokenizer and save_pretrained it"
            )
        tokenizers = import_extra("tokenizers")
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        # The library raises a bare Exception.
        except Exception as error:
            raise UserError(f"{file} is damaged: {' '.join(str(error).split())}") from error
        backend.no_truncation()
        backend.no_padding()
        settings = _read_object(folder / "tokenizer_config.json")
        _add_missing(backend, settings, folder)
        template = _named_template(settings.pop("chat_template", None))
        jinja = folder / "chat_template.jinja"
        if jinja.is_file():
            template = jinja.read_bytes().decode(errors="replace")
        return cls._assemble(
            backend,
            settings,
            _read_object(folder / "generation_config.json"),
            template,
            str(folder),
            _read_object(folder / "config.json"),
        )

    @classmethod
    def from_gguf(cls, fields: Any, *, source: str = "the GGUF file") -> "Tokenizer":
        """Builds the tokenizer that a GGUF file's metadata describe.

        Args:
          fields: a `gguf.GGUFReader`, its `fields`, or plain values by key.
          source: where they come from, for messages.

        Raises:
          UserError: no tokenizer in the file, one of an unknown kind, or a damaged one.
        """
        fields = getattr(fields, "fields", fields)
        backend = gguf_backend(fields)
        settings, generation, template = gguf_settings(fields)
        return cls._assemble(backend, settings, generation, template, source, {})

    @classmethod
    def _assemble(cls, backend, settings, generation, template, source, model) -> "Tokenizer":
        if not isinstance(template, str | None):
            raise UserError(f"the chat template of {source} is damaged: it is no text")
        special = _special_tokens(settings)
        ids = {name: backend.token_to_id(text) for name, text in special.items()}
        for name in ("bos_token", "eos_token"):
            if name in ids and ids[name] is None:
                raise UserError(f"the {name} {special[name]!r} of {source} is not in its vocabulary")
        stops = [] if ids.get("eos_token") is None else [ids["eos_token"]]
        stops += _token_ids(generation, "eos_token_id", source) + _token_ids(model, "eos_token_id", source)
        if template is not None:
            stops += _end_of_turn(backend, template, special)
        stops = tuple(dict.fromkeys(stops))
        pads = [] if ids.get("pad_token") is None else [ids["pad_token"]]
        pads += _token_ids(generation, "pad_token_id", source) + _token_ids(model, "pad_token_id", source)
        pad = next(iter([*pads, *stops]), 0)
        return cls(backend, settings, generation, template, stops, pad, source)

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the highest token; the model's vocabulary may be padded beyond it."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """The tokens of a text.

        Args:
          text: any text; special tokens in it are recognised.
          add_special: put the tokens around it that the checkpoint asks for, such as the first one of a text.
        """
        # Half of a surrogate pair, which JSON can hold, is no text.
        text = text.encode(errors="replace").decode()
        return self.backend.encode(text, add_special_tokens=add_special).ids

    def decode(self, tokens: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of tokens; bytes that are no character become U+FFFD.

        Args:
          tokens: `[L]` ints; those outside the vocabulary have no text.
          skip_special: leave special tokens and stop tokens out.
        """
        left_out = self.stop_tokens if skip_special else ()
        kept = [int(token) for token in tokens if token not in left_out]
        return self.backend.decode(kept, skip_special_tokens=skip_special)

    def decode_stream(self, tokens: Iterable[int], *, skip_special: bool = True) -> Iterator[str]:
        """The text of tokens as they arrive, in whole characters; together what `decode` gives.

        Args:
          tokens: ints, for example a generator.
          skip_special: as of `decode`.

        Yields:
          Text that is not empty. A character whose bytes are spread over tokens is held back until it is whole.
        """
        # Tokens that were written out last: what comes first in a text can be decoded differently.
        written: list[int] = []
        waiting: list[int] = []

        def new_text():
            known = self.decode(written, skip_special=skip_special)
            return self.decode(written + waiting, skip_special=skip_special)[len(known) :]

        for token in tokens:
            waiting.append(int(token))
            text = new_text()
            if text and not text.endswith(_REPLACEMENT):
                yield text
                written, waiting = waiting, []
        if waiting and (text := new_text()):
            yield text

    def chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables) -> str:
        """Writes messages in the checkpoint's chat format.

        Args:
          messages: mappings with "role" ("system", "user", "assistant") and "content".
          add_generation_prompt: end with the start of the assistant's answer.
          **variables: of the template, for example `enable_thinking=False` (Qwen3) or `date_string` (Llama 3).

        Raises:
          UserError: no chat template, or one that refuses the messages.
        """
        if self.chat_template is None:
            raise UserError(f"{self.source} has no chat template: put one in chat_template.jinja beside tokenizer.json")
        variables = _special_tokens(self.settings) | variables
        return render_chat(self.chat_template, messages, add_generation_prompt=add_generation_prompt, **variables)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], **settings) -> list[int]:
        """The tokens of `chat`, whose arguments it takes."""
        return self.encode(self.chat(messages, **settings))

    def save(self, folder: str | pathlib.Path) -> None:
        """Writes a Hugging Face folder's tokenizer files; `from_folder` reads the same tokenizer from them.

        Args:
          folder: made where it does not exist. The stop tokens and the pad token stand in `generation_config.json`.
        """
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        _write_object(folder / "tokenizer_config.json", self.settings)
        ends = {"eos_token_id": list(self.stop_tokens), "pad_token_id": self.pad_token}
        _write_object(folder / "generation_config.json", {**self.generation, **ends})
        template = folder / "chat_template.jinja"
        if self.chat_template is None:
            template.unlink(missing_ok=True)
        else:
            template.write_bytes(self.chat_template.encode())

    @functools.cached_property
    def pieces(self) -> tuple[bytes, ...]:
        """`[vocab_size]`, the bytes that each token writes after others; empty for special and for unused tokens."""
        letters = _byte_letters() if _has_part(json.loads(self.backend.to_str())["decoder"], "ByteLevel") else None
        pieces = [b""] * self.vocab_size
        for text, token in self.backend.get_vocab(with_added_tokens=False).items():
            pieces[token] = _piece(text, letters)
        for token, added in self.backend.get_added_tokens_decoder().items():
            pieces[token] = b"" if added.special else added.content.encode()
        return tuple(pieces)


def _piece(text: str, letters: Mapping[str, int] | None) -> bytes:
    if letters is not None:
        return bytes(letters[letter] for letter in text) if all(letter in letters for letter in text) else b""
    if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("▁", " ").encode()


@functools.cache
def _byte_letters() -> dict[str, int]:
    """The letter of each byte in byte-level vocabularies: printable Latin-1 stands for itself, the rest from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _has_part(part: Any, kind: str) -> bool:
    if not isinstance(part, dict):
        return False
    return part.get("type") == kind or any(_has_part(inner, kind) for inner in part.get("decoders", ()))


def _end_of_turn(backend: Any, template: str, special: Mapping[str, str]) -> list[int]:
    """The token that a template writes behind an answer; not all checkpoints declare it a special one."""
    answer = "an answer"
    messages = [{"role": "user", "content": "a question"}, {"role": "assistant", "content": answer}]
    try:
        text = render_chat(template, messages, add_generation_prompt=False, **special)
    except UserError:
        # Whoever calls `chat` is told.
        return []
    _, found, rest = text.rpartition(answer)
    after = backend.encode(rest.lstrip(), add_special_tokens=False).ids[:1] if found else []
    return [token for token in after if token in backend.get_added_tokens_decoder()]


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """The texts of `bos_token`, `eos_token` and so on, which stand as texts or as descriptions of tokens."""
    found = {}
    for name, value in settings.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def _add_missing(backend: Any, settings: Mapping[str, Any], folder: pathlib.Path) -> None:
    """Declares the added tokens that only `tokenizer_config.json` knows."""
    tokenizers = import_extra("tokenizers")
    known = backend.get_added_tokens_decoder()
    try:
        listed = {int(number): token for number, token in settings.get("added_tokens_decoder", {}).items()}
        for number, token in sorted(listed.items()):
            if number not in known:
                backend.add_tokens([tokenizers.AddedToken(**token)])
                if backend.token_to_id(token["content"]) != number:
                    raise ValueError(f"token {number} is not at its place")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        file = folder / "tokenizer_config.json"
        raise UserError(f"the added_tokens_decoder of {file} is damaged: {error}") from error


def _named_template(template: Any) -> str | None:
    """A chat template, or the default one of a list of named ones."""
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        return named.get("default", next(iter(named.values()), None))
    return template


def _token_ids(config: Mapping[str, Any], key: str, source: str) -> list[int]:
    value = config.get(key)
    found = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in found):
        raise UserError(f"{key} of {source} must be a token or a list of tokens, got {value!r}")
    return found


def _read_object(file: pathlib.Path) -> dict[str, Any]:
    return read_object(file) if file.is_file() else {}


def _write_object(file: pathlib.Path, contents: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(contents, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
