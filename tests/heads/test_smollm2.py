"""The real SmolLM2-135M: its heads, and what removing them does."""

import numpy as np
import pytest

import interp

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scores(smollm2):
    return interp.score_heads(smollm2, n_sequences=12)


def test_strongest_heads(scores):
    assert {layer for layer, _ in scores.top("induction", 3)} == {17, 18}
    assert {layer for layer, _ in scores.top("previous_token", 2)} == {16, 11}


def test_first_token_is_no_chat_marker(scores):
    assert scores.bos is None


def test_removing_the_induction_heads_breaks_copying_and_random_heads_do_not(smollm2, scores):
    result = interp.confirm_heads(smollm2, scores, n_heads=10, n_draws=3, n_sequences=12)
    assert result.ablated_accuracy.mean() < 0.1 < result.accuracy.mean()
    value, low, high = result.difference
    assert 2 < low < value < high
    assert result.control_effects.max() < result.loss_effect / 2


def test_agrees_with_transformer_lens_patterns(smollm2, scores):
    """The raw score of one head, from TransformerLens's own cache of the same sequences."""
    import torch

    from interp.models.tokens import usable_vocabulary
    from tasks.copying import repeated_tokens
    from tasks.seeding import derive_generator

    tokens = repeated_tokens(
        n=12,
        segment=25,
        copies=2,
        vocabulary=usable_vocabulary(smollm2),
        bos=None,
        generator=derive_generator(0, "score_heads", "repeated"),
    )
    with torch.inference_mode():
        _, cache = smollm2.run_with_cache(
            tokens, names_filter="blocks.18.attn.hook_pattern", stop_at_layer=19, prepend_bos=False
        )
    pattern = cache["blocks.18.attn.hook_pattern"].numpy()[:, 6]
    expected = [np.mean([row[i, i - 24] for i in range(25, 50)]) for row in pattern]
    np.testing.assert_allclose(scores.per_sequence["induction/raw"][:, 18, 6], expected, atol=1e-5)
