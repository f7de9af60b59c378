"""Z is that of the dense product; ideal pairs reach sqrt(d_head), random ones spread by 1 / sqrt(d_model)."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from interp.circuits.diagonal import diagonal_scores
from interp.circuits.factors import LayerFactors
from tests.circuits.random_layers import dense_ov, dense_products, dense_qk, model_layers, random_layer

SHAPES = [dict(), dict(n_kv_heads=2), dict(n_heads=6, n_kv_heads=1), dict(d_model=5, d_head=6)]


def dense_z(products: Tensor) -> Tensor:
    diagonal = products.diagonal(dim1=-2, dim2=-1)
    return (diagonal.mean(-1) - products.mean((-2, -1))) / products.flatten(-2).std(-1, correction=0)


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("layer", ["gpt2", "llama", *range(len(SHAPES))])
def test_z_equals_the_dense_one(layer: str | int, kind: str) -> None:
    if isinstance(layer, str):
        writer, reader = model_layers(layer)
    else:
        writer, reader = (random_layer(seed=seed, **SHAPES[layer]) for seed in (0, 1))  # type: ignore[arg-type]
    found = diagonal_scores(writer, reader, kind=kind)  # type: ignore[arg-type]
    torch.testing.assert_close(found, dense_z(dense_products(writer, reader, kind)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("distance", [3, "mean"])
def test_a_distance_turns_the_keys(distance: Any) -> None:
    writer, reader = model_layers("llama")
    found = diagonal_scores(writer, reader, distance=distance)
    torch.testing.assert_close(found, dense_z(dense_products(writer, reader, "K", distance)), atol=1e-6, rtol=0)


def test_z_is_that_of_the_paper() -> None:
    """The paper's factors are all d x d_head: W_QK = W_Q W_K^T and W_OV = W_O W_V^T, and W = W_QK W_OV."""
    writer, reader = random_layer(seed=0, n_heads=1), random_layer(seed=1, n_heads=1)
    W_Q, W_K = reader.W_Q[0].double(), reader.W_K[0].double()
    W_O, W_V = writer.W_O[0].double().T, writer.W_V[0].double()
    paper = (W_Q @ W_K.T) @ (W_O @ W_V.T)
    torch.testing.assert_close(diagonal_scores(writer, reader), dense_z(paper)[None, None], atol=1e-6, rtol=0)
    swapped = (W_O @ W_V.T) @ (W_Q @ W_K.T)  # reads the writer's input with the reader's queries: another question
    assert abs(diagonal_scores(writer, reader).item() - dense_z(swapped).item()) > 1e-3
    wrong = dense_qk(reader)[0] @ dense_ov(writer)[0]  # row vectors' W_OV without transposing it
    assert abs(diagonal_scores(writer, reader).item() - dense_z(wrong).item()) > 1e-3


def ideal_pair(d_model: int, d_head: int) -> tuple[LayerFactors, LayerFactors]:
    """Moves d_head directions to others, and reads them there against the first; all orthogonal to (1, ..., 1)."""
    generator = torch.Generator().manual_seed(0)
    ones = torch.ones(d_model, 1)
    basis = torch.linalg.qr(torch.cat([ones, torch.randn(d_model, 2 * d_head, generator=generator)], dim=1)).Q[None]
    first, second = basis[..., 1 : d_head + 1], basis[..., d_head + 1 :]
    layer = random_layer(n_heads=1, d_model=d_model, d_head=d_head)
    return replace(layer, W_V=first, W_O=second.mT), replace(layer, W_Q=first, W_K=second, W_V=second, W_O=first.mT)


@pytest.mark.parametrize(("d_model", "d_head"), [(40, 4), (129, 64)])
def test_an_ideal_pair_has_the_root_of_d_head(d_model: int, d_head: int) -> None:
    writer, reader = ideal_pair(d_model, d_head)
    for kind in ("K", "V"):
        assert diagonal_scores(writer, reader, kind=kind).item() == pytest.approx(d_head**0.5, abs=1e-5)  # type: ignore[arg-type]
    swapped = replace(reader, W_Q=reader.W_K, W_K=reader.W_Q)
    assert diagonal_scores(writer, swapped, kind="Q").item() == pytest.approx(d_head**0.5, abs=1e-5)
    against = replace(reader, W_Q=-reader.W_Q)
    assert diagonal_scores(writer, against).item() == pytest.approx(-(d_head**0.5), abs=1e-5)


def test_scale_does_not_matter() -> None:
    writer, reader = random_layer(seed=0), random_layer(seed=1)
    larger = replace(reader, W_Q=reader.W_Q * 100)
    torch.testing.assert_close(diagonal_scores(writer, larger), diagonal_scores(writer, reader), atol=1e-6, rtol=0)


def test_where_nothing_varies_z_is_0() -> None:
    writer, reader = random_layer(seed=0), random_layer(seed=1)
    writer.W_O[1], reader.W_Q[2] = 0, 0
    reader.W_Q[3], writer.W_V[3] = 1, 1  # W_QK W_OV^T of these two is the same number everywhere
    scores = diagonal_scores(writer, reader)
    assert not scores[:, 1].any()
    assert not scores[2].any()
    assert scores[3, 3] == 0
    assert scores[0, 0] != 0


def test_random_heads_spread_by_one_over_root_d_model() -> None:
    writer, reader = (random_layer(seed=seed, n_heads=16, d_model=256, d_head=8) for seed in (0, 1))
    scores = diagonal_scores(writer, reader)
    assert scores.std().item() == pytest.approx(1 / 16, rel=0.15)  # 256 pairs: sd of the estimate 4%
    assert abs(scores.mean().item()) < 5 * scores.std().item() / 16


def test_a_large_common_direction_costs_no_accuracy() -> None:
    """One direction of every factor is a thousand times the others, and the pair doesn't use it."""
    writer, reader = random_layer(seed=0), random_layer(seed=1)
    reader.W_Q[..., 0] *= 1000
    reader.W_K[..., 0] = 0
    found = diagonal_scores(writer, reader)
    torch.testing.assert_close(found, dense_z(dense_products(writer, reader, "K")), atol=1e-6, rtol=0)
