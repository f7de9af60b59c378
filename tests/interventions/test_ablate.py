import pytest
import torch

import interp
from tasks.task import Batch
from tests.untyped import as_without_type_checks


@pytest.fixture(scope="module")
def model():
    return interp.build(n_layers=2, d_model=12, n_heads=3, d_vocab=11, n_ctx=10, d_mlp=16, act_fn="gelu", seed=1)


TOKENS = torch.arange(40).reshape(4, 10) % 11


def head_outputs(model, layer, tokens=TOKENS):
    _, cache = model.run_with_cache(tokens)
    return cache[f"blocks.{layer}.attn.hook_z"]


def test_zero_equals_setting_the_output_weights_to_zero(model):
    with interp.ablate_heads(model, [(0, 1), (1, 2)], mode="zero"):
        ablated = model(TOKENS)
    edited = interp.build(n_layers=2, d_model=12, n_heads=3, d_vocab=11, n_ctx=10, d_mlp=16, act_fn="gelu", seed=1)
    with torch.no_grad():
        edited.blocks[0].attn.W_O[1] = 0
        edited.blocks[1].attn.W_O[2] = 0
    torch.testing.assert_close(ablated, edited(TOKENS), atol=1e-6, rtol=0)


def test_mean_takes_the_average_over_the_reference(model):
    reference = torch.arange(30).reshape(3, 10) % 7
    expected = head_outputs(model, 0, reference)[:, :, 1].mean(dim=(0, 1))
    with interp.ablate_heads(model, [(0, 1)], mode="mean", reference=reference):
        written = head_outputs(model, 0)
    torch.testing.assert_close(written[:, :, 1], expected.expand(4, 10, -1))
    torch.testing.assert_close(written[:, :, [0, 2]], head_outputs(model, 0)[:, :, [0, 2]])


def test_resample_takes_another_sequence_at_the_same_position(model):
    own = head_outputs(model, 0)[:, :, 1]
    with interp.ablate_heads(model, [(0, 1)], mode="resample", seed=5):
        written = head_outputs(model, 0)[:, :, 1]
    for row in range(4):
        sources = [other for other in range(4) if torch.equal(written[row], own[other])]
        assert sources
        assert row not in sources


def test_resample_from_a_reference(model):
    reference = torch.arange(20).reshape(2, 10) % 5
    stored = head_outputs(model, 1, reference)[:, :, 0]
    with interp.ablate_heads(model, [(1, 0)], mode="resample", reference=reference):
        written = head_outputs(model, 1, TOKENS[:, :6])[:, :, 0]
    for row in written:
        assert any(torch.equal(row, source[:6]) for source in stored)


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([(2, 0)], {}, "Head 2.0 doesn't exist: this model has layers 0 to 1 with heads 0 to 2"),
        ([(0, -1)], {}, "Head 0.-1 doesn't exist"),
    ],
)
def test_bad_heads_and_modes(model, heads, options, message):
    with pytest.raises(interp.InputError, match=message), interp.ablate_heads(model, heads, **options):
        pass


def test_unknown_mode(model):
    with (
        as_without_type_checks(),
        pytest.raises(interp.InputError, match="mode='knock' isn't known; use one of zero, mean, resample"),
        interp.ablate_heads(model, [(0, 0)], mode="knock"),
    ):
        pass


def test_resample_needs_another_sequence(model):
    with (
        interp.ablate_heads(model, [(0, 0)], mode="resample"),
        pytest.raises(interp.InputError, match="the batch has one sequence"),
    ):
        model(TOKENS[:1])
    with (
        interp.ablate_heads(model, [(0, 0)], mode="resample", reference=TOKENS[:, :4]),
        pytest.raises(interp.InputError, match="The reference has 4 positions, but the input has 10"),
    ):
        model(TOKENS)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_only_at_chosen_positions(model, mode):
    whole = head_outputs(model, 0)
    with interp.ablate_heads(model, [(0, 1)], mode=mode, seed=5):
        everywhere = head_outputs(model, 0)
    positions = torch.tensor([[2, 7], [3, 3], [0, 9], [5, 4]])
    with interp.ablate_heads(model, [(0, 1)], mode=mode, seed=5, positions=positions):
        there = head_outputs(model, 0)
    for row in range(4):
        for position in range(10):
            expected = everywhere if position in positions[row] else whole
            assert torch.equal(there[row, position], expected[row, position])
    assert not torch.equal(there, whole)


def test_positions_are_shared_or_roles_of_a_batch(model):
    marked = torch.zeros_like(TOKENS, dtype=torch.bool)
    marked[:, [2, 8]] = True
    batch = Batch(tokens=TOKENS, targets=TOKENS, trained=marked, scored=marked, roles={"pair": marked})
    with interp.ablate_heads(model, [(1, 1)], positions=[2, 8]):
        shared = model(TOKENS)
    with interp.ablate_heads(model, [(1, 1)], positions="pair", batch=batch):
        assert torch.equal(model(TOKENS), shared)
    assert not torch.equal(model(TOKENS), shared)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([10], "Position 10 in positions doesn't exist: the input has positions 0 to 9"),
        ([], "positions choose no position of the batch that runs"),
        (torch.tensor([[1]]), "positions are given for 1 sequences, but the batch that runs has 4"),
    ],
)
def test_positions_that_do_not_fit(model, positions, message):
    with (
        interp.ablate_heads(model, [(0, 1)], positions=positions),
        pytest.raises(interp.InputError, match=message),
    ):
        model(TOKENS)
