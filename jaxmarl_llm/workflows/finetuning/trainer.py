"""The team that is fine-tuned: it plays, and says what its completions are worth. Axes as in `model`; S samples."""

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from jaxmarl_llm.llm import Decoder
from jaxmarl_llm.llm.checkpoints import LanguageModel
from jaxmarl_llm.llm.packing import score_pack_jit
from jaxmarl_llm.workflows.finetuning.config import FinetuneConfig
from jaxmarl_llm.workflows.finetuning.credit import sample_advantages, sample_rewards, value_advantages
from jaxmarl_llm.workflows.finetuning.gradients import Lessons
from jaxmarl_llm.workflows.finetuning.model import AdaptedModel
from jaxmarl_llm.workflows.finetuning.packs import Packed, Text, pack_samples
from jaxmarl_llm.workflows.finetuning.state import FinetuneState, policy_of
from jaxmarl_llm.workflows.policies import frozen_policies
from jaxmarl_llm.workflows.team import TeamPolicy
from jaxmarl_llm.workflows.text.bound import TextWorkflow
from jaxmarl_llm.workflows.text.evaluation import TextEvaluation, evaluate_text
from jaxmarl_llm.workflows.text.rollout import TextEpisodes, TextSample, play_text
from jaxmarl_llm.workflows.text.sampler import Sampler


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Samples and what is to be learned from them.

    Attributes:
      samples: S of them.
      reward: `[S]` float32.
      old_log_prob, base_log_prob, advantage, value, target: S arrays `[M]` float32 each; `value` and `target` are
        empty without a critic.
      weight: `[S]` float32, in the policy's loss.
      imitation: `[S]` float32, weights of the negative log-likelihoods.
    """

    samples: Sequence[Any]
    reward: np.ndarray
    old_log_prob: list[Any]
    base_log_prob: list[Any]
    advantage: list[Any]
    weight: np.ndarray
    imitation: np.ndarray
    value: list[Any] = dataclasses.field(default_factory=list)
    target: list[Any] = dataclasses.field(default_factory=list)

    def lessons(self, packed: Packed) -> Lessons:
        """Of a micro-batch of these samples."""
        return Lessons(
            old_log_prob=packed.fill(self.old_log_prob),
            base_log_prob=packed.fill(self.base_log_prob),
            advantage=packed.fill(self.advantage),
            weight=packed.fill(self.weight),
            imitation=packed.fill(self.imitation),
            value=packed.fill(self.value) if self.value else None,
            target=packed.fill(self.target) if self.target else None,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Trainer:
    """What does not change while a team is fine-tuned.

    Attributes:
      config: the run.
      model: the decoder with its adapters.
      bound: the workflow at work on its task.
      policy_of_role: R policy indices.
      base: the model that it was loaded from; None for one that was made otherwise.
      of_base: how the model does before it is trained, where that is known.
    """

    config: FinetuneConfig
    model: AdaptedModel
    bound: TextWorkflow
    policy_of_role: tuple[int, ...]
    base: LanguageModel | None = None
    of_base: TextEvaluation | None = None

    @property
    def roles(self) -> tuple[str, ...]:
        """R names."""
        return self.bound.workflow.roles

    @functools.cached_property
    def team(self) -> TeamPolicy:
        """The policies; frozen ones are the base model and stay so."""
        frozen = frozen_policies(self.bound.workflow, self.config.sharing)
        return TeamPolicy(Decoder(self.model.config), self.roles, self.policy_of_role, frozen)

    @property
    def num_policies(self) -> int:
        """P."""
        return self.team.num_policies

    @property
    def learning(self) -> tuple[int, ...]:
        """Policies that learn."""
        return self.team.learning

    @property
    def learning_roles(self) -> tuple[str, ...]:
        """Roles whose policies learn."""
        learning = self.learning
        return tuple(role for role, policy in zip(self.roles, self.policy_of_role, strict=True) if policy in learning)

    @property
    def held_out(self) -> Sequence[Any]:
        """The problems of an evaluation: `evaluation_problems`, or all where the task has fewer."""
        return self.bound.task.held_out[: self.config.evaluation_problems]

    def sampler(self, adapters: Any, versions: tuple[int, ...]) -> Sampler:
        """A team of adapters that answers prompts."""
        tokenizer = self.bound.tokenizer
        return Sampler(
            self.team,
            self.model.body,
            self.model.whole(adapters),
            stop_tokens=tokenizer.stop_tokens,
            pad_token=tokenizer.pad_token,
            versions=versions,
            unstacked=self.model.unstacked,
        )

    def play(self, state: FinetuneState, problems: Sequence[Any], key: jax.Array) -> TextEpisodes:
        """Episodes of the present team, `group_size` of each problem; the key is consumed."""
        config = self.config
        return play_text(
            self.sampler(state.adapters, state.version_vector),
            self.bound,
            problems,
            key,
            group_size=config.group_size,
            **config.sampling,
        )

    def evaluate(self, state: FinetuneState) -> TextEvaluation:
        """Held-out problems, each played once with the likeliest tokens; those of the base are known from `of_base`."""
        if self.of_base is not None and int(state.iteration) == 0 and not self.config.warm_start:
            return self.of_base
        return self.play_held_out(state)

    def play_held_out(self, state: FinetuneState) -> TextEvaluation:
        """Held-out problems, each played once with the likeliest tokens."""
        return evaluate_text(self.sampler(state.adapters, state.version_vector), self.bound, self.held_out)

    def pack(self, texts: Sequence[Text], which: Iterable[int], beside: Iterable[Packed] = ()) -> list[Packed]:
        """Micro-batches of samples; `beside` are others that are kept meanwhile."""
        config = self.config
        return pack_samples(
            self.model,
            texts,
            which,
            group=config.group_size,
            max_tokens=config.pack_tokens,
            limited=config.is_limited,
            beside=beside,
        )

    def score(self, adapter: Any, packs: Sequence[Packed], count: int) -> tuple[list[Any], list[Any]]:
        """What one policy says about packed samples.

        Args:
          adapter: of the policy, without the axis P.
          packs: the samples.
          count: S, of all samples.

        Returns:
          `(log_prob, value)`, S arrays `[M]` float32 each, None at samples that are not packed.
        """
        log_prob: list[Any] = [None] * count
        value: list[Any] = [None] * count
        for packed in packs:
            found = score_pack_jit(
                self.model.part,
                self.model.upper,
                adapter,
                packed.trunk,
                packed.pack,
                **self.config.sampling,
            )
            packed.spread(found.log_prob, log_prob)
            if found.value is not None:
                packed.spread(found.value, value)
        return log_prob, value

    def samples_of(self, samples: Sequence[TextSample], policy: int) -> list[int]:
        """Numbers of the samples that a policy wrote."""
        return [number for number, sample in enumerate(samples) if sample.policy == policy]

    def assess(self, state: FinetuneState, episodes: TextEpisodes) -> Batch:
        """What is to be learned from episodes of the present team.

        Log-probabilities are those of the sampling, but for teamtr and in bfloat16, where they are computed again by
        the program that computes them after the update: its divergence is then exactly 0 where nothing has changed.
        """
        config, samples, workflow = self.config, episodes.samples, self.bound.workflow
        reward = sample_rewards(
            workflow,
            episodes,
            config.reward,
            own_weight=config.own_weight,
            format_weight=config.format_weight,
            length_weight=config.length_weight,
            repetition_weight=config.repetition_weight,
            max_new_tokens=config.max_new_tokens,
            answer=getattr(self.bound.task, "answer", str.strip),
        )
        old: list[Any] = [sample.log_prob for sample in samples]
        value: list[Any] = []
        target: list[Any] = []
        with_value, clip = config.credit == "value", config.advantage_clip or None
        if with_value or config.is_sequential or self.model.config.dtype != "float32":
            old, value = self._opinions(state.adapters, samples)
        if with_value:
            roles = [sample.role for sample in samples]
            advantage, target = value_advantages(reward, value, roles, gae_lambda=config.gae_lambda, clip=clip)
        else:
            value = []
            per_sample = sample_advantages(
                workflow,
                episodes,
                reward,
                grouping=config.grouping,
                credit=config.credit,
                scale=config.advantage_scale,
                clip=clip,
            )
            advantage = [np.full(len(sample.completion), one) for sample, one in zip(samples, per_sample, strict=True)]
        base = old
        if config.kl_coefficient and not config.is_sequential:
            base, _ = self._opinions(jax.tree.map(np.zeros_like, state.adapters), samples)
        count = len(samples)
        ones, zeros = np.ones(count, np.float32), np.zeros(count, np.float32)
        return Batch(samples, reward, old, base, advantage, ones, zeros, value, target)

    def _opinions(self, adapters: Any, samples: Sequence[TextSample]) -> tuple[list[Any], list[Any]]:
        """What the policies say about their own samples, see `score`; those that do not learn are not asked."""
        log_prob: list[Any] = [sample.log_prob for sample in samples]
        value: list[Any] = [np.zeros(len(sample.completion), np.float32) for sample in samples]
        for policy in self.learning:
            which = self.samples_of(samples, policy)
            found = self.score(policy_of(adapters, policy), self.pack(samples, which), len(samples))
            for number in which:
                log_prob[number], value[number] = found[0][number], found[1][number]
        return log_prob, value
