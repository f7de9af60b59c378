"""Scales by part, the published variants by name, and what cannot be used is said."""

import math

import pytest
import torch

from interp.errors import InputError
from interp.models.build import build
from interp.models.initialise import PARTS, Initialisation, part_of
from tests.untyped import as_without_type_checks

SHAPE = {"n_layers": 2, "d_model": 48, "n_heads": 3, "d_head": 20, "d_mlp": 90, "d_vocab": 60, "n_ctx": 40}


def _build(**scales):
    return build(**SHAPE, act_fn="gelu", device="cpu", seed=1, **scales)


def _ratios(model, base):
    """Each matrix over the same matrix of `base`; one number, since the same seed gives the same directions."""
    ratios = {}
    for (name, ours), theirs in zip(model.named_parameters(), base.parameters(), strict=True):
        if part_of(name) is None:
            assert torch.equal(ours, theirs)
            continue
        ratio = ours.norm() / theirs.norm()
        torch.testing.assert_close(ours, ratio * theirs)
        ratios[name] = ratio.item()
    return ratios


def test_every_matrix_belongs_to_one_part():
    model = _build()
    leaves = {name.rsplit(".", 1)[-1] for name, _ in model.named_parameters() if part_of(name)}
    assert leaves == {"W_E", "W_pos", "W_Q", "W_K", "W_V", "W_O", "W_in", "W_out", "W_U"}
    assert all(part_of(name) is None for name in ("blocks.0.attn.b_Q", "blocks.0.ln1.w", "blocks.0.mlp.b_in"))


@pytest.mark.parametrize("part", PARTS)
def test_an_exponent_of_its_own_touches_that_part_alone(part):
    inputs = {"W_O": 60, "W_out": 90}
    for name, ratio in _ratios(_build(gamma=0.5, gamma_by_part={part: 0.8}), _build(gamma=0.5)).items():
        d_in = inputs.get(name.rsplit(".", 1)[-1], 48)
        assert ratio == pytest.approx(d_in**-0.3 if part_of(name) == part else 1, rel=1e-5), name


def test_larger_gamma_is_smaller_and_a_larger_multiplier_larger():
    base = _build(gamma=0.5)
    assert all(ratio < 0.4 for ratio in _ratios(_build(gamma=0.8), base).values())
    assert list(_ratios(_build(gamma=0.5, init_multiplier=1.1), base).values()) == pytest.approx([1.1] * 15)


def test_the_residual_scale_divides_the_two_matrices_that_write_into_the_stream():
    for name, ratio in _ratios(_build(residual_scale="one_over_sqrt_2L"), _build()).items():
        assert ratio == pytest.approx(1 / math.sqrt(4) if name.endswith(("W_O", "W_out")) else 1, rel=1e-5), name


def test_the_embeddings_own_std_has_the_last_word():
    model = _build(embedding_std=1.0, init_multiplier=3.0, gamma_by_part={"embedding": 2.0})
    assert model.W_E.std().item() == pytest.approx(1.0, rel=0.05)


def test_the_provenance_says_how():
    model = _build(gamma=0.8, gamma_by_part={"qk": 0.5}, init_multiplier=2.0, residual_scale="one_over_sqrt_2L")
    assert model.provenance.notes == (
        "initialisation: std = 2 * d_in ** -0.8, qk 2 * d_in ** -0.5, W_O and W_out divided by sqrt(2 L), seed 1",
    )
    assert str(Initialisation(gamma=0.5, embedding_std=1.0)) == "std = d_in ** -0.5, embeddings std = 1"


@pytest.mark.parametrize(
    ("scales", "text"),
    [
        ({"gamma_by_part": {"kq": 0.5}}, "gamma_by_part names the part 'kq', which is none of embedding, qk, vo, mlp"),
        ({"gamma_by_part": {"qk": math.inf}}, r"gamma_by_part\['qk'\] must be a finite number, not inf"),
        ({"gamma_by_part": 0.5}, "gamma_by_part must map parts to exponents, such as {'qk': 0.8}, not 0.5"),
        ({"init_multiplier": -1.0}, "init_multiplier must not be negative, not -1.0"),
        ({"init_multiplier": "two"}, "init_multiplier must be a finite number, not 'two'"),
        ({"residual_scale": "half"}, "residual_scale='half' is unknown: give 'one' or 'one_over_sqrt_2L'"),
    ],
)
def test_what_cannot_be_used_is_said(scales, text):
    with as_without_type_checks(), pytest.raises(InputError, match=text):
        _build(**scales)
