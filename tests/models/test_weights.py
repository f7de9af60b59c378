"""The accessors agree between the two classes, and with what the models compute."""

from typing import Any

import pytest
import torch
from transformer_lens.model_bridge.sources._bridge_builder import build_bridge_from_module

import interp
from interp.errors import InputError
from interp.models.convert import private_copy
from interp.models.weights import (
    expand_kv,
    final_norm_gain,
    n_key_value_heads,
    output_weights,
    unembedding,
    value_weights,
)
from tests.conftest import make_tiny

TOKENS = torch.randint(97, (2, 20), generator=torch.Generator().manual_seed(7))


def _bridge(family: str) -> Any:
    hf_model = private_copy(make_tiny(family))
    return build_bridge_from_module(hf_model, type(hf_model).__name__, hf_config=hf_model.config)


def test_query_heads_share_key_value_heads_in_order() -> None:
    heads = torch.arange(2)[None, :, None].expand(3, 2, 4)
    expanded = expand_kv(heads, 6, axis=1)
    assert expanded.shape == (3, 6, 4)
    assert expanded[0, :, 0].tolist() == [h // 3 for h in range(6)]
    with pytest.raises(InputError, match="axis 0 has 4 key-value heads, which do not divide 6 query heads"):
        expand_kv(torch.zeros(4, 2), 6)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama", "mistral", "qwen2", "qwen3", "gpt_neo"])
def test_both_classes_give_the_same_weights(family: str) -> None:
    hooked, bridge = interp.load(make_tiny(family)), _bridge(family)
    assert type(hooked) is not type(bridge)
    for layer in range(2):
        torch.testing.assert_close(value_weights(hooked, layer), value_weights(bridge, layer), atol=0, rtol=0)
        torch.testing.assert_close(output_weights(hooked, layer), output_weights(bridge, layer), atol=0, rtol=0)
    torch.testing.assert_close(unembedding(hooked), unembedding(bridge), atol=0, rtol=0)
    torch.testing.assert_close(final_norm_gain(hooked), final_norm_gain(bridge))
    assert n_key_value_heads(hooked) == n_key_value_heads(bridge) == (6 if family.startswith("gpt") else 2)


def test_heads_of_one_group_share_their_values() -> None:
    weights = value_weights(interp.load(make_tiny("llama")), 0)
    assert weights.shape == (6, 48, 8)
    assert torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[2], weights[3])


@pytest.mark.parametrize("family", ["gpt2", "llama", "llama_wide_heads", "gemma"])
def test_head_outputs_add_up_to_the_attention_output(family: str) -> None:
    model = interp.load(make_tiny(family))
    _, cache = model.run_with_cache(TOKENS)
    values = expand_kv(cache["blocks.1.attn.hook_v"], 6, axis=2)
    z = torch.einsum("bhqk,bkhd->bqhd", cache["blocks.1.attn.hook_pattern"], values)
    written = torch.einsum("bqhd,hdm->bqm", z, output_weights(model, 1))
    bias = (cache["blocks.1.hook_attn_out"] - written)[:1, :1]  # the same at every position, 0 without biases
    torch.testing.assert_close(cache["blocks.1.hook_attn_out"], written + bias, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "llama_mlp_bias", "gemma", "gemma2", "gemma3", "olmo2"])
def test_logits_are_the_normed_residual_times_gain_times_unembedding(family: str) -> None:
    model = interp.load(make_tiny(family))
    logits, cache = model.run_with_cache(TOKENS)
    residual = cache["blocks.1.hook_resid_post"]
    normed = residual * torch.rsqrt(residual.square().mean(-1, keepdim=True) + 1e-6)
    rebuilt = (normed * final_norm_gain(model)) @ unembedding(model)
    if family == "gemma2":
        rebuilt = 30 * torch.tanh(rebuilt / 30)
    torch.testing.assert_close(logits, rebuilt, atol=2e-5, rtol=0)


def test_a_folded_or_absent_norm_has_gain_one() -> None:
    folded = interp.load(make_tiny("llama"), processing="fold_norm")
    torch.testing.assert_close(final_norm_gain(folded), torch.ones(48))
    bare = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, normalization_type=None)
    assert torch.equal(final_norm_gain(bare), torch.ones(8))
    assert n_key_value_heads(bare) == 1
