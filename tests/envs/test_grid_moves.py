import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmarl_llm.envs.gridworld.grid_moves import random_distinct, resolve_moves, sort_few


@pytest.mark.parametrize("num_agents", [1, 2, 5, 11])
def test_resolved_moves_never_share_a_cell_nor_swap(num_agents):
    random, size = np.random.default_rng(num_agents), 13
    cell = np.stack([random.permutation(size)[:num_agents] for _ in range(500)])
    target = np.where(random.random(cell.shape) < 0.3, cell, random.integers(0, size, cell.shape))
    final = np.asarray(jax.vmap(resolve_moves)(jnp.array(cell), jnp.array(target)))
    assert ((final == cell) | (final == target)).all()
    assert all(len(set(row)) == num_agents for row in final.tolist())
    moved = final != cell
    for before, want, after, move in zip(cell, target, final, moved, strict=True):
        for i in range(num_agents):
            for j in range(num_agents):
                if i != j:
                    assert not (move[i] and after[i] == before[j] and after[j] == before[i])
            if want[i] != before[i] and not move[i]:  # somebody was in the way
                others = [j for j in range(num_agents) if j != i]
                assert any(want[j] == want[i] or after[j] == want[i] for j in others) or any(
                    want[i] == before[j] and want[j] == before[i] for j in others
                )


def test_trains_and_rings_move():
    move = jax.jit(resolve_moves)
    np.testing.assert_array_equal(move(jnp.array([4, 5, 6]), jnp.array([5, 6, 7])), [5, 6, 7])
    np.testing.assert_array_equal(move(jnp.array([4, 5, 6]), jnp.array([5, 6, 4])), [5, 6, 4])
    np.testing.assert_array_equal(move(jnp.array([4, 5, 6]), jnp.array([5, 6, 6])), [4, 5, 6])
    np.testing.assert_array_equal(move(jnp.array([4, 5, 6]), jnp.array([5, 4, 5])), [4, 5, 6])


def test_random_distinct_is_uniform_over_ordered_draws():
    bits = jax.random.bits(jax.random.key(0), (12_000, 2), jnp.uint32)
    taken = jnp.array([1, 3, 6, 6])  # the field has six values; two entries take nothing
    drawn = np.asarray(jax.vmap(lambda b: random_distinct(b, 6, taken=taken))(bits))
    pairs, counts = np.unique(drawn, axis=0, return_counts=True)
    assert {tuple(pair) for pair in pairs.tolist()} == {(a, b) for a in (0, 2, 4, 5) for b in (0, 2, 4, 5) if a != b}
    assert abs(counts / 12_000 - 1 / 12).max() < 0.012
    everything = jax.vmap(lambda b: random_distinct(b, 7))(jax.random.bits(jax.random.key(1), (50, 7), jnp.uint32))
    np.testing.assert_array_equal(np.sort(everything, axis=1), np.tile(np.arange(7), (50, 1)))


def test_sort_few():
    values = np.random.default_rng(0).integers(0, 9, (40, 11))
    np.testing.assert_array_equal(jax.vmap(sort_few)(jnp.array(values)), np.sort(values, axis=1))
