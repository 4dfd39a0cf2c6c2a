"""Which parameters each role uses, and teams that do not fit their workflow."""

import jax
import pytest

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm import Decoder, DecoderConfig
from jaxmarl_llm.workflows import bind, make_task, make_team, make_workflow

BOUND = bind(make_workflow("voting", n=2), make_task("arithmetic"))
SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 16}


def decoder(vocab_size=len(BOUND.vocabulary), max_length=BOUND.context_length):
    return Decoder(DecoderConfig(vocab_size=vocab_size, max_length=max_length, **SIZES))


@pytest.mark.parametrize("sharing", ["shared", "isolated"])
def test_parameters_of_roles(key, sharing):
    team = make_team(BOUND.workflow, decoder(), sharing)
    team.check_fits(BOUND)
    assert hash(team) == hash(make_team(BOUND.workflow, decoder(), sharing))
    params = jax.jit(team.init)(key)
    own = [team.params_of(params, role) for role in ("generator", "aggregator")]
    same = [bool((left["embedding"] == right["embedding"]).all()) for left, right in [own]]
    assert team.num_policies == (1 if sharing == "shared" else 2)
    assert same[0] is (sharing == "shared")
    copies = jax.eval_shape(team.replicate, own[0])
    assert jax.tree.map(jax.numpy.shape, copies) == jax.tree.map(jax.numpy.shape, params)


def test_bad_teams():
    with pytest.raises(UserError, match="set vocab_size="):
        make_team(BOUND.workflow, decoder(vocab_size=7)).check_fits(BOUND)
    with pytest.raises(UserError, match="set max_length="):
        make_team(BOUND.workflow, decoder(max_length=7)).check_fits(BOUND)
    with pytest.raises(UserError, match="the team has the roles generator, but"):
        make_team(make_workflow("single"), decoder()).check_fits(BOUND)
    with pytest.raises(UserError, match="misses aggregator"):
        make_team(BOUND.workflow, decoder(), {"generator": 0})
    with pytest.raises(UserError, match="generator"):
        make_team(BOUND.workflow, decoder()).policy_of("generatr")
