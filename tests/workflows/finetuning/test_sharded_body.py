"""A model whose parameters several devices or processes share learns and writes as on one."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from workflows.finetuning.toy_finetuning import body
from workflows.finetuning.toy_sharding import assert_same_numbers, base_model, computed, sharded_trainer

from jaxmarl_llm.errors import UserError
from jaxmarl_llm.llm.checkpoints import parameter_shardings, save_model
from jaxmarl_llm.llm.devices import model_mesh, num_shards
from jaxmarl_llm.workflows.finetuning.run import finetune


@pytest.fixture(scope="module")
def on_one():
    return computed(body()[1])


def on_two():
    config, params = body()
    mesh = model_mesh(2)
    assert mesh is not None
    return jax.device_put(params, parameter_shardings(config, mesh))


@pytest.mark.wide
def test_two_devices_give_the_losses_gradients_and_tokens_of_one(on_one):
    params = on_two()
    assert num_shards(params) > 1.8
    assert_same_numbers(computed(params), on_one)
    assert num_shards(sharded_trainer(params).model.upper) > 1.8


@pytest.mark.wide
def test_a_run_on_two_devices_goes_on_from_its_checkpoint(tmp_path):
    settings = {"trust_region": "grpo", "iterations": 2, "evaluate_every": 2, "num_devices": 2}
    trainer = sharded_trainer(on_two(), **settings)
    whole = finetune(trainer.config, tmp_path, trainer=trainer)
    assert all(leaf.sharding.device_set == set(jax.devices()) for leaf in jax.tree.leaves(whole.state.adapters))
    again = finetune(trainer.config, tmp_path, trainer=trainer, resume=True)
    for one, other in zip(*(jax.tree.leaves(run.state.adapters) for run in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_bad_numbers_of_devices():
    assert model_mesh(1) is None
    mesh = model_mesh()
    assert mesh is not None and mesh.size == 2
    with pytest.raises(UserError, match=r"num_devices is 3, but JAX sees 2 \(cpu\)"):
        model_mesh(3)
    with pytest.raises(UserError, match="num_devices must be at least 0"):
        model_mesh(-1)


@pytest.mark.slow
def test_two_processes_give_the_losses_gradients_and_tokens_of_one_device(on_one, tmp_path):
    save_model(base_model(), tmp_path / "model")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    environment |= {"JAX_PLATFORMS": "cpu", "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    outs = [tmp_path / f"{process}.npz" for process in range(2)]
    command = [sys.executable, "-m", "workflows.finetuning.toy_sharding", str(tmp_path / "model")]
    processes = [
        subprocess.Popen(
            [*command, str(out)],
            env={**environment, "JAX_PROCESS_ID": str(process)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for process, out in enumerate(outs)
    ]
    outputs = [process.communicate(timeout=500)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for out in outs:
        assert_same_numbers(dict(np.load(out)), on_one)
