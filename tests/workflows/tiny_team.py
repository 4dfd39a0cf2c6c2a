"""A decoder of a few hundred parameters for tests, and learners of its teams."""

import dataclasses

from jaxmarl_llm.llm import Decoder, DecoderConfig
from jaxmarl_llm.workflows import bind, make_task, make_team, make_workflow
from jaxmarl_llm.workflows.learner import WorkflowLearner


def tiny_decoder(bound, **changes):
    """A decoder that a bound workflow fits."""
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 16}
    sizes |= {"vocab_size": len(bound.vocabulary), "max_length": bound.context_length, **changes}
    return Decoder(DecoderConfig(**sizes))


def tiny_team(workflow="voting", sharing="shared", task=None, decoder=None, **settings):
    """`(bound, team)` of a workflow on arithmetic, unless told otherwise."""
    workflow = make_workflow(workflow, **settings) if isinstance(workflow, str) else workflow
    bound = bind(workflow, task or make_task("arithmetic"))
    return bound, make_team(workflow, tiny_decoder(bound, **(decoder or {})), sharing)


def learner_of(bound, team, **settings):
    return WorkflowLearner(bound=bound, team=team, **{"num_problems": 4, "group_size": 3, **settings})


def without_role(learner, rows, role):
    """The rows where nobody asks a role."""

    def silent(samples):
        return dataclasses.replace(samples, asked=samples.asked & False, mask=samples.mask & False)

    calls = learner.bound.workflow.calls
    return tuple(
        dataclasses.replace(part, samples=silent(part.samples)) if call.role == role else part
        for call, part in zip(calls, rows, strict=True)
    )
