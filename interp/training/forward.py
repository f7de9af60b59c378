"""Which forward pass trains a model: the fast one of `interp.training.stacked`, or the model's own.

A pass through HookedTransformer normalises the same residual stream three times, builds rotations and masks out of many
small operations and looks at every attention pattern; for a small model that is half the time of an update. The
fast pass computes the same logits from the same parameters with PyTorch's fused kernels. It is used only for
configurations it knows, on a model without hooks, and after its logits agreed with the model's on sequences as long as the
task's longest, so that every position was compared; a shorter batch reads the first of them. Any other model is
trained through its own forward pass.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, act_fn="gelu", device="cpu")
>>> tokens = torch.tensor([[1, 2, 3, 4]])
>>> forward = choose_forward(FlatParameters(model), tokens)
>>> torch.allclose(forward(tokens), model(tokens), atol=1e-5)
True
>>> torch.allclose(forward(tokens, last_only=True), model(tokens)[:, -1:], atol=1e-5)
True
"""

import logging
from dataclasses import fields
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.components.mlps.gated_mlp import GatedMLP
from transformer_lens.components.mlps.mlp import MLP

from interp.training.flat import FlatParameters, joint_name
from interp.training.stacked import Stack

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
"""Fields of the configuration that the fast pass follows, or need not."""


def choose_forward(parameters: FlatParameters, tokens: Int[Tensor, "batch pos"]) -> Forward:
    """The fast pass where it gives the model's logits on `tokens`, else the model's own."""
    model = parameters.model
    if not is_plain(model):
        return partial(run_model, model)
    fast = Stack([parameters]).run
    with torch.no_grad():
        expected = model(tokens)
        agrees = all(
            torch.allclose(fast(tokens, last_only=last_only), wanted, rtol=1e-4, atol=1e-4)
            for last_only, wanted in ((False, expected), (True, expected[:, -1:]))
        )
    if not agrees:
        logger.info("The fast forward pass does not give this model's logits; training uses the model's own.")
        return partial(run_model, model)
    return fast


def run_model(
    model: HookedTransformer, tokens: Int[Tensor, "batch pos"], *, last_only: bool = False
) -> Float[Tensor, "batch out d_vocab"]:
    """The model's own pass."""
    logits = model(tokens)
    return logits[:, -1:] if last_only else logits


def is_fast(forward: Forward) -> bool:
    """Whether this is the fast pass."""
    return isinstance(getattr(forward, "__self__", None), Stack)


def is_plain(model: HookedTransformer) -> bool:
    """Whether the fast pass knows this configuration and nothing is hooked."""
    cfg = model.cfg
    usual = all(getattr(cfg, field.name) == field.default for field in fields(cfg) if field.name not in _UNDERSTOOD)
    positions = cfg.positional_embedding_type == "standard" or (
        cfg.positional_embedding_type == "rotary" and cfg.rotary_dim == cfg.d_head
    )
    mlps = cfg.attn_only or (
        all(type(block.mlp) in (MLP, GatedMLP) for block in model.blocks) and not str(cfg.act_fn).endswith("_ln")
    )
    hooked = any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks for module in model.modules()
    )
    return (
        usual
        and positions
        and mlps
        and cfg.dtype in (torch.float32, torch.float64)
        and not hooked
        and _is_trained_jointly(model)
    )


def _is_trained_jointly(model: HookedTransformer) -> bool:
    """Whether queries, keys and values of a layer are trained all or none, and no two layers share a parameter."""
    trained: dict[str, bool] = {}
    every = [*model.named_parameters(remove_duplicate=False)]
    return len({id(parameter) for _, parameter in every}) == len(every) and all(
        trained.setdefault(joint_name(name), parameter.requires_grad) == parameter.requires_grad
        for name, parameter in every
    )
