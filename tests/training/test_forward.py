"""The pass that training uses gives the model's logits and gradients, and steps aside where it cannot."""

import pytest
import torch

from interp.models.build import build
from interp.training.forward import choose_forward, run_fast, run_model

SMALL = {"n_layers": 2, "d_model": 16, "n_heads": 2, "d_vocab": 11, "n_ctx": 12, "device": "cpu"}
TOKENS = torch.arange(36).reshape(3, 12) % 11


def _randomise(model):
    """Gains and biases away from 1 and 0, so that a forgotten one shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model


@pytest.mark.parametrize(
    "config",
    [
        {"attn_only": True},
        {"attn_only": True, "positional_embedding_type": "rotary"},
        {"attn_only": True, "positional_embedding_type": "rotary", "rotary_adjacent_pairs": True},
        {"act_fn": "gelu", "d_mlp": 24},
        {"act_fn": "silu", "gated_mlp": True, "normalization_type": "RMS", "final_rms": True},
        {"act_fn": "relu", "normalization_type": "LNPre"},
        {"act_fn": "relu", "normalization_type": "RMSPre", "d_head": 6},
        {"act_fn": "relu", "normalization_type": None, "use_attn_scale": False},
        {"act_fn": "solu_ln", "dtype": torch.float64},
    ],
)
def test_the_fast_pass_agrees_with_the_model(config):
    model = _randomise(build(**SMALL, **config))
    forward = choose_forward(model, TOKENS)
    assert forward.func is run_fast
    whole = model(TOKENS[:, :9])
    for last_only, expected in ((False, whole), (True, whole[:, -1:])):
        logits = forward(TOKENS[:, :9], last_only=last_only)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-5)
        found = torch.autograd.grad(logits.logsumexp(-1).sum(), list(model.parameters()))
        wanted = torch.autograd.grad(expected.logsumexp(-1).sum(), list(model.parameters()), retain_graph=True)
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"n_key_value_heads": 1},
        {"attention_dir": "bidirectional"},
        {"positional_embedding_type": "shortformer"},
        {"positional_embedding_type": "rotary", "rotary_dim": 4},
        {"use_qk_norm": True},
        {"attn_scores_soft_cap": 5.0},
        {"parallel_attn_mlp": True},
        {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
    ],
)
def test_a_configuration_it_does_not_know_is_left_to_the_model(config):
    model = build(**SMALL, act_fn="relu", **config)
    assert choose_forward(model, TOKENS).func is run_model


def test_hooks_are_not_bypassed():
    model = build(**SMALL, attn_only=True)
    model.add_hook("blocks.0.hook_attn_out", lambda activation, hook: activation * 0)
    assert choose_forward(model, TOKENS).func is run_model


def test_a_changed_module_is_not_bypassed():
    model = _randomise(build(**SMALL, attn_only=True))
    model.unembed.forward = lambda residual: residual[..., :11] * 2
    assert choose_forward(model, TOKENS).func is run_model
