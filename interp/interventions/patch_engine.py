"""Run many patches at once, and of each run only what the patch can change.

A patch at layer L and position p changes nothing before layer L and, under a causal mask, nothing before position p.
`SuffixRuns` therefore starts at block L with positions p onwards: earlier positions take part by their keys and values
from the unpatched run. A patch of what a block writes (`z`, `attn_out`, `resid_mid`, `mlp_out`) does not run that
block's attention again; its MLP runs at the patched positions alone, and the last block at the scored position alone.

`WholeRuns` edits full forward passes through hooks: it serves a TransformerBridge, models with hooks of the caller's
own (whose functions expect all positions) and architectures in which the shortcuts don't hold.

Both take rows of (example, layer, head, position) and give the logits at the scored position.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.cache.key_value_cache_entry import TransformerLensKeyValueCacheEntry
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import add_hooks
from interp.interventions.patch_sites import HOOKS, Rows, by_position, keep, record, write_rows
from interp.models.forward import logits_at
from interp.models.post_norm import PostNormTransformer
from interp.models.suffix import add_mlp, run_block


def can_skip(model: Any) -> bool:
    """Whether the shortcuts hold: whole runs can start inside the model, and its stream is the sum of what is written."""
    return has_usual_blocks(model) and not isinstance(model, PostNormTransformer)


def has_usual_blocks(model: Any) -> bool:
    """Whether the blocks, on their own and without their hook points, compute what they compute in a whole run."""
    if not isinstance(model, HookedTransformer):
        return False
    cfg = model.cfg
    plain = not (
        cfg.use_attn_in
        or cfg.use_split_qkv_input
        or cfg.use_hook_mlp_in
        or cfg.use_normalization_before_and_after
        or cfg.load_in_4bit
        or cfg.use_logn_attn
        or cfg.clip_qkv is not None
        or cfg.n_devices > 1
        or cfg.attention_dir != "causal"
        or cfg.positional_embedding_type not in ("standard", "rotary", "alibi")
        or str(cfg.original_architecture).startswith("Olmo")  # norms after the sublayers, or over all heads at once
    )
    padded = model.tokenizer is not None and model.tokenizer.padding_side == "left"
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return plain and not padded and not hooked


class WholeRuns:
    """Full forward passes in which hooks write the patches."""

    def __init__(
        self,
        model: Any,
        base: Int[Tensor, "example pos"],
        source: Int[Tensor, "example pos"],
        scored: Int[Tensor, "example"],
        *,
        site: str,
        layers: Sequence[int],
    ) -> None:
        self.model, self.tokens, self.site = model, base, site
        self.scored = scored.to(base.device)
        # An edit of a bridge's `hook_resid_mid` reaches the MLP but not the residual stream beside it, so the sublayer's
        # output is set to what makes the sum right.
        self.kind = HOOKS["attn_out" if site == "resid_mid" else site]
        names = {layer: f"blocks.{layer}.{self.kind}" for layer in layers}
        self.written = record(model, source, names)
        self.replaced = record(model, base, names)
        if site == "resid_mid":
            before = {layer: f"blocks.{layer}.hook_resid_pre" for layer in layers}
            theirs, ours = record(model, source, before), record(model, base, before)
            for layer in layers:
                self.written[layer] += theirs[layer] - ours[layer]

    def logits(self, layer: int, rows: Rows) -> Float[Tensor, "row d_vocab"]:
        def write(activation: Tensor, hook: HookPoint) -> Tensor:
            edited = activation.clone()
            write_rows(by_position(edited, self.site), by_position(self.written[layer], self.site), rows)
            return edited

        tokens = self.tokens[rows.example]
        position = torch.arange(tokens.shape[1], device=tokens.device)
        with add_hooks(self.model, [(f"blocks.{layer}.{self.kind}", write)]):
            return logits_at(self.model, tokens, position == self.scored[rows.example][:, None])


class SuffixRuns:
    """Runs from the patched layer and position on, of examples that are all scored at their last position."""

    def __init__(
        self,
        model: HookedTransformer,
        base: Int[Tensor, "example pos"],
        source: Int[Tensor, "example pos"],
        scored: Int[Tensor, "example"],
        *,
        site: str,
        layers: Sequence[int],
    ) -> None:
        self.model, self.site = model, site
        last = int(scored[0])
        base, source = base[:, : last + 1], source[:, : last + 1]
        names = {layer: f"blocks.{layer}.{HOOKS[site]}" for layer in layers}
        self.written = record(model, source, names)
        self.middle: dict[int, Tensor] = {}
        self.residual: list[Tensor] = []
        """`hook_resid_pre` of every layer, and last the residual stream after all of them."""
        self.past: list[TransformerLensKeyValueCacheEntry] = []
        cfg = model.cfg
        residual = model(base, stop_at_layer=0)
        self.replaced: dict[int, Tensor] = {}
        with add_hooks(model, [(name, keep(self.replaced, layer)) for layer, name in names.items()]):
            for block in model.blocks:
                self.residual.append(residual)
                entry = TransformerLensKeyValueCacheEntry.init_cache_entry(cfg, residual.device, len(base))
                residual = block(residual, past_kv_cache_entry=entry)
                self.past.append(entry)
        self.residual.append(residual)

    def logits(self, layer: int, rows: Rows) -> Float[Tensor, "row d_vocab"]:
        start = int(rows.starts.min())
        if self.site == "resid_pre":
            stream = self.residual[layer][rows.example, start:]
            write_rows(stream, self.written[layer], rows, start=start)
        elif self.site in ("q", "k", "v", "pattern"):
            stream = self._run_edited(layer, rows, start)
            layer += 1
        else:
            stream = self.residual[layer + 1][rows.example, start:]
            row, slot = rows.list_patched()
            stream[row, rows.position[row, slot] - start] = self._changed_output(layer, rows)
            layer += 1
        final = self._run_from(layer, stream, rows, start)[:, None]  # [row 1 d_model]
        everywhere = torch.ones(len(final), 1, dtype=torch.bool, device=final.device)
        return logits_at(self.model, everywhere.long(), everywhere, start=(self.model.cfg.n_layers, final))

    def _run_edited(self, layer: int, rows: Rows, start: int) -> Float[Tensor, "row suffix d_model"]:
        def write(activation: Tensor, hook: HookPoint) -> Tensor:
            edited = activation.clone()
            written = by_position(self.written[layer], self.site)
            write_rows(by_position(edited, self.site), written, rows, start=start)
            return edited

        with add_hooks(self.model, [(f"blocks.{layer}.{HOOKS[self.site]}", write)]):
            stream = self.residual[layer][rows.example, start:]
            return self.model.blocks[layer](stream, past_kv_cache_entry=self._past_of(layer, rows, start))

    def _changed_output(self, layer: int, rows: Rows) -> Float[Tensor, "patched d_model"]:
        """The block's output at the patched positions."""
        block = self.model.blocks[layer]
        row, slot = rows.list_patched()
        example, position = rows.example[row], rows.position[row, slot]
        written, replaced = self.written[layer], self.replaced[layer]
        if self.site == "resid_post":
            return written[example, position]
        after = self.residual[layer + 1][example, position]
        if self.site == "mlp_out":
            return after + written[example, position] - replaced[example, position]
        if self.site == "resid_mid":
            return add_mlp(block, written[example, position][None])[0]
        if rows.head is None:  # attn_out
            change = written[example, position] - replaced[example, position]
        else:
            place = (rows.example[:, None], rows.position.clamp(min=0), rows.head[:, None])
            moved = written[place] - replaced[place]  # [row width d_head]
            change = (moved @ block.attn.W_O[rows.head])[row, slot]
        if self.model.cfg.attn_only or self.model.cfg.parallel_attn_mlp:
            return after + change
        middle = self._middle(layer)[example, position] + change
        return add_mlp(block, middle[None])[0]

    def _middle(self, layer: int) -> Float[Tensor, "example pos d_model"]:
        """`hook_resid_mid` of the unpatched run; computed when first needed."""
        if layer not in self.middle:
            kept: dict[int, Tensor] = {}
            with add_hooks(self.model, [(f"blocks.{layer}.hook_resid_mid", keep(kept, layer))]):
                self.model.blocks[layer](self.residual[layer])
            self.middle = kept
        return self.middle[layer]

    def _run_from(
        self, layer: int, stream: Float[Tensor, "row suffix d_model"], rows: Rows, start: int
    ) -> Float[Tensor, "row d_model"]:
        """The residual stream after all blocks at the last position."""
        n_layers = self.model.cfg.n_layers
        for i in range(layer, n_layers):
            past = self._past_of(i, rows, start)
            stream = run_block(self.model.blocks[i], stream, past, last_only=i == n_layers - 1)
        return stream[:, -1]

    def _past_of(self, layer: int, rows: Rows, start: int) -> TransformerLensKeyValueCacheEntry | None:
        """Keys and values of the positions before `start`, which no patch of these rows changes."""
        if start == 0:
            return None
        entry = self.past[layer]
        return TransformerLensKeyValueCacheEntry(
            entry.past_keys[rows.example, :start], entry.past_values[rows.example, :start], frozen=True
        )


def find_changes(runs: WholeRuns | SuffixRuns, layer: int) -> Bool[Tensor, "example pos *head"]:
    """Where the two runs differ at the site at all: only there can a patch do anything."""
    written, replaced = (by_position(kept[layer], runs.site) for kept in (runs.written, runs.replaced))
    return (written != replaced).any(dim=-1)
