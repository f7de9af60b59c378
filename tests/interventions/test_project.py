import numpy as np
import pytest
import torch

import interp
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

TOKENS = torch.randint(97, (3, 14), generator=torch.Generator().manual_seed(1))
BASIS = torch.randn(48, 5, generator=torch.Generator().manual_seed(2))
WEIGHTS = ("W_Q", "W_K", "W_V", "W_O")
HEADS = [(0, 1), (1, 3)]


@pytest.fixture(scope="module", params=[0, 1], ids=["hooked", "bridge"])
def either(both, request):
    return both[request.param]


@torch.no_grad()
def run(model, tokens=TOKENS):
    return model(tokens)


def weights_of(model, layer, name):
    """[query head, ...], a copy; shared keys and values repeated."""
    stored = getattr(model.blocks[layer].attn, name).detach().clone()
    return stored.repeat_interleave(6 // len(stored), dim=0).double().numpy()


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_as_before(model, before):
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def project_slowly(weight, basis, part):
    """A weight by the normal equations in float64; W_O has d_model as its last axis."""
    wide = basis.double().numpy()
    onto = wide @ np.linalg.inv(wide.T @ wide) @ wide.T
    matrix = onto if part == "keep" else np.eye(len(wide)) - onto
    return matrix @ weight if weight.shape[-2] == len(wide) else weight @ matrix


@pytest.mark.parametrize("part", ["remove", "keep"])
@pytest.mark.parametrize("where", WEIGHTS)
def test_equals_the_dense_projection_in_float64(either, where, part):
    before = [weights_of(either, layer, where) for layer in range(2)]
    with interp.project(either, BASIS, where=where, heads=HEADS, part=part) as projection:
        after = [weights_of(either, layer, where) for layer in range(2)]
    changed = {*projection.heads, *projection.collateral_heads}
    for layer in range(2):
        for head in range(6):
            expected = before[layer][head]
            if (layer, head) in changed:
                expected = project_slowly(expected, BASIS, part)
                np.testing.assert_allclose(after[layer][head], expected, atol=1e-7)
            else:
                np.testing.assert_array_equal(after[layer][head], expected)


def test_shared_keys_and_values_have_collateral_heads(both):
    grouped = both[0].cfg.n_key_value_heads == 2
    for model in both:
        for where in ("W_K", "W_V", "qk"):
            with interp.project(model, BASIS, where=where, heads=HEADS) as projection:
                assert projection.heads == ((0, 1), (1, 3))
                assert projection.collateral_heads == (((0, 0), (0, 2), (1, 4), (1, 5)) if grouped else ())
        for where in ("W_Q", "W_O"):
            with interp.project(model, BASIS, where=where, heads=HEADS) as projection:
                assert projection.collateral_heads == ()
        with interp.project(model, BASIS, where="W_V", layers=[1], heads=[0, 1, 2]) as projection:
            assert projection.collateral_heads == ()


@pytest.mark.parametrize("where", [*WEIGHTS, "qk", "resid_pre", "resid_post", "attn_out", "mlp_out"])
def test_both_classes_agree(both, where):
    logits = []
    for model in both:
        with interp.project(model, BASIS, where=where, layers=[1]):
            logits.append(run(model))
    torch.testing.assert_close(*logits, atol=2e-5, rtol=0)
    assert (logits[0] - run(both[0])).abs().max() > 0.01


def test_qk_is_both_reads(either):
    with interp.project(either, BASIS, where="qk", layers=[0]):
        together = run(either)
    with (
        interp.project(either, BASIS, where="W_Q", layers=[0]),
        interp.project(either, BASIS, where="W_K", layers=[0]),
    ):
        assert torch.equal(run(either), together)


def test_qk_may_be_removed_altogether(either):
    with interp.project(either, torch.eye(48), where="qk"):
        assert np.abs(weights_of(either, 0, "W_Q")).max() == np.abs(weights_of(either, 1, "W_K")).max() == 0


def test_what_is_removed_and_what_is_kept_add_up(either):
    for where in WEIGHTS:
        parts = []
        for part in ("remove", "keep"):
            with interp.project(either, BASIS, where=where, part=part):
                parts.append(weights_of(either, 1, where))
        np.testing.assert_allclose(parts[0] + parts[1], weights_of(either, 1, where), atol=1e-7)


@pytest.mark.parametrize("where", ["resid_pre", "resid_post", "attn_out", "mlp_out"])
def test_an_activation_is_split_in_two(either, where):
    seen = []

    def capture():
        with interp.add_hooks(either, [(f"blocks.1.hook_{where}", lambda activation, hook: seen.append(activation))]):
            run(either)

    capture()
    for part in ("remove", "keep"):
        with interp.project(either, BASIS, where=where, part=part, layers=[1]) as projection:
            assert (projection.rank, projection.heads, projection.collateral_heads) == (5, (), ())
            capture()
    whole, removed, kept = seen
    torch.testing.assert_close(removed + kept, whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(removed @ BASIS, torch.zeros(3, 14, 5), atol=1e-4, rtol=0)
    assert torch.linalg.matrix_rank(kept.flatten(0, 1), rtol=1e-4) == 5


def test_removing_all_that_a_head_reads_or_writes_is_removing_the_head(both):
    hooked, _ = both
    span = hooked.blocks[1].attn.W_O[2].detach().T  # [d_model d_head]
    with interp.ablate_heads(hooked, [(1, 2)]):
        ablated = run(hooked)
    with interp.project(hooked, span, where="W_O", heads=[(1, 2)]) as projection:
        torch.testing.assert_close(run(hooked), ablated, atol=1e-5, rtol=0)
    assert projection.rank == hooked.cfg.d_head
    assert (ablated - run(hooked)).abs().max() > 0.01


@pytest.mark.parametrize("where", ["W_Q", "W_V"])
def test_removing_what_a_head_reads_is_setting_its_weights_to_zero(where):
    model = interp.build(n_layers=2, d_model=48, n_heads=6, d_vocab=97, n_ctx=14, d_mlp=16, act_fn="gelu", seed=3)
    span, whole = getattr(model.blocks[1].attn, where)[2].detach().clone(), run(model)
    with interp.project(model, span, where=where, heads=[(1, 2)]):
        projected = run(model)
    with interp.project(model, span, where=where, heads=[(1, 2)], part="keep"):
        torch.testing.assert_close(run(model), whole, atol=1e-6, rtol=0)
    assert not torch.allclose(projected, whole, atol=1e-4)
    with torch.no_grad():
        getattr(model.blocks[1].attn, where)[2] = 0
    torch.testing.assert_close(projected, run(model), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    "basis",
    [
        torch.linalg.qr(BASIS).Q,
        BASIS * torch.tensor([1e-6, 1.0, 1e6, 3.0, 0.1]),
        torch.cat([BASIS, BASIS @ torch.ones(5, 2), torch.zeros(48, 1)], dim=1),
        BASIS.double(),
    ],
    ids=["orthonormal", "of uneven lengths", "with dependent columns", "in float64"],
)
def test_only_the_span_of_the_basis_matters(either, basis):
    with interp.project(either, BASIS, where="W_V"):
        expected = run(either)
    with interp.project(either, basis, where="W_V") as projection:
        torch.testing.assert_close(run(either), expected, atol=1e-5, rtol=0)
    assert projection.rank == 5


def test_the_whole_space_and_nothing_of_it(either):
    whole = run(either)
    with interp.project(either, torch.eye(48), where="W_V", part="keep"):
        torch.testing.assert_close(run(either), whole, atol=1e-6, rtol=0)
    with interp.project(either, torch.eye(48), where="W_V"):
        assert np.abs(weights_of(either, 0, "W_V")).max() == 0


def test_restored_bit_for_bit_also_when_nested_and_after_an_exception(either):
    before, logits = state(either), run(either)
    with interp.project(either, BASIS, where="W_K", heads=HEADS):
        once, once_logits = state(either), run(either)
        with interp.project(either, BASIS[:, :2], where="W_K", part="keep"), interp.mask_tokens(either, [4]):
            run(either)
        assert_as_before(either, once)
        assert torch.equal(run(either), once_logits)
        with pytest.raises(KeyError), interp.project(either, BASIS, where="qk"):
            raise KeyError
        assert_as_before(either, once)
    assert_as_before(either, before)
    assert torch.equal(run(either), logits)
    assert not torch.equal(once_logits, logits)


def test_half_precision(either):
    """A basis in bfloat16 keeps its rank, and bfloat16 weights lose the subspace to their own precision."""
    with interp.project(either, BASIS, where="resid_pre", layers=[0]):
        expected = run(either)
    with interp.project(either, BASIS.bfloat16(), where="resid_pre", layers=[0]) as projection:
        torch.testing.assert_close(run(either), expected, atol=0.1, rtol=0)
    assert projection.rank == 5
    model = interp.build(n_layers=1, d_model=48, n_heads=6, d_vocab=97, n_ctx=14, attn_only=True, dtype=torch.bfloat16)
    before = weights_of(model, 0, "W_V")
    with interp.project(model, BASIS, where="W_V"):
        left = project_slowly(weights_of(model, 0, "W_V"), BASIS, "keep")
    assert 0 < np.linalg.norm(left) < 0.01 * np.linalg.norm(project_slowly(before, BASIS, "keep"))
    np.testing.assert_array_equal(weights_of(model, 0, "W_V"), before)


def test_restored_when_an_edit_fails_half_way(either, monkeypatch):
    before = state(either)
    real, calls = torch.Tensor.double, []

    def fail_at_the_fourth(tensor):
        calls.append(tensor)
        if len(calls) == 4:  # one for the basis, then one a layer and weight
            raise torch.OutOfMemoryError
        return real(tensor)

    monkeypatch.setattr(torch.Tensor, "double", fail_at_the_fourth)
    with pytest.raises(torch.OutOfMemoryError), interp.project(either, BASIS, where="qk"):
        pass
    assert_as_before(either, before)


def test_the_users_own_hooks_and_parameters_survive(either):
    seen = []
    point = either.hook_dict["blocks.1.hook_resid_pre"]
    point.add_hook(lambda activation, hook: seen.append("mine"))
    parameters = {name: id(parameter) for name, parameter in either.named_parameters()}
    with interp.project(either, BASIS, where="resid_pre"), interp.project(either, BASIS, where="W_O"):
        run(either)
    assert seen == ["mine"]
    assert len(point._forward_hooks) == 1
    point.remove_hooks("fwd")
    assert parameters == {name: id(parameter) for name, parameter in either.named_parameters()}


@pytest.mark.parametrize(
    ("where", "heads", "subspace", "breaks"),
    [
        ("W_K", [(1, 0)], "previous", True),  # the induction head finds its key by the token before it
        ("W_Q", [(1, 0)], "token", True),
        ("W_V", [(1, 0)], "token", True),
        ("W_O", [(0, 0)], "previous", True),
        ("W_V", [(1, 0)], "previous", False),
        ("W_K", [(1, 0)], "token", False),
        ("qk", [(1, 1)], "token", False),  # the head that finds the same token elsewhere writes nothing
        ("W_O", [(0, 0)], "token", False),
    ],
)
def test_only_the_subspace_that_carries_the_answer_matters(where, heads, subspace, breaks):
    d_vocab, n_ctx = 12, 24
    machine, tokens = build_copying_machine(d_vocab=d_vocab, n_ctx=n_ctx), torch.arange(12).repeat(2, 2)
    start = {"token": 0, "previous": d_vocab + n_ctx}[subspace]
    basis = torch.eye(2 * d_vocab + n_ctx)[:, start : start + d_vocab]
    with interp.project(machine, basis, where=where, heads=heads):
        right = run(machine, tokens)[:, 12:23].argmax(-1) == tokens[:, 13:]
    assert bool(right.all()) is not breaks
    with interp.project(machine, basis, where=where, heads=heads, part="keep"):
        right = run(machine, tokens)[:, 12:23].argmax(-1) == tokens[:, 13:]
    if breaks and where != "W_K":  # W_K also reads a position
        assert right.all()


@pytest.mark.parametrize(
    ("basis", "choice", "message"),
    [
        (torch.ones(47, 2), {}, r"The basis has shape \[47, 2\], but this model's residual stream has 48 dimensions"),
        (torch.ones(48), {}, r"The basis has shape \[48\], but"),
        (torch.full((48, 2), float("nan")), {}, "The basis has values that are not finite"),
        (torch.full((48, 2), float("inf")), {}, "The basis has values that are not finite"),
        (torch.ones(48, 49), {}, "The basis has 49 columns, but no subspace of 48 dimensions has a larger rank"),
        (torch.zeros(48, 2), {}, "The basis has rank 0, so there is nothing to project on"),
        (torch.zeros(48, 0), {}, "The basis has rank 0"),
        (torch.ones(48, 2, dtype=torch.long), {}, r"The basis holds torch.int64; give floating-point directions"),
        (BASIS, {"where": "W_E"}, "where='W_E' isn't known; use one of W_Q, W_K, W_V, W_O, qk, resid_pre, resid_post"),
        (BASIS, {"part": "drop"}, "part='drop' isn't known; use one of remove, keep"),
        (
            BASIS,
            {"where": "resid_pre", "heads": [0]},
            "where='resid_pre' is an activation of a whole layer; give `layers=`",
        ),
        (BASIS, {"where": "resid_pre", "layers": [2]}, "Layer 2 doesn't exist: this model has layers 0 to 1"),
        (BASIS, {"heads": [(0, 6)]}, "Head 0.6 doesn't exist: this model has layers 0 to 1 with heads 0 to 5"),
    ],
)
def test_what_cannot_be_projected_is_refused(either, basis, choice, message):
    with (
        as_without_type_checks(),
        pytest.raises(interp.InputError, match=message),
        interp.project(either, basis, **{"where": "W_Q", **choice}),
    ):
        pass


def test_an_activation_that_the_model_lacks_is_refused():
    model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
    with (
        pytest.raises(interp.InputError, match="'hook_mlp_out' has no effect in this HookedTransformer"),
        interp.project(model, torch.eye(8), where="mlp_out"),
    ):
        pass


def test_weights_that_a_bridge_does_not_compute_with_are_refused(both, monkeypatch):
    _, bridge = both
    attention = bridge.blocks[0].attn
    monkeypatch.setattr(type(attention), "W_Q", torch.zeros(6, 48, 8))
    with (
        pytest.raises(
            interp.InputError, match=r"where='W_Q' cannot be projected in this TransformerBridge of tiny, which"
        ),
        interp.project(bridge, BASIS, where="W_Q"),
    ):
        pass
