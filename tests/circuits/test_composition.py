"""Composition scores equal the dense ones, in every kind of layer, and never form a d_model x d_model matrix."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import interp
from interp.circuits import composition
from interp.circuits.composition import composition_scores, multiply, reading_circuit, writing_circuit
from interp.circuits.diagonal import diagonal_scores
from interp.circuits.factors import read_factors
from interp.circuits.subspaces import match_subspaces
from interp.errors import InputError
from tests.circuits.random_layers import dense_ov, dense_products, dense_qk, model_layers, random_layer
from tests.untyped import as_without_type_checks

SHAPES = [dict(), dict(n_kv_heads=2), dict(n_heads=6, n_kv_heads=1), dict(d_model=5, d_head=6)]


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("layer", ["gpt2", "llama", *range(len(SHAPES))])
def test_scores_equal_dense_ones(layer: str | int, kind: str) -> None:
    if isinstance(layer, str):
        writer, reader = model_layers(layer)
    else:
        writer, reader = (random_layer(seed=seed, **SHAPES[layer]) for seed in (0, 1))  # type: ignore[arg-type]
    circuit = dense_ov(reader) if kind == "V" else dense_qk(reader)
    scale = circuit.norm(dim=(-2, -1))[:, None] * dense_ov(writer).norm(dim=(-2, -1))
    expected = dense_products(writer, reader, kind).norm(dim=(-2, -1)) / scale
    found = composition_scores(writer, reader, kind=kind)  # type: ignore[arg-type]
    assert found.shape == (reader.n_heads, writer.n_heads)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("distance", [5, "mean"])
def test_a_distance_turns_the_keys(distance: Any) -> None:
    writer, reader = model_layers("llama")
    for kind in ("Q", "K"):
        scale = dense_qk(reader, distance).norm(dim=(-2, -1))[:, None] * dense_ov(writer).norm(dim=(-2, -1))
        expected = dense_products(writer, reader, kind, distance).norm(dim=(-2, -1)) / scale
        found = composition_scores(writer, reader, kind=kind, distance=distance)
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
        assert not torch.allclose(found, composition_scores(writer, reader, kind=kind), atol=1e-3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_scores_are_those_of_transformer_lens(kind: str) -> None:
    model = interp.build(n_layers=2, d_model=24, n_heads=3, d_vocab=5, n_ctx=4, attn_only=True, normalization_type=None)
    expected = model.all_composition_scores(kind)[0, :, 1]  # [writer, reader]
    found = composition_scores(read_factors(model, 0), read_factors(model, 1), kind=kind)  # type: ignore[arg-type]
    torch.testing.assert_close(found, expected.T.double(), atol=1e-6, rtol=0)


def test_what_is_read_is_what_counts() -> None:
    axes = torch.eye(12)[None]
    layer = random_layer(n_heads=1, d_model=12, d_head=4)
    writer = replace(layer, W_V=axes[..., :4], W_O=axes[:, 4:8])
    hit = replace(layer, W_Q=axes[..., 8:], W_K=axes[..., 4:8], W_V=axes[..., 8:])
    assert composition_scores(writer, hit, kind="K").item() == pytest.approx(1 / 2)  # 1 / sqrt(d_head), all of rank 4
    assert composition_scores(writer, hit, kind="Q").item() == composition_scores(writer, hit, kind="V").item() == 0
    single = replace(hit, W_K=axes[..., 4:5].expand(1, 12, 4))  # reads one of the directions alone
    aimed = replace(writer, W_O=axes[:, 4:5].expand(1, 4, 12))
    assert composition_scores(aimed, single, kind="K").item() == pytest.approx(1)


def test_a_head_that_is_zero_composes_with_nothing() -> None:
    writer, reader = random_layer(seed=0), random_layer(seed=1)
    writer.W_O[1], reader.W_K[2] = 0, 0
    scores = composition_scores(writer, reader)
    assert not scores[:, 1].any()
    assert not scores[2].any()
    assert scores[0, 0] > 0.05


def test_random_heads_have_one_over_root_d_model() -> None:
    writer, reader = (random_layer(seed=seed, n_heads=12, d_model=256, d_head=8) for seed in (0, 1))
    for kind in ("Q", "K", "V"):
        squares = composition_scores(writer, reader, kind=kind).square()  # type: ignore[arg-type]
        assert squares.mean().sqrt().item() == pytest.approx(256**-0.5, rel=0.1)


def test_the_size_of_the_panels_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = (random_layer(seed=seed, n_heads=6, n_kv_heads=3) for seed in (0, 1))
    reading, writing = reading_circuit(reader), writing_circuit(writer)
    whole = multiply(reading, writing)
    monkeypatch.setattr(composition, "_PANEL", 1)
    pieces = multiply(reading, writing)
    torch.testing.assert_close(pieces.squares, whole.squares, rtol=1e-6, atol=0)
    torch.testing.assert_close(pieces.traces, whole.traces, rtol=1e-5, atol=1e-3)


def test_half_precision_is_multiplied_in_single() -> None:
    writer, reader = (random_layer(seed=seed) for seed in (0, 1))
    half = [
        replace(layer, **{name: getattr(layer, name).bfloat16() for name in ("W_Q", "W_K", "W_V", "W_O")})
        for layer in (writer, reader)
    ]
    single = [
        replace(layer, **{name: getattr(layer, name).float() for name in ("W_Q", "W_K", "W_V", "W_O")})
        for layer in half
    ]
    torch.testing.assert_close(composition_scores(*half), composition_scores(*single))


class _LargestTensor(TorchDispatchMode):
    """Remembers the number of entries of the largest tensor that any operation gives."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        results = function(*arguments, **(options or {}))
        for result in results if isinstance(results, tuple | list) else (results,):
            if isinstance(result, torch.Tensor):
                self.largest = max(self.largest, result.untyped_storage().size() // result.element_size())
        return results


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_no_matrix_over_the_residual_stream_is_formed(kind: str) -> None:
    writer, reader = (random_layer(seed=seed, n_heads=2, d_model=300, d_head=4) for seed in (0, 1))
    with _LargestTensor() as seen:
        composition_scores(writer, reader, kind=kind)  # type: ignore[arg-type]
        diagonal_scores(writer, reader, kind=kind)  # type: ignore[arg-type]
        match_subspaces(writer, reader, rank=3, kind=kind)  # type: ignore[arg-type]
    assert 0 < seen.largest < 300 * 300 / 10


def test_what_cannot_be_asked_is_said() -> None:
    writer, reader = random_layer(seed=0), random_layer(seed=1)
    unknown = r"^kind='O' isn't known; give 'Q', 'K' or 'V', for what the reader reads with\.$"
    with as_without_type_checks(), pytest.raises(InputError, match=unknown):
        composition_scores(writer, reader, kind="O")  # type: ignore[arg-type]
    pointless = r"^distance=3 was given with kind='V', but values have no positions: leave it out\.$"
    with pytest.raises(InputError, match=pointless):
        composition_scores(writer, reader, kind="V", distance=3)
    with pytest.raises(InputError, match=r"has no rotary positions"):
        composition_scores(writer, reader, distance=3)
    with pytest.raises(
        InputError, match=r"^The reader has d_model=40 and the writer 20; give two layers of one model\.$"
    ):
        composition_scores(random_layer(d_model=20), reader)
