"""How a layer's attention computes with its weights, which the weights alone don't tell: seen on a probe, once a layer.

A few random tokens are run, and the layer's own residual stream x, queries, keys, values, logits and output are kept.
Where the norms stand, how positions turn, the scale and the cap are then what gives these back:

    q = norm(x) W_Q + b_Q      logits = cap(turn(norm(q), i) . turn(norm(k), j) / scale) + [what depends on i and j alone]

An attention that this doesn't give back is refused, so factors are never those of a model that computes otherwise. Terms
of i and j alone, as in ALiBi, are no part of any factor; two sequences at the same positions tell them apart.

>>> import interp
>>> model = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> probe_attention(model, 0)
Attention(scale=2.0, softcap=None, rotary=None, norm_before='ln1', norm_after=None, head_norms=())
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.circuits.rotary import Rotary, read_tables
from interp.errors import InputError
from interp.interventions.hooks import add_hooks, lift_hooks
from interp.models.forward import run_until
from interp.models.post_norm import PostNormTransformer
from interp.models.weights import expand_kv
from tasks.seeding import derive_generator

Weights = dict[str, Tensor]
HeadNorm = Literal["q_norm", "k_norm"]

_OPTIONAL = ("attn.hook_cos", "attn.hook_sin")
_KEPT = (
    *("hook_resid_pre", "attn.hook_q", "attn.hook_k", "attn.hook_v", "attn.hook_attn_scores", "attn.hook_z"),
    *("hook_attn_out", *_OPTIONAL),
)
_N_TOKENS = 16
_MASKED = -1e30
"""Scores below this are masked: one class writes -inf, the other adds the lowest number of the dtype."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Attention:
    """How one layer computes with its weights."""

    scale: float
    """Logits are q . k / scale."""
    softcap: float | None
    """Logits are softcap * tanh(logits / softcap); None where they aren't capped."""
    rotary: Rotary | None
    """How queries and keys turn with their position; None where they don't."""
    norm_before: str | None
    """The block's norm whose output the attention reads; None where it reads the residual stream itself."""
    norm_after: str | None
    """The block's norm that the output passes on its way to the residual stream; None where there is none."""
    head_norms: tuple[HeadNorm, ...]
    """The norms that queries and keys pass before they turn."""


def stored_weights(model: Any, layer: int) -> Weights:
    """W_Q [head d_model d_head], W_K and W_V [kv_head d_model d_head], W_O [head d_head d_model], their biases.

    In float32 at least. Raises `InputError` for a layer that doesn't exist, an encoder, a post-norm model, and weights that
    can't be read.
    """
    if not 0 <= layer < model.cfg.n_layers:
        raise InputError(f"Layer {layer} doesn't exist: this model has layers 0 to {model.cfg.n_layers - 1}.")
    if getattr(model.cfg, "attention_dir", "causal") == "bidirectional":
        raise InputError("This model is an encoder, whose tokens read later ones; give a decoder-only language model.")
    if isinstance(model, PostNormTransformer):
        raise InputError(
            "The weights of a PostNormTransformer can't be put into factors: what a layer writes passes norms behind every sum, "
            "whose scale depends on the data, before another layer or the unembedding reads it; measure its attention "
            "patterns or patch its activations instead."
        )
    unreadable = _refusal(model, layer, "its W_Q, W_K, W_V and W_O can't be read")
    try:
        attention = model.blocks[layer].attn
        weights: Weights = {}
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V", "b_O"):
            # A HookedTransformer repeats shared keys and values, and stores them under another name.
            stored = getattr(attention, f"_{name}" if hasattr(attention, f"_{name}") else name)
            if stored is not None:  # a bridge has None for a bias that isn't there
                weights[name] = stored.detach().to(torch.promote_types(stored.dtype, torch.float32))
    except (AttributeError, KeyError, RuntimeError, ValueError, TypeError, NotImplementedError) as absent:
        raise unreadable from absent
    if any(name not in weights or weights[name].dim() != 3 for name in ("W_Q", "W_K", "W_V", "W_O")):
        raise unreadable
    for letter in ("Q", "K", "V"):
        weights.setdefault(f"b_{letter}", torch.zeros_like(weights[f"W_{letter}"][:, 0]))
    weights.setdefault("b_O", torch.zeros_like(weights["W_O"][0, 0]))
    return weights


def probe_attention(model: Any, layer: int) -> Attention:
    """How this layer computes with its weights; probed when it is first asked for, then kept with the model.

    Raises `InputError` where the layer's queries, keys, values, logits or output aren't what its weights give.
    """
    known = getattr(model, "_attention_probes", None)
    if known is None:
        known = model._attention_probes = {}
    if layer not in known:
        known[layer] = _probe(model, layer, stored_weights(model, layer))
    return known[layer]


def apply_head_norm(
    model: Any, layer: int, name: HeadNorm, x: Float[Tensor, "batch pos some_head d_head"]
) -> Float[Tensor, "batch pos some_head d_head"]:
    """Queries or keys behind the norm that they pass: over each head, or over all heads together as in OLMo 2."""
    norm = getattr(model.blocks[layer].attn, name)
    width = norm.w.numel()
    if norm.w.dim() != 1 or width not in (x.shape[3], x.shape[2] * x.shape[3]):
        raise _refusal(model, layer, f"its {name} has weights of shape {list(norm.w.shape)}")
    return norm(x.reshape(len(x), -1, width)).view(x.shape)


@torch.no_grad()
def _probe(model: Any, layer: int, weights: Weights) -> Attention:
    block = model.blocks[layer]
    attention = block.attn
    with lift_hooks(model):
        seen = _watch(model, layer)
        x, out = seen["hook_resid_pre"], seen["hook_attn_out"]
        read: dict[str | None, Tensor] = {"ln1": block.ln1(x)} if hasattr(block, "ln1") else {}
        read[None] = x
        before = [name for name, stream in read.items() if _gives_queries(stream, weights, seen)]
        if not before:
            raise _refusal(model, layer, "its queries, keys and values aren't the stream times W_Q, W_K and W_V")
        heads_wrote = torch.einsum("bphd,hdm->bpm", seen["attn.hook_z"].float(), weights["W_O"].float())
        heads_wrote = (heads_wrote + weights["b_O"].float()).to(x.dtype)
        written: dict[str | None, Tensor] = {None: heads_wrote}
        for name in ("ln1_post", "ln1"):
            if hasattr(block, name) and name != before[0]:
                written[name] = getattr(block, name)(heads_wrote)
        after = [name for name, stream in written.items() if _same(stream, out)]
        if not after:
            raise _refusal(model, layer, "its output isn't its heads' outputs times W_O")
        head_norms: tuple[HeadNorm, ...] = tuple(
            name for name in ("q_norm", "k_norm") if getattr(attention, name, None) is not None
        )
        found = Attention(
            scale=_read_scale(attention, d_head=weights["W_Q"].shape[-1]),
            softcap=_read_softcap(model, attention),
            rotary=_read_rotary(model, attention, seen),
            norm_before=before[0],
            norm_after=after[0],
            head_norms=head_norms,
        )
        normed = {"q_norm": seen["attn.hook_q"], "k_norm": seen["attn.hook_k"]}
        for name in head_norms:
            normed[name] = apply_head_norm(model, layer, name, normed[name])
        if not _gives_logits(found, normed["q_norm"], normed["k_norm"], seen["attn.hook_attn_scores"]):
            raise _refusal(model, layer, "its logits aren't queries times keys at their positions over a scale")
    return found


def _watch(model: Any, layer: int) -> dict[str, Tensor]:
    """The layer's activations on two random sequences; of a HookedTransformer no other layer is run."""
    seen: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        def store(activation: Tensor, hook: HookPoint) -> None:
            seen[name] = activation.clone()

        return store

    names = [name for name in _KEPT if f"blocks.{layer}.{name}" in model.hook_dict]
    shape, like = (2, min(_N_TOKENS, model.cfg.n_ctx)), next(model.parameters()).detach()
    generator = derive_generator(0, "attention probe")
    with add_hooks(model, [(f"blocks.{layer}.{name}", keep(name)) for name in names]):
        if isinstance(model, HookedTransformer):
            stream = torch.randn(*shape, model.cfg.d_model, generator=generator)
            stream *= torch.linspace(0.5, 4, shape[1])[:, None]  # of any length, so that no norm looks like a norm
            model(stream.to(like), start_at_layer=layer, stop_at_layer=layer + 1)
        else:
            tokens = torch.randint(model.cfg.d_vocab, shape, generator=generator).to(like.device)
            run_until(model, tokens, f"blocks.{layer}.hook_attn_out")
    missing = [name for name in _KEPT if name not in seen and name not in _OPTIONAL]
    if missing:
        raise _refusal(model, layer, f"it has no {', '.join(missing)}")
    return seen


def _gives_queries(stream: Tensor, weights: Weights, seen: dict[str, Tensor]) -> bool:
    def project(letter: str) -> Tensor:
        projected = torch.einsum("bpm,hmd->bphd", stream.float(), weights[f"W_{letter}"].float())
        return projected + weights[f"b_{letter}"].float()

    return all(_same(project(letter), seen[f"attn.hook_{letter.lower()}"]) for letter in ("Q", "K", "V"))


def _gives_logits(
    found: Attention,
    query: Float[Tensor, "batch pos head d_head"],
    key: Float[Tensor, "batch pos kv_head d_head"],
    logits: Float[Tensor, "batch head pos pos"],
) -> bool:
    query, key = query.double().cpu(), key.double().cpu()
    if found.rotary is not None:
        position = torch.arange(query.shape[1])[:, None]  # the same for every head
        query, key = found.rotary.turn(query, position), found.rotary.turn(key, position)
    ours = torch.einsum("bqhd,bkhd->bhqk", query, expand_kv(key, query.shape[2], axis=2)) / found.scale
    if found.softcap is not None:
        ours = found.softcap * torch.tanh(ours / found.softcap)
    theirs = logits.double().cpu()
    shown = (theirs > _MASKED).all(0)
    return _same((ours[0] - ours[1])[shown], (theirs[0] - theirs[1])[shown], dtype=logits.dtype)


def _same(ours: Tensor, theirs: Tensor, *, dtype: torch.dtype | None = None) -> bool:
    """Equal up to rounding in the precision that the model computes in; other formulas are off by their whole size."""
    if ours.shape != theirs.shape:
        return False
    margin = max(1e-3, 16 * torch.finfo(dtype or theirs.dtype).eps)
    return bool((ours.double().cpu() - theirs.double().cpu()).abs().max() <= margin * theirs.double().cpu().abs().max())


def _read_scale(attention: Any, *, d_head: int) -> float:
    if hasattr(attention, "attn_scale"):
        return float(attention.attn_scale)
    multiplier = getattr(getattr(attention, "original_component", None), "scaling", None)
    return d_head**0.5 if multiplier is None else 1 / float(multiplier)


def _read_softcap(model: Any, attention: Any) -> float | None:
    cap = getattr(getattr(attention, "original_component", None), "attn_logit_softcapping", None)
    cap = getattr(model.cfg, "attn_scores_soft_cap", None) if cap is None else cap
    return float(cap) if cap is not None and cap > 0 else None


def _read_rotary(model: Any, attention: Any, seen: dict[str, Tensor]) -> Rotary | None:
    """From the tables that the layer multiplies by: its buffers, or what a bridge hands to it."""
    if isinstance(getattr(attention, "rotary_cos", None), Tensor):
        cos, sin = attention.rotary_cos, attention.rotary_sin
    elif "attn.hook_cos" in seen:
        cos, sin = seen["attn.hook_cos"][0], seen["attn.hook_sin"][0]
    else:
        return None
    adjacent = getattr(model.cfg, "rotary_adjacent_pairs", False)
    return read_tables(cos, sin, pairing="adjacent" if adjacent else "halves")


def _refusal(model: Any, layer: int, why: str) -> InputError:
    return InputError(
        f"The attention of layer {layer} of this {type(model).__name__} of "
        f"{getattr(model.cfg, 'model_name', None) or 'a model'} can't be put into factors, since {why}; "
        "measure its attention patterns instead, or give a model of another family."
    )
