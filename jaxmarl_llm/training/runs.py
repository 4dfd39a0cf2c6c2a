"""The folder of a run: what may be written into it, and how a trained run is read back."""

import dataclasses
import functools
import importlib.metadata
import json
import os
import platform
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.errors import UserError, plural
from jaxmarl_llm.training import checkpoints
from jaxmarl_llm.training.build import build_learner
from jaxmarl_llm.training.config import TrainConfig, differences, dump_yaml, has_schedule, load_yaml
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.training.files import holds_earlier, write_whole
from jaxmarl_llm.training.program import Program, abstract_state, compile_program
from jaxmarl_llm.training.records import last_update
from jaxmarl_llm.training.schedule import make_schedule
from jaxmarl_llm.user_files import parse_json

CONFIG_FILE = "config.yaml"
METRICS_FILE = "metrics.jsonl"
SUMMARY_FILE = "summary.json"
_CONTENTS = {
    METRICS_FILE: Path.is_file,
    **dict.fromkeys(("tensorboard", "checkpoints", "best"), Path.is_dir),
}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def versions() -> dict[str, str]:
    """The packages and the machine that a run depends on."""
    import jaxmarl_llm

    found = {"jaxmarl_llm": jaxmarl_llm.__version__, "python": platform.python_version()}
    found |= {name: importlib.metadata.version(name) for name in _PACKAGES}
    return found | {"device": jax.devices()[0].device_kind}


def check_folder(folder: Path, config: TrainConfig, resume: bool) -> None:
    """Refuses a folder that the run must not write into. Writes nothing.

    Args:
      folder: the folder that was chosen; need not exist.
      config: the run's configuration.
      resume: whether a run in the folder may be continued.

    Raises:
      UserError: says what the folder holds, and what to do.
    """
    if not holds_earlier(folder, CONFIG_FILE, "a run's"):
        return
    check_contents(folder)
    old = load_yaml(folder / CONFIG_FILE)
    changed = differences(old, config)
    if changed and not resume:
        raise UserError(f"folder {folder} holds another run ({'; '.join(changed)}): choose another --out")
    if not resume:
        raise UserError(f"folder {folder} holds this run already: add --resume to continue it, or choose another --out")
    if len(changed) == 1 and changed[0].startswith("total_steps:"):
        if not (has_schedule(old) or has_schedule(config)):
            return
        raise UserError(
            f"the run in {folder} has a schedule over its total_steps ({changed[0]}): resume it as it was, or start a "
            "new run with another --out"
        )
    if changed:
        raise UserError(
            f"folder {folder} holds another run ({'; '.join(changed)}): resume it as it was with "
            f"`jaxmarl-llm train --resume --out {folder}`, or choose another --out"
        )


def check_contents(folder: Path) -> None:
    """Raises `UserError` where something in a run's folder cannot be what the run writes under that name."""
    for name, is_right in _CONTENTS.items():
        if (folder / name).exists() and not (is_right(folder / name) and os.access(folder / name, os.W_OK)):
            raise UserError(f"{folder / name} cannot be written as a run's: move it away, or choose another --out")


def check_beginning(folder: Path, first: int) -> None:
    """Refuses to begin anew, for want of a checkpoint, a run that had come past its first one. Writes nothing.

    A run that was killed before its first checkpoint may begin again: it repeats the few updates that it did.

    Args:
      folder: of a run without checkpoints; need not exist.
      first: the update after which the run saves itself for the first time.

    Raises:
      UserError: says what is left of the run, and what to do.
    """
    best = [update for update in checkpoints.updates(folder / "best") if update > first]
    update = max([*best, last_update(folder / METRICS_FILE)])
    if update <= first:
        return
    saved = folder / "checkpoints"
    advice = f"restore {saved} from a copy"
    if best:
        advice += (
            f", or go on from the best one (`mkdir -p {saved} && cp -r {folder / 'best' / str(best[-1])} {saved}`)"
        )
    raise UserError(
        f"the run in {folder} had come to update {update}, but its checkpoints are gone: {advice}, or start a new run "
        "with another --out"
    )


def find_start(folder: Path, config: TrainConfig) -> tuple[Path | None, list[tuple[Path, str]]]:
    """The checkpoint that a run starts from, and damaged ones, as `checkpoints.find_newest`.

    Raises:
      UserError: every checkpoint is damaged, or they belong to another configuration.
    """
    start, damaged = checkpoints.find_newest(folder / "checkpoints")
    if start is not None:
        checkpoints.check_owner(start, config)
    return start, damaged


def check_start(folder: Path, config: TrainConfig, start: Path | None, steps_per_update: int) -> None:
    """Refuses a run that cannot go on from where it would start. Writes nothing.

    Args:
      folder: of the run; need not exist.
      config: the run's configuration.
      start: of `find_start`.
      steps_per_update: environment steps of an update.

    Raises:
      UserError: it is past its end already, or its checkpoints are gone.
    """
    if start is None:
        if (folder / CONFIG_FILE).is_file():
            schedule = make_schedule(load_yaml(folder / CONFIG_FILE), steps_per_update)
            check_beginning(folder, schedule.first_checkpoint)
        return
    total = make_schedule(config, steps_per_update).total
    if int(start.name) > total:
        raise UserError(f"the run in {folder} is past {total * steps_per_update} steps already: raise --total-steps")


def lost_lines(folder: Path, update: int) -> str | None:
    """What to tell of a run that goes on although lines of its metrics up to an update are lost; None where none is."""
    written = folder / METRICS_FILE
    if last_update(written) >= update:
        return None
    return f"lines of {written} are lost: curves will lack some updates up to now"


def finished_summary(
    folder: Path, config: TrainConfig, start: Path | None, steps_per_update: int
) -> dict[str, Any] | None:
    """What `summary.json` holds of a run with nothing left to do; None of any other.

    Args:
      folder, config, start, steps_per_update: of `check_start`.
    """
    total, path = make_schedule(config, steps_per_update).total, folder / SUMMARY_FILE
    if start is None or int(start.name) < total or not path.is_file():
        return None
    try:
        summary = parse_json(path.read_bytes())
    except ValueError:
        return None
    # An older one is that of the run before it was made longer.
    return summary if isinstance(summary, dict) and summary.get("updates") == total else None


def write_header(folder: Path, config: TrainConfig) -> None:
    """Writes `config.yaml` and `versions.json`."""
    for name, text in ((CONFIG_FILE, dump_yaml(config)), ("versions.json", json.dumps(versions(), indent=2) + "\n")):
        write_whole(folder / name, text)


@dataclasses.dataclass(frozen=True)
class TrainedRun:
    """A run read back from its folder.

    Attributes:
      folder: the folder.
      config: its configuration.
      learner: the learner, with its environment in `learner.env`.
      params: the parameters of all seeds, every leaf with a leading axis S.
      update: the update after which they were saved.
      num_episodes, greedy: of `program`'s evaluations.
    """

    folder: Path
    config: TrainConfig
    learner: Any
    params: Any
    update: int
    num_episodes: int
    greedy: bool

    @functools.cached_property
    def program(self) -> Program:
        """The evaluation, compiled on first use."""
        return compile_program(
            self.learner,
            place(1, 1),
            seeds_of(self.config),
            num_episodes=self.num_episodes,
            greedy=self.greedy,
            training=False,
        )

    def seed_params(self, index: int = 0) -> Any:
        """The parameters of one seed, as `learner.act` takes them.

        Args:
          index: of the seed, from 0.

        Raises:
          UserError: the run has no such seed.
        """
        if not 0 <= index < self.config.num_seeds:
            seeds = plural(self.config.num_seeds, "seed")
            raise UserError(f"run {self.folder} has {seeds}, numbered from 0: got {index}")
        return jax.tree.map(lambda leaf: leaf[index], self.params)


def seeds_of(config: TrainConfig) -> np.ndarray:
    """`[S]` uint32: seed i of a run of many seeds is the seed of the same run alone."""
    return np.arange(config.seed, config.seed + config.num_seeds, dtype=np.uint32)


def load_run(
    folder: str | Path, checkpoint: str = "best", *, num_episodes: int | None = None, greedy: bool | None = None
) -> TrainedRun:
    """Reads a trained run.

    Args:
      folder: what `--out` named.
      checkpoint: `"best"` (by mean evaluation return), `"last"`, or an update's number.
      num_episodes, greedy: of the run's evaluations; as it was trained unless given.

    Raises:
      UserError: there is no such run or checkpoint, or it is damaged.
    """
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(f"no run in {folder}: give the folder that `jaxmarl-llm train --out` wrote")
    config = load_yaml(folder / CONFIG_FILE)
    path = sound_checkpoint(folder, checkpoint)
    learner = build_learner(config)
    state = abstract_state(learner, place(1, 1), seeds_of(config))
    loaded = checkpoints.load(path, state, config)
    return TrainedRun(
        folder,
        config,
        learner,
        loaded.state.params,
        loaded.update,
        num_episodes=num_episodes or config.eval_episodes,
        greedy=config.eval_greedy if greedy is None else greedy,
    )


def sound_checkpoint(folder: Path, checkpoint: str, *, command: str = "train") -> Path:
    """The folder of a checkpoint whose files are whole; arguments as of `find_checkpoint`.

    Raises:
      UserError: there is no such checkpoint, or it is damaged.
    """
    path = find_checkpoint(folder, checkpoint, command=command)
    wrong = checkpoints.problem(path)
    if wrong is not None:
        raise UserError(f"checkpoint {path} is damaged ({wrong}): choose another with --checkpoint")
    return path


def find_checkpoint(folder: Path, checkpoint: str, *, command: str = "train") -> Path:
    """The folder of a checkpoint.

    Args:
      folder: of the run.
      checkpoint: `"best"`, `"last"`, or an update's number.
      command: that continues such a run.

    Raises:
      UserError: there is no such checkpoint.
    """
    saved = {
        str(update): folder / name / str(update)
        for name in ("best", "checkpoints")
        for update in checkpoints.updates(folder / name)
    }
    if not saved:
        raise UserError(f"run {folder} has no checkpoint yet: continue it with `{command} --resume --out {folder}`")
    if checkpoint in ("best", "last"):
        found = checkpoints.updates(folder / ("best" if checkpoint == "best" else "checkpoints"))
        if found:
            return folder / ("best" if checkpoint == "best" else "checkpoints") / str(found[-1])
        return list(saved.values())[-1]
    if checkpoint not in saved:
        raise UserError(f"run {folder} has no checkpoint {checkpoint}: choose best, last, {', '.join(saved)}")
    return saved[checkpoint]
