"""All pairs at once give what each two layers give; nulls are calibrated; a machine's composing pair comes first."""

from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.circuits import pairs
from interp.circuits.composition import composition_scores
from interp.circuits.diagonal import diagonal_scores
from interp.circuits.factors import read_factors
from interp.circuits.nulls import empirical_p_values, q_values, random_p_values, random_scale
from interp.circuits.pair_result import PairScores
from interp.circuits.pairs import score_pairs
from interp.circuits.subspaces import match_subspaces
from interp.errors import InputError
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks


def small_model(**settings: Any) -> Any:
    wanted = dict(n_layers=4, d_model=24, n_heads=3, d_vocab=11, n_ctx=8, attn_only=True, seed=3)
    return interp.build(**{**wanted, **settings})


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
@pytest.mark.parametrize("fold", ["norms", "none"])
def test_every_row_is_what_its_two_layers_give(kind: Any, fold: Any) -> None:
    model = interp.load(make_tiny("llama", num_hidden_layers=3), device="cpu")
    scores = score_pairs(model, kind=kind, rank=4, score="rms", fold=fold)
    frame = scores.to_frame()
    assert len(frame) == scores.n_pairs == 3 * 36
    assert frame["diagonal"].is_monotonic_decreasing
    layers = [read_factors(model, layer, fold=fold) for layer in range(3)]
    for (writer, reader), rows in frame.groupby(["writer_layer", "reader_layer"]):
        assert writer < reader
        heads = rows["reader_head"].to_numpy(), rows["writer_head"].to_numpy()
        expected = {
            "diagonal": diagonal_scores(layers[writer], layers[reader], kind=kind),
            "composition": composition_scores(layers[writer], layers[reader], kind=kind),
            "match": match_subspaces(layers[writer], layers[reader], kind=kind, rank=4, score="rms"),
        }
        for name, values in expected.items():
            np.testing.assert_allclose(rows[name], values.numpy()[heads], atol=1e-6)
    np.testing.assert_allclose(frame["normalised"], frame["diagonal"] / 8**0.5)
    assert (frame["order"] == "causal").all()


def test_both_classes_of_a_model_give_the_same(both: tuple[Any, Any]) -> None:
    hooked, bridge = (score_pairs(model, rank=3) for model in both)
    assert bridge.top(5) == hooked.top(5)
    np.testing.assert_allclose(bridge.diagonal, hooked.diagonal, atol=1e-5)


def test_a_distance_reaches_the_keys() -> None:
    model = interp.load(make_tiny("llama"), device="cpu")
    near = score_pairs(model, distance=4, keep=1)
    ((_, writer), (_, reader)) = near.top(1)[0]
    expected = diagonal_scores(read_factors(model, 0), read_factors(model, 1), distance=4)
    assert near.diagonal[0] == pytest.approx(expected[reader, writer].item(), abs=1e-6)
    assert near.diagonal[0] == pytest.approx(expected.max().item(), abs=1e-6)


@pytest.mark.parametrize("by", ["diagonal", "composition", "match"])
def test_mirrors_are_the_same_layers_with_roles_exchanged(by: Any) -> None:
    model = small_model()
    scores = score_pairs(model, by=by, rank=3)
    everything = score_pairs(model, by=by, rank=3, include="all")
    listed = everything.to_frame()
    acausal = listed[listed["order"] == "acausal"]
    assert (acausal["writer_layer"] > acausal["reader_layer"]).all()
    assert len(acausal) == len(scores.null) == scores.n_pairs == 6 * 9
    np.testing.assert_allclose(np.sort(scores.null), np.sort(acausal[by]))
    same = listed[listed["order"] == "same layer"]
    assert len(same) == 4 * 9
    assert (same["writer_layer"] == same["reader_layer"]).all()
    assert acausal["q_value"].isna().all()
    assert same["p_value"].isna().all()
    causal = listed[listed["order"] == "causal"].reset_index(drop=True)
    assert causal.equals(scores.to_frame())


def test_keeping_few_pairs_keeps_the_strongest(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    whole = score_pairs(model)
    monkeypatch.setattr(pairs, "_UNSORTED", 5)
    few = score_pairs(model, keep=4)
    assert few.to_frame().equals(whole.to_frame().head(4))
    assert few.n_pairs == whole.n_pairs
    assert few.n_called == whole.n_called
    assert few.top(4) == whole.top(4)


def test_reading_layer_by_layer_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    whole = score_pairs(model)
    monkeypatch.setattr(pairs, "_READER_BYTES", 1)
    assert score_pairs(model).to_frame().equals(whole.to_frame())


def test_some_layers_and_no_null() -> None:
    model = small_model()
    scores = score_pairs(model, layers=[3, 1], null="none")
    assert scores.n_pairs == 9
    assert len(scores.null) == 0
    assert set(scores.to_frame()["writer_layer"]) == {1}
    assert np.isnan(scores.q_values).all()
    assert scores.n_called == 0
    assert "no null" in repr(scores)
    assert scores.figure().alt.startswith("Map of largest Z over 2 reading and 2 writing layers")


def test_the_induction_machine_comes_first() -> None:
    scores = score_pairs(build_copying_machine())
    assert scores.top(1) == [((0, 0), (1, 0))]
    # 30 of 94 directions of a head are used, and the identity on 30 tokens has Z = sqrt(30), less its mean
    assert scores.diagonal[0] == pytest.approx(30**0.5, rel=0.02)
    assert not scores.diagonal[1:].any()
    assert scores.match[0] == pytest.approx(1, abs=1e-5)
    assert scores.random_q_values[0] < 1e-6


def test_a_planted_group_has_small_q_values() -> None:
    """Forty pairs of two layers share an identity; all others are random."""
    model = small_model(n_layers=2, n_heads=8, d_model=128, normalization_type=None)
    first, second = model.blocks[0].attn, model.blocks[1].attn
    with torch.no_grad():
        for reader in range(5):
            second.W_Q[reader], second.W_K[reader] = first.W_V[0], first.W_O[0].T
        first.W_V[:] = first.W_V[0] + 0.2 * first.W_V
        first.W_O[:] = first.W_O[0] + 0.2 * first.W_O
    scores = score_pairs(model)
    frame = scores.to_frame()
    called = frame[frame["q_value"] <= 0.05]
    assert len(called) == scores.n_called == 40
    assert set(called["reader_head"]) == set(range(5))
    # With 40 pairs above every mirror q is 64 pairs times the smallest p over 40.
    assert called["q_value"].to_numpy() == pytest.approx(64 / 65 / 40)


def test_p_values_of_random_heads_are_uniform() -> None:
    model = small_model(n_layers=5, n_heads=8, d_model=64)
    for by in ("diagonal", "composition", "match"):
        scores = score_pairs(model, by=by, rank=3)  # type: ignore[arg-type]
        p = scores.p_values
        assert len(p) == 10 * 64
        assert p.mean() == pytest.approx(0.5, abs=0.06)
        assert (p <= 0.1).mean() == pytest.approx(0.1, abs=0.04)
        assert scores.n_called == 0
        if by != "composition":
            random = random_p_values(
                scores.values.ravel(), "diagonal" if by == "diagonal" else "largest", d_model=64, rank=3
            )
            assert (random <= 0.1).mean() == pytest.approx(0.1, abs=0.04)


def random_cosines(d_model: int, rank: int, n: int) -> np.ndarray:
    """[draw, cosine] of random subspaces with a fixed one, largest first."""
    generator = torch.Generator().manual_seed(0)
    bases = torch.linalg.qr(torch.randn(n, d_model, rank, generator=generator, dtype=torch.float64)).Q
    return torch.linalg.svdvals(bases[:, :rank]).numpy()


@pytest.mark.parametrize(("d_model", "rank", "tolerance"), [(64, 10, 0.01), (300, 10, 0.01), (300, 2, 0.05)])
def test_closed_nulls_of_subspaces_are_calibrated(d_model: int, rank: int, tolerance: float) -> None:
    cosines = random_cosines(d_model, rank, 600)
    largest, rms = cosines[:, 0], np.sqrt((cosines**2).mean(1))
    scale = random_scale("largest", d_model=d_model, rank=rank)
    assert np.median(largest) == pytest.approx(scale, rel=tolerance)
    mean_square = (rms**2).mean()
    assert mean_square == pytest.approx(random_scale("rms", d_model=d_model, rank=rank) ** 2, rel=0.03)
    for values, measure in ((largest, "largest"), (rms, "rms")):
        p = random_p_values(values, measure, d_model=d_model, rank=rank)  # type: ignore[arg-type]
        assert (p <= 0.1).mean() == pytest.approx(0.1, abs=0.035)
        assert (p <= 0.5).mean() == pytest.approx(0.5, abs=0.1)


def test_subspaces_that_fill_half_of_the_space_always_meet() -> None:
    assert random_scale("largest", d_model=10, rank=5) == 1
    assert random_p_values(np.array([1.0]), "largest", d_model=10, rank=5).tolist() == [1]


def test_p_and_q_values_equal_slow_ones() -> None:
    rng = np.random.default_rng(0)
    null, values = rng.normal(size=200).round(1), rng.normal(0.5, 1, size=150).round(1)  # with ties
    p = empirical_p_values(values, null)
    assert p.tolist() == pytest.approx([(1 + sum(draw >= value for draw in null)) / 201 for value in values])
    slow = [min(1.0, min(150 * t / sum(p <= t) for t in p if t >= own)) for own in p]
    assert q_values(p).tolist() == pytest.approx(slow)


def test_q_values_keep_the_false_discovery_rate() -> None:
    rng = np.random.default_rng(0)
    shares, found = [], []
    for _ in range(200):
        values = np.concatenate([rng.normal(5, 1, 60), rng.normal(size=540)])
        called = q_values(empirical_p_values(values, rng.normal(size=600))) <= 0.2
        shares.append(called[60:].sum() / max(1, called.sum()))
        found.append(called[:60].mean())
    assert 0.1 < np.mean(shares) < 0.21
    assert np.mean(found) > 0.9


def test_what_a_person_reads() -> None:
    scores = score_pairs(small_model(), keep=20)
    assert repr(scores).startswith("PairScores(built: K-composition of 54 causal pairs, by diagonal; strongest ")
    assert "largest of 54 mirrored pairs" in repr(scores)
    assert "<svg" in scores._repr_html_()
    assert scores.figure(n=3).alt.count("←") == 3
    match = score_pairs(small_model(), by="match", score="rms")
    assert "rms cosine" in repr(match)
    assert match.random_scale == pytest.approx((8 / 24) ** 0.5)


def test_the_model_stays_as_it_is() -> None:
    model = small_model()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    assert isinstance(score_pairs(model), PairScores)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_what_cannot_be_asked_is_said() -> None:
    model = small_model()
    with pytest.raises(
        InputError, match=r"^A pair needs a writer in an earlier layer than its reader, but only layer 2"
    ):
        score_pairs(model, layers=[2])
    with pytest.raises(InputError, match=r"^Layer 4 doesn't exist: this model has layers 0 to 3\.$"):
        score_pairs(model, layers=[0, 4])
    with pytest.raises(InputError, match=r"^rank=9 was given, but a head has 1 to 8 directions"):
        score_pairs(model, rank=9)
    with pytest.raises(InputError, match=r"^keep=0 keeps no pair; give at least 1, or leave it out to keep all\.$"):
        score_pairs(model, keep=0)
    with pytest.raises(InputError, match=r"has no rotary positions"):
        score_pairs(model, distance=3)
    with pytest.raises(InputError, match=r"^The top 3 pairs were asked for, but 1 to 2 were kept\.$"):
        score_pairs(model, keep=2).top(3)
    unknown = r"^by='z' isn't known; use one of diagonal, composition, match\.$"
    with as_without_type_checks(), pytest.raises(InputError, match=unknown):
        score_pairs(model, by="z")  # type: ignore[arg-type]
