import numpy as np
import pytest
import torch

import interp
from interp.complexity.condensation import condense
from interp.complexity.measure import measure_complexity
from interp.complexity.norms import measure_norms
from interp.complexity.parts import find_matrices
from interp.complexity.spectra import effective_rank, participation_ratio, stable_rank
from interp.errors import InputError
from tests.complexity.test_sparsity import build_encoder
from tests.conftest import make_tiny
from tests.untyped import as_without_type_checks


def build(**changes):
    settings = {
        "n_layers": 2,
        "d_model": 24,
        "n_heads": 3,
        "d_vocab": 11,
        "n_ctx": 9,
        "act_fn": "gelu",
        "device": "cpu",
    }
    return interp.build(**(settings | changes))


def test_every_matrix_has_its_shape_and_orientation():
    model = build(gated_mlp=True, d_mlp=40)
    shapes = {matrix.name: tuple(matrix.weights.shape) for matrix in find_matrices(model)}
    expected = {"W_E": (11, 24), "W_pos": (9, 24)}
    for layer in range(2):
        expected |= {f"{layer}.{part}": (24, 24) for part in ("W_Q", "W_K", "W_V", "W_O")}
        expected |= {f"{layer}.W_in": (24, 40), f"{layer}.W_gate": (24, 40), f"{layer}.W_out": (40, 24)}
    assert shapes == expected | {"W_U": (24, 11)}
    assert list(shapes)[:2] == ["W_E", "W_pos"]


def test_the_heads_of_a_layer_stand_side_by_side():
    model = build()
    attention = model.blocks[1].attn
    together = {matrix.name: matrix.weights for matrix in find_matrices(model, parts=("W_Q", "W_O"))}
    x = torch.randn(24, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(x @ together["1.W_Q"], torch.cat([x @ attention.W_Q[head] for head in range(3)]))
    z = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
    written = sum(z[head] @ attention.W_O[head] for head in range(3))
    torch.testing.assert_close(z.flatten() @ together["1.W_O"], written)
    apart = {matrix.name: matrix for matrix in find_matrices(model, parts=("W_Q", "W_O"), heads="apart")}
    assert len(apart) == 12
    assert torch.equal(apart["1.W_Q.2"].weights, attention.W_Q[2])
    assert torch.equal(apart["0.W_O.0"].weights, model.blocks[0].attn.W_O[0])


def test_values_are_those_of_each_matrix():
    model = build()
    result = measure_complexity(model, n_controls=3)
    for i, matrix in enumerate(find_matrices(model)):
        weights = matrix.weights
        expected = {
            "stable_rank": float(stable_rank(weights)),
            "effective_rank": float(effective_rank(weights)),
            "participation_ratio": float(participation_ratio(weights)),
            "frobenius_norm": float(weights.norm()),
            "spectral_norm": float(torch.linalg.matrix_norm(weights, 2)),
            "n_directions": condense(weights, n_controls=1).n_directions,
        }
        for name, value in expected.items():
            assert result.values[name][i] == pytest.approx(value, rel=1e-5), (matrix.name, name)


def test_a_matrix_of_low_rank_is_told_from_random_ones():
    model = build()
    with torch.no_grad():
        low = torch.outer(torch.linspace(-1, 1, 24), torch.linspace(1, 2, 24))
        model.blocks[1].attn.W_Q.copy_(low.view(24, 3, 8).movedim(1, 0))
    result = measure_complexity(model, parts=("W_Q", "W_K"), n_controls=99)
    place = result.names.index("1.W_Q")
    assert result.values["stable_rank"][place] == pytest.approx(1, abs=1e-5)
    assert result.values["n_directions"][place] == 1
    for measure in ("stable_rank", "effective_rank", "participation_ratio", "n_directions"):
        assert result.p_values(measure)[place] == pytest.approx(1 / 100)
    # The largest singular value of a random matrix of this Frobenius norm is far smaller.
    assert result.p_values("spectral_norm")[place] == 1
    untouched = [i for i in range(4) if i != place]
    assert result.p_values("stable_rank")[untouched].min() > 1 / 100
    assert "1 of them with a stable rank below every random matrix's; lowest against random 1.W_Q: 1.0" in repr(result)


def test_fresh_weights_lie_among_random_ones():
    result = measure_complexity(build(seed=4), n_controls=200)
    inside = []
    for measure in ("stable_rank", "effective_rank", "participation_ratio", "spectral_norm"):
        draws = result.control[measure]
        assert draws.shape == (len(result.names), 200)
        inside.append((result.values[measure] >= draws.min(1)) & (result.values[measure] <= draws.max(1)))
    assert np.mean(inside) > 0.9


def test_the_frame_has_a_row_for_each_matrix_and_measure():
    result = measure_complexity(build(), parts=("W_E", "W_in"), n_controls=4)
    frame = result.to_frame()
    assert len(frame) == 3 * 6
    row = frame[(frame.name == "1.W_in") & (frame.measure == "stable_rank")].iloc[0]
    assert (row.part, row.layer, row.d_in, row.d_out, row.n_controls) == ("W_in", 1, 24, 96, 4)
    assert row.control_low <= row.control <= row.control_high
    assert frame[frame.name == "W_E"].layer.isna().all()
    assert frame[frame.measure == "frobenius_norm"].control.isna().all()
    assert "<svg" in result._repr_html_()
    assert result.figure("effective_rank").alt.startswith("effective rank by layer. W_E: ")


def test_large_matrices_are_not_condensed_unless_asked():
    model = build()
    result = measure_complexity(model, parts=("W_in", "W_out"), n_controls=2, largest_condensed=24)
    known = dict(zip(result.names, result.values["n_directions"], strict=True))
    assert np.isnan([known["0.W_in"], known["1.W_in"]]).all()
    assert known["0.W_out"] > 0
    assert np.isnan(result.p_values("n_directions")[result.names.index("0.W_in")])


@pytest.mark.parametrize("heads", ["together", "apart"])
def test_both_classes_measure_the_same(both, heads):
    hooked, bridge = (measure_complexity(model, heads=heads, n_controls=2) for model in both)
    assert hooked.names == bridge.names
    assert hooked.shapes == bridge.shapes
    for measure, values in hooked.values.items():
        np.testing.assert_allclose(bridge.values[measure], values, rtol=1e-6, err_msg=measure)
    for group, norm in hooked.norms.groups.items():
        assert bridge.norms.groups[group].norm == pytest.approx(norm.norm, rel=1e-6)
    assert bridge.norms.rms == pytest.approx(hooked.norms.rms, rel=0.01)


def test_shared_keys_and_values_count_once():
    model = interp.load(make_tiny("llama"), device="cpu")  # 6 query heads, 2 key-value heads
    shapes = {matrix.name: tuple(matrix.weights.shape) for matrix in find_matrices(model)}
    assert shapes["0.W_Q"] == (48, 48)
    assert shapes["0.W_K"] == shapes["0.W_V"] == (48, 16)
    apart = [matrix.name for matrix in find_matrices(model, parts=("W_V",), heads="apart")]
    assert apart == ["0.W_V.0", "0.W_V.1", "1.W_V.0", "1.W_V.1"]


@pytest.mark.parametrize("family", ["gpt2", "llama", "llama_tied", "qwen3", "gpt_neox", "olmo2"])
def test_norms_are_those_of_the_original_weights(family):
    hf = make_tiny(family)
    expected = np.sqrt(sum(float(parameter.detach().double().square().sum()) for parameter in hf.parameters()))
    norms = measure_norms(interp.load(hf, device="cpu"))
    assert norms.norm == pytest.approx(expected, rel=1e-6)
    gains = [parameter for name, parameter in hf.named_parameters() if "norm" in name or "ln_" in name]
    expected = np.sqrt(sum(float(parameter.detach().double().square().sum()) for parameter in gains))
    assert norms.groups["norms"].norm == pytest.approx(expected, rel=1e-6)
    assert norms.norm_per_layer == pytest.approx(norms.norm / 2)


def test_norms_by_group_add_up():
    model = build(normalization_type=None)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(2.0)
        model.unembed.W_U.neg_()  # or it would equal the embedding, and count there
    norms = measure_norms(model)
    assert list(norms.groups) == ["embedding", "attention", "mlp", "unembedding"]
    assert norms.rms == pytest.approx(2)
    assert norms.n_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert norms.norm == pytest.approx(2 * np.sqrt(norms.n_parameters))
    assert norms.groups["embedding"].n_parameters == 11 * 24 + 9 * 24
    frame = norms.to_frame()
    assert frame.group.tolist() == [*norms.groups, "all"]
    assert frame.rms.tolist() == pytest.approx([2.0] * 5)
    assert "per layer" in repr(norms)
    assert "<table" in norms._repr_html_()


def test_a_fixed_table_of_positions_is_no_weight():
    fixed = build(positions="sinusoidal", embedding_scale="sqrt_d_model", norm_placement="post")
    learned = build(norm_placement="post")
    assert [matrix.name for matrix in find_matrices(fixed)] == [
        matrix.name for matrix in find_matrices(learned) if matrix.name != "W_pos"
    ]
    with pytest.raises(InputError, match="This model has no W_pos; it has W_E, W_Q"):
        find_matrices(fixed, parts=("W_pos",))
    norms = measure_norms(fixed)
    assert norms.groups["embedding"].n_parameters == 11 * 24
    assert norms.groups["embedding"].norm == pytest.approx(
        float(fixed.W_E.detach().norm()), rel=1e-6
    )  # as it is stored
    assert norms.groups["norms"].n_parameters == 2 * 2 * 2 * 24  # no final norm
    assert norms.n_parameters == sum(parameter.numel() for parameter in fixed.parameters())


def test_norms_of_an_encoder_leave_out_what_no_logit_reads():
    encoder = build_encoder()
    norms = measure_norms(encoder)
    read = {
        name: parameter for name, parameter in encoder.named_parameters() if not name.startswith(("pooler", "nsp_head"))
    }
    expected = np.sqrt(sum(float(parameter.detach().double().square().sum()) for parameter in read.values()))
    assert norms.norm == pytest.approx(expected, rel=1e-9)
    gains = [parameter for name, parameter in read.items() if ".ln" in name]
    assert norms.groups["norms"].n_parameters == sum(map(torch.numel, gains)) == 2 * 16 * (1 + 4 + 1)
    assert norms.groups["unembedding"].n_parameters == 16 * 16 + 16 + 16 * 20 + 20
    assert norms.groups["embedding"].n_parameters == (20 + 10 + 2) * 16
    names = [matrix.name for matrix in find_matrices(encoder)]
    assert names[:2] == ["W_E", "W_pos"]
    assert {"0.W_Q", "1.W_out", "W_U"} <= set(names)
    encoder.pooler.W.data.fill_(1e3)
    assert measure_norms(encoder).norm == norms.norm


def test_errors_say_what_to_do():
    model = build(attn_only=True)
    with pytest.raises(InputError, match="This model has no W_in, W_gate; it has W_E, W_pos, W_Q, W_K, W_V, W_O, W_U"):
        measure_complexity(model, parts=("W_Q", "W_in", "W_gate"))
    with pytest.raises(InputError, match="n_controls=0 leaves no random matrix"):
        measure_complexity(model, n_controls=0)
    with pytest.raises(InputError, match=r"threshold=0\.0 is no cosine"):
        measure_complexity(model, threshold=0.0)
    with pytest.raises(InputError, match="'frobenius_norm' has no control; the measures with one are stable_rank"):
        measure_complexity(model, parts=("W_Q",), n_controls=1).p_values("frobenius_norm")
    with as_without_type_checks(), pytest.raises(InputError, match=r"\['W_X'\] names no weights; choose from W_E"):
        measure_complexity(model, parts=("W_X",))
    with as_without_type_checks(), pytest.raises(InputError, match="heads='each' isn't known"):
        measure_complexity(model, heads="each")
    with as_without_type_checks(), pytest.raises(InputError, match="'n_directions' can't be drawn"):
        measure_complexity(model, parts=("W_Q",), n_controls=1).figure("n_directions")
