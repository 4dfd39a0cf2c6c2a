"""GGUF files: fields and tensors, read a block of rows after the other.

The format: magic, version, numbers of tensors and fields; the fields; name, shape, type and place of each tensor; the
tensors. The `gguf` package knows the types and their blocks; its reader makes an array of each token of a vocabulary
and maps the file into memory, which takes seconds and memory that this one does not.
"""

import dataclasses
import math
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from jaxmarl_llm.arguments import check_whole, shown
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.extra import import_extra

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclasses.dataclass(frozen=True)
class _Entry:
    shape: tuple[int, ...]  # rows first
    type: Any
    offset: int


class GGUFFile:
    """An open GGUF file.

    Attributes:
      path: of the file.
      fields: numbers, texts and lists by name.
      names: of all tensors.
    """

    def __init__(self, path: Path):
        self.path = path
        self._size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise UserError(f"{path} is no GGUF file")
            version = self._scalar(file, "I")
            if version not in _VERSIONS:
                raise UserError(f"{path} has version {version} of the GGUF format: only {_VERSIONS} can be read")
            num_tensors, num_fields = self._scalar(file, "Q"), self._scalar(file, "Q")
            self.fields: dict[str, Any] = {}
            for _ in range(num_fields):
                name = self._text(file)
                self.fields[name] = self._value(file, self._scalar(file, "I"))
            self._entries = dict(self._tensor(file) for _ in range(num_tensors))
            alignment = self.fields.get("general.alignment") or 32
            check_whole(f"{path} is damaged: its general.alignment", alignment, at_least=1)
            self._start = -(-file.tell() // alignment) * alignment
        self.names = set(self._entries)
        for name, entry in self._entries.items():
            end = self._start + entry.offset + math.prod(entry.shape[:-1]) * self._row_bytes(name)
            if end > self._size:
                raise UserError(
                    f"{path} is truncated: it has {self._size:,} bytes, tensor {name} ends at {end:,}; download it "
                    "again"
                )

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor, rows first."""
        return self._entries[name].shape

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Some rows of a tensor, float32 `[stop - start, ...]`; those of a vector are its numbers."""
        quants = import_extra("gguf.quants")
        entry = self._entries[name]
        row = self._row_bytes(name)
        if len(entry.shape) == 1:
            # A row of blocks cannot be cut at any number; vectors are short.
            raw = np.fromfile(self.path, np.uint8, row, offset=self._start + entry.offset)
            return quants.dequantize(raw, entry.type)[start:stop]
        inner = math.prod(entry.shape[1:-1])
        raw = np.fromfile(
            self.path,
            np.uint8,
            (stop - start) * inner * row,
            offset=self._start + entry.offset + start * inner * row,
        )
        return quants.dequantize(raw.reshape(-1, row), entry.type).reshape(stop - start, *entry.shape[1:])

    def _row_bytes(self, name: str) -> int:
        entry = self._entries[name]
        block, size = import_extra("gguf.constants").GGML_QUANT_SIZES[entry.type]
        return entry.shape[-1] // block * size

    def _scalar(self, file: BinaryIO, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{code}", self._bytes(file, size))[0]

    def _bytes(self, file: BinaryIO, size: int) -> bytes:
        found = file.read(size) if size <= self._size else b""
        if len(found) != size:
            raise UserError(f"{self.path} is truncated or damaged: download it again")
        return found

    def _text(self, file: BinaryIO) -> str:
        return self._bytes(file, self._scalar(file, "Q")).decode(errors="replace")

    def _value(self, file: BinaryIO, kind: int) -> Any:
        if kind == _STRING:
            return self._text(file)
        if kind != _ARRAY:
            if kind not in _SCALARS:
                raise UserError(f"{self.path} is damaged: it has a field of kind {kind}")
            return self._scalar(file, _SCALARS[kind])
        kind, count = self._scalar(file, "I"), self._scalar(file, "Q")
        if kind == _ARRAY:
            raise UserError(f"{self.path} is damaged: it has a list of lists; download it again")
        if kind not in _SCALARS:
            return [self._value(file, kind) for _ in range(count)]
        size = struct.calcsize(f"<{_SCALARS[kind]}")
        return list(struct.unpack(f"<{count}{_SCALARS[kind]}", self._bytes(file, count * size)))

    def _tensor(self, file: BinaryIO) -> tuple[str, _Entry]:
        constants, quants = import_extra("gguf.constants"), import_extra("gguf.quants")
        name = self._text(file)
        count = self._scalar(file, "I")
        shape = tuple(self._scalar(file, "Q") for _ in range(count))[::-1]
        number, offset = self._scalar(file, "I"), self._scalar(file, "Q")
        try:
            kind = constants.GGMLQuantizationType(number)
            block, size = constants.GGML_QUANT_SIZES[kind]
            quants.dequantize(np.zeros((1, size), np.uint8), kind)
        except (ValueError, KeyError, NotImplementedError):
            known = [kind.name for kind in constants.GGMLQuantizationType if kind.value == number]
            if not known:
                raise UserError(
                    f"{self.path} is damaged, or newer than this reader: tensor {shown(name)} is of kind {number}; "
                    "download it again, or take a Q8_0 or F16 file"
                ) from None
            raise UserError(
                f"{self.path}: tensor {name} is quantised as {known[0]}, which cannot be read: take a Q8_0 or F16 file"
            ) from None
        if not shape or shape[-1] % block:
            raise UserError(f"{self.path} is damaged: tensor {name} has shape {list(shape)} in blocks of {block}")
        return name, _Entry(shape, kind, offset)
