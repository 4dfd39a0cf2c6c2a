"""Language models play whole episodes of a workflow in words.

Episodes go ahead each at its own pace: whatever may be asked now, of any call, shares a batch. Solutions are scored on
threads of their own while the next replies are generated.

Axes: Q problems, G episodes of each, B = Q * G episodes.
"""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.arguments import check_number, check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.automata import TokenConstraint
from jaxmarl_llm.workflows.graph import Turn
from jaxmarl_llm.workflows.messages import CORRECT, Choice, Solution, Verdict
from jaxmarl_llm.workflows.text.bound import Reply, TextWorkflow
from jaxmarl_llm.workflows.text.sampler import AnySampler


@dataclasses.dataclass(frozen=True, eq=False)
class TextSample:
    """What one copy of a call read and wrote.

    Attributes:
      episode, problem: their numbers, of B and of Q.
      call, role: names.
      round, copy: from 0.
      policy: the index of the policy that wrote.
      prompt, completion: int32 tokens as the policy saw and drew them, the one that stopped it included.
      log_prob: float32 like `completion`, of the distribution that it was drawn from.
      text: of the completion.
      own_score: how right it is by itself, in [0, 1]; None for messages without a score of their own.
      format_ok: whether it came to an end and is in its form.
      versions: of all policies, when it was drawn.
      messages: of the prompt, `{"role", "content"}` each.
      value: what it says, see `Reading`; None where it came to no end.
      constraint: what it was held to, and its log-probabilities are those of; None for nothing.
    """

    episode: int
    problem: int
    call: str
    role: str
    round: int
    copy: int
    policy: int
    prompt: np.ndarray
    completion: np.ndarray
    log_prob: np.ndarray
    text: str
    own_score: float | None
    format_ok: bool
    versions: tuple[int, ...]
    messages: list[dict[str, str]]
    value: Any = None
    constraint: TokenConstraint | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class TextEpisodes:
    """B episodes; those of a problem lie one after the other.

    Attributes:
      samples: in the order of episodes, and in each in that of the workflow; copies that were not asked are left out.
      outcome: `[B]` float32 in [0, 1], the task's score of the final answer.
      any_correct: `[B]` bool, whether any solution that was written is right.
      num_problems: Q.
      group_size: G.
      seconds: of the parts: `prompts`, `generation`, `waiting` for scores in the end, `total`; and `scoring`, summed
        over threads, most of which lies within the others.
      problems: Q problems.
    """

    samples: list[TextSample]
    outcome: np.ndarray
    any_correct: np.ndarray
    num_problems: int
    group_size: int
    seconds: dict[str, float]
    problems: tuple[Any, ...]


def play_text(
    sampler: AnySampler,
    bound: TextWorkflow,
    problems: Sequence[Any],
    key: jax.Array,
    *,
    group_size: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    episode_numbers: Sequence[int] | None = None,
    workers: int = 4,
) -> TextEpisodes:
    """Plays episodes.

    Random numbers belong to an episode, a call, a round and a copy; what else is in a batch does not matter to them.

    Args:
      sampler: who answers.
      bound: the workflow at work on its task.
      problems: Q of the task's, or others like them.
      key: consumed.
      group_size: G.
      temperature, top_p, top_k: of the sampling; temperature 0 for the likeliest tokens.
      episode_numbers: B numbers, what random numbers belong to; `0 ... B - 1` by default.
      workers: threads that score solutions.

    Raises:
      UserError: no problems, or one that is too long.
    """
    check_whole("group_size", group_size, at_least=1)
    check_whole("workers", workers, at_least=1)
    check_number("temperature", temperature)
    problems = tuple(problems)
    if not problems:
        raise UserError("there is no problem to play: give at least one")
    numbers = range(len(problems) * group_size) if episode_numbers is None else list(episode_numbers)
    if len(numbers) != len(problems) * group_size:
        raise UserError(
            f"episode_numbers must have {len(problems) * group_size} numbers, one for each episode, got {len(numbers)}"
        )
    clock = _Clock()
    settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    with ThreadPoolExecutor(workers) as pool:
        scores = _Scores(pool, bound, problems)
        episodes = [_Episode(index, index // group_size, number, bound) for index, number in enumerate(numbers)]
        texts: dict[tuple, tuple] = {}
        while asks := [ask for episode in episodes for ask in episode.next_asks(problems, texts)]:
            clock.lap("prompts")
            _answer(sampler, bound, asks, key, group_size, settings)
            clock.lap("generation")
            for ask in asks:
                ask.episode.record(ask, scores)
        clock.lap("prompts")
        for future in scores.futures.values():
            future.result()
        clock.lap("waiting")
    seconds = {**clock.seconds, "total": sum(clock.seconds.values()), "scoring": scores.seconds()}
    samples = [episode.samples(sampler) for episode in episodes]
    return TextEpisodes(
        samples=[sample for of_episode in samples for sample in of_episode],
        outcome=np.asarray([episode.outcome() for episode in episodes], np.float32),
        any_correct=np.asarray([episode.any_correct() for episode in episodes], bool),
        num_problems=len(problems),
        group_size=group_size,
        seconds=seconds,
        problems=problems,
    )


class _Clock:
    """Seconds by part."""

    def __init__(self):
        self.seconds: dict[str, float] = dict.fromkeys(("prompts", "generation", "waiting"), 0.0)
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self._last
        self._last = now


class _Scores:
    """Scores of solutions, each different one of a problem once, on threads."""

    def __init__(self, pool: ThreadPoolExecutor, bound: TextWorkflow, problems: tuple[Any, ...]):
        self.futures: dict[tuple[int, str], Future[tuple[float, float]]] = {}
        self._pool, self._task, self._problems = pool, bound.task, problems

    def start(self, problem: int, text: str) -> "Future[tuple[float, float]]":
        if (problem, text) not in self.futures:
            self.futures[problem, text] = self._pool.submit(self._score, problem, text)
        return self.futures[problem, text]

    def seconds(self) -> float:
        return sum(future.result()[1] for future in self.futures.values())

    def _score(self, problem: int, text: str) -> tuple[float, float]:
        start = time.perf_counter()
        score = float(self._task.score(self._problems[problem], text))
        return score, time.perf_counter() - start


@dataclasses.dataclass(eq=False)
class _Ask:
    """One copy that is asked now, and what became of it."""

    episode: "_Episode"
    turn: Turn
    row: int
    copy: int
    messages: list[dict[str, str]]
    prompt: list[int]
    room: int
    constraint: TokenConstraint | None
    completion: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int32))
    log_prob: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.float32))
    ended: bool = False
    reply: Reply | None = None
    # A solution's score when it is known, or the reply that a verdict or a choice is about.
    score: "Future[tuple[float, float]] | None" = None
    about: "_Ask | None" = None

    def solution_score(self) -> float:
        return 0.0 if self.score is None else self.score.result()[0]

    def own_score(self) -> float | None:
        message, reply = self.turn.call.writes, self.reply
        assert reply is not None
        if isinstance(message, Solution):
            return self.solution_score()
        about = 0.0 if self.about is None else self.about.solution_score()
        if isinstance(message, Verdict):
            return float(reply.format_ok and (reply.value == CORRECT) == (about >= 1))
        return about if isinstance(message, Choice) else None


class _Episode:
    """One episode on its way."""

    def __init__(self, index: int, problem: int, number: int, bound: TextWorkflow):
        self.index, self.problem, self.bound = index, problem, bound
        self.board = bound.begin()
        self.latest: dict[tuple[str, int], _Ask] = {}
        self.asks: list[_Ask] = []
        self._turns, self._next = bound.workflow.turns, 0
        copies = [turn.call.copies for turn in self._turns]
        # The number of the first copy's row of each turn, among those of all episodes.
        self._rows = number * sum(copies) + np.cumsum([0, *copies])

    def next_asks(self, problems: tuple[Any, ...], texts: dict[tuple, tuple]) -> Iterator[_Ask]:
        """All that can be asked before anything else is written."""
        waiting: set[str] = set()
        while self._next < len(self._turns):
            turn, first = self._turns[self._next], int(self._rows[self._next])
            call, until = turn.call, turn.until
            if waiting & {call.name, *call.reads, *((until.call,) if until is not None else ())}:
                return
            self._next += 1
            if until is not None and self.bound.satisfied(self.board, until):
                continue
            for copy in range(call.copies):
                if self.bound.is_asked(self.board, call, copy):
                    waiting.add(call.name)
                    messages, prompt = self._prompt(problems[self.problem], turn, copy, texts)
                    room = self.bound.room_of(self.board, call, copy)
                    constraint = self.bound.constraint(self.board, call, room)
                    yield _Ask(self, turn, first + copy, copy, messages, prompt, room, constraint)

    def _prompt(self, problem: Any, turn: Turn, copy: int, texts: dict[tuple, tuple]) -> tuple:
        # Episodes of one problem often read the same, which needs to be put in tokens once.
        messages = self.bound.messages(problem, self.board, turn.call, copy)
        name = (turn.call.name, *(message["content"] for message in messages))
        if name not in texts:
            texts[name] = self.bound.prompt(problem, self.board, turn.call, copy)
        return texts[name]

    def record(self, ask: _Ask, scores: _Scores) -> None:
        """Puts a reply on the board, and has it scored."""
        call = ask.turn.call
        text = self.bound.tokenizer.decode(ask.completion)
        reply = ask.reply = self.bound.reply(self.board, call, text, ended=ask.ended)
        if isinstance(call.writes, Solution) and reply.finished:
            ask.score = scores.start(self.problem, reply.text)
        elif isinstance(call.writes, Verdict):
            judges_its_own = self.bound.workflow.call(call.writes.of).copies > 1
            ask.about = self.latest.get((call.writes.of, ask.copy if judges_its_own else 0))
        elif isinstance(call.writes, Choice) and reply.value is not None:
            ask.about = self.latest.get((call.writes.of, reply.value))
        self.board[call.name][ask.copy] = reply
        self.latest[call.name, ask.copy] = ask
        self.asks.append(ask)

    def outcome(self) -> float:
        answer = self.bound.answer(self.board)
        return next((ask.solution_score() for ask in self.latest.values() if ask.reply is answer), 0.0)

    def any_correct(self) -> bool:
        return any(ask.solution_score() >= 1 for ask in self.asks)

    def samples(self, sampler: AnySampler) -> list[TextSample]:
        found = []
        for ask in self.asks:
            call, reply = ask.turn.call, ask.reply
            assert reply is not None
            found.append(
                TextSample(
                    episode=self.index,
                    problem=self.problem,
                    call=call.name,
                    role=call.role,
                    round=ask.turn.round,
                    copy=ask.copy,
                    policy=sampler.policy_of(call.role),
                    prompt=np.asarray(ask.prompt, np.int32),
                    completion=ask.completion,
                    log_prob=ask.log_prob,
                    text=reply.text,
                    own_score=ask.own_score(),
                    format_ok=reply.format_ok,
                    versions=tuple(sampler.versions),
                    messages=ask.messages,
                    value=reply.value,
                    constraint=ask.constraint,
                )
            )
        return found


def _answer(sampler, bound: TextWorkflow, asks: list[_Ask], key, group_size: int, settings: dict[str, Any]) -> None:
    """Has all asks answered in one batch; a prompt that a whole group reads is computed once."""
    rooms = {bound.room[ask.turn.call.name] for ask in asks}
    if len(rooms) > 1 and max(len(ask.prompt) for ask in asks) + max(rooms) > bound.max_length:
        # A long prompt of a call with little room does not fit beside the room of another call.
        for room in sorted(rooms):
            alike = [ask for ask in asks if bound.room[ask.turn.call.name] == room]
            _answer(sampler, bound, alike, key, group_size, settings)
        return
    groups: dict[tuple, list[_Ask]] = {}
    for ask in asks:
        policy = sampler.policy_of(ask.turn.call.role)
        held_to = ask.constraint and (id(ask.constraint.automaton), ask.constraint.room)
        groups.setdefault((policy, held_to, *ask.prompt), []).append(ask)
    # Any other size would need a program of its own.
    sizes = {len(group) for group in groups.values()} | {group_size * ask.turn.call.copies for ask in asks}
    size = sizes.pop() if len(sizes) == 1 else 1
    if settings["temperature"] == 0:
        # The likeliest tokens are the same for all who read the same.
        size, rows, answered = 1, [group[0] for group in groups.values()], list(groups.values())
    else:
        rows = [ask for group in groups.values() for ask in group]
        answered = [[ask] for ask in rows]
    constraints = [ask.constraint for ask in rows[::size]]
    if any(constraints):
        settings = {**settings, "constraints": constraints}
    drawn = sampler.sample(
        [ask.prompt for ask in rows[::size]],
        [sampler.policy_of(ask.turn.call.role) for ask in rows[::size]],
        key,
        max_new_tokens=max(bound.room[ask.turn.call.name] for ask in asks),
        group=size,
        row=np.asarray([ask.row for ask in rows]),
        **settings,
    )
    for index, alike in enumerate(answered):
        for ask in alike:
            # Those with less room share the batch, and lose what is beyond it.
            length = min(int(drawn.length[index]), ask.room)
            ask.completion, ask.log_prob = drawn.tokens[index, :length].copy(), drawn.log_prob[index, :length].copy()
            ask.ended = bool(np.isin(ask.completion[-1:], sampler.stop_tokens).any())
