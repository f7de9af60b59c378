"""Two attention layers learn to copy, suddenly; one layer does not. A small variant of the published task, in seconds."""

from dataclasses import replace

import pytest

from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.loop import train
from tasks.copying import Copying

TASK = Copying(d_vocab=32, n_ctx=40, min_length=6, max_length=15, ood_length=18, distribution="uniform")
CONFIG = TrainConfig(steps=2000, learning_rate=3e-3, warmup_steps=100, eval_every=250, eval_sequences=200)


def _train(n_layers, *, steps):
    model = build(
        n_layers=n_layers,
        d_model=32,
        n_heads=1,
        d_vocab=32,
        n_ctx=40,
        attn_only=True,
        positional_embedding_type="rotary",
        rotary_adjacent_pairs=True,
        embedding_std=1.0,
        device="cpu",
    )
    return train(model, TASK, replace(CONFIG, steps=steps)).history.set_index("step")["ood_error"]


@pytest.mark.slow
def test_two_layers_learn_to_copy_suddenly():
    error = _train(2, steps=2000)
    assert error[250] > 0.9
    assert error[2000] < 0.1
    # Sudden: half of the fall happens within a tenth of the training.
    assert error.diff().min() < -0.3


@pytest.mark.slow
def test_one_layer_never_does():
    assert _train(1, steps=1000).min() > 0.8
