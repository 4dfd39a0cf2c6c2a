"""Checkpoints: the whole state of a run on disk, written in one piece or not at all.

A checkpoint is a folder named after its update:

    state/           every array of the learner's state, by Orbax; PRNG keys as their data
    progress.json    what the host knows: seconds, best evaluation, metrics not yet written
    config.yaml      the configuration
    versions.json    the packages that wrote it
    manifest.json    size and SHA-256 of every file above

It is written under a name that ends in `.partial`, and renamed when complete. Saving is synchronous: the next update
may overwrite the donated buffers that a background writer would still be reading.
"""

import dataclasses
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.config import RECORDING_FIELDS, TrainConfig, differences, dump_yaml, load_yaml
from jaxmarl_llm.training.devices import barrier, is_main_process
from jaxmarl_llm.user_files import parse_json

_MANIFEST = "manifest.json"
_PARTIAL = ".partial"
# Without these no checkpoint is complete.
_FILES = ("progress.json", "config.yaml", "versions.json", "state/_METADATA")


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read.

    Attributes:
      update: the update after which it was saved.
      state: the learner's state, placed on the devices.
      progress: what the host saved with it.
      versions: the packages that wrote it.
      path: its folder.
    """

    update: int
    state: Any
    progress: dict[str, Any]
    versions: dict[str, str]
    path: Path


def _is_key(leaf) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def to_storage(state: Any) -> Any:
    """The state with its PRNG keys as plain integers, which is what a checkpoint holds."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, state)


def _orbax() -> ocp.Checkpointer:
    # Orbax reports each save, and its threads print what they also raise: a progress bar is no place for either.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    return ocp.Checkpointer(ocp.StandardCheckpointHandler())


def updates(folder: Path) -> list[int]:
    """The updates of all checkpoints in a folder, damaged ones too, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def save(
    folder: Path,
    update: int,
    state: Any,
    progress: dict[str, Any],
    config: Any,
    versions: dict[str, str],
    keep: int,
) -> Path:
    """Writes a checkpoint and removes the oldest ones. Every process of a run must call it.

    Until the new one is complete, the others stay as they are.

    Args:
      folder: holds the checkpoints.
      update: names the checkpoint; one of the same name is replaced.
      state: the learner's state.
      progress: what JSON can hold.
      config: stored along, a dataclass of plain values.
      versions: stored along.
      keep: how many checkpoints stay: this one, and the newest of the others.

    Returns:
      The checkpoint's folder.

    Raises:
      UserError: it cannot be written, for example because the disk is full.
    """
    try:
        return _save(folder, update, state, progress, config, versions, keep)
    except (OSError, ValueError) as error:
        shutil.rmtree(folder / f"{update}{_PARTIAL}", ignore_errors=True)
        text = " ".join(str(error).split())
        # TensorStore, which writes the arrays, reports the disk's errors as ValueError.
        found = re.search(r": ([^:]*) \[os_error_code", text)
        if not (found or isinstance(error, OSError)):
            raise
        reason = found[1] if found else getattr(error, "strerror", None) or text
        raise UserError(
            f"cannot write checkpoint {folder / str(update)} ({reason}): the run is as it was saved last; make room, "
            "then continue with --resume"
        ) from None


def _save(folder, update, state, progress, config, versions, keep) -> Path:
    target, partial = folder / str(update), folder / f"{update}{_PARTIAL}"
    if is_main_process():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    barrier(f"checkpoint {update} begins")
    with _orbax() as orbax:
        orbax.save((partial / "state").resolve(), args=ocp.args.StandardSave(to_storage(state)))
    if is_main_process():
        (partial / "progress.json").write_text(json.dumps(progress))
        (partial / "config.yaml").write_text(dump_yaml(config))
        (partial / "versions.json").write_text(json.dumps(versions, indent=2))
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        manifest = {
            str(path.relative_to(partial)): {"bytes": path.stat().st_size, "sha256": _digest(path)} for path in files
        }
        (partial / _MANIFEST).write_text(json.dumps(manifest, indent=1))
        _remove(target)
        partial.rename(target)
        # A run that went back to an older checkpoint may find newer ones of its former life: what it wrote now stays.
        others = [other for other in updates(folder) if other != update]
        for old in others[: max(0, len(others) + 1 - keep)]:
            _remove(folder / str(old))
    barrier(f"checkpoint {update} is complete")
    return target


def _remove(path: Path) -> None:
    if path.exists():
        # Half a checkpoint must never stand under a final name, should this process be killed half-way.
        doomed = path.with_name(f"{path.name}.removed{_PARTIAL}")
        shutil.rmtree(doomed, ignore_errors=True)
        path.rename(doomed)
        shutil.rmtree(doomed)


def set_aside(path: Path) -> None:
    """Renames a damaged checkpoint to `<update>.damaged`, over one that had the same name."""
    target = path.with_name(f"{path.name}.damaged")
    shutil.rmtree(target, ignore_errors=True)
    path.rename(target)


def remove_partial(folder: Path) -> None:
    """Removes what a killed process left half-written; what has a final name is never touched."""
    if folder.is_dir():
        for path in folder.glob(f"*{_PARTIAL}"):
            shutil.rmtree(path)


def problem(path: Path) -> str | None:
    """What is wrong with a checkpoint's files, in a few words; None when all are as they were written."""
    if not (path / _MANIFEST).is_file():
        return f"{_MANIFEST} is missing"
    try:
        manifest = parse_json((path / _MANIFEST).read_bytes())
        for name in _FILES:
            if name not in manifest:
                return f"{_MANIFEST} does not name {name}"
        for name, expected in manifest.items():
            file = path / name
            if not file.is_file():
                return f"{name} is missing"
            if file.stat().st_size != expected["bytes"]:
                return f"{name} has {file.stat().st_size} bytes instead of {expected['bytes']}"
            if _digest(file) != expected["sha256"]:
                return f"{name} does not have the content that was written"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{_MANIFEST} cannot be read: {' '.join(str(error).split())}"
    return None


def check_owner(
    path: Path,
    config: Any,
    *,
    read: Callable[[Path], Any] = load_yaml,
    # A longer run is the one change that the caller may have agreed to.
    may_change: Sequence[str] = (*RECORDING_FIELDS, "total_steps"),
) -> None:
    """Refuses a checkpoint whose files are sound and that belongs to another configuration.

    Args:
      path: its folder.
      config: what the run is now.
      read: reads a configuration of this kind.
      may_change: fields that may differ.

    Raises:
      UserError: others differ.
    """
    changed = differences(read(path / "config.yaml"), config, ignore=may_change)
    if changed:
        raise UserError(
            f"checkpoint {path} belongs to another configuration ({'; '.join(changed)}): if the run's config.yaml was "
            f"edited, restore it with `cp {path / 'config.yaml'} {path.parent.parent}`, else choose another --out"
        )


def load(path: Path, abstract_state: Any, config: TrainConfig | None) -> Checkpoint:
    """Reads a checkpoint whose files are sound.

    Args:
      path: its folder.
      abstract_state: shapes, dtypes and shardings of the state that the configuration's learner has.
      config: what the run is now; None where the caller has compared it.

    Returns:
      The checkpoint, its state on the devices, in buffers that may be donated.

    Raises:
      UserError: it belongs to another configuration, or to another version of the learner.
    """
    if config is not None:
        check_owner(path, config)
    versions = json.loads((path / "versions.json").read_text())

    def stored(leaf):
        data = jax.eval_shape(jax.random.key_data, leaf) if _is_key(leaf) else leaf
        return jax.ShapeDtypeStruct(data.shape, data.dtype, sharding=leaf.sharding)

    try:
        with _orbax() as orbax:
            data = orbax.restore(
                (path / "state").resolve(), args=ocp.args.StandardRestore(jax.tree.map(stored, abstract_state))
            )
    except (ValueError, KeyError, TypeError) as error:
        reason, writer = " ".join(str(error).split())[:200], versions.get("jaxmarl_llm")
        raise UserError(
            f"checkpoint {path}, written by jaxmarl-llm {writer}, does not fit this learner: {reason}"
        ) from None

    def adopt(data):
        def one(leaf, abstract):
            # The copy makes the buffer JAX's own: donating memory that the reader allocated is not safe everywhere.
            return jax.random.wrap_key_data(leaf) if _is_key(abstract) else jnp.copy(leaf)

        return jax.tree.map(one, data, abstract_state)

    shardings = jax.tree.map(lambda leaf: leaf.sharding, abstract_state)
    state = jax.block_until_ready(jax.jit(adopt, out_shardings=shardings)(data))
    progress = json.loads((path / "progress.json").read_text())
    return Checkpoint(int(path.name), state, progress, versions, path)


def find_newest(folder: Path) -> tuple[Path | None, list[tuple[Path, str]]]:
    """Finds the newest checkpoint whose files are sound.

    Falling back to an older one loses time and nothing else: the run repeats the same updates.

    Args:
      folder: holds the checkpoints.

    Returns:
      `(path, damaged)`: None when the folder has no checkpoint at all; the newer ones that were passed over and those
      without a manifest, each with what is wrong with it.

    Raises:
      UserError: every checkpoint is damaged.
    """
    found, damaged = None, []
    for update in reversed(updates(folder)):
        path = folder / str(update)
        # Older ones are not read: what they hold is of no use now, and they go when their turn comes.
        wrong = problem(path) if found is None or not (path / _MANIFEST).is_file() else None
        if wrong is not None:
            damaged.append((path, wrong))
        elif found is None:
            found = path
    if damaged and found is None:
        path, wrong = damaged[0]
        raise UserError(
            f"checkpoint {path} is damaged ({wrong}) and there is no sound older one: restore it from a copy, or start "
            "a new run with another --out"
        )
    return found, damaged
