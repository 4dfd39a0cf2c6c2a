"""Episodes that no model wrote, for tests of what is learned from them."""

import dataclasses

import jax
import numpy as np
from workflows.finetuning.toy_finetuning import DigitTokenizer, toy_trainer

from jaxmarl_llm.workflows.finetuning.trainer import Trainer
from jaxmarl_llm.workflows.text import TextEpisodes, TextEvaluation, TextSample

TOKENIZER = DigitTokenizer()


@dataclasses.dataclass(frozen=True, eq=False)
class RandomTrainer(Trainer):
    """A trainer whose team writes random tokens, with the team's own log-probabilities of them.

    Attributes:
      reads: the finisher reads what the solver wrote, so that its prompts differ: more shapes to compile.
    """

    reads: bool = False

    def play(self, state, problems, key):
        random = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        samples = []
        for episode in range(len(problems) * self.config.group_size):
            problem = episode // self.config.group_size
            written = ""
            for call, policy in zip(self.roles, self.policy_of_role, strict=True):
                read = written if self.reads else ""
                prompt = TOKENIZER.encode(problems[problem].prompt + read + ("#" if call == "solver" else "|"))
                completion = random.integers(1, TOKENIZER.vocab_size, random.integers(1, 3)).astype(np.int32)
                written = TOKENIZER.decode(completion)
                samples.append(
                    TextSample(
                        episode=episode,
                        problem=problem,
                        call=call,
                        role=call,
                        round=0,
                        copy=0,
                        policy=policy,
                        prompt=np.asarray(prompt, np.int32),
                        completion=completion,
                        log_prob=np.full(len(completion), -2.0, np.float32),
                        text=written,
                        own_score=self.bound.task.score(problems[problem], written),
                        format_ok=self.bound.task.format_ok(written),
                        versions=state.version_vector,
                        messages=[],
                    )
                )
        outcome = np.asarray([sample.own_score for sample in samples[1::2]], np.float32)
        best = np.maximum(outcome, [sample.own_score for sample in samples[::2]])
        return TextEpisodes(
            samples, outcome, best >= 1, len(problems), self.config.group_size, {"total": 0.0}, tuple(problems)
        )

    def play_held_out(self, state):
        accuracy = min(1.0, sum(state.version_vector) / 10)
        episodes = self.play(state, self.bound.task.held_out, jax.random.key(0))
        report = {"any_correct": accuracy, "selection_failure": 0.0, "generation_failure": 1 - accuracy}
        calls = {role: {"format_ok": accuracy} for role in self.roles}
        return TextEvaluation(accuracy, (accuracy, accuracy), report | {"calls": calls}, episodes)


def random_trainer(reads=False, **settings):
    """`RandomTrainer` of the relay."""
    trainer = toy_trainer(**settings)
    return RandomTrainer(
        **{field.name: getattr(trainer, field.name) for field in dataclasses.fields(Trainer)}, reads=reads
    )
