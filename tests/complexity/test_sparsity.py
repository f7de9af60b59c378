import math

import numpy as np
import pytest
import torch

import interp
from interp.complexity.sparsity import attention_sparsity
from interp.errors import InputError
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine


def draw(d_vocab, n=5, length=12, seed=0):
    return torch.randint(d_vocab, (n, length), generator=torch.Generator().manual_seed(seed))


def slow_entropies(model, tokens, window=None):
    """Query by query, from cached patterns: (entropy, normalised, published)."""
    _, cache = model.run_with_cache(tokens)
    n_layers, n_heads = model.cfg.n_layers, model.cfg.n_heads
    entropy, normalised = np.zeros((2, len(tokens), n_layers, n_heads))
    published = np.zeros(len(tokens))
    for row in range(len(tokens)):
        for layer in range(n_layers):
            pattern = cache[f"blocks.{layer}.attn.hook_pattern"][row].double().numpy()
            for query in range(tokens.shape[1]):
                mean = pattern[:, query].mean(axis=0)
                published[row] -= sum(p * math.log(p) for p in mean if p > 0) / n_layers
            for head in range(n_heads):
                nats, shares = [], []
                for query in range(1, tokens.shape[1]):
                    n_keys = min(query + 1, window or query + 1)
                    nats.append(-sum(p * math.log(p) for p in pattern[head, query] if p > 0))
                    shares.append(nats[-1] / math.log(n_keys))
                entropy[row, layer, head], normalised[row, layer, head] = np.mean(nats), np.mean(shares)
    return entropy, normalised, published


def test_known_heads_of_a_copying_machine():
    """Layer 0 head 0 attends to one token, head 1 to all alike."""
    sparsity = attention_sparsity(build_copying_machine(), draw(30))
    assert sparsity.entropy[0, 0] == pytest.approx(0, abs=1e-5)
    assert sparsity.normalised[0, 1] == pytest.approx(1, abs=1e-5)
    expected = np.mean([math.log(n) for n in range(2, 13)])
    assert sparsity.entropy[0, 1] == pytest.approx(expected, rel=1e-5)
    assert "0.0" in sparsity.figure().alt


def test_it_agrees_with_a_slow_version():
    model = interp.build(n_layers=2, d_model=24, n_heads=3, d_vocab=20, n_ctx=16, gamma=0.0, seed=1, device="cpu")
    tokens = draw(20)
    sparsity = attention_sparsity(model, tokens, batch_size=2)
    entropy, normalised, published = slow_entropies(model, tokens)
    np.testing.assert_allclose(sparsity.entropy_per_sequence, entropy, atol=1e-5)
    np.testing.assert_allclose(sparsity.normalised_per_sequence, normalised, atol=1e-5)
    np.testing.assert_allclose(sparsity.published_per_sequence, published, atol=1e-4)
    value, low, high = sparsity.published
    assert low <= value <= high
    assert value == pytest.approx(published.mean(), abs=1e-4)


def test_a_window_bounds_the_keys():
    model = interp.load(make_tiny("mistral_window"), device="cpu")  # 8 keys at most
    tokens = draw(97, length=14)
    sparsity = attention_sparsity(model, tokens)
    _, normalised, _ = slow_entropies(model, tokens, window=8)
    np.testing.assert_allclose(sparsity.normalised_per_sequence, normalised, atol=1e-5)


def test_both_classes_agree_and_keep_no_hook(both):
    tokens = draw(97)
    hooked, bridge = (attention_sparsity(model, tokens) for model in both)
    np.testing.assert_allclose(bridge.entropy_per_sequence, hooked.entropy_per_sequence, atol=1e-5)
    np.testing.assert_allclose(bridge.normalised_per_sequence, hooked.normalised_per_sequence, atol=1e-5)
    np.testing.assert_allclose(bridge.published_per_sequence, hooked.published_per_sequence, atol=1e-4)
    assert hooked.data_sha256 == bridge.data_sha256
    assert all(not point._forward_hooks for model in both for point in model.hook_dict.values())


def test_the_frame_has_a_row_for_each_head():
    model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True, device="cpu")
    sparsity = attention_sparsity(model, draw(9, length=8))
    frame = sparsity.to_frame()
    assert len(frame) == 2 * 2 * 2
    assert (frame.low <= frame.value).all()
    assert (frame.value <= frame.high).all()
    assert set(frame.n) == {5}
    row = frame[(frame.layer == 1) & (frame["head"] == 0) & (frame.measure == "normalised")]
    assert row.value.item() == pytest.approx(sparsity.normalised[1, 0])
    assert "of the largest possible; published measure" in repr(sparsity)
    assert "<svg" in sparsity._repr_html_()


def test_a_pattern_that_cannot_be_read_is_said():
    """In a TransformerBridge of GPT-Neo the local layers' hook_pattern never runs."""
    from interp.models.convert import _make_bridge, prepare, private_copy

    bridge = _make_bridge(prepare(private_copy(make_tiny("gpt_neo"))), name="tiny", reason="wanted here")
    with pytest.raises(InputError, match=r"attention of layers 1 can't be read.*load the model as a HookedTransformer"):
        attention_sparsity(bridge, draw(97))


def test_errors_say_what_to_do():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
    with pytest.raises(InputError, match=r"shape \(3, 1\); give at least one sequence, of at least two tokens"):
        attention_sparsity(model, draw(5, n=3, length=1))
    with pytest.raises(InputError, match="have 6 tokens, but this model reads at most n_ctx=4"):
        attention_sparsity(model, draw(5, length=6))
