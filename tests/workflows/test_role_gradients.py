"""Gradients of roles combined, clipped and damped; what shared policies and repeated steps do to tabular teams."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from workflows.toys import train

from jaxmarl_llm.algorithms import categorical_kl
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.workflows import PROBLEM, Call, Last, Solution, Workflow, make_workflow
from jaxmarl_llm.workflows.gradients import clip_each, combine_roles, damp_coherent

GRADIENTS = jnp.asarray([[3.0, 4.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
COUNT = jnp.asarray([6.0, 2.0, 7.0])
TABLE = (0, 0, 1)


@pytest.mark.parametrize(
    ("weighting", "expected"),
    [
        ("sequences", [[2.25, 3.0, 0.25], [1.0, 0.0, 0.0]]),
        ("equal", [[1.5, 2.0, 0.5], [1.0, 0.0, 0.0]]),
        # Contributions of norms 3.75 and 0.25 become 2 each.
        ("equal_mass", [[1.2, 1.6, 2.0], [1.0, 0.0, 0.0]]),
    ],
)
def test_roles_of_a_policy(weighting, expected):
    gradient, weight = combine_roles(GRADIENTS, COUNT, TABLE, weighting=weighting)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient, np.einsum("r,rf,rp->pf", weight, GRADIENTS, np.eye(2)[list(TABLE)]), rtol=1e-6)
    absent, _ = combine_roles(GRADIENTS * jnp.asarray([[1.0], [0.0], [0.0]]), COUNT * jnp.asarray([1.0, 0, 0]), TABLE)
    np.testing.assert_allclose(absent, [[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]])


def test_clipping_of_each_role():
    np.testing.assert_allclose(clip_each(GRADIENTS, 2.0), [[1.2, 1.6, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    with pytest.raises(UserError, match="did you mean equal or"):
        combine_roles(GRADIENTS, COUNT, TABLE, weighting="equl")


def test_coherence():
    average = jnp.zeros((3, 3))
    first, average, cosine = damp_coherent(GRADIENTS, average, strength=0.3)
    np.testing.assert_allclose(cosine, 1.0)
    np.testing.assert_allclose(first, 0.7 * GRADIENTS, rtol=1e-6)
    turned = jnp.asarray([[-3.0, -4.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    second, after, cosine = damp_coherent(turned, average, strength=0.3, window=2.0)
    np.testing.assert_allclose(cosine, [-1.0, 0.0, 0.0], atol=1e-6)
    np.testing.assert_allclose(second, turned)
    np.testing.assert_allclose(after, [[0.0, 0.0, 0.0], [0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], atol=1e-6)


@pytest.mark.parametrize(("floor", "moved"), [(0.0, 0.0), (0.1, 5.0)])
def test_full_strength_freezes_unless_there_is_a_floor(floor, moved):
    average, position = jnp.zeros((1, 2)), jnp.zeros((1, 2))
    for _ in range(50):
        step, average, _ = damp_coherent(jnp.asarray([[1.0, 0.0]]), average, strength=1.0, floor=floor)
        position += step
    np.testing.assert_allclose(position[0, 0], moved, rtol=1e-5)


def voters(copies, per_copy):
    """`(KL from the start, gradient mass)` of N voters that share one head and are rewarded by their majority."""
    workflow = make_workflow("voting", n=copies)

    def reward(actions, context):
        votes = jax.nn.one_hot(actions[0], 5).sum(1)
        right = votes.argmax(-1) == context
        return jnp.broadcast_to(right[:, None], actions[0].shape), jnp.zeros(actions[1].shape)

    def run(key):
        start = jnp.zeros((2, 25))
        params, mass = train(
            workflow,
            (0, 1),
            start,
            key,
            logits=lambda policy, role: policy.reshape(5, 5),
            reward=reward,
            num_contexts=5,
            num_problems=20,
            group_size=8,
            learning_rate=0.5,
            iterations=10,
            per_copy=per_copy,
        )
        drift = categorical_kl(start[0].reshape(5, 5), params[0].reshape(5, 5)).mean()
        return drift, mass.sum()

    return jax.tree.map(lambda leaf: float(leaf.mean()), jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 8)))


@pytest.mark.wide
def test_amplification():
    drift, mass = zip(*[voters(copies, True) for copies in (1, 3, 6)], strict=True)
    assert drift[2] > 1.5 * drift[1] > 1.5 * drift[0] and mass[2] > 1.5 * mass[1] > 1.5 * mass[0]
    normalized, normalized_mass = zip(*[voters(copies, False) for copies in (3, 6)], strict=True)
    assert normalized[1] < normalized[0] < drift[0] and normalized_mass[1] < normalized_mass[0] < mass[0]


def conflict(table, weighting):
    """Accuracy of two roles that want different answers in the same context; the first has six times the samples."""
    roles = [
        Call("many", prompt=(PROBLEM,), writes=Solution(), copies=6),
        Call("few", prompt=(PROBLEM,), writes=Solution()),
    ]
    workflow = Workflow("conflict", tuple(roles), answer=Last("few"))
    size = 6

    def logits(policy, role):
        common, own = policy[: size**2], policy[size**2 :].reshape(2, size**2)
        return (common + 0.4 * own[role]).reshape(size, size)

    def wanted(context):
        return [context[:, None], (context[:, None] + 1) % size]

    def reward(actions, context):
        return [action == want for action, want in zip(actions, wanted(context), strict=True)]

    def run(key):
        start = jnp.zeros((max(table) + 1, 3 * size**2))
        params, _ = train(
            workflow,
            table,
            start,
            key,
            logits=logits,
            reward=reward,
            num_contexts=size,
            num_problems=size,
            group_size=8,
            learning_rate=0.5,
            iterations=120,
            weighting=weighting,
        )
        context = jnp.arange(size)
        return jnp.stack(
            [
                jnp.take_along_axis(
                    jax.nn.softmax(logits(params[table[role]], role)), wanted(context)[role], axis=1
                ).mean()
                for role in range(2)
            ]
        )

    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 3))).mean(0)


@pytest.mark.wide
def test_capture():
    shared, isolated = (0, 0), (0, 1)
    many, few = conflict(shared, "sequences")
    assert many > 0.8 and few < 0.15
    assert min(conflict(isolated, "sequences")) > 0.3
    assert min(conflict(shared, "equal")) > 0.25
    assert min(conflict(shared, "equal_mass")) > 0.25
