"""Watch chosen heads at work on one sequence: where does each token look?

>>> import interp, torch
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> show_heads(model, torch.tensor([0, 1, 2]), [(1, 0)], roles={0: "key"})
AttentionView(1 head: 1.0; 3 tokens)
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.figures.attention import AttentionView, show_attention
from interp.interventions.hooks import add_hooks
from interp.interventions.select import Head, group_heads
from interp.models.check import require_tokenizer


@torch.inference_mode()
def show_heads(
    model: Any,
    tokens: str | Int[Tensor, "pos"],
    heads: Sequence[Head],
    *,
    roles: Mapping[int, str] | None = None,
) -> AttentionView:
    """The attention of `heads` over `tokens`, a text or its token ids, to look at under the pointer.

    `roles` names positions, as a task's batch does. A text is taken as it is, with nothing put in front of it. Raises
    `InputError` for heads that don't exist, ids outside of the vocabulary, and a text where the model has no tokenizer.
    """
    if isinstance(tokens, str):
        tokenizer = require_tokenizer(model)
        tokens = torch.tensor(tokenizer.encode(tokens, add_special_tokens=False), dtype=torch.long)
    if not tokens.numel() or int(tokens.min()) < 0 or int(tokens.max()) >= model.cfg.d_vocab:
        raise InputError(
            f"The token ids {tokens.tolist()} can't be shown: give at least one, from 0 to {model.cfg.d_vocab - 1}."
        )
    by_layer = group_heads(model, heads)
    kept: dict[int, Tensor] = {}

    def keep(layer: int) -> Any:
        def store(pattern: Tensor, hook: HookPoint) -> None:
            kept[layer] = pattern[0, by_layer[layer]].float().cpu()

        return store

    with add_hooks(model, [(f"blocks.{layer}.attn.hook_pattern", keep(layer)) for layer in by_layer]):
        model(tokens[None].to(model.cfg.device), return_type=None)
    found = {(layer, head): kept[layer][i] for layer, chosen in by_layer.items() for i, head in enumerate(chosen)}
    tokenizer = getattr(model, "tokenizer", None)
    words = [str(i) if tokenizer is None else tokenizer.decode([i]) for i in tokens.tolist()]
    names = [f"{layer}.{head}" for layer, head in heads]
    return show_attention(torch.stack([found[head] for head in heads]), words, head_names=names, roles=roles)
