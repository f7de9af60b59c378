import numpy as np
import pytest
import torch

import interp
from interp.bridge.edit import swap_weights
from interp.bridge.move import move_heads
from interp.bridge.shuffle import shuffle_heads
from interp.errors import InputError
from tests.bridge.machine import BOS, INDUCTION, build_circle_machine
from tests.conftest import make_tiny

TOKENS = torch.randint(97, (3, 12), generator=torch.Generator().manual_seed(0))


def test_heads_that_read_through_one_plane_can_stand_in_for_each_other():
    shuffle = shuffle_heads(build_circle_machine(), INDUCTION, side="QK", n_sequences=4, segment=12, bos=BOS)
    assert shuffle.permutations == (((2, 0), (1, 0)),)
    assert shuffle.control_heads == (((2, 1), (1, 1)),)
    assert shuffle.error.max() == shuffle.shuffled_error.max() == 0
    assert shuffle.control_error.mean() > 0.8  # these look for the token itself
    assert shuffle.difference[1] > 0.7
    assert "only 1 permutation without fixed points exist" in shuffle.notes[0]
    assert len(shuffle.to_frame()) == 3
    assert "<svg" in shuffle._repr_html_()
    assert "moves the error of copying from 0.00 to 0.00 (1 permutations)" in repr(shuffle)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("side", ["QK", "OV"])
def test_a_moved_head_does_in_its_new_place_what_it_did_in_its_own(family, side):
    """On the residual stream of the new layer, with the norm's gain and bias and the head's biases of the old one."""
    model = interp.load(make_tiny(family), device="cpu")
    before = dict(model.named_parameters())
    seen = {}

    def watch(model, layer):
        kept = {}
        kinds = ("q", "k") if side == "QK" else ("v",)
        names = [f"blocks.{layer}.{name}" for name in ("hook_resid_pre", *(f"attn.hook_{kind}" for kind in kinds))]
        with (
            torch.no_grad(),
            interp.add_hooks(
                model, [(name, lambda x, hook: kept.__setitem__(hook.name.split("_")[-1], x)) for name in names]
            ),
        ):
            model(TOKENS)
        return kept

    edit = move_heads(model, [(1, 4)], [(0, 1)], side=side, fold="norms")
    with swap_weights(model, edit):
        seen = watch(model, 1)
        after = {name: model.blocks[1].attn.get_parameter(name).clone() for name in edit[1]}
    source, shared = model.blocks[0], 1 // (6 // (model.cfg.n_key_value_heads or 6))
    stream = source.ln1(seen["pre"])
    for kind in "QK" if side == "QK" else "V":
        row = 1 if kind == "Q" else shared
        weight, bias = (
            getattr(source.attn, f"_{name}_{kind}", getattr(source.attn, f"{name}_{kind}"))[row] for name in "Wb"
        )
        torch.testing.assert_close(seen[kind.lower()][:, :, 4], stream @ weight + bias, atol=2e-5, rtol=1e-4)
    if side == "OV":
        assert torch.equal(after["W_O"][4], source.attn.W_O[1])
    assert all(parameter is before[name] for name, parameter in model.named_parameters())


def test_permutations_have_no_fixed_points_and_the_control_is_matched_by_layer():
    model = interp.build(n_layers=3, d_model=24, n_heads=4, d_vocab=40, n_ctx=32, attn_only=True)
    heads = [(0, 0), (1, 1), (1, 2), (2, 3)]
    shuffle = shuffle_heads(model, heads, side="OV", n_repetitions=6, n_sequences=3, segment=8)
    assert len(set(shuffle.permutations)) == 6
    for permutation, control in zip(shuffle.permutations, shuffle.control_heads, strict=True):
        assert sorted(permutation) == heads
        assert all(place != source for place, source in zip(heads, permutation, strict=True))
        assert [layer for layer, _ in control] == [layer for layer, _ in permutation]
        assert not set(control) & set(heads)
    assert np.ptp(shuffle.shuffled_probability, axis=0).max() > 0


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([(0, 0)], {}, "1 head was given, but heads are shuffled among themselves; give at least two"),
        ([(0, 0), (0, 1)], {"n_repetitions": 0}, "n_repetitions=0 was given"),
        ([(0, 0), (9, 1)], {}, "Head 9.1 doesn't exist"),
        ([(0, 0), (0, 1)], {"segment": 30}, "make a sequence of 60, but this model reads at most n_ctx=32"),
    ],
)
def test_what_cannot_be_shuffled(heads, options, message):
    model = interp.build(n_layers=2, d_model=24, n_heads=4, d_vocab=40, n_ctx=32, attn_only=True)
    with pytest.raises(InputError, match=message):
        shuffle_heads(model, heads, side="QK", **options)
