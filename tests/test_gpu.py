"""An accelerator gives the CPU's numbers: `pytest -m gpu` on a machine that has one."""

import copy

import numpy as np
import pytest
import torch

import interp
from tests.hand_built import build_copying_machine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.accelerator.is_available(), reason="there is no accelerator on this machine"),
]


@pytest.fixture(scope="module")
def device():
    return torch.accelerator.current_accelerator().type


def test_scores_and_removal_equal_the_cpus(device):
    model = build_copying_machine()
    moved = copy.deepcopy(model).to(device)
    scores, on_device = (interp.score_heads(each, n_sequences=8, segment=12) for each in (model, moved))
    for name, values in scores.per_sequence.items():
        np.testing.assert_allclose(on_device.per_sequence[name], values, atol=1e-5)
    for mode in ("zero", "mean", "resample"):
        here, there = (interp.confirm_heads(each, scores, n_heads=1, mode=mode) for each in (model, moved))
        np.testing.assert_allclose(there.ablated_loss, here.ablated_loss, atol=1e-3)


def test_training_follows_the_cpu_and_resumes(device, tmp_path):
    task, config = interp.tasks.copying.Copying(), interp.TrainConfig(steps=20, eval_every=10, checkpoint_every=10)
    settings = dict(n_layers=2, d_model=32, n_heads=1, d_vocab=64, n_ctx=64, attn_only=True)
    here = interp.train(interp.build(**settings, device="cpu"), task, config)
    there = interp.train(interp.build(**settings, device=device), task, config, folder=tmp_path / "run")
    np.testing.assert_allclose(there.history["loss"].iloc[1:], here.history["loss"].iloc[1:], rtol=1e-3)
    loaded = interp.load(tmp_path / "run", device=device)
    assert loaded.provenance.weights_sha256 == there.model.provenance.weights_sha256


def test_smollm2_in_half_precision_keeps_its_heads(device):
    model = interp.load("smollm2", device=device, dtype="bfloat16")
    assert {layer for layer, _ in interp.score_heads(model, n_sequences=12).top("induction", 3)} == {17, 18}
