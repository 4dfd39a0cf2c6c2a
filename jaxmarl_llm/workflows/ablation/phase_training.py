"""Trains the runs of a phase diagram, many side by side. Axes: W lanes (a setting and a seed each), K evaluations."""

import dataclasses
import math
from typing import Any

import jax
import numpy as np

from jaxmarl_llm import workflows
from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.workflows.ablation.background import in_background
from jaxmarl_llm.workflows.ablation.lanes import run_lanes
from jaxmarl_llm.workflows.ablation.matrix import check_settings
from jaxmarl_llm.workflows.ablation.phase import REMEDIES, WITHOUT, Phase, programs_of
from jaxmarl_llm.workflows.ablation.sizes import check_pretraining_size, check_sizes
from jaxmarl_llm.workflows.base_policies import print_notice
from jaxmarl_llm.workflows.learner import WorkflowLearner
from jaxmarl_llm.workflows.pretraining import Pretraining


def make_learner(config: Phase, copies: int) -> tuple[WorkflowLearner, Pretraining]:
    """The learner of a number of copies, with a policy for each role and no remedy, and how its base policy is made.

    Raises:
      UserError: a task, a size and a number of copies that do not go together, or a setting of the pretraining.
    """
    owned = {"task": "--task", "workflows": "--copies", "decoder": "--size"}
    check_settings("--pretraining-args", config.pretraining_args, Pretraining, owned)
    task = workflows.make_task(config.task, level=config.level)
    # One base policy for all numbers of copies, so that they differ in nothing else.
    teams = [workflows.make_workflow("voting", n=n) for n in config.copies]
    pretraining = workflows.make_pretraining(task, *teams, decoder=config.size, **config.pretraining_args)
    bound = pretraining.bounds[config.copies.index(copies)]
    learner = WorkflowLearner(
        bound=bound,
        team=workflows.make_team(bound.workflow, Decoder(pretraining.decoder), "isolated"),
        num_problems=config.num_problems,
        group_size=config.group_size,
        normalize_by_copies=False,
        coherence=True,
        clip_roles=True,
        diagnostic_episodes=0,
    )
    learner.check()
    check_pretraining_size(pretraining)
    lanes = sum(len(lanes) for _, lanes in programs_of(config, copies))
    check_sizes(learner, runs=-(-lanes // jax.local_device_count()), eval_problems=config.eval_problems)
    return learner, pretraining


def train_copies(config: Phase, copies: int, on_evaluation) -> dict[str, Any]:
    """Trains all lanes of one number of copies.

    Args:
      config: the diagram.
      copies: N, one of its.
      on_evaluation: called with the share of the work that is done, and the mean accuracy; that is nan while something
        is prepared.

    Returns:
      For JSON: `copies`, `seconds` by what they were spent on, and `lanes`: each with its names, its `accuracy` [K] and
      how often it `returns` to its best parameters.

    Raises:
      UserError: see `make_learner`.
    """
    learner, pretraining = make_learner(config, copies)
    bound = learner.bound
    base_params = in_background(
        lambda: workflows.base_policy(pretraining, notify=print_notice), lambda: on_evaluation(0.0, math.nan)
    )
    problems = bound.task.held_out(config.eval_problems)
    programs = programs_of(config, copies)
    num_lanes = sum(len(lanes) for _, lanes in programs)
    num_evaluations = config.iterations // config.eval_every
    done, found, seconds = 0, [], {"compile": 0.0, "train": 0.0}
    for shape, lanes in programs:
        settings: dict[str, Any] = {
            name: np.asarray([REMEDIES[lane.remedy].get(name, value) for lane in lanes])
            for name, value in WITHOUT.items()
        }
        settings["learning_rate"] = np.asarray([lane.learning_rate for lane in lanes])
        settings["tied"] = np.asarray([workflows.sharing(bound.workflow, lane.sharing) for lane in lanes])

        def report(number, accuracy, done=done, size=len(lanes)):
            on_evaluation((done + size * number / num_evaluations) / num_lanes, accuracy)

        curves = run_lanes(
            workflows.RollBack(learner=learner.replace(**shape)),  # pyright: ignore[reportAttributeAccessIssue]
            base_params,
            [lane.seed for lane in lanes],
            settings,
            problems,
            num_evaluations=num_evaluations,
            eval_every=config.eval_every,
            on_evaluation=report,
            on_wait=lambda done=done: on_evaluation(done / num_lanes, math.nan),
        )
        done += len(lanes)
        seconds = {
            "compile": seconds["compile"] + curves.compile_seconds,
            "train": seconds["train"] + curves.train_seconds,
        }
        for index, lane in enumerate(lanes):
            accuracy = [round(float(value), 4) for value in curves.accuracy[:, index]]
            found.append(dataclasses.asdict(lane) | {"accuracy": accuracy, "returns": int(curves.returns[index])})
    return {
        "copies": copies,
        "seconds": {name: round(value, 1) for name, value in seconds.items()},
        "lanes": found,
    }
