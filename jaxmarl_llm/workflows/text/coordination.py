"""How a coordinator's instructions fare in words: whether they are clear, reach everybody and are followed."""

import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxmarl_llm.workflows.instructions import ALLOTMENT, FAULTS, Action, Instructions, Orders
from jaxmarl_llm.workflows.text.bound import TextWorkflow
from jaxmarl_llm.workflows.text.rollout import TextEpisodes, TextSample

Follows = Callable[[TextWorkflow, Instructions, Action, TextSample], bool | None]


def follows(bound: TextWorkflow, message: Instructions, action: Action, sample: TextSample) -> bool | None:
    """Whether a reply does as it was told, as far as its words show.

    A communication or a goal is followed where the reply has its item, or the whole template if it has none, in these
    words, whatever their case; an allotment of tokens where the reply came to an end within it.

    Args:
      bound: the workflow.
      message: the form of the instructions.
      action: the instruction.
      sample: the reply of who read it.

    Returns:
      None where it cannot be told: allotments of other units.
    """
    if message.forms[action.form].kind == ALLOTMENT:
        ended = bool(np.isin(sample.completion[-1:], bound.tokenizer.stop_tokens).any())
        return ended and len(sample.completion) <= message.amount(action) if message.unit == "tokens" else None
    words = " ".join((action.item or message.text(action)).lower().split())
    return re.search(rf"(?<!\w){re.escape(words)}(?!\w)", " ".join(sample.text.lower().split())) is not None


def instruction_report(
    bound: TextWorkflow, episodes: TextEpisodes, follows: Follows = follows
) -> dict[str, dict[str, float]]:
    """What became of instructions, by name of the call that gave them.

    Args:
      bound: the workflow.
      episodes: as they went.
      follows: judges a reply.

    Returns:
      For each call that writes `Instructions`: `following`, the share of instructions that were followed, of those
      whose target replied and of which it can be told; `conflict`, `unknown` and `budget`, shares of messages with such
      a fault; `idle`, the share of targets that a message has no instruction for; `entropy` in nats of what is said
      (form and item; items of any text are not told apart), whoever the target.
    """
    leads: dict[str, Instructions] = {
        call.name: call.writes for call in bound.workflow.calls if isinstance(call.writes, Instructions)
    }
    readers = {
        call.name: [slot.of for slot in call.slots if slot.part and slot.of in leads] for call in bound.workflow.calls
    }
    given: dict[str, list[Orders]] = {name: [] for name in leads}
    followed: dict[str, list[bool]] = {name: [] for name in leads}
    latest: dict[tuple[int, str, int], Orders] = {}
    for sample in episodes.samples:
        for lead in readers[sample.call]:
            message = leads[lead]
            orders = latest[sample.episode, lead, sample.copy // message.number]
            told = [action for action in orders.actions if action.target == sample.copy % message.number]
            judged = [follows(bound, message, action, sample) for action in told]
            followed[lead] += [verdict for verdict in judged if verdict is not None]
        if sample.call in leads:
            # What came to no end says nothing.
            orders = leads[sample.call].read(sample.text) if sample.value is not None else Orders((), ())
            latest[sample.episode, sample.call, sample.copy] = orders
            given[sample.call].append(orders)
    return {
        name: {
            "following": _mean(followed[name]),
            **{fault: _mean([fault in orders.faults for orders in given[name]]) for fault in FAULTS},
            "idle": _mean([1 - len({one.target for one in orders.actions}) / message.number for orders in given[name]]),
            "entropy": _entropy(message, given[name]),
        }
        for name, message in leads.items()
    }


def instruction_metrics(bound: TextWorkflow, episodes: TextEpisodes) -> dict[str, Any]:
    """The numbers of `instruction_report` as metrics of a run: `instruction_following/coordinator` and so on."""
    return {
        f"instruction_{name}/{call}": value
        for call, report in instruction_report(bound, episodes).items()
        for name, value in report.items()
    }


def _entropy(message: Instructions, given: list[Orders]) -> float:
    said = Counter(
        (action.form, action.item if message.forms[action.form].items else "")
        for orders in given
        for action in orders.actions
    )
    total = sum(said.values())
    return sum(count / total * math.log(total / count) for count in said.values())


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else 0.0
