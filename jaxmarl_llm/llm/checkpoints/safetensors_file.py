"""Safetensors files, read and written a block of rows after the other.

The format: the length of the header in 8 bytes, the header in JSON (dtype, shape and place of each tensor), the
tensors. Read here rather than through a memory map, whose pages would count as a second copy of the model.
"""

import dataclasses
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import ml_dtypes
import numpy as np

from jaxmarl_llm.arguments import shown
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.user_files import parse_json, read_object

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
# Far above the header of any model; what is longer is another kind of file.
_MAX_HEADER = 100_000_000


@dataclasses.dataclass(frozen=True)
class _Entry:
    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    end: int


class SafetensorsFiles:
    """The tensors of one or several safetensors files.

    Attributes:
      names: of all tensors.
      metadata: text by name, of the first file.
    """

    def __init__(self, paths: Iterable[Path]):
        self._entries: dict[str, _Entry] = {}
        self.metadata: dict[str, str] = {}
        for path in paths:
            entries, metadata = _read_header(path)
            self._entries |= entries
            self.metadata = self.metadata or metadata
        self.names = set(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of a tensor."""
        return self._entries[name].shape

    def rows(self, name: str, start: int, stop: int) -> np.ndarray:
        """Some rows of a tensor, `[stop - start, ...]` of its own dtype."""
        entry = self._entries[name]
        dtype = _DTYPES.get(entry.dtype)
        if dtype is None:
            raise UserError(
                f"{entry.path}: tensor {name} is stored as {entry.dtype}: only {', '.join(_DTYPES)} can be read"
            )
        inner = math.prod(entry.shape[1:])
        count, before = (stop - start) * inner, start * inner * dtype.itemsize
        found = np.fromfile(entry.path, dtype, count, offset=entry.offset + before)
        return found.reshape(stop - start, *entry.shape[1:])


def _read_header(path: Path) -> tuple[dict[str, _Entry], dict[str, str]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else _MAX_HEADER
        if length >= _MAX_HEADER or 8 + length > size:
            raise UserError(f"{path} is no safetensors file, or truncated: download it again")
        try:
            header = parse_json(file.read(length))
        except ValueError:
            header = None
    if not isinstance(header, dict):
        raise UserError(f"{path} is no safetensors file: its header cannot be read")
    start, metadata = 8 + length, header.pop("__metadata__", None)
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise UserError(f"{path} is damaged: its __metadata__ must hold texts by name")
    try:
        entries = {name: _entry(path, name, entry, start) for name, entry in header.items()}
    except UserError:
        raise
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged: its header cannot be understood; download it again") from None
    end = max((entry.end for entry in entries.values()), default=0)
    if size < end:
        raise UserError(f"{path} is truncated: it has {size:,} bytes of {end:,}; download it again")
    return entries, metadata


def _entry(path: Path, name: str, entry: Mapping[str, Any], start: int) -> _Entry:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if not all(type(number) is int and number >= 0 for number in (*shape, begin, end)):
        raise ValueError("sizes are whole numbers")
    dtype = _DTYPES.get(entry["dtype"])
    if begin > end or (dtype is not None and end - begin != math.prod(shape) * dtype.itemsize):
        raise UserError(f"{path}: tensor {name} of shape {list(shape)} has {end - begin} bytes: the file is damaged")
    return _Entry(path, entry["dtype"], shape, start + begin, start + end)


def open_weights(folder: Path) -> SafetensorsFiles:
    """The tensors of a Hugging Face folder.

    Args:
      folder: with `model.safetensors`, or with `model.safetensors.index.json` and the files that it names.

    Raises:
      UserError: a file is missing, truncated or of another format.
    """
    if (folder / INDEX).is_file():
        places = read_object(folder / INDEX).get("weight_map")
        if not isinstance(places, dict):
            raise UserError(f"{folder / INDEX} is damaged: it must map tensors to files in 'weight_map'")
        for name in places.values():
            if not isinstance(name, str) or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
                raise UserError(
                    f"{folder / INDEX} is damaged: 'weight_map' must name files of its folder, got {shown(name)}"
                )
        names = sorted(set(places.values()))
        for name in names:
            if not (folder / name).is_file():
                raise UserError(f"{folder / name} is missing: {INDEX} names it; download it again")
        return SafetensorsFiles(folder / name for name in names)
    if (folder / SINGLE).is_file():
        return SafetensorsFiles([folder / SINGLE])
    others = sorted(path.name for path in folder.glob("*.bin"))
    hint = f"{others[0]} is of an older format: convert it to safetensors" if others else "download the weights"
    raise UserError(f"{folder} holds no {SINGLE} and no {INDEX}: {hint}")


@dataclasses.dataclass(frozen=True)
class Tensor:
    """A tensor that is about to be written: its header entry, known before its numbers are.

    Attributes:
      name: of the tensor.
      shape: of the tensor.
      dtype: its NumPy name.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def num_bytes(self) -> int:
        """Size in the file."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


def write_safetensors(
    path: Path, tensors: list[Tensor], arrays: Iterable[np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a safetensors file, one tensor after the other.

    Args:
      path: of the file.
      tensors: in the order of `arrays`.
      arrays: taken one by one, so that they need not all be in memory.
      metadata: text by name.

    Raises:
      OSError: it cannot be written.
    """
    # Readers of PyTorch's side refuse files that do not say so.
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for tensor in tensors:
        name = _NAMES[np.dtype(tensor.dtype)]
        end = offset + tensor.num_bytes
        header[tensor.name] = {"dtype": name, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor, array in zip(tensors, arrays, strict=True):
            assert array.shape == tensor.shape and array.dtype == np.dtype(tensor.dtype)
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
