"""The circuits of a layer in factored form: W_QK and W_OV of each head as d_model x d_head factors, never multiplied out.

    W_QK[h] = W_Q[h] W_K[g]^T    which query direction looks for which key direction       [d_model d_model], query first
    W_OV[h] = W_V[g] W_O[h]      what is written where a direction is read                 [d_model d_model], read first

with g = h // group the key-value head of query head h, and row vectors as in TransformerLens; the W_OV of papers that use
columns is the transpose. Elhage et al. 2021, https://transformer-circuits.pub/2021/framework/index.html.

With `fold="norms"` the factors act on the residual stream itself. For x, y the stream at a query and a key, each divided
by its own scale (root mean square, of the centred stream for a LayerNorm),

    logit = (x W_Q[h] + b_Q[h]) . turn_back(y W_K[g] + b_K[g], distance) / scale,    then capped where the model does so.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=4, d_vocab=20, n_ctx=32, attn_only=True)
>>> factors = read_factors(model, 1)
>>> factors
LayerFactors(layer 1: 4 heads of 4 in 16 dimensions; no rotary positions; centred for LayerNorm and its gain folded)
>>> factors.W_Q.shape, factors.group
(torch.Size([4, 16, 4]), 1)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.norms import Norm, measure_norm
from interp.circuits.probe import Attention, HeadNorm, Weights, probe_attention, stored_weights
from interp.circuits.rotary import Rotary
from interp.errors import InputError
from interp.interventions.hooks import lift_hooks

Fold = Literal["norms", "none"]
Distance = int | Literal["none", "mean"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LayerFactors:
    """One layer's heads: what each reads and writes of the residual stream."""

    layer: int
    """The layer, from 0."""
    W_Q: Float[Tensor, "head d_model d_head"]
    """Reads queries."""
    W_K: Float[Tensor, "kv_head d_model d_head"]
    """Reads keys, once for each key-value head, before they turn."""
    W_V: Float[Tensor, "kv_head d_model d_head"]
    """Reads values, once for each key-value head."""
    W_O: Float[Tensor, "head d_head d_model"]
    """Writes into the residual stream."""
    b_Q: Float[Tensor, "head d_head"]
    """The constant part of queries; with folded norms it has the norm's bias in it."""
    b_K: Float[Tensor, "kv_head d_head"]
    """The constant part of keys."""
    b_V: Float[Tensor, "kv_head d_head"]
    """The constant part of values."""
    b_O: Float[Tensor, "d_model"]
    """What the layer's attention writes in any case."""
    scale: float
    """Logits are q . k / scale."""
    rotary: Rotary | None
    """How queries and keys turn with their position; None for a layer without rotary positions."""
    softcap: float | None = None
    """Logits are softcap * tanh(logits / softcap); None where they aren't capped."""
    notes: tuple[str, ...] = ()
    """What was folded, and what no factor can hold since it depends on the data."""

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise InputError(
                f"Layer {self.layer} was given {self.n_heads} query heads and {self.n_kv_heads} key-value heads; "
                "each key-value head serves the same number of query heads."
            )

    @property
    def n_heads(self) -> int:
        return self.W_Q.shape[0]

    @property
    def n_kv_heads(self) -> int:
        return self.W_K.shape[0]

    @property
    def group(self) -> int:
        """Query heads that share a key-value head: query head h uses key-value head h // group."""
        return self.n_heads // self.n_kv_heads

    @property
    def d_model(self) -> int:
        return self.W_Q.shape[1]

    @property
    def d_head(self) -> int:
        return self.W_Q.shape[2]

    def select(self, heads: Sequence[int]) -> "LayerFactors":
        """These query heads alone, in this order, each with keys and values of its own."""
        wrong = [head for head in heads if not 0 <= head < self.n_heads]
        if wrong or not len(heads):
            raise InputError(
                f"Heads {list(heads)} were selected, but layer {self.layer} has heads 0 to {self.n_heads - 1}."
            )
        shared = [head // self.group for head in heads]
        own = {name: getattr(self, name)[list(heads)] for name in ("W_Q", "W_O", "b_Q")}
        return replace(self, **own, **{name: getattr(self, name)[shared] for name in ("W_K", "W_V", "b_K", "b_V")})

    def __repr__(self) -> str:
        shared = f" on {self.n_kv_heads} key-value heads" if self.group > 1 else ""
        turning = "no rotary positions"
        if self.rotary is not None:
            turning = f"rotary positions in {self.rotary.width} of {self.d_head} channels, {self.rotary.pairing}"
        return (
            f"LayerFactors(layer {self.layer}: {self.n_heads} heads of {self.d_head} in {self.d_model} dimensions{shared}; "
            f"{'; '.join((turning, *self.notes))})"
        )


@torch.no_grad()
def read_factors(model: Any, layer: int, *, fold: Fold = "norms", dtype: torch.dtype = torch.float32) -> LayerFactors:
    """The factors of a layer of a HookedTransformer or TransformerBridge, which stays as it is.

    `fold="norms"`: factors read and write the residual stream (module docstring). The norm before goes into W_Q, W_K, W_V
    and their biases; what is written is centred where the norms centre, since no later layer sees its mean; a norm after
    goes into W_O; norms of queries and keys go into W_Q and W_K. `fold="none"`: the stored weights, which read the
    norm's output. Weights are folded in float32 at least and returned as `dtype`.

    The layer is probed on the first call (`interp.circuits.probe`): what these factors say is what the model computes.
    Raises `InputError` for a layer that doesn't exist, an encoder, and an attention that isn't of this form.
    """
    if fold not in get_args(Fold):
        raise InputError(f"fold={fold!r} isn't known; use one of {', '.join(get_args(Fold))}.")
    attention = probe_attention(model, layer)
    weights, notes = stored_weights(model, layer), []
    if fold == "norms":
        with lift_hooks(model):
            notes = _fold_norms(model, layer, attention, weights)
    return LayerFactors(
        layer=layer,
        scale=attention.scale,
        softcap=attention.softcap,
        rotary=attention.rotary,
        notes=tuple(notes),
        **{name: tensor.to(dtype, copy=True) for name, tensor in weights.items()},
    )


def rotate_keys(
    factors: LayerFactors, distance: Distance, *, max_distance: int = 256
) -> Float[Tensor, "kv_head d_model d_head"]:
    """W_K at a distance: W_QK[h] at query position - key position = `distance` is W_Q[h] @ this[h // group].T.

    `"none"` is W_K itself, `"mean"` the average over the distances 1 to `max_distance`, in which fast channels fade and
    slow ones stay. Raises `InputError` for a distance below 0, and for any distance where positions don't turn keys.
    """
    if distance == "none":
        return factors.W_K
    if factors.rotary is None:
        raise InputError(
            f"distance={distance!r} was asked for, but layer {factors.layer} has no rotary positions, so its W_QK is the same "
            "at every distance; give distance='none'."
        )
    if distance == "mean":
        if max_distance < 1:
            raise InputError(f"max_distance={max_distance} was given; a mean needs at least the distance 1.")
        return factors.rotary.turn_back(factors.W_K, torch.arange(1, max_distance + 1))
    if not isinstance(distance, int) or distance < 0:
        raise InputError(f"distance={distance!r} isn't one: give 'none', 'mean' or a number of tokens from 0.")
    return factors.rotary.turn_back(factors.W_K, torch.tensor([distance]))


def _fold_norms(model: Any, layer: int, attention: Attention, weights: Weights) -> list[str]:
    """Fold every norm into `weights`, and say so."""
    block, notes = model.blocks[layer], []
    like = next(model.parameters()).detach().new_zeros(model.cfg.d_model)
    if attention.norm_before is not None and not isinstance(getattr(block, attention.norm_before), torch.nn.Identity):
        norm = measure_norm(getattr(block, attention.norm_before), like)
        for letter in ("Q", "K", "V"):
            weights[f"b_{letter}"] = weights[f"b_{letter}"] + norm.bias.to(weights["W_Q"]) @ weights[f"W_{letter}"]
            weights[f"W_{letter}"] = norm.fold_reader(weights[f"W_{letter}"])
        if norm.centres:
            unseen = Norm(gain=torch.ones_like(norm.gain), bias=torch.zeros_like(norm.bias), centres=True)
            weights["W_O"], weights["b_O"] = unseen.fold_writer(weights["W_O"]), unseen.fold_writer(weights["b_O"])
        notes.append(f"{'centred for LayerNorm and its' if norm.centres else 'RMSNorm'} gain folded")
    if attention.norm_after is not None:
        norm = measure_norm(getattr(block, attention.norm_after), like)
        weights["W_O"] = norm.fold_writer(weights["W_O"])
        weights["b_O"] = norm.fold_writer(weights["b_O"]) + norm.bias.to(weights["b_O"])
        notes.append("what is written passes a norm, whose gain is folded and whose scale depends on the data")
    for name in attention.head_norms:
        _fold_head_norm(model, layer, name, weights)
    if attention.head_norms:
        notes.append("queries and keys pass a norm, whose gain is folded and whose scale depends on the data")
    return notes


def _fold_head_norm(model: Any, layer: int, name: HeadNorm, weights: Weights) -> None:
    """The gain of a norm over heads' channels into W_Q or W_K and its bias, in head space."""
    letter = name[0].upper()
    module = getattr(model.blocks[layer].attn, name)
    norm = measure_norm(module, next(model.parameters()).detach().new_zeros(module.w.numel()))
    if norm.centres or norm.bias.any():
        raise InputError(
            f"The {name} of layer {layer} centres or shifts, which can't be folded; give fold='none' and apply it yourself."
        )
    gain = norm.gain.view(-1, weights[f"W_{letter}"].shape[2])  # [head d_head], or one row that all heads share
    weights[f"W_{letter}"] = weights[f"W_{letter}"] * gain[:, None].to(weights[f"W_{letter}"])
    weights[f"b_{letter}"] = weights[f"b_{letter}"] * gain.to(weights[f"b_{letter}"])
