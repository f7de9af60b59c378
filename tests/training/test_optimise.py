"""Decay by name, in a window, on the parameters that were asked for; everything else is AdamW."""

import copy

import pytest
import torch

from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.flat import FlatParameters
from interp.training.optimise import make_optimizer, read_state, update, write_state
from interp.training.schedule import learning_rate_at

SHAPE = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_vocab": 6, "n_ctx": 5, "act_fn": "relu", "device": "cpu"}


def _build():
    """No parameter at 0, so that decay shows everywhere."""
    model = build(**SHAPE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    return model


def _update(model, config, steps, *, gradient=0.0):
    parameters = FlatParameters(model)
    optimizer = make_optimizer(parameters, config)
    for step in range(steps):
        parameters.gradient.fill_(gradient)
        update(optimizer, config, step=step)


def _shrunk(decayed):
    """What one update with a decay of 0.1 outside the rate and no gradient leaves of each parameter."""
    model = _build()
    before = copy.deepcopy(model)
    _update(model, TrainConfig(weight_decay=0.1, decay="outside_learning_rate", decayed=decayed), 1)
    return {
        name: (after.sum() / parameter.sum()).item()
        for (name, after), parameter in zip(model.named_parameters(), before.parameters(), strict=True)
    }


@pytest.mark.parametrize("decayed", ["all", "matrices", "matrices_without_embeddings"])
def test_only_what_was_asked_for_decays(decayed):
    for name, share in _shrunk(decayed).items():
        leaf = name.rsplit(".", 1)[-1]
        decays = decayed == "all" or (leaf.startswith("W_") and (decayed == "matrices" or leaf not in ("W_E", "W_pos")))
        assert share == pytest.approx(0.9 if decays else 1.0, rel=1e-5), name


@pytest.mark.parametrize("decay", ["times_learning_rate", "outside_learning_rate"])
def test_the_window_and_the_rate_decide_how_much_is_left(decay):
    config = TrainConfig(
        steps=10, learning_rate=0.5, warmup_steps=6, weight_decay=0.1, decay=decay, decay_window=(2, 5), clip_norm=1.0
    )
    model = _build()
    before = model.W_Q.clone()
    _update(model, config, 10)
    left = 1.0
    for step in (2, 3, 4):
        left *= 1 - 0.1 * (learning_rate_at(step, config) if decay == "times_learning_rate" else 1)
    torch.testing.assert_close(model.W_Q, left * before)


@pytest.mark.parametrize("decayed", ["all", "matrices"])
def test_decay_times_the_rate_is_adamws(decayed):
    config = TrainConfig(learning_rate=0.01, weight_decay=0.3, decayed=decayed)
    ours, theirs = _build(), _build()
    _update(ours, config, 5, gradient=0.3)
    names = [name for name, _ in theirs.named_parameters()]
    matrices = [theirs.get_parameter(name) for name in names if decayed == "all" or ".W_" in name]
    others = [theirs.get_parameter(name) for name in names if not (decayed == "all" or ".W_" in name)]
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(5):
        for parameter in theirs.parameters():
            parameter.grad = torch.full_like(parameter, 0.3)
        optimizer.step()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_decay_outside_the_rate_acts_at_a_rate_of_zero_and_does_not_enter_the_averages():
    config = TrainConfig(learning_rate=0.0, weight_decay=0.1, decay="outside_learning_rate")
    model = _build()
    before = model.W_U.clone()
    parameters = FlatParameters(model)
    optimizer = make_optimizer(parameters, config)
    parameters.gradient.fill_(0.3)
    update(optimizer, config, step=0)
    torch.testing.assert_close(model.W_U, 0.9 * before)
    averages = {kind: optimizer.state[vector]["exp_avg"] for kind, vector in parameters.stretches.items()}
    found = parameters.split(averages)["unembed.W_U"]
    torch.testing.assert_close(found, torch.full_like(before, 0.03))


@pytest.mark.parametrize("decayed", ["all", "matrices", "matrices_without_embeddings"])
def test_the_state_is_that_of_an_optimizer_of_single_parameters(decayed):
    """So that runs of versions with such an optimizer go on: those that decay come first, each group in model order."""
    config = TrainConfig(decayed=decayed, weight_decay=0.1, learning_rate=0.01, clip_norm=1.0)
    ours, theirs = _build(), _build()
    parameters = FlatParameters(ours)
    optimizer = make_optimizer(parameters, config)
    assert read_state(optimizer, parameters) == {}
    decays = [
        decayed == "all" or (".W_" in name and (decayed == "matrices" or name[-4:] not in (".W_E", "_pos")))
        for name, _ in theirs.named_parameters()
    ]
    groups = [
        {
            "params": [one for one, does in zip(theirs.parameters(), decays, strict=True) if does == wanted],
            "weight_decay": 0.1 * wanted,
        }
        for wanted in (True, False)
    ]
    single = torch.optim.AdamW([group for group in groups if group["params"]], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        for own, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            gradient = torch.randn(own.shape, generator=generator)
            own.grad.copy_(gradient)
            other.grad = gradient
        update(optimizer, config, step=step)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        single.step()
    torch.testing.assert_close(read_state(optimizer, parameters), single.state_dict()["state"])
    torch.testing.assert_close([*ours.parameters()], [*theirs.parameters()])
    again = make_optimizer(parameters, config)
    write_state(again, parameters, read_state(optimizer, parameters))
    for vector in parameters.stretches.values():
        torch.testing.assert_close(again.state[vector], optimizer.state[vector], rtol=0, atol=0)
        assert again.state[vector]["exp_avg"] is not optimizer.state[vector]["exp_avg"]
