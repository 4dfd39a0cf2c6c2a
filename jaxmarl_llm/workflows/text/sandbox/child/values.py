"""Plain Python values as bytes, for exchange with a program that is not trusted.

Only exact built-in types come out of `decode`, so that no method of the other side is ever called: an object whose
`__eq__` always agrees arrives as a handle. Unlike `pickle` and `marshal`, no bytes can make `decode` run code.
"""

from __future__ import annotations

# `typing` and `collections.abc` would take a third of the time that a program needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_LONGEST = 100_000
_SEQUENCES = {"l": list, "t": tuple, "S": set, "Z": frozenset}


def encode(value: Any, handle: Callable[[Any], str]) -> bytes:
    """A value as bytes: each part is a letter, a length or a count, a colon and the content.

    Args:
      value: numbers, text, bytes, lists, tuples, sets, dicts and iterators; their subclasses lose what they add.
      handle: the text that stands for anything else.
    """
    parts: list[bytes] = []
    _write(value, handle, parts)
    return b"".join(parts)


def _write(value: Any, handle: Callable[[Any], str], parts: list[bytes]) -> None:
    if value is None or value is True or value is False:
        parts.append({None: b"N0:", True: b"T0:", False: b"F0:"}[value])
    elif isinstance(value, int):
        _content("i", int.__format__(value, "x").encode(), parts)
    elif isinstance(value, float):
        _content("f", float.hex(value).encode(), parts)
    elif isinstance(value, complex):
        _content("c", f"{value.real.hex()} {value.imag.hex()}".encode(), parts)
    elif isinstance(value, str):
        _content("s", str.encode(value, "utf-8", "surrogatepass"), parts)
    elif isinstance(value, bytes):
        _content("b", bytes(value), parts)
    elif isinstance(value, dict):
        _items("d", [part for pair in dict.items(value) for part in pair], handle, parts)
    elif hasattr(type(value), "__next__"):
        _items("I", [item for item, _ in zip(value, range(_LONGEST), strict=False)], handle, parts)
    else:
        for letter, kind in _SEQUENCES.items():
            if isinstance(value, kind):
                return _items(letter, list(kind.__iter__(value)), handle, parts)
        _content("h", handle(value).encode(), parts)


def _content(letter: str, content: bytes, parts: list[bytes]) -> None:
    parts.append(f"{letter}{len(content)}:".encode() + content)


def _items(letter: str, items: list, handle: Callable[[Any], str], parts: list[bytes]) -> None:
    parts.append(f"{letter}{len(items)}:".encode())
    for item in items:
        _write(item, handle, parts)


def decode(data: bytes, handle: Callable[[str], Any]) -> Any:
    """The value that `encode` wrote.

    Args:
      data: bytes from anybody.
      handle: what stands for the text of a handle.

    Raises:
      ValueError: other bytes.
    """
    try:
        value, end = _read(data, 0, handle)
    except (IndexError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"not a value: {type(error).__name__}") from None
    if end != len(data):
        raise ValueError("not a value: something follows it")
    return value


def _read(data: bytes, start: int, handle: Callable[[str], Any]) -> tuple[Any, int]:
    letter = chr(data[start])
    colon = data.index(b":", start, start + 16)
    size, start = int(data[start + 1 : colon]), colon + 1
    if letter in _SEQUENCES or letter in "dI":
        items = []
        for _ in range(size):
            item, start = _read(data, start, handle)
            items.append(item)
        if letter == "d":
            return dict(zip(items[::2], items[1::2], strict=True)), start
        return (iter(items) if letter == "I" else _SEQUENCES[letter](items)), start
    content, end = data[start : start + size], start + size
    if size < 0 or end > len(data):
        raise ValueError("not a value: it is cut off")
    if letter == "b":
        return content, end
    return _from_text(letter, content.decode("utf-8", "surrogatepass"), handle), end


def _from_text(letter: str, text: str, handle: Callable[[str], Any]) -> Any:
    if letter == "c":
        real, imaginary = text.split(" ")
        return complex(float.fromhex(real), float.fromhex(imaginary))
    simple: dict[str, Callable[[], Any]] = {
        "N": lambda: None,
        "T": lambda: True,
        "F": lambda: False,
        "i": lambda: int(text, 16),
        "f": lambda: float.fromhex(text),
        "s": lambda: text,
        "h": lambda: handle(text),
    }
    return simple[letter]()
