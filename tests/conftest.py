"""Models that tests share: tiny random Hugging Face models of every family, and the real SmolLM2."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports huggingface_hub: no test may reach the network

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

_COMMON = {"vocab_size": 97, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
_GQA = {**_COMMON, "intermediate_size": 96, "num_key_value_heads": 2, "max_position_embeddings": 64}
_GEMMA = {**_GQA, "head_dim": 8, "sliding_window": 8, "query_pre_attn_scalar": 8}


def _rope(kind: str, **parameters: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": kind, **parameters}}


_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64}),
    "gpt_neo": (
        "GPTNeo",
        {
            "vocab_size": 97,
            "hidden_size": 48,
            "num_layers": 2,
            "num_heads": 6,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
            "max_position_embeddings": 64,
        },
    ),
    "gpt_neox": ("GPTNeoX", {**_COMMON, "intermediate_size": 96, "max_position_embeddings": 64}),
    "gpt_neox_sequential": (
        "GPTNeoX",
        {**_COMMON, "intermediate_size": 96, "max_position_embeddings": 64, "use_parallel_residual": False},
    ),
    "llama": ("Llama", _GQA),
    "llama_tied": ("Llama", {**_GQA, "tie_word_embeddings": True}),
    "llama_attention_bias": ("Llama", {**_GQA, "attention_bias": True}),
    "llama_mlp_bias": ("Llama", {**_GQA, "mlp_bias": True}),
    "llama_rope_linear": ("Llama", {**_GQA, **_rope("linear", factor=4.0)}),
    "llama_rope_llama3": ("Llama", {**_GQA, **_rope("llama3", **_LLAMA3)}),
    "llama_rope_yarn": ("Llama", {**_GQA, **_rope("yarn", factor=4.0, original_max_position_embeddings=16)}),
    "llama_rope_dynamic": ("Llama", {**_GQA, **_rope("dynamic", factor=4.0)}),
    "llama_wide_heads": ("Llama", {**_GQA, "head_dim": 16}),
    "mistral": ("Mistral", {**_GQA, "sliding_window": None}),
    "mistral_window": ("Mistral", {**_GQA, "sliding_window": 8}),
    "qwen2": ("Qwen2", _GQA),
    "qwen3": ("Qwen3", {**_GQA, "head_dim": 8}),
    "gemma": ("Gemma", {**_GQA, "head_dim": 8}),
    "gemma2": ("Gemma2", _GEMMA),
    "gemma3": ("Gemma3", {**_GEMMA, "layer_types": ["sliding_attention", "full_attention"]}),
    "olmo2": ("Olmo2", _GQA),
}
"""Family: the prefix of its classes in transformers, and a configuration of two layers and d_model 48."""


def make_tiny(family: str, **overrides: Any) -> Any:
    """A random Hugging Face model in which no weight, gain or bias is at its default, so that none can be dropped."""
    import transformers

    prefix, settings = FAMILIES[family]
    suffix = "TextConfig" if prefix == "Gemma3" else "Config"
    config = getattr(transformers, prefix + suffix)(**{**settings, **overrides})
    head = "LMHeadModel" if prefix == "GPT2" else "ForCausalLM"
    model = getattr(transformers, prefix + head)(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
    return model


def make_tokenizer() -> Any:
    """A tokenizer of 97 tokens, one a printable character, with a BOS that it does not add by itself."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "<unk>": 1, **{chr(32 + i): 2 + i for i in range(95)}}
    characters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    return PreTrainedTokenizerFast(
        tokenizer_object=characters, bos_token="<s>", eos_token="<s>", pad_token="<s>", unk_token="<unk>"
    )


@pytest.fixture
def tiny_folder(tmp_path: Path) -> Callable[..., Path]:
    """`tiny_folder(family, tokenizer=True, **overrides)`: a tiny model saved as a Hugging Face folder."""

    def write(family: str, *, tokenizer: bool = True, **overrides: Any) -> Path:
        folder = tmp_path / f"a_{family}_model"
        make_tiny(family, **overrides).save_pretrained(folder)
        if tokenizer:
            make_tokenizer().save_pretrained(folder)
        return folder

    return write


@pytest.fixture(scope="session")
def smollm2() -> Any:
    """The real SmolLM2-135M-Instruct, loaded once: take care to leave it as it was."""
    pytest.importorskip("gguf")
    from interp.errors import InputError
    from interp.models.gguf import find_smollm2

    try:
        find_smollm2()
    except InputError as absent:
        pytest.skip(str(absent))
    import interp

    return interp.load("smollm2", device="cpu")


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The same weights as a HookedTransformer and as a TransformerBridge; the Llama has grouped queries."""
    import interp
    from interp.models.convert import _make_bridge, prepare, private_copy

    hf = make_tiny(request.param)
    hooked = interp.load(hf, device="cpu")
    assert hooked.provenance.model_class == "HookedTransformer"
    return hooked, _make_bridge(prepare(private_copy(hf)), name="tiny", reason="wanted here")
