"""Instructions of a coordinator: structured actions, as tokens inside jit and as lines in words.

Both are read alike: an action that is unknown, or a second one of its kind to one target, is void; so are allotments
from the one on that exceeds the budget.

Axes: K actions that fit, T targets, F forms of actions, V tokens of the vocabulary, M tokens.
"""

import dataclasses
import re
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmarl_llm.arguments import check_kind, check_whole, elements
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows.messages import Addressed, number_ids, number_token
from jaxmarl_llm.workflows.ragged import compact, within

COMMUNICATION, GOAL, ALLOTMENT = "communication", "goal", "allotment"
FAULTS = ("unknown", "conflict", "budget")
_ITEM = "{item}"
_LINE = re.compile(r"([1-9]\d{0,8}): (.+)")


class Form(NamedTuple):
    """One form of action.

    Attributes:
      kind: `"communication"`, `"goal"` or `"allotment"`.
      text: what the target reads, with at most one `{item}`.
      items: what may be put there: one empty text where there is no place for it, none where any text may.
    """

    kind: str
    text: str
    items: tuple[str, ...]


class Action(NamedTuple):
    """One instruction.

    Attributes:
      target: number of who is instructed, from 0.
      form: the form's number among `Instructions.forms`.
      item: what it is filled with; empty without one.
    """

    target: int
    form: int
    item: str


class Orders(NamedTuple):
    """What a message of instructions comes to.

    Attributes:
      actions: those in force.
      faults: why each of the others is void: `"unknown"`, `"conflict"` or `"budget"`.
    """

    actions: tuple[Action, ...]
    faults: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Instructions(Addressed):
    """Actions towards numbered targets, at most one of each kind to a target; a target without any is not asked.

    Inside jit an action is three tokens: target, form, item. In words it is a line such as `2: check 17`.

    Attributes:
      number: T, targets.
      templates: of communications, with `{item}` at most once each.
      items: what `{item}` may be; any text of one line if not given, which is possible in words only.
      item_length: the most characters of such a text.
      goals: that a target may be given.
      amounts: that may be allotted to a target.
      budget: of all allotments of a message together.
      unit: of the amounts; `tokens` are enforced in words, where a reply is cut off behind them.

    Raises:
      UserError: nothing to say, the same thing twice, or amounts that do not go with the budget.
    """

    number: int
    templates: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    item_length: int = 40
    goals: tuple[str, ...] = ()
    amounts: tuple[int, ...] = ()
    budget: int = 0
    unit: str = "tokens"
    has_own_score: ClassVar[bool] = False
    is_solution: ClassVar[bool] = False

    def __post_init__(self):
        check_whole("the number of targets", self.number, at_least=1)
        check_whole("item_length of instructions", self.item_length, at_least=1)
        check_whole("budget of instructions", self.budget, at_least=0)
        check_kind("unit of instructions", self.unit, str)
        for name in ("templates", "items", "goals"):
            texts = tuple(
                " ".join(text.split()) for text in elements(f"{name} of instructions", getattr(self, name), str)
            )
            object.__setattr__(self, name, texts)
            if "" in texts or len({text.lower() for text in texts}) < len(texts):
                raise UserError(f"{name} of instructions must be different texts, and none empty")
        for template in self.templates:
            if template.count(_ITEM) > 1 or {*"{}"} & {*template.replace(_ITEM, "")}:
                raise UserError(f"template '{template}' must have {{item}} at most once, and no other braces")
        if self.items and not any(_ITEM in template for template in self.templates):
            raise UserError("items of instructions need a template with {item}")
        object.__setattr__(self, "amounts", elements("amounts of instructions", self.amounts, int))
        for amount in self.amounts:
            check_whole("an amount of instructions", amount, at_least=1)
        if len({*self.amounts}) < len(self.amounts):
            raise UserError("amounts of instructions must be different")
        if bool(self.amounts) != bool(self.budget) or max(self.amounts, default=0) > self.budget:
            raise UserError("amounts of instructions need a budget that holds the largest, and a budget needs amounts")
        if not self.forms:
            raise UserError("instructions need something to say: give templates, goals, or amounts and a budget")

    @property
    def forms(self) -> tuple[Form, ...]:
        """F, all forms of actions."""
        found = [Form(COMMUNICATION, text, self.items if _ITEM in text else ("",)) for text in self.templates]
        if self.goals:
            found.append(Form(GOAL, f"goal: {_ITEM}", self.goals))
        if self.amounts:
            found.append(Form(ALLOTMENT, f"use at most {_ITEM} {self.unit}", tuple(map(str, self.amounts))))
        return tuple(found)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of actions there are."""
        return tuple(dict.fromkeys(form.kind for form in self.forms))

    # In words.

    @property
    def menu(self) -> str:
        """What may be written, a line for each form of action."""
        lines = []
        for form in self.forms:
            known = ", ".join(form.items) or f"up to {self.item_length} characters"
            choice = f" (ITEM: {known})" if _ITEM in form.text else ""
            budget = f", {self.budget} {self.unit} for all together" if form.kind == ALLOTMENT else ""
            lines.append(f"N: {form.text.replace(_ITEM, 'ITEM')}{choice}{budget}")
        return "\n".join(lines)

    def text(self, action: Action) -> str:
        """What the target of an action reads."""
        return self.forms[action.form].text.replace(_ITEM, action.item)

    def line(self, action: Action) -> str:
        """How an action is written."""
        return f"{action.target + 1}: {self.text(action)}"

    def read(self, text: str) -> Orders:
        """Reads lines; whatever is no action is a fault."""
        actions: list[Action] = []
        faults: list[str] = []
        taken: set[tuple[int, str]] = set()
        spent = 0
        for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
            action = self._action(line)
            if action is None:
                faults.append("unknown")
                continue
            kind = self.forms[action.form].kind
            if (action.target, kind) in taken:
                faults.append("conflict")
                continue
            taken.add((action.target, kind))
            spent += self.amount(action)
            if kind == ALLOTMENT and spent > self.budget:
                faults.append("budget")
            else:
                actions.append(action)
        return Orders(tuple(actions), tuple(faults))

    def amount(self, action: Action) -> int:
        """What an action allots; 0 where it is none that does."""
        return int(action.item) if self.forms[action.form].kind == ALLOTMENT else 0

    def parts(self, orders: Orders) -> dict[int, str]:
        """Targets to what they read, a line for each action."""
        found: dict[int, list[str]] = {}
        for action in orders.actions:
            found.setdefault(action.target, []).append(self.text(action))
        return {target: "\n".join(lines) for target, lines in found.items()}

    def allotted_tokens(self, orders: Orders, target: int) -> int | None:
        """The tokens that a target may write; None where nobody says."""
        amounts = [self.amount(action) for action in orders.actions if action.target == target]
        return sum(amounts) or None if self.unit == "tokens" else None

    def _action(self, line: str) -> Action | None:
        found = _LINE.fullmatch(line)
        if found is None or int(found[1]) > self.number:
            return None
        for number, form in enumerate(self.forms):
            before, _, after = form.text.partition(_ITEM)
            inside = re.fullmatch(f"{re.escape(before)}(.*){re.escape(after)}", found[2], re.IGNORECASE)
            if inside is None:
                continue
            items = {item.lower(): item for item in form.items} or {inside[1].lower(): inside[1].strip()}
            item = items.get(inside[1].lower())
            if item is not None and (form.items or 1 <= len(item) <= self.item_length):
                return Action(int(found[1]) - 1, number, item)
        return None

    # Inside jit.

    def symbols(self, copies):
        del copies
        forms, items, _ = zip(*self._pairs(), strict=True)
        return tuple(dict.fromkeys((*map(number_token, range(self.number)), *forms, *items)))

    def allowed(self, task, copies):
        return self.symbols(copies)

    def max_length(self, task):
        return 3 * self.number * len(self.kinds)

    def part(self, seat, tokens, length, number):
        rows, target, in_force, _ = self._rows(seat, tokens, length)
        keep = jnp.repeat(in_force & (target == number), 3) & (jnp.arange(rows.size) % 3 > 0)
        return compact(rows.reshape(-1), keep, tokens.shape[0]), keep.any()

    def format_ok(self, seat, tokens, length):
        rows, _, in_force, there = self._rows(seat, tokens, length)
        return (length > 0) & (length % 3 == 0) & (length <= rows.size) & (in_force == there).all()

    def teacher(self, seat, key, skill):
        """Any action for each target, within the budget; with probability `1 - skill` a target is left out."""
        pairs = [(form, item) for form, item, amount in self._pairs() if amount * self.number <= self.budget]
        if not pairs:
            raise UserError("instructions have no teacher, as the budget cannot give each target the smallest amount")
        addressed_key, pair_key = jax.random.split(key)
        addressed = jax.random.uniform(addressed_key, (self.number,)) < skill
        ids = jnp.asarray([[seat.token(form), seat.token(item)] for form, item in pairs], jnp.int32)
        chosen = ids[jax.random.randint(pair_key, (self.number,), 0, len(pairs))]
        rows = jnp.concatenate([number_ids(seat.vocabulary, self.number)[:, None], chosen], axis=1)
        return compact(rows.reshape(-1), jnp.repeat(addressed, 3), rows.size)

    def _pairs(self) -> list[tuple[str, str, int]]:
        """Names of the tokens of every form with every item, and what it allots."""
        if not all(form.items for form in self.forms):
            raise UserError("instructions with items of any text exist in words only: give items")
        pairs = [
            (_name(form.text.replace(_ITEM, "")), _name(item or "none"), int(item) if form.kind == ALLOTMENT else 0)
            for form in self.forms
            for item in form.items
        ]
        if len({pair[:2] for pair in pairs}) < len(pairs):
            raise UserError("two instructions have the same tokens: word one of them otherwise")
        return pairs

    def _rows(self, seat, tokens, length):
        """`(rows [K, 3], target [K], in_force [K], there [K])` of a content."""
        size = tokens.shape[0] // 3
        rows = tokens[: 3 * size].reshape(size, 3)
        there = within(tokens[: 3 * size], length).reshape(size, 3)[:, 2]
        kind_of = [self.kinds.index(form.kind) for form in self.forms for _ in form.items]
        pairs = np.asarray([(seat.token(form), seat.token(item)) for form, item, _ in self._pairs()])
        is_pair = (rows[:, None, 1:] == pairs[None]).all(-1)
        is_target = rows[:, :1] == number_ids(seat.vocabulary, self.number)[None]
        target, pair = jnp.argmax(is_target, axis=1), jnp.argmax(is_pair, axis=1)
        known = there & is_target.any(1) & is_pair.any(1)
        slot = target * len(self.kinds) + jnp.asarray(kind_of)[pair]
        earlier = (slot[:, None] == slot[None]) & known[None] & (jnp.arange(size)[None] < jnp.arange(size)[:, None])
        in_force = known & ~earlier.any(1)
        amount = jnp.where(in_force, jnp.asarray([amount for _, _, amount in self._pairs()])[pair], 0)
        in_force = in_force & ((amount == 0) | (jnp.cumsum(amount) <= self.budget))
        return rows, target, in_force, there


def _name(text: str) -> str:
    """The name of the token of a text: a letter or a digit stands for itself, as it may be a symbol of the task."""
    return text if len(text) == 1 else f"<{'_'.join(text.split())}>"
