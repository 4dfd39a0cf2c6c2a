"""Refuses what no memory could hold, from its definition alone."""

import dataclasses

from jaxmarl_llm.llm.memory import MemoryEstimate, check_fits, generation_memory, gradient_memory
from jaxmarl_llm.training.devices import place
from jaxmarl_llm.workflows.learner import WorkflowLearner
from jaxmarl_llm.workflows.pretraining import STEPS_PER_CHUNK, Pretraining

# Parameters, those of the base policy, two moments and a gradient, in 32 bits.
_BYTES = 5 * 4


# Bytes of a token of an example and its mask.
_TOKEN_BYTES = 4 + 1


def check_pretraining_size(config: Pretraining) -> None:
    """Refuses a base policy whose batches do not fit into memory.

    Args:
      config: how it is made.

    Raises:
      UserError: what takes how much, and how much there is.
    """
    episodes = config.num_episodes // place(0, config.num_episodes).num_devices
    calls = sum(len(bound.workflow.calls) for bound in config.bounds)
    length = config.decoder.max_length
    batch = episodes * calls
    gradient = gradient_memory(config.decoder, batch, 1, length - 1, limited=config.constrained)
    written = _TOKEN_BYTES * min(STEPS_PER_CHUNK, config.num_steps) * batch * length
    check_fits(
        dataclasses.replace(gradient, activations=gradient.activations + written),
        f"pretraining on {config.num_episodes:,} episodes a step (--pretraining-args num_episodes)",
    )


def check_sizes(learner: WorkflowLearner, *, runs: int, eval_problems: int, num_devices: int = 1) -> None:
    """Refuses a learner whose runs do not fit into memory.

    Args:
      learner: of one run.
      runs: that are trained side by side.
      eval_problems: held-out problems of an evaluation, each played once.
      num_devices: that share the episodes, each with all parameters.

    Raises:
      UserError: what takes how much, and how much there is.
    """
    bound, config = learner.bound, learner.team.decoder.config
    size = _BYTES * runs * learner.team.num_policies * config.num_parameters
    state = MemoryEstimate(weights=size, cache=0, logits=0, activations=0)
    check_fits(state, f"the training state of {runs:,} x {learner.team.num_policies} policies")
    played = {"--num-problems x --group-size": learner.num_problems * learner.group_size}
    for option, episodes in (played | {"--eval-problems": eval_problems}).items():
        for call in bound.workflow.calls:
            lengths = bound.prompt_length(call), bound.max_new_tokens(call)
            check_fits(
                generation_memory(config, -(-episodes * call.copies // num_devices), *lengths),
                f"call '{call.name}' of workflow '{bound.workflow.name}' in {episodes:,} episodes ({option})",
            )
