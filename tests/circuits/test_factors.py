"""The factors give each family's own attention logits and outputs, norms folded, distance by distance."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import interp
from interp.circuits.factors import LayerFactors, read_factors, rotate_keys
from interp.circuits.norms import measure_norm
from interp.circuits.probe import probe_attention
from interp.errors import InputError
from interp.models.weights import expand_kv
from tests.conftest import FAMILIES, make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks

TOKENS = torch.randint(97, (3, 20), generator=torch.Generator().manual_seed(7))
GPTJ = ("GPTJ", {"vocab_size": 97, "n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 64, "rotary_dim": 4})
EVERY = [
    *("gpt2", "gpt_neo", "gpt_neox", "gptj", "llama", "llama_rope_llama3", "llama_rope_yarn", "llama_wide_heads"),
    *("llama_attention_bias", "mistral_window", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "olmo2"),
]
LAYER_NORM = ("gpt2", "gpt_neo", "gpt_neox", "gptj")


@pytest.fixture(autouse=True)
def _with_gptj(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, "gptj", GPTJ)


def at_unit_scale(residual: Tensor, *, centre: bool, eps: float) -> Tensor:
    """The stream divided by its own scale, as the norm in front of attention divides it."""
    x = residual - residual.mean(-1, keepdim=True) if centre else residual
    return residual / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def logits_from(factors: LayerFactors, x: Tensor, *, scales: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """[batch head query key], one distance at a time. `scales` divide queries and keys, for norms on heads."""
    n_positions, rotary = x.shape[1], factors.rotary
    queries = torch.einsum("bpm,hmd->bhpd", x, factors.W_Q) + factors.b_Q[:, None]
    logits = torch.full((len(x), factors.n_heads, n_positions, n_positions), -torch.inf)
    for distance in range(n_positions):
        weights, bias = factors.W_K, factors.b_K
        if rotary is not None:
            weights = rotate_keys(factors, distance)
            bias = rotary.turn_back(bias, torch.tensor([distance]))
        keys = expand_kv(torch.einsum("bpm,hmd->bhpd", x, weights) + bias[:, None], factors.n_heads, axis=1)
        query = torch.arange(distance, n_positions)
        found = (queries[:, :, query] * keys[:, :, query - distance]).sum(-1) / factors.scale
        if scales is not None:
            found = found / (scales[0][:, :, query] * scales[1][:, :, query - distance])
        logits[:, :, query, query - distance] = found
    return logits if factors.softcap is None else factors.softcap * torch.tanh(logits / factors.softcap)


def head_scales(family: str, model: Any, layer: int, x_read: Tensor) -> tuple[Tensor, Tensor] | None:
    """[batch head pos]: the root mean squares by which norms divide queries and keys: of heads, or of all in OLMo 2."""
    if family not in ("qwen3", "gemma3", "olmo2"):
        return None
    raw = read_factors(model, layer, fold="none")
    scales = []
    for weights in (raw.W_Q, raw.W_K):
        heads = torch.einsum("bpm,hmd->bhpd", x_read, weights)
        axes = (1, 3) if family == "olmo2" else (3,)
        eps = 1e-5 if family == "olmo2" else 1e-6
        scale = (heads.square().mean(axes, keepdim=True) + eps).sqrt()[..., 0]
        scales.append(expand_kv(scale.expand(-1, heads.shape[1], -1), raw.n_heads, axis=1))
    return scales[0], scales[1]


@cache
def run(family: str) -> tuple[Any, Any, Any]:
    hf_model = make_tiny(family)
    model = interp.load(hf_model)
    _, cache = model.run_with_cache(TOKENS)
    return hf_model, model, cache


def stream(family: str, model: Any, cache: Any, layer: int) -> tuple[Tensor, Tensor]:
    """The stream at unit scale, and what attention reads."""
    x = cache[f"blocks.{layer}.hook_resid_pre"]
    if family == "olmo2":
        return x, x
    eps = 1e-5 if family in LAYER_NORM else 1e-6
    return at_unit_scale(x, centre=family in LAYER_NORM, eps=eps), model.blocks[layer].ln1(x)


@pytest.mark.parametrize("family", EVERY)
def test_queries_times_turned_keys_are_the_attention_logits(family: str) -> None:
    hf_model, model, cache = run(family)
    hf_model.set_attn_implementation("eager")
    with torch.no_grad():
        patterns = hf_model(TOKENS, output_attentions=True).attentions
    for layer in range(2):
        x, x_read = stream(family, model, cache, layer)
        logits = logits_from(read_factors(model, layer), x, scales=head_scales(family, model, layer, x_read))
        theirs = cache[f"blocks.{layer}.attn.hook_attn_scores"]
        seen = theirs > -1e30
        torch.testing.assert_close(logits[seen], theirs[seen], atol=1e-5, rtol=0)
        pattern = logits.where(seen, -torch.inf).softmax(-1)
        torch.testing.assert_close(pattern, patterns[layer], atol=2e-6, rtol=0)
        log_pattern = logits.where(seen, -torch.inf).log_softmax(-1)
        torch.testing.assert_close(log_pattern[seen], patterns[layer].log()[seen], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", EVERY)
def test_values_through_the_output_factors_are_what_attention_writes(family: str) -> None:
    _, model, cache = run(family)
    x, _ = stream(family, model, cache, 1)
    factors = read_factors(model, 1)
    values = expand_kv(torch.einsum("bpm,hmd->bphd", x, factors.W_V) + factors.b_V, factors.n_heads, axis=2)
    read = torch.einsum("bhqk,bkhd->bqhd", cache["blocks.1.attn.hook_pattern"], values)
    written = torch.einsum("bqhd,hdm->bqm", read, factors.W_O) + factors.b_O
    theirs = cache["blocks.1.hook_attn_out"]
    if family in LAYER_NORM:  # a later LayerNorm doesn't see the mean, so the factors don't write it
        theirs = theirs - theirs.mean(-1, keepdim=True)
    if family in ("gemma2", "gemma3", "olmo2"):  # a norm after, whose scale depends on the data
        assert any("scale depends on the data" in note for note in factors.notes)
        written, theirs = written / written.norm(dim=-1, keepdim=True), theirs / theirs.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(written, theirs, atol=1e-5, rtol=0)


def test_hand_written_weights_come_back() -> None:
    machine = build_copying_machine(d_vocab=10, n_ctx=12)
    factors = read_factors(machine, 0)
    assert factors.scale == 1
    assert factors.rotary is None
    assert factors.notes == ()
    token, previous = slice(0, 10), slice(22, 32)
    writes = factors.W_V[0] @ factors.W_O[0]  # the previous-token head moves a token into the third part
    expected = torch.zeros(32, 32)
    expected[token, previous] = torch.eye(10)
    assert torch.equal(writes, expected)


def test_both_classes_give_the_same_factors(both: tuple[Any, Any]) -> None:
    hooked, bridge = (read_factors(model, 1) for model in both)
    for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"):
        torch.testing.assert_close(getattr(hooked, name), getattr(bridge, name), atol=1e-6, rtol=0)
    assert hooked.scale == pytest.approx(bridge.scale)
    assert (hooked.rotary is None) == (bridge.rotary is None)


def test_shared_keys_and_values_are_kept_once() -> None:
    model = interp.load(make_tiny("llama"))
    factors = read_factors(model, 0, fold="none")
    assert (factors.n_heads, factors.n_kv_heads, factors.group) == (6, 2, 3)
    assert (factors.d_model, factors.d_head) == (48, 8)
    torch.testing.assert_close(expand_kv(factors.W_K, 6), model.blocks[0].attn.W_K)
    assert repr(factors) == (
        "LayerFactors(layer 0: 6 heads of 8 in 48 dimensions on 2 key-value heads; "
        "rotary positions in 8 of 8 channels, halves)"
    )


def test_selected_heads_have_keys_and_values_of_their_own() -> None:
    factors = read_factors(interp.load(make_tiny("qwen2")), 1)
    chosen = factors.select([4, 1])
    assert (chosen.n_heads, chosen.n_kv_heads) == (2, 2)
    assert torch.equal(chosen.W_Q, factors.W_Q[[4, 1]])
    assert torch.equal(chosen.W_V, factors.W_V[[1, 0]])
    assert torch.equal(rotate_keys(chosen, 5), rotate_keys(factors, 5)[[1, 0]])
    for heads in ([6], []):
        with pytest.raises(InputError, match="were selected, but layer 1 has heads 0 to 5"):
            factors.select(heads)


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox"])
def test_norms_that_were_folded_at_loading_fold_to_the_same_circuits(family: str) -> None:
    hf_model = make_tiny(family)
    raw, folded = (read_factors(interp.load(hf_model, processing=how), 1) for how in ("raw", "fold_norm"))
    torch.testing.assert_close(raw.W_Q @ raw.W_Q.mT, folded.W_Q @ folded.W_Q.mT, atol=1e-5, rtol=0)
    torch.testing.assert_close(
        expand_kv(raw.W_V, 6) @ raw.W_O, expand_kv(folded.W_V, 6) @ folded.W_O, atol=1e-5, rtol=0
    )
    torch.testing.assert_close(raw.b_K, folded.b_K, atol=1e-5, rtol=0)


def test_a_layer_norm_is_centred_and_an_rms_norm_is_not() -> None:
    ones = torch.ones(48)
    centred, not_centred = (read_factors(interp.load(make_tiny(family)), 0) for family in ("gpt2", "llama"))
    torch.testing.assert_close(ones @ centred.W_Q, torch.zeros(6, 8), atol=1e-5, rtol=0)
    torch.testing.assert_close(centred.W_O @ ones, torch.zeros(6, 8), atol=1e-5, rtol=0)
    assert (ones @ not_centred.W_Q).abs().max() > 0.1
    assert centred.notes == ("centred for LayerNorm and its gain folded",)
    assert not_centred.notes == ("RMSNorm gain folded",)


@pytest.mark.parametrize("width", [7, 8])
@pytest.mark.parametrize("kind", [torch.nn.LayerNorm, torch.nn.RMSNorm])
def test_a_norm_is_measured_exactly(kind: Any, width: int) -> None:
    norm = kind(width)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(width, generator=torch.Generator().manual_seed(width)))
    found = measure_norm(norm, torch.zeros(width))
    assert found.centres == (kind is torch.nn.LayerNorm)
    torch.testing.assert_close(found.gain, norm.weight.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.bias, getattr(norm, "bias", torch.zeros(width)).detach(), atol=1e-5, rtol=1e-5)


def test_what_is_no_norm_is_refused() -> None:
    for not_a_norm in (torch.nn.Identity(), torch.nn.GroupNorm(2, 8), torch.nn.Tanh()):
        with pytest.raises(InputError, match="neither a LayerNorm nor an RMSNorm"):
            measure_norm(lambda x, norm=not_a_norm: norm(x[0])[None], torch.zeros(8))


@pytest.mark.parametrize("fold", ["norms", "none"])
def test_the_model_stays_as_it_is(fold: Any) -> None:
    model = interp.load(make_tiny("qwen2"))
    before = copy.deepcopy(model.state_dict())
    factors = read_factors(model, 1, fold=fold)
    for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"):
        getattr(factors, name).zero_()  # nothing is shared with the model
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(not point._forward_hooks for point in model.hook_dict.values())


def test_factors_follow_the_weights_and_ignore_the_callers_hooks() -> None:
    model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
    before = read_factors(model, 0)
    with torch.no_grad():
        model.blocks[0].attn.W_Q.mul_(2)
        model.get_parameter("blocks.0.ln1.w").mul_(3)
    torch.testing.assert_close(read_factors(model, 0).W_Q, 6 * before.W_Q)
    fresh = copy.deepcopy(model)
    del fresh._attention_probes
    with interp.add_hooks(fresh, [("blocks.0.attn.hook_q", lambda q, hook: q * 0)]):
        torch.testing.assert_close(read_factors(fresh, 0).W_Q, 6 * before.W_Q)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_folded_in_float32(dtype: str) -> None:
    hf_model = make_tiny("llama")
    whole, half = read_factors(interp.load(hf_model), 0), read_factors(interp.load(hf_model, dtype=dtype), 0)
    assert half.W_Q.dtype == torch.float32
    torch.testing.assert_close(half.W_Q, whole.W_Q, atol=0.02, rtol=0.02)
    assert half.rotary is not None
    assert whole.rotary is not None
    torch.testing.assert_close(half.rotary.frequencies, whole.rotary.frequencies, atol=2e-4, rtol=0)
    assert read_factors(interp.load(hf_model), 0, dtype=torch.float64).W_O.dtype == torch.float64


def test_position_biases_are_no_part_of_the_factors() -> None:
    model = interp.build(
        n_layers=1, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True, positional_embedding_type="alibi"
    )
    assert read_factors(model, 0).rotary is None


def test_an_attention_of_another_form_is_refused() -> None:
    def broken(name: str, change: Any) -> Any:
        model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
        attention = model.blocks[0].attn
        original = getattr(attention, name)
        setattr(attention, name, lambda *inputs, **named: change(original(*inputs, **named)))
        return model

    cases = [
        (
            broken("calculate_attention_scores", lambda scores: scores + scores**2),
            "its logits aren't queries times keys",
        ),
        (broken("forward", lambda out: out**2), "its output isn't its heads' outputs times W_O"),
    ]
    for model, why in cases:
        with pytest.raises(InputError, match="The attention of layer 0 of this HookedTransformer") as refused:
            read_factors(model, 0)
        assert why in str(refused.value)
    squashed = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
    squashed.blocks[0].ln1 = torch.nn.Tanh()
    assert read_factors(squashed, 0, fold="none").n_heads == 2
    with pytest.raises(InputError, match="neither a LayerNorm nor an RMSNorm"):
        read_factors(squashed, 0)


def test_bad_input_is_refused_in_one_sentence() -> None:
    model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
    with pytest.raises(InputError, match="Layer 2 doesn't exist: this model has layers 0 to 1"):
        read_factors(model, 2)
    with as_without_type_checks(), pytest.raises(InputError, match="fold='all' isn't known; use one of norms, none"):
        read_factors(model, 0, fold="all")  # type: ignore[arg-type]
    model.cfg.attention_dir = "bidirectional"
    with pytest.raises(InputError, match="This model is an encoder"):
        read_factors(model, 0)
    factors = read_factors(interp.build(n_layers=1, d_model=16, n_heads=4, d_vocab=9, n_ctx=8, attn_only=True), 0)
    with pytest.raises(InputError, match="Layer 0 was given 4 query heads and 3 key-value heads"):
        replace(factors, W_K=factors.W_K[:3], W_V=factors.W_V[:3], b_K=factors.b_K[:3], b_V=factors.b_V[:3])


def test_a_layer_is_probed_once() -> None:
    model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=9, n_ctx=8, attn_only=True)
    assert probe_attention(model, 0) is probe_attention(model, 0)
