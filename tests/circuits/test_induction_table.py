"""Every definition of an induction head on a machine whose induction head is known, and against slow versions."""

from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.circuits.factors import read_factors
from interp.circuits.induction_result import rank_correlation
from interp.circuits.induction_table import InductionTable, compare_induction
from interp.circuits.remove_each import remove_each
from interp.errors import InputError
from interp.figures.rank_table import Order, rank_table
from interp.figures.svg import to_svg
from tests.hand_built import build_copying_machine

DEFINITIONS = ["raw", "sink_removed", "prefix_matching", "value_share", "eigenvalues", "diagonal", "removal"]


@pytest.fixture(scope="module")
def table() -> InductionTable:
    return compare_induction(
        build_copying_machine(), n_sequences=6, segment=10, n_partners=2, n_removed=1, n_removal_sequences=6
    )


def build_grouped(seed: int = 0) -> Any:
    return interp.build(
        n_layers=3,
        d_model=24,
        n_heads=4,
        n_key_value_heads=2,
        d_head=6,
        d_vocab=40,
        n_ctx=64,
        attn_only=True,
        seed=seed,
    )


def test_the_hand_built_induction_head_is_first_by_every_definition(table: InductionTable) -> None:
    assert list(table.values) == DEFINITIONS
    for name in DEFINITIONS:
        assert table.top(name, 1) == [(1, 0)], name  # type: ignore[arg-type]
    for name in ("raw", "sink_removed", "prefix_matching"):
        assert table.values[name][1, 0] == pytest.approx(1, abs=1e-3)
    assert table.values["value_share"][1, 0] == pytest.approx(1)
    assert table.values["eigenvalues"][1, 0] == pytest.approx(1)
    assert table.values["removal"][1, 0] > 2
    assert table.copies == 4


def test_the_diagonal_score_is_with_the_previous_token_head(table: InductionTable) -> None:
    # W is 200 times the identity on 30 tokens of 124 dimensions; a head has 94.
    entries = np.zeros((124, 124))
    entries[:30, :30] = 200 * np.eye(30)
    expected = (np.diag(entries).mean() - entries.mean()) / entries.std() / 94**0.5
    assert table.values["diagonal"][1, 0] == pytest.approx(expected)
    assert table.partners[1, 0].tolist() == [0, 0]
    assert table.previous_token_heads[0] == (0, 0)
    assert np.isnan(table.values["diagonal"][0]).all()  # nothing comes before
    assert table.partners[0].tolist() == [[-1, -1], [-1, -1]]


def test_the_machine_needs_no_other_head_of_the_layer(table: InductionTable) -> None:
    assert table.removed == ((1, 0),)
    assert table.controls == ((1, 1),)
    assert table.control_effects == pytest.approx([0], abs=1e-6)
    assert table.notes == ("the layers of the removed heads have only 1 other heads to compare with",)
    low, high = table.interval("removal")
    assert low[1, 0] <= table.values["removal"][1, 0] <= high[1, 0]
    assert np.isnan(low[0, 0])


def test_the_frame_has_every_head_and_every_definition(table: InductionTable) -> None:
    frame = table.to_frame().set_index(["layer", "head"])
    assert len(frame) == 4
    assert frame.loc[(1, 0), "raw_rank"] == 1
    assert frame.loc[(0, 1), "diagonal_rank"] == 0  # it has none
    assert frame.loc[(1, 0), "partner_layer"] == 0
    assert frame.loc[(1, 0), "removal_p"] == 0.5  # one control
    assert frame["raw_low"].notna().all()
    assert frame["diagonal_low"].isna().all()


def test_the_diagonal_score_is_that_of_the_dense_matrices() -> None:
    model = build_grouped()
    table = compare_induction(model, n_sequences=4, segment=8, n_partners=5, n_removed=0)
    factors = [read_factors(model, layer) for layer in range(3)]
    for layer in range(3):
        for head in range(4):
            best = -np.inf
            for earlier, writer in table.previous_token_heads:
                if earlier >= layer:
                    continue
                read, wrote = factors[layer], factors[earlier]
                qk = read.W_Q[head] @ read.W_K[head // 2].T
                w = (qk @ (wrote.W_V[writer // 2] @ wrote.W_O[writer]).T).double()
                best = max(best, float((w.diagonal().mean() - w.mean()) / w.std(correction=0)) / 6**0.5)
            found = table.values["diagonal"][layer, head]
            assert np.isnan(found) if best == -np.inf else found == pytest.approx(best, abs=1e-6)
    assert "removal" not in table.values
    assert table.removed == ()


def test_each_removal_is_that_of_the_whole_pass(both: tuple[Any, Any]) -> None:
    tokens = torch.randint(97, (3, 8), generator=torch.Generator().manual_seed(1)).repeat(1, 2)
    heads = [(1, 4), (0, 2), (1, 0)]
    for model in both:
        whole, removed = remove_each(model, tokens, heads, start=8)
        expected = []
        for chosen in ([], *([head] for head in heads)):
            with torch.no_grad(), interp.ablate_heads(model, chosen):
                log_probabilities = model(tokens)[:, 8:-1].log_softmax(-1)
            expected.append(-log_probabilities.gather(-1, tokens[:, 9:, None])[..., 0].mean(1).numpy())
        np.testing.assert_allclose(np.stack([whole, *removed]), np.stack(expected), atol=1e-5)
        assert np.abs(removed - whole).max() > 1e-3
        assert all(not point._forward_hooks for point in model.hook_dict.values())


def test_rank_correlation_is_spearmans() -> None:
    generator = np.random.default_rng(0)
    first = generator.normal(size=60)
    second = np.exp(first + generator.normal(size=60))
    value, low, high = rank_correlation(first, second)
    ranks = np.stack([np.argsort(np.argsort(values)) for values in (first, second)]).astype(float)
    assert value == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert low < value < high
    assert rank_correlation(first, -(first**3))[0] == pytest.approx(-1)
    tied = np.array([0.0, 0.0, 1.0, 1.0])
    assert rank_correlation(tied, np.array([1.0, 2.0, 3.0, 4.0]))[0] == pytest.approx(2 / 5**0.5)
    assert np.isnan(rank_correlation(np.ones(5), np.arange(5.0))).all()
    assert np.isnan(rank_correlation(np.arange(2.0), np.arange(2.0))).all()


def test_the_interval_of_a_rank_correlation_covers() -> None:
    generator = np.random.default_rng(1)
    covered = 0
    for trial in range(100):
        first, noise = generator.normal(size=(2, 80))
        _, low, high = rank_correlation(first, 0.6 * first + 0.8 * noise, n_resamples=400, seed=trial)
        covered += low <= 6 / np.pi * np.arcsin(0.6 / 2) <= high  # Spearman's correlation of a Gaussian pair
    assert covered >= 88


def test_agreement_counts_shared_heads_where_chance_would_not_share_them_all() -> None:
    table = compare_induction(build_grouped(), n_sequences=4, segment=8, n_partners=3, n_removed=1, n_controls=2)
    rows = {(row["first"], row["second"]): row for row in table.agreement(n_top=3).to_dict("records")}
    raw = rows["raw", "sink_removed"]
    assert raw["n"] == 12
    assert raw["shared_by_chance"] == 9 / 12
    assert raw["low"] <= raw["rank_correlation"] <= raw["high"]
    assert np.isnan(rows["raw", "removal"]["shared_top"])  # a few chosen heads
    assert len(table.controls) == 2


def test_the_same_seed_gives_the_same_table() -> None:
    first, second = (
        compare_induction(build_grouped(), n_sequences=3, segment=6, n_removed=1, seed=5) for _ in range(2)
    )
    assert first.to_frame().equals(second.to_frame())
    assert not first.to_frame().equals(
        compare_induction(build_grouped(), n_sequences=3, segment=6, n_removed=1).to_frame()
    )


def test_a_short_context_has_fewer_copies_and_says_so() -> None:
    table = compare_induction(build_grouped(), n_sequences=3, segment=30, n_removed=0)
    assert table.copies == 2
    assert table.notes == ("prefix_matching has 2 copies, as many as n_ctx=64 holds",)
    np.testing.assert_allclose(table.values["prefix_matching"], table.values["raw"], atol=1e-7)


def test_it_says_what_it_found(table: InductionTable) -> None:
    assert repr(table).startswith("InductionTable(built: 4 heads; first by raw 1.0 1.00, sink_removed 1.0 1.00,")
    assert "control heads at most 0.00" in repr(table)
    assert "n=6 sequences" in repr(table)
    assert "<svg" in table._repr_html_()


def test_the_picture_names_heads_and_ranks(table: InductionTable) -> None:
    picture = table.figure(n_top=1)
    assert picture.alt.startswith("Ranks of 1 heads among 4 by raw, sink removed, prefix matching, value share")
    svg = to_svg(table.figure(n_top=2))
    for text in ("effect of 1 head", "1.0, diagonal: 0.", "0.0, removal: not measured", "rank among 4 heads"):
        assert text in svg, text
    column = Order(name="a", group="b", values=np.zeros(1), largest=1.0)
    with pytest.raises(InputError, match=r"rank_table was given 1 heads, 1 orders and ranks of shape \(2, 1\)"):
        rank_table([(0, 0)], [column], ranks=np.ones((2, 1), dtype=int), n_ranked=4)


def test_bad_input_is_refused_in_one_sentence(table: InductionTable) -> None:
    model = build_grouped()
    with pytest.raises(InputError, match="was given n_partners=0, n_removed=5, n_controls=20, n_removal_sequences=16"):
        compare_induction(model, n_partners=0)
    with pytest.raises(InputError, match="There is no definition 'copying'; this table has raw, sink_removed"):
        table._values("copying")
