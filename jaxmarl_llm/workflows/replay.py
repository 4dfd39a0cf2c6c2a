"""What one message was worth: other messages in its place, and the rest of the episode played again.

Axes: B episodes, K alternatives, T rounds of a call, C copies, M tokens.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxmarl_llm import mesh
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.bound import BoundWorkflow
from jaxmarl_llm.workflows.rollout import CallSamples, Episodes, ask, record
from jaxmarl_llm.workflows.team import TeamPolicy


def replay_message(
    team: TeamPolicy,
    params: Any,
    bound: BoundWorkflow,
    key: jax.Array,
    episodes: Episodes,
    call: str,
    *,
    copy: int = 0,
    round: int = 0,
    num_alternatives: int = 4,
    **sampling: Any,
) -> tuple[CallSamples, jax.Array]:
    """Draws one message of every episode anew, K times, and plays on from each (C3, arXiv 2603.06859).

    Everything before the message, and what other copies wrote beside it, stays as it was. With
    `leave_one_out_advantage(outcome, axis=1)` the messages are compared with each other alone.

    Args:
      team, params, bound: as in `play`.
      key: consumed.
      episodes: of this device.
      call, copy, round: which message.
      num_alternatives: K.
      **sampling: as in `play`.

    Returns:
      `(alternatives, outcome [B, K])`: samples of the call with leading axes `[B * K, C]`, of which those of `copy` are
      new, the alternatives of an episode one after the other. Where the message was not asked for, `asked` is false.

    Raises:
      UserError: no such message.
    """
    chosen = bound.workflow.call(call)
    turns = [turn for turn in bound.workflow.turns if turn.call.name == call]
    if not (0 <= copy < chosen.copies and 0 <= round < len(turns)):
        raise UserError(
            f"call '{call}' has {chosen.copies} copies and {len(turns)} rounds, both counted from 0: there is no copy "
            f"{copy} of round {round}"
        )
    place = {one.name: index for index, one in enumerate(bound.workflow.calls)}
    num_rows = episodes.outcome.shape[0] * num_alternatives

    def repeat(leaf, axis=0):
        return jnp.repeat(leaf, num_alternatives, axis=axis)

    transcript = jax.vmap(bound.begin)(jax.tree.map(repeat, episodes.problem))
    number = mesh.global_index(num_rows)
    alternatives = None
    for index, turn in enumerate(bound.workflow.turns):
        old = jax.tree.map(lambda leaf: repeat(leaf[turn.round]), episodes.calls[place[turn.call.name]])  # noqa: B023
        is_it = turn.call.name == call and turn.round == round
        if alternatives is None and not is_it:
            transcript = record(bound, transcript, turn.call, old, old.asked)
            continue
        turn_key = jax.random.fold_in(key, index)
        new = ask(team, params, bound, transcript, turn, turn_key, number, **sampling)
        if is_it:
            transcript = record(bound, transcript, turn.call, old, old.asked)
            new = dataclasses.replace(new, asked=new.asked & (jnp.arange(chosen.copies) == copy)[None])
            alternatives = new
        transcript = record(bound, transcript, turn.call, new, new.asked)
    assert alternatives is not None
    outcome = jax.vmap(bound.outcome)(transcript)
    return alternatives, outcome.reshape(-1, num_alternatives)
