"""Run a batch in which every row has attention edges of one layer cut, and of each run only what the cut can change.

Cutting in layer L changes nothing before it and, under a causal mask, nothing before the first query that is cut. On a
HookedTransformer without the caller's hooks a run therefore starts at block L with that query, from the residual stream,
keys and values of the uncut run; blocks after L use fused kernels. Everything else runs whole passes.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True)
>>> last = torch.tensor([[False, False, True]])
>>> runs = CutRuns(model, torch.tensor([[0, 1, 2]]), last, mode="zero", heads={1: [0, 1]}, watch=lambda *seen: None)
>>> runs.logits(1, torch.tensor([0]), torch.ones(1, 3, 3, dtype=torch.bool).tril()).shape
torch.Size([1, 5])
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.knock_out import KnockOutMode, choose_edit, find_reach
from interp.interventions.patch_engine import can_skip
from interp.models.forward import logits_at
from interp.models.suffix import run_block

Watch = Callable[[int, Float[Tensor, "example head_index pos pos"], Bool[Tensor, "example pos pos"]], None]
"""(layer, pattern, keys within reach), called in the uncut run."""


class CutRuns:
    """Cuts in some examples, after one uncut run that shows its attention to `watch`."""

    def __init__(
        self,
        model: Any,
        tokens: Int[Tensor, "example pos"],
        scored: Bool[Tensor, "example pos"],
        *,
        mode: KnockOutMode,
        heads: Mapping[int, Sequence[int]],
        watch: Watch,
    ) -> None:
        self.model, self.tokens, self.scored, self.heads = model, tokens, scored, heads
        self.kind, self.edit = choose_edit(model, mode)
        self.skips = can_skip(model)
        self.only_last = bool((scored.sum(dim=1) == 1).all() and scored[:, -1].all())
        self.first_scored = int(scored.any(dim=0).nonzero().min())
        self.residual: list[Tensor] = []
        """`hook_resid_pre` of every layer."""
        self.past: list[TransformerLensKeyValueCacheEntry] = []
        with add_hooks(model, self._watch_attention(watch)):
            self.uncut = self._run_uncut().float()
            """Logits of the uncut run at the scored positions, row by row."""

    def logits(
        self, layer: int, example: Int[Tensor, "row"], edges: Bool[Tensor, "row query_pos key_pos"]
    ) -> Float[Tensor, "scored d_vocab"]:
        """Logits at the scored positions of each row, whose `edges` are cut in `layer`."""
        start = 0
        if self.skips:
            start = min(int(edges.any(dim=-1).any(dim=0).int().argmax()), self.first_scored)
        scored = self.scored[example]
        with add_hooks(self.model, [(f"blocks.{layer}.{self.kind}", self._cut(layer, edges[:, start:]))]):
            if not self.skips:
                return logits_at(self.model, self.tokens[example], scored)
            block, x = self.model.blocks[layer], self.residual[layer][example, start:]
            x = block(x, past_kv_cache_entry=self._past_of(layer, example, start))
        n_layers = self.model.cfg.n_layers
        for i in range(layer + 1, n_layers):
            last_only = self.only_last and i == n_layers - 1
            x = run_block(self.model.blocks[i], x, self._past_of(i, example, start), last_only=last_only)
        marked = scored[:, -x.shape[1] :]
        return logits_at(self.model, marked.long(), marked, start=(n_layers, x))

    def _cut(self, layer: int, edges: Bool[Tensor, "row query_pos key_pos"]) -> HookFunction:
        def edit(attention: Float[Tensor, "row head_index query_pos key_pos"], hook: HookPoint) -> Tensor:
            chosen = torch.zeros(attention.shape[1], 1, 1, dtype=torch.bool, device=attention.device)
            chosen[list(self.heads[layer])] = True
            return self.edit(attention, edges[:, None] & chosen)

        return edit

    def _watch_attention(self, watch: Watch) -> list[tuple[str, HookFunction]]:
        reach: dict[int, Tensor] = {}

        def watch_scores(layer: int) -> HookFunction:
            def see(scores: Tensor, hook: HookPoint) -> None:
                reach[layer] = find_reach(scores.amax(dim=1))

            return see

        def watch_pattern(layer: int) -> HookFunction:
            def see(pattern: Tensor, hook: HookPoint) -> None:
                seen = reach.pop(layer) if layer in reach else (pattern > 0).any(dim=1)
                watch(layer, pattern, seen)

            return see

        hooks = [(f"blocks.{layer}.attn.hook_pattern", watch_pattern(layer)) for layer in self.heads]
        if self.kind == "attn.hook_attn_scores":
            hooks = [(f"blocks.{layer}.{self.kind}", watch_scores(layer)) for layer in self.heads] + hooks
        return hooks

    def _run_uncut(self) -> Float[Tensor, "scored d_vocab"]:
        if not self.skips:
            return logits_at(self.model, self.tokens, self.scored)
        x = self.model(self.tokens, stop_at_layer=0)
        for block in self.model.blocks:
            self.residual.append(x)
            entry = TransformerLensKeyValueCacheEntry.init_cache_entry(self.model.cfg, x.device, len(x))
            x = block(x, past_kv_cache_entry=entry)
            self.past.append(entry)
        return logits_at(self.model, self.scored.long(), self.scored, start=(len(self.past), x))

    def _past_of(self, layer: int, example: Int[Tensor, "row"], start: int) -> TransformerLensKeyValueCacheEntry | None:
        """Keys and values of the positions before `start`, which no cut of these rows changes."""
        if start == 0:
            return None
        entry = self.past[layer]
        return TransformerLensKeyValueCacheEntry(
            entry.past_keys[example, :start], entry.past_values[example, :start], frozen=True
        )
