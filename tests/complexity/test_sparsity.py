import math
import warnings

import numpy as np
import pytest
import torch

import interp
from interp.complexity.sparsity import attention_sparsity
from interp.errors import InputError
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks


def build_encoder():
    """TransformerLens's BERT, with weights that are all drawn."""
    from transformer_lens import HookedEncoder, HookedTransformerConfig

    config = HookedTransformerConfig(
        n_layers=2, d_model=16, n_heads=2, d_head=8, d_vocab=20, n_ctx=10, d_mlp=32, act_fn="gelu",
        attention_dir="bidirectional", normalization_type="LN", device="cpu",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        encoder = HookedEncoder(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    return encoder


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


def test_sequences_of_different_lengths_are_measured_as_each_alone():
    model = interp.build(n_layers=2, d_model=24, n_heads=3, d_vocab=20, n_ctx=16, gamma=0.0, seed=1, device="cpu")
    sequences = [row[:length] for row, length in zip(draw(20), (12, 5, 2, 12, 5), strict=True)]
    together = attention_sparsity(model, sequences, batch_size=2)
    for row, sequence in enumerate(sequences):
        alone = attention_sparsity(model, sequence[None])
        np.testing.assert_allclose(together.entropy_per_sequence[row], alone.entropy_per_sequence[0], atol=1e-6)
        np.testing.assert_allclose(together.normalised_per_sequence[row], alone.normalised_per_sequence[0], atol=1e-6)
        np.testing.assert_allclose(together.published_per_sequence[row], alone.published_per_sequence[0], atol=1e-5)
    as_lists = attention_sparsity(model, [sequence.tolist() for sequence in sequences])
    assert as_lists.data_sha256 == together.data_sha256
    swapped = attention_sparsity(model, [sequences[0], *reversed(sequences[1:])])
    assert swapped.data_sha256 != together.data_sha256
    assert "n=5 sequences" in repr(together)


@pytest.mark.parametrize("norm_placement", ["pre", "post"])
def test_inputs_as_in_the_published_program(norm_placement):
    model = interp.build(
        n_layers=3, d_model=24, n_heads=3, d_vocab=20, n_ctx=16, gamma=0.0, seed=1, act_fn="relu", device="cpu",
        norm_placement=norm_placement,
    )  # fmt: skip
    tokens = draw(20)
    as_published = attention_sparsity(model, tokens, inputs="embeddings")
    own = attention_sparsity(model, tokens)
    embedded = model.embed(tokens) + model.pos_embed(tokens)
    expected = np.zeros(len(tokens))
    for layer, block in enumerate(model.blocks):
        patterns = []
        with interp.add_hooks(
            model, [(f"blocks.{layer}.attn.hook_pattern", lambda p, hook, kept=patterns: kept.append(p))]
        ):
            block(embedded)
        mean = patterns[0].mean(1).double()
        expected += torch.special.entr(mean).sum((-1, -2)).detach().numpy() / 3
        share = as_published.entropy_per_sequence[:, layer].mean()
        assert share == pytest.approx(
            torch.special.entr(patterns[0][:, :, 1:].double()).sum(-1).mean().item(), abs=1e-5
        )
    np.testing.assert_allclose(as_published.published_per_sequence, expected, atol=1e-4)
    np.testing.assert_allclose(as_published.entropy[0], own.entropy[0], atol=1e-6)
    assert np.abs(as_published.published_per_sequence - own.published_per_sequence).max() > 1e-2
    assert "every layer reads the embeddings; n=5 sequences" in repr(as_published)
    assert all(not point._forward_hooks for point in model.hook_dict.values())


def test_an_encoder_reads_all_keys():
    encoder = build_encoder()
    tokens = draw(20, length=7)
    sparsity = attention_sparsity(encoder, [*tokens, tokens[0, :4]])
    _, cache = encoder.run_with_cache(tokens)
    for layer in range(2):
        nats = torch.special.entr(cache[f"blocks.{layer}.attn.hook_pattern"]).sum(-1).mean(-1)
        np.testing.assert_allclose(sparsity.entropy_per_sequence[:5, layer], nats.detach().numpy(), atol=1e-5)
        np.testing.assert_allclose(
            sparsity.normalised_per_sequence[:5, layer], nats.detach().numpy() / math.log(7), atol=1e-5
        )
    assert sparsity.normalised_per_sequence[5].max() < 1


def test_errors_say_what_to_do():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
    with pytest.raises(
        InputError, match="asked of a sequence of 1 tokens; give at least one sequence, each of at least"
    ):
        attention_sparsity(model, draw(5, n=3, length=1))
    with pytest.raises(InputError, match="asked of a sequence of 1 tokens"):
        attention_sparsity(model, [[1, 2], [3]])
    with pytest.raises(InputError, match="asked of no sequence; give at least one"):
        attention_sparsity(model, [])
    with pytest.raises(InputError, match="have 6 tokens, but this model reads at most n_ctx=4"):
        attention_sparsity(model, draw(5, length=6))
    with as_without_type_checks(), pytest.raises(InputError, match="inputs='first' isn't known; use one of own, embed"):
        attention_sparsity(model, draw(5, length=3), inputs="first")
