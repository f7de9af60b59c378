"""Copying eigenvalues are those of the whole matrix from token to token; a copier has 1, one that suppresses -1."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import interp
from interp.circuits import copying
from interp.circuits.copying import copying_eigenvalues
from interp.circuits.factors import read_factors
from interp.errors import InputError
from interp.models.weights import final_norm_gain
from tests.circuits.random_layers import dense_ov
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine


@torch.no_grad()
def dense_circuits(model: Any, layer: int) -> Tensor:
    """W_E W_OV W_U of every head, [head, d_vocab, d_vocab], in front of the final norm's gain and centred like it."""
    unembed = final_norm_gain(model)[:, None].double() * model.W_U.double()
    if model.cfg.normalization_type in ("LN", "LNPre"):
        unembed = unembed - unembed.mean(0)
    unembed = unembed - unembed.mean(1, keepdim=True)
    return model.W_E.double() @ dense_ov(read_factors(model, layer)) @ unembed


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_eigenvalues_equal_those_of_the_whole_matrix(family: str) -> None:
    model = interp.load(make_tiny(family), device="cpu")
    found = copying_eigenvalues(model)
    assert found.eigenvalues.shape == (2, 6, 8)
    for layer in range(2):
        for head, circuit in enumerate(dense_circuits(model, layer)):
            expected = torch.linalg.eigvals(circuit).numpy()
            expected = expected[np.argsort(-np.abs(expected))]
            assert np.abs(expected[8:]).max() < 1e-6 * np.abs(expected[0])  # rank d_head
            # Each of ours is one of theirs, and there are as many.
            distances = np.abs(found.eigenvalues[layer, head][:, None] - expected[None, :8])
            assert distances.min(0).max() < 1e-5 * np.abs(expected[0])
            score = expected[:8].sum().real / np.abs(expected[:8]).sum()
            assert found.scores[layer, head] == pytest.approx(score, abs=1e-5)


def test_both_classes_of_a_model_give_the_same(both: tuple[Any, Any]) -> None:
    hooked, bridge = (copying_eigenvalues(model) for model in both)
    np.testing.assert_allclose(bridge.scores, hooked.scores, atol=1e-5)


def test_pieces_of_the_vocabulary_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    model = interp.load(make_tiny("gpt2"), device="cpu")
    whole = copying_eigenvalues(model)
    monkeypatch.setattr(copying, "_TOKENS_AT_ONCE", 10)
    pieces = copying_eigenvalues(model)
    np.testing.assert_allclose(pieces.scores, whole.scores, atol=1e-5)
    np.testing.assert_allclose(pieces.control_scores, whole.control_scores, atol=1e-5)


def test_the_induction_machine_copies_and_its_opposite_suppresses() -> None:
    model = build_copying_machine()
    found = copying_eigenvalues(model)
    assert found.scores[1, 0] == pytest.approx(1)
    assert found.scores[0].tolist() == [0, 0]  # head 0 of layer 0 writes where the unembedding doesn't read
    with torch.no_grad():
        model.blocks[1].attn.W_O[0] *= -1
    assert copying_eigenvalues(model).scores[1, 0] == pytest.approx(-1)


def test_what_all_logits_share_decides_nothing() -> None:
    """A head that raises every logit alike, whatever it reads, would have a score of 1 without centring."""
    model = interp.build(
        n_layers=1, d_model=16, n_heads=2, d_vocab=40, n_ctx=4, attn_only=True, normalization_type=None, seed=1
    )
    with torch.no_grad():
        model.W_E[:] += 50.0
        model.W_U[:] += 50.0
    found = copying_eigenvalues(model)
    assert np.abs(found.scores).max() < 0.9
    raw = (model.W_E.double() @ dense_ov(read_factors(model, 0)) @ model.W_U.double()).detach()
    eigenvalues = [torch.linalg.eigvals(circuit) for circuit in raw]
    scores = [(values.sum().real / values.abs().sum()).abs().item() for values in eigenvalues]
    assert min(scores) > 0.95


def test_shuffled_tokens_are_the_control() -> None:
    model = interp.build(
        n_layers=1, d_model=32, n_heads=8, d_vocab=400, n_ctx=4, attn_only=True, normalization_type=None, seed=0
    )
    with torch.no_grad():
        model.blocks[0].attn.W_O[:] = model.blocks[0].attn.W_V.mT
        model.W_U[:] = model.W_E.T
    found = copying_eigenvalues(model, seed=3)
    assert (found.scores > 0.99).all()
    assert np.abs(found.control_scores).mean() < 0.5
    assert np.array_equal(found.control, copying_eigenvalues(model, seed=3).control)
    assert not np.array_equal(found.control, copying_eigenvalues(model, seed=4).control)


def test_what_a_person_reads() -> None:
    model = build_copying_machine()
    found = copying_eigenvalues(model, layers=[1])
    assert found.to_frame().columns.tolist() == ["layer", "head", "score", "control"]
    assert found.to_frame()["layer"].tolist() == [1, 1]
    assert repr(found).startswith("CopyingEigenvalues(built: 2 heads, largest score 1.0 1.00, ")
    assert "1.0 (1.00)" in found.figure().alt
    assert "<svg" in found._repr_html_()


def test_other_tokens_out_than_in_are_refused() -> None:
    model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=9, d_vocab_out=5, n_ctx=4, attn_only=True)
    expected = r"^This model reads 9 tokens and gives 5 logits; copying needs the same tokens\.$"
    with pytest.raises(InputError, match=expected):
        copying_eigenvalues(model)
