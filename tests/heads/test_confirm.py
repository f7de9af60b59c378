from dataclasses import replace

import numpy as np
import pytest
import torch

import interp
from interp.heads.control import draw_control_heads
from tests.hand_built import build_copying_machine


@pytest.fixture(scope="module")
def machine():
    return build_copying_machine()


@pytest.fixture(scope="module")
def scores(machine):
    return interp.score_heads(machine, n_sequences=8, segment=10)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_removing_the_hand_built_induction_head_destroys_copying(machine, scores, mode):
    result = interp.confirm_heads(machine, scores, n_heads=1, mode=mode, n_draws=20, n_sequences=12)
    assert result.heads == ((1, 0),)
    assert result.loss.mean() < 1e-4
    assert result.accuracy.mean() == 1
    assert result.ablated_accuracy.mean() < 0.3
    assert result.loss_effect > 2
    # Layer 1 has one other head, so there is one control set, and removing it changes nothing.
    assert result.control_heads == (((1, 1),),)
    assert result.control_accuracy.mean() == 1
    assert result.notes == ("only 1 set of other heads exists",)
    assert not result.confirmed  # one draw proves nothing


def test_confirmed_needs_an_effect_beyond_enough_draws(machine, scores):
    result = interp.confirm_heads(machine, scores, n_heads=1, n_sequences=12)

    def with_draws(losses):
        n = len(losses)
        return replace(
            result,
            control_heads=((((1, 1),),) * n),
            control_loss=losses,
            control_accuracy=np.ones((n, 12), dtype=np.float64),
        )

    nothing_happens = np.tile(result.loss, (19, 1))
    assert with_draws(nothing_happens).p_value == pytest.approx(0.05)
    assert with_draws(nothing_happens).confirmed
    assert not with_draws(nothing_happens[:18]).confirmed
    assert not with_draws(np.concatenate([nothing_happens[1:], result.ablated_loss[None]])).confirmed


@pytest.mark.parametrize("n_sequences", [17, 33])
def test_resampling_never_meets_a_batch_of_one(machine, scores, n_sequences):
    result = interp.confirm_heads(machine, scores, n_heads=1, mode="resample", n_draws=1, n_sequences=n_sequences)
    assert len(result.ablated_loss) == n_sequences


def test_effect_equals_whole_runs_of_the_model(machine, scores):
    result = interp.confirm_heads(machine, scores, n_heads=1, n_draws=1, n_sequences=5, seed=4)
    from tasks.copying import repeated_tokens
    from tasks.seeding import derive_generator

    tokens = repeated_tokens(
        n=5, segment=10, copies=2, vocabulary=torch.arange(30), bos=None, generator=derive_generator(4, "confirm_heads")
    )

    def silence(z, hook):
        z[:, :, 0] = 0
        return z

    logits = machine.run_with_hooks(tokens, fwd_hooks=[("blocks.1.attn.hook_z", silence)])
    expected = [
        np.mean([-logits[b, t].log_softmax(-1)[tokens[b, t + 1]].item() for t in range(10, 19)]) for b in range(5)
    ]
    np.testing.assert_allclose(result.ablated_loss, expected, rtol=1e-5)


def test_controls_stay_in_the_layers_and_avoid_the_chosen():
    model = interp.build(n_layers=3, d_model=12, n_heads=6, d_vocab=9, n_ctx=8, attn_only=True)
    chosen = [(1, 0), (1, 5), (2, 3)]
    sets, notes = draw_control_heads(model, chosen, n_draws=20, seed=0)
    assert notes == ()
    assert len(set(sets)) == 20
    for drawn in sets:
        assert [layer for layer, _ in drawn] == [1, 1, 2]
        assert not set(drawn) & set(chosen)
        assert len(set(drawn)) == 3


def test_a_full_layer_borrows_from_its_neighbour_and_says_so():
    model = interp.build(n_layers=3, d_model=12, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
    sets, notes = draw_control_heads(model, [(2, 0), (2, 1)], n_draws=20, seed=0)
    assert set(sets) == {((1, 0), (1, 1))}
    assert notes[0] == "layer 2 has too few other heads, so its control borrows a head of layer 1"


def test_all_heads_chosen_leaves_no_control():
    model = interp.build(n_layers=1, d_model=12, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
    with pytest.raises(interp.InputError, match="2 of the model's 2 heads were chosen, which leaves 0"):
        draw_control_heads(model, [(0, 0), (0, 1)], n_draws=5, seed=0)


def test_frame_keeps_every_draw(machine, scores):
    result = interp.confirm_heads(machine, scores, heads=[(0, 1)], n_draws=5, n_sequences=6)
    frame = result.to_frame()
    assert frame.condition.tolist()[:2] == ["whole model", "chosen heads removed"]
    assert (frame.condition == "random heads removed").sum() == result.n_draws
    assert not result.confirmed  # the head writes nothing
