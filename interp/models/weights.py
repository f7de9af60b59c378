"""Weights by their role, of a HookedTransformer and a TransformerBridge alike, always one per query head.

A head of layer l reads values through `value_weights` (W_V: d_model -> d_head) and writes through `output_weights`
(W_O: d_head -> d_model). With grouped-query attention, n_heads query heads share n_kv key-value heads, and query head h
uses key-value head h // (n_heads // n_kv) (Ainslie et al. 2023, arXiv:2305.13245).

>>> expand_kv(torch.tensor([10, 20]), 6)
tensor([10, 10, 10, 20, 20, 20])
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.models.post_norm import PostNormTransformer

_LARGE = 1e3


def n_key_value_heads(model: Any) -> int:
    """How many heads have keys and values of their own."""
    return getattr(model.cfg, "n_key_value_heads", None) or model.cfg.n_heads


def expand_kv(tensor: Tensor, n_heads: int, *, axis: int = 0) -> Tensor:
    """Repeat the key-value heads along `axis` so that entry h is the one that query head h uses."""
    n_kv = tensor.shape[axis]
    if n_heads % n_kv:
        raise InputError(
            f"axis {axis} has {n_kv} key-value heads, which do not divide {n_heads} query heads: name the head axis"
        )
    return tensor.repeat_interleave(n_heads // n_kv, dim=axis)


def value_weights(model: Any, layer: int) -> Float[Tensor, "head d_model d_head"]:
    """W_V of every query head of a layer."""
    return expand_kv(model.blocks[layer].attn.W_V, model.cfg.n_heads)


def output_weights(model: Any, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of every head of a layer."""
    return model.blocks[layer].attn.W_O


def unembedding(model: Any) -> Float[Tensor, "d_model d_vocab"]:
    """W_U, which maps the normed residual stream to logits."""
    return model.W_U


@torch.no_grad()
def final_norm_gain(model: Any) -> Float[Tensor, "d_model"]:
    """The gain of the last norm: ones where it was folded or there is none, 1 + gamma where a family stores gamma.

    Measured rather than read, since families store it differently: a norm maps x = ±c, which has mean 0 and no other
    scale, to gain * sign(x) + bias, so half the difference between the images of x and -x is gain * sign(x).
    """
    d_model, like = model.cfg.d_model, unembedding(model)
    norm = getattr(model, "ln_final", None)
    if norm is None or isinstance(norm, torch.nn.Identity):
        return torch.ones(d_model, dtype=like.dtype, device=like.device)
    return _norm_gain(norm, torch.ones(d_model, dtype=like.dtype, device=like.device))


@torch.no_grad()
def gain_to_logits(model: Any, layer: int) -> Float[Tensor, "d_model"]:
    """What each channel that this layer's heads write is multiplied by on its direct way to the unembedding.

    The final norm's gain; in a PostNormTransformer, which has none, the product of the gains of all norms behind the sums
    from the layer's own on. Both leave out what depends on the data: each norm also divides by a scale.
    """
    gain = final_norm_gain(model)
    if isinstance(model, PostNormTransformer):
        for block in list(model.blocks)[layer:]:
            for norm in [block.ln1] if model.cfg.attn_only else [block.ln1, block.ln2]:
                gain = gain * _norm_gain(norm, torch.ones_like(gain))
    return gain


def _norm_gain(norm: Any, sign: Float[Tensor, "d_model"]) -> Float[Tensor, "d_model"]:
    sign[1::2] = -1
    x = (_LARGE * sign)[None, None]  # large, so that the norm's epsilon does not count
    return ((norm(x) - norm(-x)) / 2)[0, 0] * sign
