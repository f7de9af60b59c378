"""The forward pass that training uses: HookedTransformer's own mathematics without its hook points.

A pass through HookedTransformer normalises the same residual stream three times, builds rotations and masks out of many
small operations and looks at every attention pattern; for a small model that is half the time of an update. The
pass here computes the same logits from the same parameters with PyTorch's fused kernels. It is used only for
configurations it knows, on a model without hooks, and after its logits agreed with the model's on a batch; any other
model is trained through its own forward pass. With `last_only` the last layer is computed for the last position alone:
its keys and values are of all positions, its query, MLP and logits of one.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, act_fn="gelu", device="cpu")
>>> tokens = torch.tensor([[1, 2, 3, 4]])
>>> forward = choose_forward(model, tokens)
>>> torch.allclose(forward(tokens), model(tokens), atol=1e-5)
True
>>> torch.allclose(forward(tokens, last_only=True), model(tokens)[:, -1:], atol=1e-5)
True
"""

import logging
from dataclasses import fields
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.models.suffix import normalise

logger = logging.getLogger(__name__)


@runtime_checkable
class Forward(Protocol):
    """Logits of all positions, or of the last one alone."""

    def __call__(
        self, tokens: Int[Tensor, "batch pos"], *, last_only: bool = False
    ) -> Float[Tensor, "batch out d_vocab"]:
        """`out` is `pos`, or 1 with `last_only`."""


_UNDERSTOOD = (
    {"d_model", "d_head", "n_layers", "n_ctx", "n_heads", "d_mlp", "d_vocab", "d_vocab_out", "n_params", "dtype"}
    | {"act_fn", "gated_mlp", "attn_only", "normalization_type", "final_rms", "eps", "use_attn_scale", "attn_scale"}
    | {"positional_embedding_type", "rotary_dim", "rotary_base", "rotary_adjacent_pairs"}
    | {"device", "model_name", "init_mode", "init_weights", "initializer_range", "seed"}
    | {"tokenizer_name", "tokenizer_prepends_bos", "default_prepend_bos"}
)
"""Fields of the configuration that `run_fast` follows, or need not."""


def choose_forward(model: HookedTransformer, tokens: Int[Tensor, "batch pos"]) -> Forward:
    """The fast pass where it gives the model's logits on `tokens`, else the model's own."""
    if not is_plain(model):
        return partial(run_model, model)
    with torch.no_grad():
        expected = model(tokens)
        agrees = all(
            torch.allclose(run_fast(model, tokens, last_only=last_only), wanted, rtol=1e-4, atol=1e-4)
            for last_only, wanted in ((False, expected), (True, expected[:, -1:]))
        )
    if not agrees:
        logger.info("The fast forward pass does not give this model's logits; training uses the model's own.")
        return partial(run_model, model)
    return partial(run_fast, model)


def run_model(
    model: HookedTransformer, tokens: Int[Tensor, "batch pos"], *, last_only: bool = False
) -> Float[Tensor, "batch out d_vocab"]:
    """The model's own pass."""
    logits = model(tokens)
    return logits[:, -1:] if last_only else logits


def is_plain(model: HookedTransformer) -> bool:
    """Whether the fast pass knows this configuration and nothing is hooked."""
    cfg = model.cfg
    usual = all(getattr(cfg, field.name) == field.default for field in fields(cfg) if field.name not in _UNDERSTOOD)
    positions = cfg.positional_embedding_type == "standard" or (
        cfg.positional_embedding_type == "rotary" and cfg.rotary_dim == cfg.d_head
    )
    hooked = any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks for module in model.modules()
    )
    return usual and positions and cfg.dtype in (torch.float32, torch.float64) and not hooked


def run_fast(
    model: HookedTransformer, tokens: Int[Tensor, "batch pos"], *, last_only: bool = False
) -> Float[Tensor, "batch out d_vocab"]:
    """The same logits by fused kernels."""
    residual = F.embedding(tokens, model.embed.W_E)
    if model.cfg.positional_embedding_type == "standard":
        residual = residual + model.pos_embed.W_pos[: tokens.shape[1]]
    block: Any
    for layer, block in enumerate(model.blocks):
        last = last_only and layer == model.cfg.n_layers - 1
        attended = _attend(block.attn, normalise(block.ln1, residual), last_only=last)
        residual = (residual[:, -1:] if last else residual) + attended
        if not model.cfg.attn_only:
            residual = residual + block.mlp(normalise(block.ln2, residual))
    if model.cfg.normalization_type is not None:
        residual = normalise(model.ln_final, residual)
    return F.linear(residual, model.unembed.W_U.T, model.unembed.b_U)


def _attend(
    attention: Any, x: Float[Tensor, "batch pos d_model"], *, last_only: bool
) -> Float[Tensor, "batch out d_model"]:
    q, k, v = (
        F.linear(read, weight.transpose(1, 2).flatten(0, 1), bias.flatten()).unflatten(-1, bias.shape).transpose(1, 2)
        for read, weight, bias in (
            (x[:, -1:] if last_only else x, attention.W_Q, attention.b_Q),
            (x, attention.W_K, attention.b_K),
            (x, attention.W_V, attention.b_V),
        )
    )  # each [batch, head_index, pos, d_head]
    if attention.cfg.positional_embedding_type == "rotary":
        q, k = rotate(attention, q, first=x.shape[1] - q.shape[2]), rotate(attention, k, first=0)
    z = F.scaled_dot_product_attention(q, k, v, is_causal=not last_only, scale=1 / float(attention.attn_scale))
    return F.linear(z.transpose(1, 2).flatten(2), attention.W_O.flatten(0, 1).T, attention.b_O)


def rotate(attention: Any, x: Float[Tensor, "batch head_index pos d_head"], *, first: int) -> Float[Tensor, "..."]:
    """Rotary embedding of positions from `first` on, in the model's own pairing."""
    here = slice(first, first + x.shape[2])
    cos, sin = attention.rotary_cos[here], attention.rotary_sin[here]  # [pos, d_head]
    if attention.cfg.rotary_adjacent_pairs:
        turn = torch.complex(cos[:, ::2], sin[:, ::2])
        return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turn).flatten(-2)
    half = x.shape[-1] // 2
    one, other, cos, sin = x[..., :half], x[..., half:], cos[:, :half], sin[:, :half]
    return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=-1)
