"""The checks at load: each is shown a model that it must refuse."""

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

import interp
from interp.errors import InputError
from interp.models import check
from interp.models.convert import private_copy
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine


def _small(**config: Any) -> Any:
    return interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=11, n_ctx=12, **config)


@pytest.mark.parametrize(
    ("window", "n_ctx", "length"), [(None, 8192, 64), (4096, 8192, 4128), (8, 50, 50), (512, 300, 300)]
)
def test_the_probe_is_longer_than_the_window_as_far_as_the_context_allows(
    window: int | None, n_ctx: int, length: int
) -> None:
    tokens = check.probe_tokens(d_vocab=50, n_ctx=n_ctx, window=window)
    assert tokens.shape == (1, length)
    assert torch.equal(tokens, check.probe_tokens(d_vocab=50, n_ctx=n_ctx, window=window))


def test_a_long_probe_keeps_both_ends() -> None:
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=300, attn_only=True)
    tokens = torch.zeros(1, 300, dtype=torch.long)
    whole = model(tokens)[0]
    assert torch.equal(check.probe_logits(model, tokens), torch.cat([whole[:128], whole[-128:]]))


def test_parity_of_known_logits() -> None:
    reference = torch.tensor([[0.0, 0.0]])
    assert check.compare_logits(reference + 5, reference).max_log_prob_difference == 0
    assert check.compare_logits(reference + 5, reference).max_logit_difference == 5
    tilted = torch.tensor([[0.0, torch.log(torch.tensor(3.0))]])  # probabilities 1/4 and 3/4 instead of 1/2
    parity = check.compare_logits(tilted, reference)
    assert parity.max_log_prob_difference == pytest.approx(0.6931, abs=1e-4)
    assert parity.mean_kl == pytest.approx(0.1438, abs=1e-4)  # log 2 / 2 - log(3/2) / 2
    assert not parity.agrees


def test_flat_logits_are_held_to_a_stricter_limit() -> None:
    noise = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    error = 2e-4 * noise.flip(0)
    assert check.compare_logits(5 * noise + error, 5 * noise).agrees
    assert not check.compare_logits(0.01 * noise + error, 0.01 * noise).agrees


def test_not_a_number_never_agrees() -> None:
    logits = torch.zeros(2, 3)
    assert not check.compare_logits(logits * torch.nan, logits).agrees


def test_every_edited_hook_acts_in_a_built_model() -> None:
    assert check.acting_hooks(_small(act_fn="gelu")) == set(check.HOOK_KINDS)


def test_saturated_attention_does_not_hide_that_its_hooks_act() -> None:
    assert check.acting_hooks(build_copying_machine()) == set(check.HOOK_KINDS) - {"hook_mlp_out"}


def test_a_hook_that_never_runs_or_does_not_exist_is_named() -> None:
    model = _small(attn_only=True)
    assert check.acting_hooks(model) == set(check.HOOK_KINDS) - {"hook_mlp_out"}
    check.require_hook(model, "attn.hook_z")
    with pytest.raises(InputError, match="the hook 'hook_mlp_out' has no effect in this HookedTransformer"):
        check.require_hook(model, "hook_mlp_out")
    for layer in range(2):
        del model.hook_dict[f"blocks.{layer}.hook_mlp_out"]
    with pytest.raises(InputError, match="the hook 'hook_mlp_out' does not exist in this HookedTransformer"):
        check.require_hook(model, "hook_mlp_out")
    with pytest.raises(InputError, match=r"'attn\.hook_zz' is not a hook that is known to act"):
        check.require_hook(model, "attn.hook_zz")


def test_hooks_of_a_bridge_that_silently_do_nothing_are_refused() -> None:
    hf_model = private_copy(make_tiny("gpt_neo"))
    bridge = build_bridge_from_module(hf_model, "GPTNeoForCausalLM", hf_config=hf_model.config)
    assert check.acting_hooks(bridge) == set(check.HOOK_KINDS) - {"attn.hook_pattern", "attn.hook_attn_scores"}
    with pytest.raises(InputError, match=r"'attn\.hook_pattern' has no effect in this TransformerBridge"):
        check.require_hook(bridge, "attn.hook_pattern")
    check.require_hook(interp.load(make_tiny("gpt_neo")), "attn.hook_pattern")


def test_the_hook_probe_leaves_no_hook_and_is_done_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _small()
    first = check.acting_hooks(model)
    assert all(not point.fwd_hooks for point in model.hook_dict.values())
    monkeypatch.setattr(check, "_probe_hooks", lambda model: pytest.fail("probed again"))
    assert check.acting_hooks(model) is first


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_named(bad: float) -> None:
    hf_model = make_tiny("llama")
    with torch.no_grad():
        hf_model.model.layers[1].mlp.up_proj.weight[3, 2] = bad
    with pytest.raises(InputError, match=r"not finite, first in model\.layers\.1\.mlp\.up_proj\.weight: get the files"):
        interp.load(hf_model)


def test_a_model_that_reads_later_tokens_is_refused() -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=97, hidden_size=48, num_hidden_layers=1, num_attention_heads=6)
    with pytest.raises(InputError, match="a BertForMaskedLM whose predictions depend on later tokens"):
        interp.load(BertForMaskedLM(config))


def test_a_model_without_a_tokenizer_is_not_asked_for_text() -> None:
    with pytest.raises(InputError, match="has no tokenizer, so it cannot read text: give token ids instead"):
        check.require_tokenizer(interp.load(make_tiny("gpt2")))
