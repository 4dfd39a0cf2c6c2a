"""Roles that never learn, inside jit: parameters and moments stay bit by bit."""

import jax
import numpy as np
import pytest
from workflows.tiny_team import learner_of, tiny_team

from jaxmarl_llm.errors import UserError


@pytest.mark.wide
def test_frozen_roles_stay_bit_by_bit(key):
    bound, team = tiny_team("voting", {"generator": "frozen", "aggregator": "learner"}, n=2)
    assert team.policy_of_role == (1, 0) and team.frozen == (1,)
    learner = learner_of(bound, team, diagnostic_episodes=0, learning_rate=0.01, entropy_coefficient=0.1)
    state = learner.init(key)
    after, metrics = jax.jit(learner.update)(state)
    for name in ("params", "optimizer_state"):
        before, now = (jax.tree.leaves(getattr(one, name)) for one in (state, after))
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(before, now, strict=True)]
        assert all(np.array_equal(a[1], b[1]) for a, b in pairs)
        assert any((a[0] != b[0]).any() for a, b in pairs)
    assert metrics["role_gradient_norm"][0] == 0 < metrics["role_gradient_norm"][1]
    assert metrics["role_gradient_share"].tolist() == [0, 1]
    # They are monitored all the same.
    assert metrics["role_entropy"][0] > 0
    with pytest.raises(UserError, match="frozen roles share no body and no steps with others"):
        learner.replace(tied=np.asarray([0, 1])).check()
