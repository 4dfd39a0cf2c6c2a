"""What fine-tuning computes with a body, on whatever devices its parameters are."""

import dataclasses
import sys
from typing import Any

import jax
import numpy as np
from workflows.finetuning.toy_finetuning import body
from workflows.finetuning.toy_play import random_trainer

from jaxmarl_llm.llm.checkpoints import LanguageModel, fingerprint, load_model
from jaxmarl_llm.llm.devices import model_mesh
from jaxmarl_llm.workflows.finetuning.model import adapt
from jaxmarl_llm.workflows.finetuning.optimise import pack_roles, role_gradients
from jaxmarl_llm.workflows.finetuning.state import init_state


def base_model():
    """The body of `toy_finetuning` as a language model."""
    config, params = body()
    return LanguageModel(config, params, None, "llama", "made", fingerprint(config, params))


def sharded_trainer(params, **settings):
    """A trainer of two policies in the last layer, on the body at hand."""
    trainer = random_trainer(reads=True, sharing="isolated", trained_layers=1, pack_tokens=512, **settings)
    one = trainer.config
    adapters = {"rank": one.lora_rank, "alpha": one.lora_alpha, "targets": one.lora_targets, "trained_layers": 1}
    return dataclasses.replace(trainer, model=adapt(body()[0], params, 2, **adapters))


def computed(params):
    """Gradients, sums of losses, log-probabilities and the likeliest replies, as NumPy arrays."""
    trainer = sharded_trainer(params, trust_region="grpo")
    state = init_state(trainer.config, trainer.model)
    leaves, tree = jax.tree.flatten(state.adapters)
    random = np.random.default_rng(5)
    adapters = tree.unflatten([0.3 * random.normal(size=leaf.shape).astype(np.float32) for leaf in leaves])
    state = dataclasses.replace(state, adapters=adapters)
    batch = trainer.assess(state, trainer.play(state, trainer.bound.task.train[:3], jax.random.key(1)))
    packs = pack_roles(trainer, batch, range(len(batch.samples)))
    gradients, sums = role_gradients(trainer, adapters, batch, packs, np.zeros(2), 0.0)
    own = trainer.samples_of(batch.samples, 1)
    log_prob, _ = trainer.score(state.policy(1), trainer.pack(batch.samples, own), len(batch.samples))
    drawn = trainer.sampler(adapters, (0, 0)).sample(
        [[1, 2, 3], [2, 3], [4], [5, 5]], [0, 1, 0, 1], jax.random.key(0), max_new_tokens=6, temperature=0.0
    )
    gradients = np.asarray(gradients)
    return sums | {
        "gradients": gradients / np.abs(gradients).max(),
        "written": np.concatenate([log_prob[number] for number in own]),
        "tokens": drawn.tokens,
        "log_prob": drawn.log_prob,
    }


def assert_same_numbers(found, expected):
    """Equal tokens, and all else to 1e-5."""
    assert set(found) == set(expected)
    np.testing.assert_array_equal(found["tokens"], expected["tokens"])
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5, err_msg=name)


if __name__ == "__main__":
    # One of two processes, each with two devices.
    from jaxmarl_llm.training.devices import connect_processes

    folder, out = sys.argv[1:]
    jax.config.update("jax_num_cpu_devices", 2)
    assert connect_processes() and jax.device_count() == 4
    found: dict[str, Any] = computed(load_model(folder, mesh=model_mesh()).params)
    np.savez(out, **found)
