import dataclasses
import inspect
import math
import subprocess
import sys
import time

import jax
import pytest

from jaxmarl_llm.envs import environment_names
from jaxmarl_llm.errors import UserError
from jaxmarl_llm.training.build import build_environment, build_learner
from jaxmarl_llm.training.config import (
    FIELDS,
    TrainConfig,
    config_from_mapping,
    differences,
    dump_yaml,
    has_schedule,
    learner_settings,
    load_preset,
    load_yaml,
    parse_count,
    parse_scalar,
    preset_description,
    preset_names,
)
from jaxmarl_llm.training.config_check import check_config
from jaxmarl_llm.training.devices import check_memory, place


def test_learner_fields_have_the_learners_names_and_defaults():
    from jaxmarl_llm.algorithms import policy_gradient, value_learner

    parameters = inspect.signature(policy_gradient).parameters
    config = TrainConfig()
    ours = learner_settings(config)
    left_open = {"normalize_value", "sharing"}
    assert not left_open & set(ours) and set(ours) < set(parameters)
    assert set(learner_settings(TrainConfig(normalize_value=True, sharing="shared"))) == set(ours) | left_open
    for name, value in ours.items():
        assert value == parameters[name].default, name
    # The value family takes part of the fields, with the same defaults.
    for name, parameter in inspect.signature(value_learner).parameters.items():
        assert name not in ours or parameter.default == ours[name], name


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_epochs": 3}, "num_epochs is no setting of qmix"),
        ({"normalize_value": True}, "normalize_value is no setting of qmix"),
        ({"algorithm_args": {"batchsize": 3}}, "did you mean batch_size"),
        ({"algorithm_args": {"batch_size": "many"}}, "setting batch_size of qmix must be a whole number"),
        ({"algorithm_args": {"learning_rate": 1}}, "give it as --learning-rate instead"),
        ({"algorithm_args": {"mixer": "sum"}}, "unknown setting of qmix 'mixer'"),
        ({"algorithm_args": {"weighting": "central"}}, "a setting of weighted_qmix, qmix has no use for it"),
        ({"algorithm": "vdn", "algorithm_args": {"embed_dim": 8}}, "a setting of qmix and weighted_qmix, vdn has no"),
        ({"algorithm_args": {"batch_size": 1e30}}, "batch_size of qmix must be a whole number of at most 2147483647"),
        ({"algorithm_args": {"gradient_steps": 10**12}}, "gradient_steps of qmix must be a whole number of at most"),
        ({"env_args": {"max_steps": 1e30}}, "max_steps of two_step must be a whole number of at most"),
        ({"algorithm_args": {"priority_exponent": -1}}, "priority_exponent must lie between 0 and 1"),
        ({"algorithm_args": {"priority_exponent": math.nan}}, "priority_exponent must lie between 0 and 1"),
        ({"algorithm_args": {"priority_weight_exponent": math.inf}}, "priority_weight_exponent must lie between 0 and"),
        ({"algorithm_args": {"learning_starts": -1}}, "learning_starts must be finite and at least 0"),
        ({"algorithm_args": {"learning_starts": math.nan}}, "learning_starts must be finite"),
        ({"algorithm_args": {"epsilon_steps": math.inf}}, "epsilon_steps must be finite"),
        ({"algorithm_args": {"embed_dim": 10**9}}, "embed_dim must be whole numbers from 1 to 65536"),
        *(
            (
                {"algorithm": "weighted_qmix", "algorithm_args": {"central_hidden_sizes": sizes}},
                "central_hidden_sizes must",
            )
            for sizes in ("abc", 3, [], [0], [-3], [1.5], [10**30])
        ),
        (
            {"algorithm": "happo", "algorithm_args": {"penalty_coefficient": -1}},
            "penalty_coefficient must be finite and",
        ),
        ({"gru_size": 8}, "gru_size is a setting of network 'gru', the network is 'mlp'"),
        ({"algorithm": "ippo", "entropy_coefficient_final": -1.0}, "entropy_coefficient_final must be finite and at"),
    ],
)
def test_settings_that_an_algorithm_does_not_take_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        build_learner(config_from_mapping({"algorithm": "qmix", "env": "two_step"} | values, "my.yaml"))


def test_a_value_clip_of_0_or_less_is_none():
    for value_clip in (0.0, -1.0):
        assert build_learner(TrainConfig(env="two_step", value_clip=value_clip)).value_clip == value_clip


def test_algorithms_that_take_turns_isolate_their_policies():
    config = TrainConfig(algorithm="teamtr", env="two_step", algorithm_args={"kl_radius": 0.02, "resample": 2})
    learner = build_learner(config)
    assert learner.network_module.policy_of_agent == (0, 1)
    assert (learner.kl_radius, learner.resample, learner.trust_region) == (0.02, 2, "penalty_and_gate")
    with pytest.raises(UserError, match="all agents share one"):
        build_learner(TrainConfig(algorithm="happo", env="two_step", sharing="shared"))
    with pytest.raises(UserError, match="did you mean kl_radius"):
        build_learner(TrainConfig(algorithm="teamtr", env="two_step", algorithm_args={"kl_radus": 0.02}))


def test_settings_of_the_algorithm_reach_the_learner():
    config = TrainConfig(algorithm="vdn", env="two_step", algorithm_args={"batch_size": 1e2, "td_lambda": 1})
    learner = build_learner(config)
    assert (learner.mixer, learner.batch_size, learner.td_lambda) == ("sum", 100, 1.0)
    assert type(learner.batch_size) is int and type(learner.td_lambda) is float


def test_every_field_has_a_meaning():
    source = inspect.getsource(TrainConfig)
    for name in FIELDS:
        after = source.split(f"    {name}: ", 1)[1].split("\n", 1)[1]
        assert after.startswith('    """') and after[7:8].isalpha(), name


def test_the_configuration_imports_neither_jax_nor_flax():
    code = "import sys, jaxmarl_llm.training.config; sys.exit(bool({'jax', 'flax', 'orbax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_help_is_quick_and_complete():
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "jaxmarl_llm.cli", "train", "--help"], capture_output=True, text=True, check=True
    )
    # Two seconds on an idle machine; the bound leaves room for a busy one.
    assert time.perf_counter() - start < 6
    for name in FIELDS:
        assert f"--{name.replace('_', '-')}" in done.stdout
    # Others say what happens without them.
    assert done.stdout.count("default:") >= len(FIELDS) - 8


def test_yaml_round_trip(tmp_path):
    config = TrainConfig(
        env="foraging", env_args={"size": 8, "cooperative": True}, sharing=(0, 0, 1), hidden_sizes=(32,), seed=4
    )
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(config))
    assert load_yaml(path) == config


@pytest.mark.parametrize("name", preset_names())
def test_presets_are_sound(name):
    config = load_preset(name)
    check_config(config)
    assert config.env in environment_names()
    assert len(preset_description(name)) > 10
    assert not config.out


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1}, "my.yaml: unknown field 'learning_rat': did you mean learning_rate"),
        ({"network": "mpl"}, "did you mean mlp"),
        ({"num_envs": "many"}, "num_envs"),
        ({"num_envs": 1.5}, "num_envs"),
        ({"total_steps": float("inf")}, "total_steps"),
        ({"agent_id": 3}, "agent_id"),
        ({"hidden_sizes": [1.5]}, "hidden_sizes"),
        ({"sharing": "isolate"}, "did you mean isolated"),
        ({"env_args": [1]}, "env_args"),
        ([1], "field: value"),
        ({"learning_rate": "x"}, "learning_rate"),
    ],
)
def test_mistakes_in_yaml_are_named(values, message):
    with pytest.raises(UserError, match=message):
        config_from_mapping(values, "my.yaml")


def test_settings_of_the_environment_survive_yaml(tmp_path):
    settings = {"layout": "WPW\nA  O\n  X", "number": "3", "text": "a: b", "small": 1e-7, "yes": True, "none": None}
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(TrainConfig(env_args=settings)))
    assert load_yaml(path).env_args == settings


def test_an_empty_file_is_no_configuration(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text("")
    with pytest.raises(UserError, match="is empty: write lines"):
        load_yaml(path)


def test_yaml_numbers_may_be_written_as_people_write_them():
    config = config_from_mapping({"learning_rate": "1e-3", "total_steps": "2e6", "sharing": [0, 1]}, "my.yaml")
    assert (config.learning_rate, config.total_steps, config.sharing) == (1e-3, 2_000_000, (0, 1))
    assert type(config.total_steps) is int


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("3", 3), ("0.5", 0.5), ("1e-3", 1e-3), ("true", True), ("ring", "ring"), ("[1, 2]", [1, 2])),
        *(("WPW\nA  O\n#: #", "WPW\nA  O\n#: #"), ("'3'", "3"), ("2020-01-01", "2020-01-01"), ("", None)),
    ],
)
def test_scalars(text, value):
    assert parse_scalar(text) == value and type(parse_scalar(text)) is type(value)


def test_counts():
    assert [parse_count(text) for text in ("5", "1e6", "2_000", "1.5e3", "-1")] == [5, 1_000_000, 2000, 1500, -1]
    for text in ("1.5", "x", "inf", ""):
        with pytest.raises(ValueError, match="whole number"):
            parse_count(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("num_envs", 0), ("discount", 1.5), ("learning_rate", 0.0), ("hidden_sizes", (0,)), ("eval_episodes", 0)),
        *(("learning_rate", math.inf), ("entropy_coefficient", math.nan), ("shaped_reward_horizon", math.inf)),
        *(("clip_low", 1.5), ("learning_rate", 1e39), ("num_envs", 2**28)),
        *(("num_envs", 2**31), ("hidden_sizes", (64, 10**30)), ("total_steps", 10**30), ("entropy_coefficient", -1.0)),
    ],
)
def test_values_out_of_range_are_refused(field, value):
    with pytest.raises(UserError, match=field):
        check_config(dataclasses.replace(TrainConfig(), **{field: value}))


def test_differences_leave_out_what_is_only_recorded():
    old = TrainConfig(out="a", learning_rate=1e-3)
    assert differences(old, dataclasses.replace(old, out="b", eval_every=5)) == []
    assert differences(old, dataclasses.replace(old, learning_rate=1e-2)) == ["learning_rate: 0.001 -> 0.01"]


def test_schedules_are_noticed():
    assert has_schedule(TrainConfig())
    assert not has_schedule(TrainConfig(learning_rate_schedule="constant"))
    assert has_schedule(TrainConfig(learning_rate_schedule="constant", entropy_coefficient_final=0.0))


def test_environment_from_an_import_path(tmp_path, monkeypatch):
    (tmp_path / "my_package_for_tests.py").write_text(
        "from jaxmarl_llm.envs.tabular.matrix_game import MatrixGame\nclass Mine(MatrixGame):\n    pass\nother = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    config = TrainConfig(env="my_package_for_tests:Mine", env_args={"max_steps": 7})
    env = build_environment(config)
    assert type(env).__name__ == "Mine" and env.max_steps == 7
    with pytest.raises(UserError, match="did you mean Mine"):
        build_environment(TrainConfig(env="my_package_for_tests:Mina"))
    with pytest.raises(UserError, match="cannot import"):
        build_environment(TrainConfig(env="no_such_package:Mine"))
    with pytest.raises(UserError, match="did you mean max_steps"):
        build_environment(dataclasses.replace(config, env_args={"max_step": 7}))


def test_a_state_larger_than_the_memory_is_refused():
    sharding = place(1, 3).replicated
    small, large = (jax.ShapeDtypeStruct((size, 10**6), "float32", sharding=sharding) for size in (1, 10**9))
    check_memory([small])
    with pytest.raises(UserError, match="the state of training takes 4,000,000 GB"):
        check_memory([small, small, large])
