"""Run only as much of a model as a measurement needs, on HookedTransformers and TransformerBridges alike.

`run_until` ends the pass at a hook: nothing after it is computed. `logits_at` unembeds the scored positions alone,
since the unembedding of GPT-2 small is 40% of its forward pass; from `start` it begins at a later layer with the
residual stream that the earlier layers would have given. A bridge offers neither shortcut (its `start_at_layer`
recomputes the layers, its blocks are Hugging Face's), so it runs whole and the result is cut afterwards.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True)
>>> logits_at(model, torch.tensor([[0, 1, 2]]), torch.tensor([[False, True, True]])).shape
torch.Size([2, 5])
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import add_hooks


class _Reached(Exception):
    """Unwinds the forward pass from the hook at which it should end."""


@torch.inference_mode()
def run_until(model: Any, tokens: Int[Tensor, "batch pos"], hook_name: str) -> Float[Tensor, "batch ..."]:
    """The activation at `hook_name`; the pass ends there, after the hooks that were set before this call."""
    reached: list[Tensor] = []

    def stop(activation: Tensor, hook: HookPoint) -> None:
        reached.append(activation)
        raise _Reached

    with add_hooks(model, [(hook_name, stop)]):
        try:
            model(tokens, return_type=None)
        except _Reached:
            return reached[0]
    raise RuntimeError(f"The forward pass never came to {hook_name!r}.")


@torch.inference_mode()
def logits_at(
    model: Any,
    tokens: Int[Tensor, "batch pos"],
    positions: Bool[Tensor, "batch pos"],
    *,
    start: tuple[int, Float[Tensor, "batch pos d_model"]] | None = None,
) -> Float[Tensor, "scored d_vocab"]:
    """Logits at the marked positions, row by row. `start` = (layer, its `hook_resid_pre`) skips earlier layers."""
    if not isinstance(model, HookedTransformer):
        return model(tokens, return_type="logits")[positions]
    n_layers = model.cfg.n_layers
    if start is None:
        residual = model(tokens, stop_at_layer=n_layers)  # [batch pos d_model]
    else:
        residual = model(start[1], start_at_layer=start[0], stop_at_layer=n_layers)
    residual = residual[positions].unsqueeze(0)  # [1 scored d_model]
    if model.cfg.normalization_type is not None:
        residual = model.ln_final(residual)
    logits = model.unembed(residual).squeeze(0)  # [scored d_vocab]
    cap = model.cfg.output_logits_soft_cap
    return cap * torch.tanh(logits / cap) if cap > 0 else logits
