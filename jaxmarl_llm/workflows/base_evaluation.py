"""How well a base policy plays before reinforcement learning."""

import functools
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.workflows.pretraining import Pretraining
from jaxmarl_llm.workflows.rollout import play
from jaxmarl_llm.workflows.team import make_team


def evaluate_base(
    config: Pretraining, params: Any, *, num_problems: int = 256, temperature: float = 1.0, seed: int = 0
) -> dict[str, dict[str, float]]:
    """How a base policy plays its workflows on held-out problems.

    Args:
      config: of its pretraining.
      params: of one policy.
      num_problems: the first so many of the task's held-out problems, each played once.
      temperature: of the sampling.
      seed: of the sampling.

    Returns:
      Name of each workflow to `accuracy`, the mean outcome; `format_ok/<role>`, the share of completions that are in
      the format of their call; `own_score/<role>`, the mean score of its completions by themselves, where it has one.
    """
    problems = config.task.held_out(num_problems)
    key = jax.random.key(seed)
    found = {}
    for bound in config.bounds:
        team = make_team(bound.workflow, Decoder(config.decoder))
        playing = functools.partial(
            play, bound=bound, key=key, problems=problems, temperature=temperature, constrained=config.constrained
        )
        episodes = jax.jit(playing, static_argnums=0)(team, team.replicate(params))
        shares = {"accuracy": float(episodes.outcome.mean())}
        for role in bound.workflow.roles:
            pairs = zip(bound.workflow.calls, episodes.calls, strict=True)
            of_role = [samples for call, samples in pairs if call.role == role]
            for name in ("format_ok", "own_score"):
                values = [
                    np.asarray(getattr(samples, name), np.float32)[np.asarray(samples.asked)]
                    for samples in of_role
                    if getattr(samples, name) is not None
                ]
                if values:
                    shares[f"{name}/{role}"] = float(np.concatenate(values).mean())
        found[bound.workflow.name] = shares
    return found
