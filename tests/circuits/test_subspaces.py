"""The subspace match is that of the dense matrices' singular vectors, and known where the subspaces are known."""

from dataclasses import replace

import pytest
import torch

from interp.circuits.composition import reading_circuit, writing_circuit
from interp.circuits.factors import LayerFactors
from interp.circuits.subspaces import match_subspaces, top_directions
from interp.errors import InputError
from tests.circuits.random_layers import dense_ov, dense_qk, model_layers, random_layer
from tests.untyped import as_without_type_checks


@pytest.mark.parametrize("score", ["largest", "rms"])
@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("layer", ["gpt2", "llama", "random"])
def test_the_match_equals_the_dense_one(layer: str, kind: str, score: str) -> None:
    writer, reader = model_layers(layer) if layer != "random" else (random_layer(seed=0), random_layer(seed=1))
    rank = 4
    circuit = dense_ov(reader) if kind == "V" else dense_qk(reader)
    left, _, right = torch.linalg.svd(circuit)  # columns of left, rows of right
    read = right.mT[..., :rank] if kind == "K" else left[..., :rank]
    written = torch.linalg.svd(dense_ov(writer))[2].mT[..., :rank]
    cosines = torch.linalg.svdvals(read.mT[:, None] @ written[None])
    expected = cosines[..., 0] if score == "largest" else cosines.square().mean(-1).sqrt()
    found = match_subspaces(writer, reader, rank=rank, score=score, kind=kind)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_directions_are_orthonormal_and_the_same_every_time() -> None:
    circuit = reading_circuit(random_layer(n_heads=6, n_kv_heads=2))
    directions = top_directions(circuit, rank=5)
    assert directions.shape == (6, 40, 5)
    torch.testing.assert_close(directions.mT @ directions, torch.eye(5).expand(6, 5, 5), atol=1e-6, rtol=0)
    assert torch.equal(directions, top_directions(circuit, rank=5))


def test_a_badly_conditioned_head_stays_orthonormal() -> None:
    """Singular values from 1 to 1e-5: an eigendecomposition of a Gram matrix loses the small ones in float32."""
    layer = random_layer(n_heads=1, d_model=30, d_head=6)
    scales = torch.logspace(0, -5, 6)
    basis = torch.linalg.qr(layer.W_K[0]).Q
    steep = replace(layer, W_Q=torch.linalg.qr(layer.W_Q[0]).Q[None], W_K=(basis * scales)[None])
    directions = top_directions(reading_circuit(steep), rank=6)[0]
    torch.testing.assert_close(directions.T @ directions, torch.eye(6), atol=1e-5, rtol=0)
    torch.testing.assert_close((directions * basis).sum(0).abs(), torch.ones(6), atol=1e-4, rtol=0)


def aligned(overlap: int) -> tuple[LayerFactors, LayerFactors]:
    """The reader's keys look at axes 0..3, the writer writes axes 4 - overlap and on."""
    axes = torch.eye(20)[None]
    layer = random_layer(n_heads=1, d_model=20, d_head=4)
    return replace(layer, W_O=axes[:, 4 - overlap : 8 - overlap]), replace(layer, W_K=axes[..., :4])


@pytest.mark.parametrize("overlap", [0, 1, 2, 4])
def test_shared_axes_are_what_is_matched(overlap: int) -> None:
    writer, reader = aligned(overlap)
    assert match_subspaces(writer, reader, rank=4).item() == pytest.approx(float(overlap > 0), abs=1e-5)
    assert match_subspaces(writer, reader, rank=4, score="rms").item() == pytest.approx((overlap / 4) ** 0.5, abs=1e-5)


def test_only_the_strongest_directions_count() -> None:
    axes = torch.eye(20)[None]
    layer = random_layer(n_heads=1, d_model=20, d_head=2)
    orthonormal = axes[..., 10:12]
    strong_and_weak = torch.diag(torch.tensor([3.0, 1.0]))
    reader = replace(layer, W_Q=orthonormal, W_K=axes[..., :2] @ strong_and_weak)
    writes_weak = replace(layer, W_V=orthonormal, W_O=strong_and_weak @ axes[:, 1:3])
    assert match_subspaces(writes_weak, reader, rank=1).item() == pytest.approx(0, abs=1e-6)
    assert match_subspaces(writes_weak, reader, rank=2).item() == pytest.approx(1, abs=1e-6)


def test_directions_that_a_head_does_not_use_match_nothing() -> None:
    writer, reader = random_layer(seed=0), random_layer(seed=1)
    writer.W_O[1] = 0
    reader.W_K[2, :, 1:] = 0  # one direction left
    scores = match_subspaces(writer, reader, rank=3)
    assert not scores[:, 1].any()
    left = top_directions(reading_circuit(reader), rank=3)[2]
    assert left.square().sum(0).tolist() == pytest.approx([1, 0, 0], abs=1e-6)
    written = top_directions(writing_circuit(writer), rank=3)[0]
    assert scores[2, 0].item() == pytest.approx((left[:, 0] @ written).norm().item(), abs=1e-6)


def test_random_subspaces_have_the_rms_of_chance() -> None:
    writer, reader = (random_layer(seed=seed, n_heads=16, d_model=200, d_head=10) for seed in (0, 1))
    squares = match_subspaces(writer, reader, rank=8, score="rms").square()
    assert squares.mean().item() == pytest.approx(8 / 200, rel=0.03)


def test_what_cannot_be_asked_is_said() -> None:
    layer = random_layer()
    for rank in (0, 7):
        expected = rf"^rank={rank} was given, but a head has 1 to 6 directions \(d_head\): give a rank among them\.$"
        with pytest.raises(InputError, match=expected):
            match_subspaces(layer, layer, rank=rank)
    with (
        as_without_type_checks(),
        pytest.raises(InputError, match=r"^score='mean' isn't known; give 'largest' or 'rms'\.$"),
    ):
        match_subspaces(layer, layer, rank=2, score="mean")  # type: ignore[arg-type]
