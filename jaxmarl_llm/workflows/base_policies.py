"""Base policies kept on disk, one file a configuration, so that each is made once.

A file is a NumPy archive `<key>.npz`: the parameters by their path, and under `head` a JSON text with the
configuration, the metrics of pretraining and a checksum. It is written under another name, and renamed when complete.
"""

import dataclasses
import hashlib
import importlib.metadata
import inspect
import io
import json
import os
import sys
import tempfile
import time
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.user_files import parse_json
from jaxmarl_llm.workflows.pretraining import Pretrained, Pretraining, pretrain

# To be raised when the same configuration gives another policy than before.
_RECIPE = 1
_HEAD = "head"
_PARTIAL = ".partial"
_HOUR = 3600.0


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=3)


def print_notice(message: str) -> None:
    """For `notify` in a command: the line on stderr, without Python's words about warnings."""
    print(message, file=sys.stderr, flush=True)


def base_policy(
    config: Pretraining,
    *,
    folder: str | Path | None = None,
    num_devices: int = 0,
    on_metrics: Callable[[dict[str, float]], None] | None = None,
    notify: Callable[[str], None] = _warn,
) -> Any:
    """The base policy of a configuration: read from disk, or made and written there.

    Two processes that ask at the same time both make it; the files that they write are whole at any moment.

    Args:
      config: of the pretraining.
      folder: where base policies are kept; by default `jaxmarl-llm/base-policies` in the user's cache folder,
        `$XDG_CACHE_HOME` or `~/.cache`.
      num_devices, on_metrics: as for `pretrain`, where one has to be made.
      notify: gets one line where a file is damaged, and is made again, or cannot be written.

    Returns:
      Parameters of one policy, without an axis P.

    Raises:
      UserError: the configuration holds something that no key can be made of.
    """
    path = base_policy_path(config, folder)
    if path.exists():
        try:
            return _read(path, config)
        except _DAMAGES as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            notify(f"base policy {path} is damaged ({reason}): it is made again")
    made = pretrain(config, num_devices=num_devices, on_metrics=on_metrics)
    try:
        _write(path, config, made)
    except OSError as error:
        notify(f"cannot keep base policy {path} ({error.strerror or error}): it will be made again next time")
    return made.params


def base_policy_path(config: Pretraining, folder: str | Path | None = None) -> Path:
    """The file of a configuration's base policy, whether or not there is one; arguments as for `base_policy`."""
    if folder is None:
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(cache) / "jaxmarl-llm" / "base-policies"
    return Path(folder) / f"{_key(config)}.npz"


def describe(value: Any) -> Any:
    """What JSON can hold of a configuration, such that others give something else.

    Dataclasses are described by their fields and by the source of their class and its bases, so that a task of one's
    own that is changed counts as another one.

    Args:
      value: numbers, strings, None, tuples and mappings of them, and dataclasses.

    Raises:
      UserError: anything else.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [describe(one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return {name: describe(one) for name, one in sorted(value.items())}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        described = {field.name: describe(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"class": f"{kind.__module__}.{kind.__qualname__}", "source": _source_digest(kind), **described}
    raise UserError(
        f"no key of a base policy can be made of {type(value).__name__} {value!r}: "
        "use numbers, strings, tuples and dataclasses in tasks and workflows"
    )


def _source_digest(kind: type) -> str:
    text = ""
    for base in kind.__mro__[:-1]:
        try:
            text += inspect.getsource(base)
        except (OSError, TypeError):
            # A class typed into an interpreter has no source; its fields must do.
            text += base.__qualname__
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _description(config: Pretraining) -> dict[str, Any]:
    versions = {name: importlib.metadata.version(name) for name in ("jaxmarl-llm", "jax")}
    return {"recipe": _RECIPE, **versions, "pretraining": describe(config)}


def _key(config: Pretraining) -> str:
    return hashlib.sha256(_as_text(_description(config)).encode()).hexdigest()[:32]


def _as_text(description: Any) -> str:
    return json.dumps(description, sort_keys=True)


def _by_path(params: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {"/".join(str(part.key) for part in path): leaf for path, leaf in leaves}


def _checksum(arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _write(path: Path, config: Pretraining, made: Pretrained) -> None:
    arrays = {name: np.asarray(leaf) for name, leaf in _by_path(made.params).items()}
    head = {"sha256": _checksum(arrays), "description": _description(config), "metrics": made.metrics}
    content = io.BytesIO()
    np.savez(content, **{_HEAD: np.asarray(json.dumps(head))}, **arrays)  # pyright: ignore[reportArgumentType]
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f"*{_PARTIAL}"):
        # Writing takes a moment: what is older was left by a process that was killed.
        if time.time() - left.stat().st_mtime > _HOUR:
            left.unlink(missing_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.stem, suffix=_PARTIAL, delete=False) as file:
        try:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
        except OSError:
            Path(file.name).unlink(missing_ok=True)
            raise


class _Damaged(ValueError):
    """A file that is not what was written."""


_DAMAGES = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


def _read(path: Path, config: Pretraining) -> Any:
    # NumPy leaves a file open that it cannot read when it is given a path.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    head = parse_json(str(arrays.pop(_HEAD)))
    if _checksum(arrays) != head["sha256"]:
        raise _Damaged("its content is not what was written")
    # As text, since what JSON gives back is compared: a file may have been copied over another configuration's.
    if _as_text(head["description"]) != _as_text(_description(config)):
        raise _Damaged("it is of another configuration")
    decoder = Decoder(config.decoder)
    shapes = jax.eval_shape(lambda: decoder.init(jax.random.key(0), jnp.zeros((1, 1), jnp.int32))["params"])
    expected = _by_path(shapes)
    # NumPy's files know no bfloat16: it comes back as two bytes without a type.
    kinds = {name: (leaf.shape, np.dtype(leaf.dtype.str)) for name, leaf in expected.items()}
    if kinds != {name: (leaf.shape, leaf.dtype) for name, leaf in arrays.items()}:
        raise _Damaged("it does not fit the decoder")
    found = [jnp.asarray(arrays[name].view(leaf.dtype)) for name, leaf in expected.items()]
    if not all(bool(jnp.isfinite(leaf).all()) for leaf in found):
        raise _Damaged("some of its numbers are not finite")
    return jax.tree.unflatten(jax.tree.structure(shapes), found)
