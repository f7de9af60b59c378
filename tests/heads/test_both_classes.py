"""A HookedTransformer and a TransformerBridge over the same weights measure the same."""

import numpy as np
import pytest

import interp


@pytest.mark.parametrize("bos", ["none", 3])
def test_head_scores_agree(both, bos):
    hooked, bridge = (interp.score_heads(model, n_sequences=6, segment=12, bos=bos) for model in both)
    assert hooked.data_sha256 == bridge.data_sha256
    for name, values in hooked.per_sequence.items():
        np.testing.assert_allclose(bridge.per_sequence[name], values, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("mode", ["zero", "mean", "resample"])
def test_confirmations_agree(both, mode):
    scores = interp.score_heads(both[0], n_sequences=4, segment=12)
    hooked, bridge = (
        interp.confirm_heads(model, scores, n_heads=2, n_draws=3, n_sequences=5, mode=mode) for model in both
    )
    assert hooked.control_heads == bridge.control_heads
    np.testing.assert_allclose(bridge.loss, hooked.loss, atol=1e-4)
    np.testing.assert_allclose(bridge.ablated_loss, hooked.ablated_loss, atol=1e-4)
    np.testing.assert_allclose(bridge.control_loss, hooked.control_loss, atol=1e-4)
    assert abs(hooked.loss_effect) > 1e-3


def test_no_hook_remains_on_the_bridge(both):
    _, bridge = both
    interp.score_heads(bridge, n_sequences=2, segment=6)
    assert all(not point._forward_hooks for point in bridge.hook_dict.values())


def test_a_hook_that_leaks_on_the_bridge_is_found(both):
    _, bridge = both
    point = bridge.hook_dict["blocks.0.attn.hook_pattern"]
    with pytest.raises(interp.HookLeakError), interp.add_hooks(bridge, []):
        point.add_hook(lambda pattern, hook: None)
    point.remove_hooks("fwd")
