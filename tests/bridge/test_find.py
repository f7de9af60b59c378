import numpy as np
import pytest
import torch

import interp
from interp.bridge.embedding import compare_with_embedding
from interp.bridge.find import find_bridge
from interp.bridge.over_training import follow_bridge
from interp.bridge.overlap import compare_bridges, draw_overlaps
from interp.bridge.overlap_parts import compare_part_bridges
from interp.errors import InputError
from tests.conftest import make_tiny

HEADS = [(0, 1), (1, 2), (1, 4)]


def build(**options):
    return interp.build(
        **{"n_layers": 3, "d_model": 24, "n_heads": 4, "d_vocab": 40, "n_ctx": 32, "attn_only": True, **options}
    )


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def loaded(request):
    """Of two layers and 6 heads: LayerNorm with biases; RMSNorm, grouped queries and rotary positions."""
    return interp.load(make_tiny(request.param), device="cpu")


@torch.no_grad()
def stack_densely(model, heads, *, distance=None, fold="norms"):
    """Every W_QK multiplied out in float64 from the stored weights, one below the other."""
    blocks = []
    for layer, head in heads:
        block = model.blocks[layer]
        read = torch.eye(model.cfg.d_model, dtype=torch.float64)
        if fold == "norms":
            read = torch.diag(block.ln1.w.double())
            if model.cfg.normalization_type == "LN":
                read = (torch.eye(len(read)) - torch.ones_like(read) / len(read)) @ read
        queries, keys = read @ block.attn.W_Q[head].double(), read @ block.attn.W_K[head].double()
        if distance is not None:  # the rotation as the model does it to queries at this distance from a key at 0
            turned = [block.attn.apply_rotary(row.float().expand(1, distance + 1, 1, -1)) for row in queries]
            queries = torch.stack([row[0, distance, 0] for row in turned]).double()
        blocks.append(queries @ keys.T)
    return torch.cat(blocks)


def assert_same_span(basis, expected):
    assert torch.linalg.svdvals(basis.T @ expected).min() > 1 - 1e-5
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=torch.float64), atol=1e-10, rtol=0)


@pytest.mark.parametrize("fold", ["norms", "none"])
@pytest.mark.parametrize("rank", [1, 7, 16])
def test_equals_the_dense_decomposition(loaded, rank, fold):
    bridge = find_bridge(loaded, HEADS, rank=rank, fold=fold)
    _, strengths, right = torch.linalg.svd(stack_densely(loaded, HEADS, fold=fold))
    assert_same_span(bridge.basis, right[:rank].T)
    np.testing.assert_allclose(bridge.singular_values, strengths[: bridge.cap], rtol=1e-4)
    assert bridge.energy == pytest.approx(float(strengths[:rank].square().sum() / strengths.square().sum()), rel=1e-5)


def test_equals_the_dense_decomposition_at_a_distance():
    model = interp.load(make_tiny("llama"), device="cpu")
    spans = {}
    for distance in ("none", 5):
        spans[distance] = find_bridge(model, HEADS, rank=5, distance=distance).basis
        dense = stack_densely(model, HEADS, distance=None if distance == "none" else distance)
        assert_same_span(spans[distance], torch.linalg.svd(dense).Vh[:5].T)
    assert torch.linalg.svdvals(spans["none"].T @ spans[5]).min() < 0.999


def test_a_distance_leaves_the_span_of_all_directions_as_it_is():
    model = interp.load(make_tiny("llama"), device="cpu")
    whole = [find_bridge(model, HEADS, rank="cap", distance=distance).basis for distance in ("none", 7, "mean")]
    for other in whole[1:]:
        assert_same_span(whole[0], other)


def test_the_cap_counts_key_value_heads_once():
    model = interp.load(make_tiny("llama"), device="cpu")  # 6 heads of 8 on 2 key-value heads
    bridge = find_bridge(model, [(1, 0), (1, 2), (0, 1)], rank="cap")
    assert bridge.key_value_heads == ((0, 0), (1, 0))
    assert bridge.rank == bridge.cap == 16
    assert repr(bridge).endswith(
        "rank 16 of at most 16 (the cap), which holds 100% of the energy of W_QK of 3 heads in layers 0, 1)"
    )


def test_the_rank_is_the_smallest_that_holds_the_energy():
    model = build()
    whole = find_bridge(model, [(1, 0), (1, 1)], rank="cap")
    for energy in (0.3, 0.9, 1.0):
        bridge = find_bridge(model, [(1, 0), (1, 1)], energy=energy)
        assert bridge.energy >= energy - 1e-12
        assert bridge.rank == 1 or whole.truncate(bridge.rank - 1).energy < energy
        assert bridge.chosen_by == "energy"


def test_a_known_subspace_is_found():
    model = build(normalization_type=None)
    span = torch.linalg.qr(torch.randn(24, 2, generator=torch.Generator().manual_seed(0))).Q
    with torch.no_grad():
        for layer, head in [(1, 0), (2, 1)]:
            model.blocks[layer].attn.W_K[head] = span @ span.T @ model.blocks[layer].attn.W_K[head]
    bridge = find_bridge(model, [(1, 0), (2, 1)], rank="cap")
    assert bridge.cap == 2  # less than d_head x key-value heads, since the keys read no more
    assert_same_span(bridge.basis, span.double())


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([], {}, "No head was given; give at least one"),
        ([(9, 0)], {}, "Head 9.0 doesn't exist: this model has layers 0 to 2 with heads 0 to 3"),
        (
            [(1, 0), (1, 1)],
            {"rank": 13},
            "rank=13 is above the cap: .* 2 distinct key-value heads, has rank 12; give at most 12",
        ),
        ([(1, 0)], {"rank": 0}, "rank=0 is no rank"),
        ([(1, 0)], {"energy": 1.5}, "energy=1.5 is no share"),
        ([(1, 0)], {"distance": 3, "rank": 2}, "distance=3 was asked for, but layer 1 has no rotary positions"),
    ],
)
def test_what_cannot_be_a_bridge(heads, options, message):
    with pytest.raises(InputError, match=message):
        find_bridge(build(), heads, **options)


def test_an_encoder_has_no_bridge():
    with pytest.raises(InputError, match=r"encoder.*give a decoder-only language model"):
        find_bridge(build(attention_dir="bidirectional", attn_only=False, d_mlp=8, act_fn="relu"), [(1, 0)], rank=2)


def test_angles_of_known_subspaces():
    model = build()
    bridge = find_bridge(model, [(1, 0)], rank=2)
    rest = find_bridge(model, [(1, 0)], rank=6).basis[:, 2:4]
    tilted = torch.stack([bridge.basis[:, 0], (bridge.basis[:, 1] + rest[:, 0]) / 2**0.5], dim=1)
    comparison = compare_bridges(bridge, type(bridge)(**{**vars(bridge), "basis": tilted}))
    np.testing.assert_allclose(comparison.angles, [0, 45], atol=1e-5)
    assert comparison.overlap == pytest.approx(0.75)
    apart = compare_bridges(bridge, type(bridge)(**{**vars(bridge), "basis": rest}))
    assert apart.overlap == pytest.approx(0, abs=1e-12)
    assert apart.p_value > 0.99
    inside = compare_bridges(bridge, find_bridge(model, [(1, 0)], rank=5))
    assert inside.overlap == pytest.approx(1)  # contained
    assert inside.null == 5 / 24
    assert inside.p_value == 1 / 201


@pytest.mark.parametrize(("d_model", "ranks"), [(20, (3, 3)), (20, (2, 12)), (8, (6, 5))])
def test_random_overlaps_are_those_of_random_subspaces(d_model, ranks):
    draws = draw_overlaps(d_model, ranks, n_draws=2000, seed=0)
    assert draws.mean() == pytest.approx(max(ranks) / d_model, abs=4 * draws.std() / 2000**0.5)
    generator = torch.Generator().manual_seed(0)
    slow = []
    for _ in range(2000):
        one, other = (torch.linalg.qr(torch.randn(d_model, rank, generator=generator)).Q for rank in ranks)
        slow.append(float((one.T @ other).square().sum() / min(ranks)))
    assert draws.std() == pytest.approx(np.std(slow), rel=0.1)


def test_bridges_that_cannot_be_compared():
    model = build()
    bridge = find_bridge(model, [(1, 0)], rank=2)
    with pytest.raises(InputError, match="residual streams of 24 and 16 dimensions; compare bridges of one model"):
        compare_bridges(bridge, find_bridge(build(d_model=16), [(1, 0)], rank=2))
    with pytest.raises(InputError, match="different coordinates"):
        compare_bridges(bridge, find_bridge(model, [(1, 0)], rank=2, fold="none"))


def test_layers_that_read_the_same_subspace_overlap_and_others_do_not():
    model = build(normalization_type=None)
    span = torch.linalg.qr(torch.randn(24, 3, generator=torch.Generator().manual_seed(0))).Q
    heads = [(0, 0), (1, 1), (2, 2)]
    with torch.no_grad():
        for layer, head in heads:
            model.blocks[layer].attn.W_K[head] = 10 * span @ span.T @ model.blocks[layer].attn.W_K[head]
    for by in ("layer", "head"):
        overlaps = compare_part_bridges(model, heads, by=by, rank=3, n_draws=10)
        np.testing.assert_allclose(overlaps.overlap, 1, atol=1e-6)
        assert overlaps.control.max() < 0.5
        assert overlaps.p_value == 1 / 11
        assert overlaps.to_frame().shape == (3, 4)
    with pytest.raises(InputError, match="one layer, which overlaps with nothing"):
        compare_part_bridges(model, [(1, 0), (1, 1)], rank=3)
    with pytest.raises(InputError, match="rank=7 is above the cap"):
        compare_part_bridges(model, heads, rank=7)


def test_shares_of_the_embedding_by_band():
    model = build(normalization_type=None)
    with torch.no_grad():  # direction i of the residual stream is singular direction i of W_E
        model.embed.W_E.zero_()
        model.embed.W_E[:24] = torch.diag(torch.tensor([100.0] + [10.0] * 8 + [0.1] * 15))
        model.blocks[1].attn.W_K[0] = 0
        model.blocks[1].attn.W_K[0, 0, 0] = model.blocks[1].attn.W_K[0, 20, 1] = 1  # the top and one of the bottom
    overlap = compare_with_embedding(model, find_bridge(model, [(1, 0)], rank="cap"), medium_energy=0.99)
    frame = overlap.to_frame().set_index("band")
    assert frame.loc["top", "overlap"] == pytest.approx(1)
    assert frame.loc["medium", "overlap"] == pytest.approx(0, abs=1e-10)
    assert frame.loc["bottom", "overlap"] == pytest.approx(0.5)
    assert list(frame["last"]) == [1, 9, 24]
    assert overlap.shares.sum() == pytest.approx(2)
    assert frame.loc["medium", "p_less"] == 1 / 201
    with pytest.raises(InputError, match=r"fold='none'.*find it with fold='norms'"):
        compare_with_embedding(build(), find_bridge(build(), [(1, 0)], rank=2, fold="none"))
    with pytest.raises(InputError, match="16 dimensions, but this model's embedding has 24"):
        compare_with_embedding(model, find_bridge(build(d_model=16), [(1, 0)], rank=2))


def test_the_bridge_at_every_checkpoint(tmp_path):
    task = interp.tasks.copying.Copying(d_vocab=12, n_ctx=32, min_length=6, max_length=8, ood_length=8)
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=12, n_ctx=32, attn_only=True)
    config = interp.TrainConfig(steps=4, batch_size=4, checkpoint_every=2, eval_every=2, eval_sequences=4)
    interp.train(model, task, config, folder=tmp_path / "run")
    frame = follow_bridge(tmp_path / "run", [(1, 0)], rank=3)
    assert list(frame.step) == sorted(frame.step)
    assert frame.overlap_with_last.iloc[-1] == pytest.approx(1)
    assert np.isnan(frame.overlap_with_previous.iloc[0])
    assert frame.overlap_with_previous.iloc[1:].between(0.9, 1).all()  # a few small steps
    assert (frame["null"] == 3 / 16).all()
    with pytest.raises(InputError, match="is not the folder of a training run"):
        follow_bridge(tmp_path, [(1, 0)], rank=3)
