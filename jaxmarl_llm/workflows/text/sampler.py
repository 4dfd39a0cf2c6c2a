"""Who answers prompts: a team of adapters on one model, or a script.

Axes: U prompts, G samples of each, B = U * G rows, M new tokens, P policies.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxmarl_llm.arguments import check_number, check_whole
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.adapters import join_adapters
from jaxmarl_llm.llm.automata import RowConstraints, TokenConstraint, constrain_rows
from jaxmarl_llm.llm.buckets import length_bucket
from jaxmarl_llm.llm.config import DecoderConfig
from jaxmarl_llm.llm.decoder import Decoder
from jaxmarl_llm.llm.devices import jit_replicated, num_shards
from jaxmarl_llm.llm.memory import check_fits, generation_memory, kept_bytes
from jaxmarl_llm.llm.sampling import generate
from jaxmarl_llm.llm.unstacking import UnstackedBody, unstack_adapters
from jaxmarl_llm.workflows.graph import Workflow
from jaxmarl_llm.workflows.team import TeamPolicy, make_team

# A step of a small model takes little longer for so many rows than for one, and to compile it takes long.
_FEWEST_ROWS = 4


class Sampled(NamedTuple):
    """What was drawn, rows of one prompt adjacent.

    Attributes:
      tokens: `[B, M]` int32.
      log_prob: `[B, M]` float32, of the distribution that each token was drawn from.
      length: `[B]` int32, tokens of each row, with the one that stopped it.
    """

    tokens: np.ndarray
    log_prob: np.ndarray
    length: np.ndarray


class AnySampler(Protocol):
    """What `play_text` needs of a sampler; `Sampler` is the one for models."""

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        ...

    @property
    def versions(self) -> tuple[int, ...]:
        """P, how often each policy has been updated."""
        ...

    def policy_of(self, role: str) -> int:
        """The policy of a role."""
        ...

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        adapter: Sequence[int],
        key: jax.Array,
        *,
        max_new_tokens: int,
        group: int = 1,
        row: np.ndarray | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        constraints: Sequence[TokenConstraint | None] | None = None,
    ) -> Sampled:
        """See `Sampler.sample`."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """A team whose roles are adapters on one model; `dataclasses.replace` it when they have been updated.

    Attributes:
      team: the decoder, with as many adapters as policies, or with none; and the policy of each role.
      body: parameters of the model.
      adapters: `[P, ...]` leaves; None where the model itself plays all roles.
      stop_tokens: tokens that end a reply.
      pad_token: what is never read.
      versions: P numbers, kept with each sample; how often each policy has been updated.
      max_rows: the most rows of one program. More are drawn one batch after the other.
      unstacked: the body as it is fastest to draw from, kept from call to call where it takes little of the memory.

    Raises:
      UserError: adapters that do not fit the team.
    """

    team: TeamPolicy
    body: Any
    adapters: Any = None
    _: dataclasses.KW_ONLY
    stop_tokens: tuple[int, ...]
    pad_token: int = 0
    versions: tuple[int, ...] = ()
    max_rows: int = 64
    unstacked: UnstackedBody = dataclasses.field(default_factory=UnstackedBody, repr=False)

    def __post_init__(self):
        check_whole("max_rows", self.max_rows, at_least=1)
        policies, config = self.team.num_policies, self.team.decoder.config
        object.__setattr__(self, "versions", tuple(self.versions) or (0,) * policies)
        object.__setattr__(self, "stop_tokens", tuple(int(token) for token in self.stop_tokens))
        if len(self.versions) != policies:
            raise UserError(f"versions must have one number for each of {policies} policies, got {self.versions}")
        found = {leaf.shape[0] for leaf in jax.tree.leaves(self.adapters)}
        if config.num_adapters != (policies if found else 0) or found - {policies}:
            raise UserError(
                f"the team has {policies} policies, its decoder num_adapters={config.num_adapters}, and the adapters "
                f"have {sorted(found) or 'no'} sets: make all of them {policies}, or leave the adapters out"
            )

    def policy_of(self, role: str) -> int:
        """The policy of a role.

        Raises:
          UserError: no such role.
        """
        return self.team.policy_of(role)

    def sample(
        self,
        prompts: Sequence[Sequence[int]],
        adapter: Sequence[int],
        key: jax.Array,
        *,
        max_new_tokens: int,
        group: int = 1,
        row: np.ndarray | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        constraints: Sequence[TokenConstraint | None] | None = None,
    ) -> Sampled:
        """Draws `group` replies to each prompt.

        The number of programs is bounded: lengths and numbers of prompts are rounded up to a few sizes.

        Args:
          prompts: U lists of tokens, each at least one.
          adapter: U policy indices.
          key: of all rows, whose random numbers depend on it and on their number alone; consumed.
          max_new_tokens: M.
          group: G, replies to each prompt, which is computed once for all of them.
          row: `[B]` int32 with B = U G, the rows' numbers; `0 ... B - 1` by default.
          temperature, top_p, top_k: of the distribution; temperature 0 for the likeliest token.
          constraints: U, what the replies to a prompt may be; None, for one or for all, for anything.

        Returns:
          NumPy arrays: `tokens` and `log_prob` `[B, M]`, `length` `[B]`; rows of one prompt adjacent.

        Raises:
          UserError: no prompt, one that leaves no room for M tokens, a temperature out of range, more than fits into
            memory, or constraints whose tables are too large.
        """
        config = self.team.decoder.config
        # Traced in the program, it would not be judged there.
        check_number("temperature", temperature)
        if not prompts:
            raise UserError("there is no prompt to answer: give at least one")
        longest = max(map(len, prompts))
        if longest + max_new_tokens > config.max_length:
            raise UserError(
                f"a prompt has {longest} tokens, {max_new_tokens} to write, the model holds {config.max_length}"
            )
        rows = np.arange(len(prompts) * group) if row is None else np.asarray(row)
        constraints = constraints or [None] * len(prompts)
        if group > self.max_rows:
            prompts = [prompt for prompt in prompts for _ in range(group)]
            constraints = [constraint for constraint in constraints for _ in range(group)]
            adapter, group = [index for index in adapter for _ in range(group)], 1
        held_to = self._held_to(constraints)
        rows = rows.reshape(len(prompts), group).astype(np.int32)
        drawn = [np.zeros((len(prompts), group, max_new_tokens), dtype) for dtype in (np.int32, np.float32)]
        length = np.zeros((len(prompts), group), np.int32)
        at_once = max(1, self.max_rows // group)
        # Prompts of about one length share a batch.
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "group": group}
        for start in range(0, len(order), at_once):
            chosen = order[start : start + at_once]
            # Copies of a prompt fill the batch up, with its random numbers: they end when it does.
            filled = chosen + chosen[:1] * (_batch_size(len(order), group, at_once) - len(chosen))
            longest = max(len(prompts[index]) for index in chosen)
            width = length_bucket(longest, at_most=config.max_length - max_new_tokens)
            found = self._draw(
                [prompts[index] for index in filled],
                np.asarray([adapter[index] for index in filled], np.int32),
                rows[filled],
                key,
                width,
                None if held_to is None else held_to.at(np.repeat(filled, group)),
                max_new_tokens=max_new_tokens,
                **settings,
            )
            for target, values in zip((*drawn, length), found, strict=True):
                target[chosen] = values.reshape(len(filled), group, *values.shape[1:])[: len(chosen)]
        return Sampled(*(values.reshape(-1, *values.shape[2:]) for values in (*drawn, length)))

    def _held_to(self, constraints: Sequence[TokenConstraint | None]) -> RowConstraints | None:
        """The constraints of all prompts at once, so that all batches have the same tables."""
        size = self.team.decoder.config.vocab_size
        found = constrain_rows(constraints)
        # A model's vocabulary may be padded beyond the tokenizer's.
        if found is None:
            return None
        return dataclasses.replace(found, automaton=dataclasses.replace(found.automaton, vocab_size=size))

    def _draw(
        self, prompts, adapter, rows, key, width, constraint, *, temperature, top_p, **static
    ) -> tuple[np.ndarray, ...]:
        decoder, body = self.team.decoder, self.body
        sizes = len(prompts), width, static["max_new_tokens"]
        kept = kept_bytes(decoder.config, body, rows.size)
        check_fits(
            generation_memory(decoder.config, *sizes, group=static["group"], kept=kept),
            f"generation of {rows.size} replies at once",
            shards=num_shards(self.body),
        )
        tokens = np.full((len(prompts), width), self.pad_token, np.int32)
        for index, prompt in enumerate(prompts):
            tokens[index, : len(prompt)] = prompt
        if kept:
            decoder, body = self.unstacked.of(decoder, body, rows.size)
        drawn = _generate(
            decoder,
            body,
            self.adapters,
            tokens,
            np.asarray([len(prompt) for prompt in prompts], np.int32),
            key,
            None if self.adapters is None else adapter,
            rows.reshape(-1),
            np.float32(temperature),
            constraint,
            top_p=float(top_p),
            stop_tokens=self.stop_tokens,
            pad_token=self.pad_token,
            **static,
        )
        return tuple(map(np.asarray, drawn))


def make_sampler(
    model: Any,
    workflow: Workflow,
    sharing: str | Mapping[str, int | str] = "shared",
    *,
    config: DecoderConfig | None = None,
    adapters: Any = None,
    **settings,
) -> Sampler:
    """The sampler of a model that plays all roles, or of adapters on it.

    Args:
      model: a `LanguageModel`.
      workflow: whose roles.
      sharing: which policy each role uses, see `workflows.sharing`.
      config: the model's with `lora_rank` and `num_adapters`, for adapters.
      adapters: `[P, ...]` leaves, for example of `init_adapters`.
      **settings: of `Sampler`.

    Raises:
      UserError: a sharing table that is wrong, or adapters that do not fit it.
    """
    team = make_team(workflow, Decoder(model.config if config is None else config), sharing)
    ends = {"stop_tokens": model.tokenizer.stop_tokens, "pad_token": model.tokenizer.pad_token}
    return Sampler(team, model.params, adapters, **{**ends, **settings})


# Weights are arguments: as constants they would be compiled into every program.
@functools.partial(
    jit_replicated,
    params=1,
    static_argnums=0,
    static_argnames=("max_new_tokens", "top_p", "top_k", "group", "stop_tokens", "pad_token"),
)
def _generate(
    decoder: Decoder, body, adapters, prompt, prompt_length, key, adapter, row, temperature, constraint, **settings
):
    if adapters is not None and decoder.layout:
        adapters = unstack_adapters(adapters)
    params = body if adapters is None else join_adapters(body, adapters)
    settings |= {"adapter": adapter, "row": row, "temperature": temperature, "constraint": constraint}
    drawn = generate(decoder, params, prompt, prompt_length, key, **settings)
    return drawn.tokens, drawn.log_prob, drawn.length


def _batch_size(prompts: int, group: int, at_most: int) -> int:
    """The next power of two; the last few episodes of a loop do not have programs of their own."""
    return min(max(1 << (prompts - 1).bit_length(), _FEWEST_ROWS // group), at_most)


@dataclasses.dataclass(frozen=True, eq=False)
class ScriptedSampler:
    """Answers by a function, for tests and for looking at prompts.

    Attributes:
      reply: from the text of a prompt to that of the reply.
      tokenizer: of both.
      policies: role to policy; all are policy 0 by default.
      versions: as of `Sampler`.
    """

    reply: Callable[[str], str]
    tokenizer: Any
    policies: dict[str, int] = dataclasses.field(default_factory=dict)
    versions: tuple[int, ...] = (0,)

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end a reply."""
        return self.tokenizer.stop_tokens

    def policy_of(self, role: str) -> int:
        """The policy of a role."""
        return self.policies.get(role, 0)

    def sample(self, prompts, adapter, key, *, max_new_tokens, group=1, row=None, **settings) -> Sampled:
        """What the function says, cut off at `max_new_tokens`; see `Sampler.sample`."""
        del adapter, key, row, settings
        tokens = np.zeros((len(prompts) * group, max_new_tokens), np.int32)
        length = np.zeros(len(tokens), np.int32)
        for index in range(len(tokens)):
            text = self.reply(self.tokenizer.decode(prompts[index // group]))
            reply = [*self.tokenizer.encode(text), self.stop_tokens[0]][:max_new_tokens]
            tokens[index, : len(reply)], length[index] = reply, len(reply)
        return Sampled(tokens, np.zeros(tokens.shape, np.float32), length)
