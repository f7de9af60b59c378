"""Building a model: the weights follow from gamma and seed alone, and what cannot be built is said in one sentence."""

import math
import warnings

import numpy as np
import pytest
import torch

from interp.errors import InputError
from interp.models.build import build, quiet_construction
from interp.models.initialise import fan_in
from interp.models.provenance import hash_weights
from tests.untyped import as_without_type_checks

WIDE = {"n_layers": 1, "d_model": 96, "n_heads": 3, "d_vocab": 150, "n_ctx": 70, "device": "cpu"}
SMALL = {"n_layers": 1, "d_model": 8, "n_heads": 2, "d_vocab": 5, "n_ctx": 4, "attn_only": True, "device": "cpu"}


@pytest.mark.parametrize("gamma", [0.5, 0.8])
def test_every_matrix_has_the_std_of_its_input_side(gamma):
    model = build(**WIDE, d_head=40, d_mlp=200, act_fn="relu", gamma=gamma)
    inputs = {"W_E": 96, "W_pos": 96, "W_Q": 96, "W_K": 96, "W_V": 96, "W_O": 120, "W_in": 96, "W_out": 200, "W_U": 96}
    seen = set()
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        if leaf in inputs:
            std = inputs[leaf] ** -gamma
            # The sampling error of a standard deviation is std / sqrt(2 n).
            assert parameter.std().item() == pytest.approx(std, abs=5 * std / math.sqrt(2 * parameter.numel()))
            assert abs(parameter.mean().item()) < 5 * std / math.sqrt(parameter.numel())
            seen.add(leaf)
        else:
            assert torch.equal(parameter, torch.full_like(parameter, 1.0 if leaf == "w" else 0.0)), name
    assert seen == set(inputs)


def test_grouped_keys_and_gates_are_initialised_too():
    model = build(
        **{**WIDE, "n_heads": 4}, n_key_value_heads=2, gated_mlp=True, act_fn="silu", normalization_type="RMS"
    )
    for name, parameter in model.named_parameters():
        inputs = fan_in(name, parameter.shape)
        if inputs is not None:
            assert parameter.std().item() == pytest.approx(inputs**-0.5, rel=0.1), name
    assert sum(fan_in(name, p.shape) is not None for name, p in model.named_parameters()) == 10


def test_embedding_std_touches_embeddings_alone():
    plain, wide = build(**WIDE, attn_only=True), build(**WIDE, attn_only=True, embedding_std=1.0)
    assert wide.W_E.std().item() == pytest.approx(1.0, rel=0.05)
    assert wide.pos_embed.W_pos.std().item() == pytest.approx(1.0, rel=0.05)
    assert torch.equal(wide.W_Q, plain.W_Q)
    assert torch.equal(wide.unembed.W_U, plain.unembed.W_U)


def test_the_seed_alone_decides_and_no_global_generator_moves():
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    first, other = build(**SMALL, seed=5), build(**SMALL, seed=6)
    after = torch.get_rng_state(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]
    torch.manual_seed(2)
    assert hash_weights(build(**SMALL, seed=5)) == hash_weights(first) != hash_weights(other)


def test_a_deeper_model_keeps_the_weights_of_the_layers_it_shares():
    shallow, deep = build(**SMALL), build(**{**SMALL, "n_layers": 2})
    assert torch.equal(shallow.blocks[0].attn.W_Q, deep.blocks[0].attn.W_Q)
    assert not torch.equal(deep.blocks[0].attn.W_Q, deep.blocks[1].attn.W_Q)


def test_the_model_says_where_it_comes_from():
    model = build(**SMALL, gamma=0.8, seed=4)
    assert not model.training
    assert model.provenance.source == "built"
    assert model.provenance.weights_sha256 == hash_weights(model)
    assert model.provenance.n_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert model.provenance.notes == ("initialisation: std = d_in ** -0.8, seed 4",)


def test_building_is_quiet_about_one_warning_only():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        build(**SMALL)
        with quiet_construction():
            warnings.warn("HookedTransformer is deprecated and so on", DeprecationWarning, stacklevel=1)
            warnings.warn("something else", DeprecationWarning, stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["something else"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"attn_onyl": True}, "'attn_onyl' is not a field of a model's configuration; did you mean attn_only"),
        ({"gama": 0.5}, "did you mean gamma"),
        ({"qqqqq": 1}, "see HookedTransformerConfig"),
        ({"init_mode": "gpt2"}, "'init_mode' cannot be given to build: the weights follow from gamma and seed alone"),
        ({"gamma": math.nan}, "gamma must be a finite number, not nan"),
        ({"gamma": "half"}, "gamma must be a finite number, not 'half'"),
        ({"d_model": 8.0}, "d_model must be a whole number of at least 1, not 8.0"),
        ({"embedding_std": -1.0}, "embedding_std must not be negative, not -1.0"),
        ({"n_layers": 0}, "n_layers must be a whole number of at least 1, not 0"),
        ({"d_head": 1.5}, "d_head must be a whole number of at least 1, not 1.5"),
        ({"n_heads": 3}, "d_model=8 is not divisible by n_heads=3"),
        ({"n_key_value_heads": 3, "n_heads": 4}, "n_key_value_heads=3 must divide n_heads=4"),
        ({"attn_only": False, "act_fn": "sigmund"}, "this configuration cannot be built: act_fn=sigmund"),
        ({"normalization_type": "XN"}, "this configuration cannot be built: .*XN"),
        ({"device": "gpu0"}, "device 'gpu0' cannot be used"),
        ({"device": "cuda:77"}, "device 'cuda:77' cannot be used"),
    ],
)
def test_what_cannot_be_built_is_said(change, text):
    with as_without_type_checks(), pytest.raises(InputError, match=text):
        build(**{**SMALL, **change})
