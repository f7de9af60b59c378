"""A block of a HookedTransformer from some position on, with the keys and values of the positions before.

The mathematics is the block's own, with norms before the sublayers or behind the sums. Where its parts are of a kind that
PyTorch has a fused kernel for (softmax attention, layer and RMS norm, the tanh form of GELU) that kernel is used, which saves
half the time of a block. Its hook points are passed by, so this is for models without hooks. Anything else goes through the
block itself.

>>> import interp
>>> block = interp.build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, act_fn="gelu").blocks[0]
>>> x = torch.linspace(-1, 1, 32).view(1, 4, 8)
>>> torch.allclose(run_block(block, x, None), block(x), atol=1e-6)
True
>>> torch.allclose(run_block(block, x, None, last_only=True), block(x)[:, -1:], atol=1e-6)
True
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry as KeysValues
from transformer_lens.components import LayerNorm, LayerNormPre, RMSNorm, RMSNormPre
from transformer_lens.components.mlps.mlp import MLP
from transformer_lens.utilities.activation_functions import gelu_new

from interp.models.post_norm import POST_NORM_BLOCKS
from interp.models.weights import expand_kv


def run_block(
    block: Any, x: Float[Tensor, "batch pos d_model"], past: KeysValues | None, *, last_only: bool = False
) -> Float[Tensor, "batch out d_model"]:
    """The block's output at the positions of `x`, or with `last_only` at the last of them alone.

    `past` has the keys and values of all positions before `x`.
    """
    if last_only and x.shape[1] > 1:  # of the positions before the last one, only keys and values are read
        before = read_stream(block, x[:, :-1])
        _, keys, values = block.attn.calculate_qkv_matrices(before[:, :1], before, before)
        if past is not None:
            keys, values = torch.cat([past.past_keys, keys], dim=1), torch.cat([past.past_values, values], dim=1)
        x, past = x[:, -1:], KeysValues(keys, values, frozen=True)
    if not _is_fusible(block):
        return block(x, past_kv_cache_entry=past)
    attended = _attend(block.attn, read_stream(block, x), past)
    if block.cfg.parallel_attn_mlp:
        return x + attended + _run_mlp(block.mlp, normalise(block.ln2, x))
    middle = add_attention(block, x, attended)
    return middle if block.cfg.attn_only else add_mlp(block, middle)


def read_stream(block: Any, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
    """What the block's attention reads of its `hook_resid_pre`."""
    return x if isinstance(block, POST_NORM_BLOCKS) else normalise(block.ln1, x)


def add_attention(
    block: Any, x: Float[Tensor, "batch pos d_model"], attended: Float[Tensor, "batch pos d_model"]
) -> Float[Tensor, "batch pos d_model"]:
    """The stream behind the attention, which the MLP adds to, from `hook_resid_pre` and `hook_attn_out`."""
    return normalise(block.ln1, x + attended) if isinstance(block, POST_NORM_BLOCKS) else x + attended


def add_mlp(block: Any, middle: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
    """The block's output from the stream behind its attention, where its MLP comes after that."""
    if isinstance(block, POST_NORM_BLOCKS):
        return normalise(block.ln2, middle + _run_mlp(block.mlp, middle))
    return middle + _run_mlp(block.mlp, normalise(block.ln2, middle))


def normalise(norm: Any, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
    """`norm(x)`, by one kernel where there is one and the precision allows."""
    width = x.shape[-1:]
    if x.dtype not in (torch.float32, torch.float64):
        return norm(x)
    if type(norm) is LayerNorm:
        return F.layer_norm(x, width, norm.w, norm.b, norm.eps)
    if type(norm) is LayerNormPre:
        return F.layer_norm(x, width, eps=norm.eps)
    if type(norm) is RMSNorm:
        return F.rms_norm(x, width, norm.w, norm.eps)
    if type(norm) is RMSNormPre:
        return F.rms_norm(x, width, eps=norm.eps)
    return norm(x)


def _is_fusible(block: Any) -> bool:
    cfg = block.cfg
    return (
        cfg.dtype in (torch.float32, torch.float64)
        and cfg.positional_embedding_type in ("standard", "rotary")
        and cfg.attn_scores_soft_cap <= 0
        and not cfg.use_attention_sinks
    )


def _attend(
    attention: Any, x: Float[Tensor, "batch pos d_model"], past: KeysValues | None
) -> Float[Tensor, "batch pos d_model"]:
    q, k, v = attention.calculate_qkv_matrices(x, x, x)  # each [batch pos head_index d_head]
    before = 0
    if past is not None:
        before = past.past_keys.shape[1]
        k, v = torch.cat([past.past_keys, k], dim=1), torch.cat([past.past_values, v], dim=1)
    if attention.cfg.positional_embedding_type == "rotary":
        q, k = attention.apply_rotary(q, before), attention.apply_rotary(k, 0)
    k, v = (expand_kv(shared, attention.cfg.n_heads, axis=2) for shared in (k, v))
    mask = attention._make_causal_mask(
        query_ctx_length=q.shape[1], key_ctx_length=k.shape[1], past_kv_pos_offset=before, device=q.device
    )
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    z = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1 / float(attention.attn_scale))
    return F.linear(z.transpose(1, 2).flatten(2), attention.W_O.flatten(0, 1).T, attention.b_O)


def _run_mlp(mlp: Any, x: Float[Tensor, "batch pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
    if type(mlp) is not MLP or mlp.act_fn is not gelu_new:
        return mlp(x)
    hidden = F.gelu(F.linear(x, mlp.W_in.T, mlp.b_in), approximate="tanh")
    return F.linear(hidden, mlp.W_out.T, mlp.b_out)
