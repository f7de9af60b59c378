"""The forward pass that training uses: HookedTransformer's own mathematics without its hook points.

A pass through HookedTransformer normalises the same residual stream three times, builds rotations and masks out of many
small operations and looks at every attention pattern; for a small model that is half the time of an update. The
pass here computes the same logits from the same parameters with PyTorch's fused kernels. It is used only for
configurations it knows, on a model without hooks, and after its logits agreed with the model's on a batch; any other
model is trained through its own forward pass.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, act_fn="gelu", device="cpu")
>>> tokens = torch.tensor([[1, 2, 3, 4]])
>>> torch.allclose(choose_forward(model, tokens)(tokens), model(tokens), atol=1e-5)
True
"""

import logging
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.models.suffix import normalise

logger = logging.getLogger(__name__)

Forward = Callable[[Tensor], Tensor]

_UNDERSTOOD = (
    {"d_model", "d_head", "n_layers", "n_ctx", "n_heads", "d_mlp", "d_vocab", "d_vocab_out", "n_params", "dtype"}
    | {"act_fn", "gated_mlp", "attn_only", "normalization_type", "final_rms", "eps", "use_attn_scale", "attn_scale"}
    | {"positional_embedding_type", "rotary_dim", "rotary_base", "rotary_adjacent_pairs"}
    | {"device", "model_name", "init_mode", "init_weights", "initializer_range", "seed"}
    | {"tokenizer_name", "tokenizer_prepends_bos", "default_prepend_bos"}
)
"""Fields of the configuration that `_compute_logits` follows, or need not."""


def choose_forward(model: HookedTransformer, tokens: Int[Tensor, "batch pos"]) -> Forward:
    """The fast pass where it gives the model's logits on `tokens`, else the model itself."""
    if not _is_plain(model):
        return model
    with torch.no_grad():
        expected, found = model(tokens), _compute_logits(model, tokens)
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4):
        logger.info("The fast forward pass does not give this model's logits; training uses the model's own.")
        return model
    return lambda batch: _compute_logits(model, batch)


def _is_plain(model: HookedTransformer) -> bool:
    cfg = model.cfg
    usual = all(getattr(cfg, field.name) == field.default for field in fields(cfg) if field.name not in _UNDERSTOOD)
    positions = cfg.positional_embedding_type == "standard" or (
        cfg.positional_embedding_type == "rotary" and cfg.rotary_dim == cfg.d_head
    )
    hooked = any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks for module in model.modules()
    )
    return usual and positions and cfg.dtype in (torch.float32, torch.float64) and not hooked


def _compute_logits(model: HookedTransformer, tokens: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
    residual = F.embedding(tokens, model.embed.W_E)
    if model.cfg.positional_embedding_type == "standard":
        residual = residual + model.pos_embed.W_pos[: tokens.shape[1]]
    block: Any
    for block in model.blocks:
        residual = residual + _attend(block.attn, normalise(block.ln1, residual))
        if not model.cfg.attn_only:
            residual = residual + block.mlp(normalise(block.ln2, residual))
    if model.cfg.normalization_type is not None:
        residual = normalise(model.ln_final, residual)
    return F.linear(residual, model.unembed.W_U.T, model.unembed.b_U)


def _attend(attention: Any, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
    q, k, v = (
        F.linear(x, weight.transpose(1, 2).flatten(0, 1), bias.flatten()).unflatten(-1, bias.shape).transpose(1, 2)
        for weight, bias in (
            (attention.W_Q, attention.b_Q),
            (attention.W_K, attention.b_K),
            (attention.W_V, attention.b_V),
        )
    )  # each [batch, head_index, pos, d_head]
    if attention.cfg.positional_embedding_type == "rotary":
        q, k = _rotate(attention, q), _rotate(attention, k)
    z = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1 / float(attention.attn_scale))
    return F.linear(z.transpose(1, 2).flatten(2), attention.W_O.flatten(0, 1).T, attention.b_O)


def _rotate(attention: Any, x: Float[Tensor, "batch head_index pos d_head"]) -> Float[Tensor, "..."]:
    cos, sin = attention.rotary_cos[: x.shape[2]], attention.rotary_sin[: x.shape[2]]  # [pos, d_head]
    if attention.cfg.rotary_adjacent_pairs:
        turn = torch.complex(cos[:, ::2], sin[:, ::2])
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
    half = x.shape[-1] // 2
    one, other, cos, sin = x[..., :half], x[..., half:], cos[:, :half], sin[:, :half]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
