"""Adapters in PEFT's format: names and orientation, several at once, and adapters that do not fit."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
import safetensors.numpy
from toy_models import SIZES, assert_same, make_adapters, make_model, only_last

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.adapters import join_adapters
from jaxmarl_llm.llm.checkpoints import load_adapter, save_adapter
from jaxmarl_llm.llm.checkpoints.names import abstract_params

MODULES = {
    "query_projection": ("query", "self_attn.q_proj"),
    "key_projection": ("key", "self_attn.k_proj"),
    "value_projection": ("value", "self_attn.v_proj"),
    "attention_output": ("attention_output", "self_attn.o_proj"),
    "gate": ("gate", "mlp.gate_proj"),
    "up": ("up", "mlp.up_proj"),
    "down": ("down", "mlp.down_proj"),
}


def edit(folder, change=None, **settings):
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    if change is not None:
        tensors = safetensors.numpy.load_file(folder / "adapter_model.safetensors")
        change(tensors)
        safetensors.numpy.save_file(tensors, folder / "adapter_model.safetensors")


def name(layer, module, matrix="A"):
    return f"base_model.model.model.layers.{layer}.{module}.lora_{matrix}.weight"


@pytest.fixture
def model():
    return make_model("qwen3")


@pytest.fixture
def folder(tmp_path, model):
    config, adapters = make_adapters(model)
    return save_adapter(tmp_path, model, config, adapters, 1, "judge")


def test_names_and_orientation(tmp_path, model):
    config, adapters = make_adapters(model, value_head=True)
    found = save_adapter(tmp_path, model, config, adapters, 1, "judge")
    assert found == tmp_path / "judge"
    tensors = safetensors.numpy.load_file(found / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * SIZES["num_layers"]
    for part, (_, module) in MODULES.items():
        for layer in range(SIZES["num_layers"]):
            for leaf, matrix in (("lora_a", "A"), ("lora_b", "B")):
                expected = adapters["layers"][part][leaf][1, layer].T
                np.testing.assert_array_equal(tensors[name(layer, module, matrix)], expected)
    settings = json.loads((found / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"], settings["peft_type"]) == (7, 11.0, "LORA")
    assert "layers_to_transform" not in settings and settings["base_model_name_or_path"] == model.source
    assert sorted(settings["target_modules"]) == sorted(module.partition(".")[2] for _, module in MODULES.values())


@pytest.mark.parametrize("targets", [("query", "value"), tuple(target for target, _ in MODULES.values())])
def test_round_trip(tmp_path, model, targets):
    config, adapters = make_adapters(model, lora_targets=targets)
    folders = [save_adapter(tmp_path, model, config, adapters, index, f"role{index}") for index in range(3)]
    found, read = load_adapter(folders, model)
    assert found == config
    assert_same(adapters, read)
    one, read = load_adapter(folders[2], model)
    assert one == dataclasses.replace(config, num_adapters=1)
    assert_same(jax.tree.map(lambda leaf: leaf[2:], adapters), read)
    # They fit the decoder.
    shapes = jax.tree.map(np.shape, join_adapters(model.params, read))
    assert shapes == jax.tree.map(np.shape, abstract_params(one))
    # Written over.
    save_adapter(tmp_path, model, config, adapters, 0, "role1")
    assert_same(load_adapter(folders[0], model)[1], load_adapter(folders[1], model)[1])


def test_the_last_layers_alone_are_written_where_only_they_were_trained(tmp_path, model):
    config, adapters = make_adapters(model)
    layers = SIZES["num_layers"]
    adapters = only_last(adapters, 2)
    packaged = dataclasses.replace(model, source="smollm2")
    folder = save_adapter(tmp_path, packaged, config, adapters, 1, "judge", trained_layers=2)
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["layers_to_transform"] == [layers - 2, layers - 1]
    assert settings["base_model_name_or_path"] == "HuggingFaceTB/SmolLM2-135M-Instruct"
    assert len(safetensors.numpy.load_file(folder / "adapter_model.safetensors")) == 2 * 7 * 2
    assert_same(jax.tree.map(lambda leaf: leaf[1:2], adapters), load_adapter(folder, model)[1])
    for count, message in ((layers + 1, f"at most the {layers} layers"), (-1, "at least 0")):
        with pytest.raises(UserError, match=message):
            save_adapter(tmp_path, model, config, adapters, 1, "other", trained_layers=count)


def test_adapters_of_peft(tmp_path, model, folder):
    """What PEFT may write and this library does not: no fingerprint, other scales, chosen layers."""

    def keep_layer_2(tensors):
        for key in list(tensors):
            if ".layers.2." not in key:
                del tensors[key]

    before = load_adapter(folder, model)[1]
    edit(folder, keep_layer_2, use_rslora=True, layers_to_transform=[2], modules_to_save=None, rank_pattern={})
    config, adapters = load_adapter(folder, model)
    assert config.lora_alpha == pytest.approx(11.0 * math.sqrt(7))
    for part in MODULES:
        found = adapters["layers"][part]["lora_a"]
        np.testing.assert_array_equal(found[:, 2], before["layers"][part]["lora_a"][:, 2])
        assert not np.any(found[:, :2])


def test_other_base(tmp_path, model, folder):
    other = dataclasses.replace(model, fingerprint="other", source="the other")
    with pytest.raises(UserError, match="is an adapter of another base model than the other"):
        load_adapter(folder, other)
    edit(folder, lambda tensors: None)  # Without a fingerprint shapes decide.
    load_adapter(folder, other)
    for changes, message in (({"num_layers": 2}, "has no place"), ({"hidden_size": 17}, "belongs to another base")):
        with pytest.raises(UserError, match=message):
            load_adapter(folder, make_model("qwen3", {**SIZES, **changes}))


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "holds no adapter_config.json"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "holds no adapter_model.safetensors"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "adapter_config.json is damaged"),
        (lambda f: edit(f, peft_type="IA3"), "adapters of kind IA3"),
        (lambda f: edit(f, use_dora=True), "use_dora is not supported"),
        (lambda f: edit(f, bias="all"), "bias is not supported"),
        (lambda f: edit(f, rank_pattern={"q_proj": 2}), "rank_pattern is not supported"),
        (lambda f: edit(f, r=0), "r must be at least 1"),
        (lambda f: edit(f, lora_alpha="many"), "lora_alpha must be a number"),
        (lambda f: edit(f, r=5), "judge is damaged: adapter_config.json says r 5"),
        (lambda f: edit(f, r=10**30), "judge is damaged: adapter_config.json says r 1000"),
        (lambda f: edit(f, lora_alpha=float("inf")), "adapter_config.json: lora_alpha must lie between"),
        (lambda f: edit(f, layers_to_transform=[0, 9]), "is missing"),
        (lambda f: edit(f, layers_to_transform=1.5), "adapter_config.json: layers_to_transform must be"),
        (lambda f: edit(f, layers_to_transform=float("nan")), "adapter_config.json: layers_to_transform must be"),
        (lambda f: edit(f, layers_to_transform=[float("inf")]), "layers_to_transform: each must be whole number"),
        (lambda f: edit(f, layers_to_transform=[-1]), "layers_to_transform: each must be at least 0"),
        (lambda f: (f / "adapter_config.json").write_text("[" * 100_000), "config.json is damaged: .* nested too"),
        (lambda f: edit(f, lambda t: t.pop(name(1, "mlp.up_proj"))), "layers.1.mlp.up_proj.lora_A.weight is missing"),
        (
            lambda f: edit(f, lambda t: t.update({"base_model.model.lm_head.lora_A.weight": np.ones(2)})),
            "lm_head.lora_A",
        ),
        (lambda f: edit(f, lambda t: t.clear()), "of an adapter is not supported or missing"),
    ],
)
def test_adapters_that_are_refused(model, folder, harm, message):
    harm(folder)
    with pytest.raises(UserError, match=message) as error:
        load_adapter(folder, model)
    assert "\n" not in str(error.value)


def test_what_is_not_saved(tmp_path, model, folder):
    config, adapters = make_adapters(model)
    for index, called, message in (
        (3, "a", "no adapter 3"),
        (0, "a/b", "name of a folder"),
        (0, "", "name of a folder"),
    ):
        with pytest.raises(UserError, match=message):
            save_adapter(tmp_path, model, config, adapters, index, called)
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt"):
        save_adapter(tmp_path, model, config, adapters, 0, "judge")
    config, adapters = make_adapters(model, lora_rank=5)
    other = save_adapter(tmp_path, model, config, adapters, 0, "author")
    with pytest.raises(UserError, match="another rank"):
        load_adapter([folder, other], model)
    with pytest.raises(UserError, match="no folder"):
        load_adapter([], model)
    for one, message in ((3, "folders of adapters must be"), ("~nobodyx/y", "no user of the name"), ("", "got ''")):
        with pytest.raises(UserError, match=message):
            load_adapter(one, model)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="no user of the name"):
        save_adapter("~nobodyx/y", model, config, adapters, 0, "judge")
