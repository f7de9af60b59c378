"""The pass that training uses gives the model's logits and gradients, and steps aside where it cannot."""

import copy

import pytest
import torch

from interp.models.build import build
from interp.training.flat import FlatParameters
from interp.training.forward import choose_forward, is_fast

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
        {"act_fn": "gelu", "dtype": torch.float64, "embedding_scale": "sqrt_d_model"},
        {"act_fn": "relu", "positions": "sinusoidal"},
        *(
            {"norm_placement": "post", **more}
            for more in (
                {"act_fn": "relu", "positions": "sinusoidal", "embedding_scale": "sqrt_d_model"},
                {"attn_only": True, "normalization_type": "RMS", "final_rms": True},
                {"act_fn": "gelu", "normalization_type": "LNPre", "positional_embedding_type": "rotary"},
                {"act_fn": "silu", "gated_mlp": True},
            )
        ),
    ],
)
def test_the_fast_pass_agrees_with_the_model(config):
    model = _randomise(build(**SMALL, **config))
    parameters = FlatParameters(model)
    forward = choose_forward(parameters, TOKENS)
    assert is_fast(forward)
    whole = model(TOKENS[:, :9])
    for last_only, expected in ((False, whole), (True, whole[:, -1:])):
        logits = forward(TOKENS[:, :9], last_only=last_only)
        torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-5)
        wanted = torch.autograd.grad(expected.logsumexp(-1).sum(), list(model.parameters()), retain_graph=True)
        parameters.zero_grad()
        logits.logsumexp(-1).sum().backward()
        found = [parameter.grad for parameter in model.parameters()]
        torch.testing.assert_close(found, list(wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        {"n_key_value_heads": 1},
        {"attention_dir": "bidirectional"},
        {"positional_embedding_type": "shortformer"},
        {"positional_embedding_type": "rotary", "rotary_dim": 4},
        {"use_qk_norm": True},
        {"act_fn": "solu_ln"},
        {"attn_scores_soft_cap": 5.0},
        {"parallel_attn_mlp": True},
        {"use_local_attn": True, "window_size": 3, "attn_types": ["local", "global"]},
    ],
)
def test_a_configuration_it_does_not_know_is_left_to_the_model(config):
    model = build(**{**SMALL, "act_fn": "relu", **config})
    assert not is_fast(choose_forward(FlatParameters(model), TOKENS))


def test_hooks_are_not_bypassed():
    model = build(**SMALL, attn_only=True)
    model.add_hook("blocks.0.hook_attn_out", lambda activation, hook: activation * 0)
    assert not is_fast(choose_forward(FlatParameters(model), TOKENS))


def test_a_changed_module_is_not_bypassed():
    model = _randomise(build(**SMALL, attn_only=True))
    model.unembed.forward = lambda residual: residual[..., :11] * 2
    assert not is_fast(choose_forward(FlatParameters(model), TOKENS))


def test_parameters_in_one_vector_stay_the_models_own():
    model = _randomise(build(**SMALL, act_fn="gelu"))
    before = copy.deepcopy(model)
    parameters = FlatParameters(model)
    torch.testing.assert_close(model(TOKENS), before(TOKENS))
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.state_dict().items())
    with torch.no_grad():
        model.blocks[1].attn.W_V.mul_(2)
    place = parameters.places["blocks.1.attn.W_V"]
    assert torch.equal(place.of(parameters.vector), 2 * before.blocks[1].attn.W_V)
    parameters.release()
    assert len({parameter.untyped_storage().data_ptr() for parameter in model.parameters()}) == len(parameters.named)
    assert all(parameter.is_contiguous() and parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("fixed", [["embed"], ["pos_embed", "blocks.0"], ["blocks.1.mlp", "ln_final"]])
def test_what_is_not_trained_has_no_gradient_and_no_place_among_what_is(fixed):
    model = _randomise(build(**SMALL, act_fn="gelu"))
    for name in fixed:
        model.get_submodule(name).requires_grad_(False)
    expected = torch.autograd.grad(
        model(TOKENS).logsumexp(-1).sum(), [parameter for parameter in model.parameters() if parameter.requires_grad]
    )
    parameters = FlatParameters(model)
    forward = choose_forward(parameters, TOKENS)
    assert is_fast(forward)
    parameters.zero_grad()
    forward(TOKENS).logsumexp(-1).sum().backward()
    found = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    torch.testing.assert_close(found, list(expected), rtol=1e-4, atol=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters() if not parameter.requires_grad)
    model.blocks[1].attn.W_K.requires_grad_(False)  # queries and values are trained, keys are not: not in one product
    assert not is_fast(choose_forward(FlatParameters(model), TOKENS))
