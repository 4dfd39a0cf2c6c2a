"""Random small checkpoints of PyTorch's transformers and PEFT: the same logits here, and back."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy_gguf import write_gguf
from toy_models import make_adapters, only_last

from jaxmarl_llm.llm import Decoder, init_cache
from jaxmarl_llm.llm.adapters import join_adapters, merge_adapter
from jaxmarl_llm.llm.checkpoints import load_adapter, load_model, save_adapter, save_model

torch = pytest.importorskip("torch", reason="the extra parity is not installed")
transformers = pytest.importorskip("transformers", reason="the extra parity is not installed")
peft = pytest.importorskip("peft", reason="the extra parity is not installed")
# Of the references among themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "intermediate_size": 53,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
FAMILIES = {
    "llama": ("Llama", {"tie_word_embeddings": True, "rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}),
    "llama3": ("Llama", {"tie_word_embeddings": False, "rope_parameters": LLAMA3, "rms_norm_eps": 1e-5}),
    "mistral": ("Mistral", {"tie_word_embeddings": False, "sliding_window": 31}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True, "head_dim": None}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": False}),
}
B, L = 3, 29
TOKENS = np.random.default_rng(0).integers(0, 97, (B, L))


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    """`(folder, logits [B, L, V])` of a checkpoint of transformers."""
    family, settings = FAMILIES[request.param]
    settings = {name: value for name, value in {**SIZES, **settings}.items() if value is not None}
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**settings, attn_implementation="eager")
    reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in reference.parameters():
            # Norms that are not 1 and biases that are not 0.
            parameter.add_(0.2 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp(request.param)
    reference.save_pretrained(folder)
    return folder, torch_logits(reference)


def torch_logits(reference):
    with torch.no_grad():
        return reference(torch.tensor(TOKENS)).logits.numpy()


def our_logits(config, params, **arguments):
    return jax.jit(Decoder(config).apply)({"params": params}, jnp.asarray(TOKENS), **arguments)[0]


def close(found, expected, tolerance=1e-4):
    np.testing.assert_allclose(np.asarray(found), expected, atol=tolerance, rtol=tolerance)


def test_logits(checkpoint):
    folder, expected = checkpoint
    model = load_model(folder)
    assert np.std(expected) > 0.3
    close(our_logits(model.config, model.params), expected)


def test_cached_logits(checkpoint):
    folder, expected = checkpoint
    model = load_model(folder)
    step = jax.jit(model.decoder.apply)
    cache = init_cache(model.config, B, L)
    found, _, cache = step(
        {"params": model.params}, jnp.asarray(TOKENS[:, :17]), jnp.arange(17)[None].repeat(B, 0), None, cache
    )
    close(found, expected[:, :17])
    for at in range(17, L):
        found, _, cache = step(
            {"params": model.params}, jnp.asarray(TOKENS[:, at : at + 1]), jnp.full((B, 1), at), None, cache
        )
        close(found[:, 0], expected[:, at])


def test_transformers_reads_what_is_saved(checkpoint, tmp_path):
    folder, expected = checkpoint
    save_model(load_model(folder), tmp_path / "m", shard_bytes=50_001)
    load = functools.partial(transformers.AutoModelForCausalLM.from_pretrained, attn_implementation="eager")
    reference, report = load(tmp_path / "m", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    for name, tensor in load(folder).state_dict().items():
        assert torch.equal(tensor, reference.state_dict()[name]), name
    np.testing.assert_allclose(torch_logits(reference.eval()), expected, atol=1e-6, rtol=1e-5)


def test_gguf_of_the_same_model(checkpoint, tmp_path):
    folder, expected = checkpoint
    model = load_model(folder)
    if model.config.rope_scaling is not None:
        pytest.skip("GGUF files hold factors, not settings: tests/llm/test_gguf.py")
    found = load_model(write_gguf(tmp_path / "m.gguf", model))
    assert found.fingerprint == model.fingerprint
    close(our_logits(found.config, found.params), expected)


def test_bfloat16_is_near(checkpoint):
    folder, expected = checkpoint
    model = load_model(folder, dtype="bfloat16")
    found = our_logits(model.config, model.params)
    assert found.dtype == jnp.float32
    assert np.sqrt(np.mean((np.asarray(found) - expected) ** 2)) < 0.05 * np.std(expected)


@pytest.mark.parametrize("trained", [0, 2])
def test_peft_reads_our_adapters(checkpoint, tmp_path, trained):
    folder, expected = checkpoint
    model = load_model(folder)
    config, adapters = make_adapters(model, scale=0.1)
    if trained:
        adapters = only_last(adapters, trained)
    save_adapter(tmp_path, model, config, adapters, 1, "judge", trained_layers=trained)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    theirs = torch_logits(peft.PeftModel.from_pretrained(base, tmp_path / "judge").eval())
    assert np.abs(theirs - expected).max() > 0.1
    rows = jnp.full(B, 1, jnp.int32)
    close(our_logits(config, join_adapters(model.params, adapters), adapter=rows), theirs)
    close(our_logits(model.config, merge_adapter(config, model.params, adapters, 1)), theirs, 3e-4)


@pytest.mark.parametrize(
    "settings", [{"target_modules": ["q_proj", "v_proj"]}, {"target_modules": "all-linear", "use_rslora": True}]
)
def test_adapters_of_peft_are_read(checkpoint, tmp_path, settings):
    folder, expected = checkpoint
    torch.manual_seed(1)
    base = transformers.AutoModelForCausalLM.from_pretrained(folder)
    lora = peft.LoraConfig(r=5, lora_alpha=11, task_type="CAUSAL_LM", **settings)
    reference = peft.get_peft_model(base, lora).eval()
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    reference.save_pretrained(tmp_path)
    theirs = torch_logits(reference)
    assert np.abs(theirs - expected).max() > 0.1
    model = load_model(folder)
    config, adapters = load_adapter(tmp_path, model)
    params = join_adapters(model.params, adapters)
    close(our_logits(config, params, adapter=jnp.zeros(B, jnp.int32)), theirs)
