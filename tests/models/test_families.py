"""Each family comes back with the Hugging Face model's function, by one class or the other."""

import copy
import re
from pathlib import Path

import pytest
import torch
import transformers.models.gemma2.modeling_gemma2 as gemma2
import transformers.models.gemma3.modeling_gemma3 as gemma3
from transformer_lens import HookedTransformer
from transformer_lens.model_bridge import TransformerBridge
from transformer_lens.model_bridge.generalized_components import position_embeddings_attention

import interp
from interp.models.check import HOOK_KINDS, acting_hooks
from interp.models.convert import attention_window, context_length
from tests.conftest import FAMILIES, make_tiny

AS_BRIDGE = {
    "llama_attention_bias": "differ",
    "llama_mlp_bias": "differ",
    "llama_rope_linear": "differ",
    "llama_rope_yarn": "differ",
    "llama_rope_dynamic": "no rotary embedding of type 'dynamic'",
    "llama_wide_heads": "size mismatch",
    "gemma": "NotImplementedError",
    "gemma2": "NotImplementedError",
    "gemma3": "NotImplementedError",
    "olmo2": "NotImplementedError",
}
TOKENS = torch.randint(97, (3, 60), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_computes_what_hugging_face_computes(family: str) -> None:
    hf_model = make_tiny(family)
    model = interp.load(hf_model)
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), hf_model(TOKENS).logits, atol=2e-5, rtol=0)
    provenance = interp.get_provenance(model)
    assert isinstance(model, TransformerBridge if family in AS_BRIDGE else HookedTransformer)
    assert provenance.model_class == type(model).__name__
    assert provenance.max_logit_difference is not None
    assert provenance.max_logit_difference < 2e-5
    assert AS_BRIDGE.get(family, "agree") in provenance.reason
    assert not model.training
    assert acting_hooks(model) == set(HOOK_KINDS)


@pytest.mark.parametrize("family", [family for family, reason in AS_BRIDGE.items() if reason == "differ"])
def test_silently_wrong_conversions_are_refused_with_their_measured_difference(family: str) -> None:
    reason = interp.get_provenance(interp.load(make_tiny(family))).reason
    difference = re.search(r"by up to ([\d.]+)", reason)
    assert difference is not None
    assert float(difference.group(1)) > 1


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "llama_tied", "llama_mlp_bias", "gemma2", "olmo2"])
def test_the_callers_object_is_never_changed(family: str, tmp_path: Path) -> None:
    hf_model = make_tiny(family).train()
    for parameter in list(hf_model.parameters())[::2]:
        parameter.requires_grad_(False)
    before = copy.deepcopy(hf_model)
    model = interp.load(hf_model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    assert hf_model.training
    assert hf_model.config.to_dict() == before.config.to_dict()
    assert hf_model.config._attn_implementation == before.config._attn_implementation
    state, state_before = hf_model.state_dict(), before.state_dict()
    assert list(state) == list(state_before)
    assert all(torch.equal(state[name], state_before[name]) for name in state)
    assert [p.requires_grad for p in hf_model.parameters()] == [p.requires_grad for p in before.parameters()]
    with torch.no_grad():
        assert torch.equal(hf_model.eval()(TOKENS).logits, before.eval()(TOKENS).logits)
    hf_model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()


def test_the_callers_object_can_be_loaded_twice() -> None:
    hf_model = make_tiny("gemma2")
    first, second = interp.load(hf_model), interp.load(hf_model)
    assert torch.equal(first(TOKENS), second(TOKENS))


def test_a_bridge_leaves_transformers_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position_embeddings_attention, "_EAGER_ATTENTION_WRAPPED", False)  # it is done once a process
    monkeypatch.setattr(position_embeddings_attention, "_ORIGINAL_EAGER_ATTENTION_FORWARD", None)
    kept = gemma2.eager_attention_forward, gemma3.eager_attention_forward
    hf_model = make_tiny("gemma2")
    hf_model.set_attn_implementation("eager")
    before = hf_model(TOKENS).logits
    interp.load(make_tiny("llama_mlp_bias"))
    interp.load(hf_model)
    assert (gemma2.eager_attention_forward, gemma3.eager_attention_forward) == kept
    assert torch.equal(hf_model(TOKENS).logits, before)


@pytest.mark.parametrize(
    ("family", "overrides", "window"),
    [
        ("mistral_window", {}, 8),
        ("mistral", {}, None),
        ("gemma3", {}, 8),
        ("gpt_neo", {}, 8),
        ("gpt2", {}, None),
        ("qwen2", {"sliding_window": 8}, None),
        ("qwen2", {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 1}, 8),
    ],
)
def test_the_attention_window_is_found(family: str, overrides: dict, window: int | None) -> None:
    assert attention_window(make_tiny(family, **overrides).config) == window


def test_a_window_that_only_some_layers_have_is_noticed() -> None:
    hf_model = make_tiny("qwen2", sliding_window=8, use_sliding_window=True, max_window_layers=1)
    model = interp.load(hf_model)
    torch.testing.assert_close(model(TOKENS), hf_model(TOKENS).logits, atol=2e-5, rtol=0)
    assert isinstance(model, TransformerBridge)
    assert "differ" in interp.get_provenance(model).reason


def test_a_long_context_is_cut_and_said_so() -> None:
    hf_model = make_tiny("llama", max_position_embeddings=131072)
    assert context_length(hf_model.config) == 8192
    model = interp.load(hf_model)
    assert model.cfg.n_ctx == 8192
    assert any("131072" in note for note in interp.get_provenance(model).notes)
    assert not interp.get_provenance(interp.load(make_tiny("llama"))).notes


@pytest.mark.parametrize("family", ["llama", "llama_mlp_bias", "gemma2", "gpt2"])
def test_greedy_generation_is_the_same_with_and_without_the_key_value_cache(family: str) -> None:
    model = interp.load(make_tiny(family))
    settings = {
        "max_new_tokens": 8,
        "do_sample": False,
        "stop_at_eos": False,
        "verbose": False,
        "return_type": "tokens",
    }
    prompt = TOKENS[:1, :5]
    cached = model.generate(prompt, use_past_kv_cache=True, **settings)
    assert torch.equal(cached, model.generate(prompt, use_past_kv_cache=False, **settings))
    assert cached.shape == (1, 13)
