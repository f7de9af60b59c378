"""What does each head do for copying, alone? The loss on a second copy, whole and with one head at a time removed.

A removal zeroes the head's output z before W_O (Song, Xu & Zhong 2024, arXiv:2408.09503). A HookedTransformer begins each
pass at the head's own layer, from the residual stream of the whole model; a bridge runs whole every time.

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=20, n_ctx=12, attn_only=True)
>>> tokens = torch.arange(6).repeat(2, 2)  # 2 sequences of two copies
>>> whole, removed = remove_each(model, tokens, [(0, 1), (1, 0), (1, 1)], start=6)
>>> whole.shape, removed.shape
((2,), (3, 2))
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.interventions.ablate import ablate_heads
from interp.interventions.hooks import add_hooks
from interp.interventions.select import Head, group_heads
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import logits_at


def remove_each(
    model: Any, tokens: Int[Tensor, "sequence pos"], heads: Sequence[Head], *, start: int
) -> tuple[Float[np.ndarray, "sequence"], Float[np.ndarray, "head sequence"]]:
    """Mean loss in nats of predicting the token after each position from `start` on: whole, and without each head alone.

    Raises `InputError` for a head that the model doesn't have.
    """
    layers = list(group_heads(model, heads))
    whole, removed = np.zeros(len(tokens)), np.zeros((len(heads), len(tokens)))

    @torch.inference_mode()
    def run(rows: slice) -> None:
        batch = tokens[rows].to(model.cfg.device)
        streams: dict[int, Tensor] = {}

        def keep(layer: int) -> Any:
            def store(stream: Float[Tensor, "batch pos d_model"], hook: HookPoint) -> None:
                streams[layer] = stream.clone()

            return store

        with add_hooks(model, [(f"blocks.{layer}.hook_resid_pre", keep(layer)) for layer in layers]):
            whole[rows] = _measure_loss(model, batch, start=start)
        for i, (layer, head) in enumerate(heads):
            with ablate_heads(model, [(layer, head)]):
                removed[i, rows] = _measure_loss(model, batch, start=start, stream=(layer, streams[layer]))

    for_each_batch(len(tokens), run, batch_size=choose_batch_size(model, tokens.shape[1]))
    return whole, removed


def _measure_loss(
    model: Any, tokens: Tensor, *, start: int, stream: tuple[int, Tensor] | None = None
) -> Float[np.ndarray, "sequence"]:
    scored = torch.zeros_like(tokens, dtype=torch.bool)
    scored[:, start:-1] = True
    logits = logits_at(model, tokens, scored, start=stream).float()
    found = logits.log_softmax(-1).gather(-1, tokens[:, start + 1 :].reshape(-1, 1))
    return -found.view(len(tokens), -1).mean(1).cpu().numpy()
