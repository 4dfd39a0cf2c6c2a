import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.workflows import CallSamples, Episodes, bind, make_task, make_workflow
from jaxmarl_llm.workflows.diagnostics import prompt_tokens, total_variation


def drawn(key, shape, length, num_tokens):
    """Samples whose prompts are drawn, with padding, and some copies not asked."""
    keys = jax.random.split(key, 3)
    nothing = jnp.zeros((*shape, 2))
    return CallSamples(
        prompt=jax.random.randint(keys[0], (*shape, length), 0, num_tokens),
        prompt_length=jax.random.randint(keys[1], shape, 9, length + 1),
        completion=nothing.astype(jnp.int32),
        mask=nothing > 0,
        log_prob=nothing,
        asked=jax.random.bernoulli(keys[2], 0.7, shape),
        format_ok=jnp.ones(shape, bool),
        own_score=None,
    )


@pytest.mark.parametrize("batch", [1, 7])
def test_tokens_that_roles_read(batch):
    bound = bind(make_workflow("eval_opt", rounds=3), make_task("arithmetic"))
    num_tokens = len(bound.vocabulary)
    keys = jax.random.split(jax.random.key(4))
    calls = tuple(drawn(key, (3, batch, 1), length, num_tokens) for key, length in zip(keys, (11, 13), strict=True))
    nothing = jnp.zeros(batch)
    problems = bound.task.held_out(batch)
    shares = prompt_tokens(bound, Episodes(calls, problems, nothing, nothing > 0))
    assert shares.shape == (2, num_tokens)
    for share, samples in zip(shares, calls, strict=True):
        counts = collections.Counter()
        for index in np.argwhere(np.asarray(samples.asked)):
            counts.update(samples.prompt[tuple(index)][: int(samples.prompt_length[tuple(index)])].tolist())
            # Besides the problem.
            counts.subtract(problems.tokens[index[1], : int(problems.length[index[1]])].tolist())
        total = counts.total()
        np.testing.assert_allclose(share, [counts[token] / total for token in range(num_tokens)], atol=1e-6)


def test_total_variation():
    first, second = jnp.asarray([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), jnp.asarray([[0.0, 0.5, 0.5], [0.2, 0.3, 0.5]])
    assert total_variation(first, second).tolist() == [0.5, 0.0]
    assert float(total_variation(jnp.asarray([1.0, 0.0]), jnp.asarray([0.0, 1.0]))) == 1.0
