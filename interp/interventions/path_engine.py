"""Run many path patches at once.

`WholePaths` is the textbook form (Wang et al. 2022, arXiv:2211.00593, appendix B), by hooks alone: one run in which every
head (and with `frozen` every MLP) writes what it writes in the base run, except the senders, and in which the receivers'
queries, keys and values are recorded; then the base run with these in place.

`SuffixPaths` gives the same without the first run: with the heads frozen, the stream that a receiver reads is that of the
base run plus what the senders write more, plus, where they are recomputed, what the MLPs in between make of it. The
second run starts at the first receiver's layer and at the first position that a sender changes. For the logits nothing
but the scored position is computed.

Both take rows of (sender, example) and give the logits at the scored position.
"""

from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.patch_engine import SuffixRuns
from interp.interventions.patch_sites import Rows, record
from interp.interventions.paths import ReadKind, Reads, last_reader
from interp.models.forward import logits_at, run_until
from interp.models.suffix import add_mlp, normalise, run_block

MlpPaths = Literal["recomputed", "frozen"]
Recorded = dict[int, dict[ReadKind, Tensor]]
"""{layer: {kind: [row pos head d_head]}}."""


class WholePaths:
    """Two full forward passes a row, edited by hooks."""

    def __init__(
        self,
        model: Any,
        base: Int[Tensor, "example pos"],
        source: Int[Tensor, "example pos"],
        scored: Int[Tensor, "example"],
        *,
        heads: Bool[Tensor, "sender layer head"],
        mlp_senders: Bool[Tensor, "sender layer"],
        positions: Bool[Tensor, "example pos"],
        reads: Reads,
        mlps: MlpPaths,
    ) -> None:
        self.model, self.tokens, self.reads = model, base, reads
        self.scored = scored.to(base.device)
        self.heads, self.mlp_senders = heads.to(base.device), mlp_senders.to(base.device)
        self.at = positions.to(base.device)
        self.stop = last_reader(model, reads, not reads)
        z_names = {layer: f"blocks.{layer}.attn.hook_z" for layer in range(self.stop)}
        written = [layer for layer in range(self.stop) if mlps == "frozen" or mlp_senders[:, layer].any()]
        has_mlp = not getattr(model.cfg, "attn_only", False)
        mlp_names = {layer: f"blocks.{layer}.hook_mlp_out" for layer in written if has_mlp}
        self.recomputed = mlps == "recomputed"
        self.base_z, self.source_z = record(model, base, z_names), record(model, source, z_names)
        self.base_mlp, self.source_mlp = record(model, base, mlp_names), record(model, source, mlp_names)

    def find_changes(self) -> Bool[Tensor, "sender example pos"]:
        """Where the senders write something else in the source run than in the base run."""
        z = {layer: (self.source_z[layer] != self.base_z[layer]).any(-1) for layer in self.base_z}
        mlp = {layer: (self.source_mlp[layer] != self.base_mlp[layer]).any(-1) for layer in self.base_mlp}
        return _spread_changes(z, mlp, self.heads, self.mlp_senders, self.at)

    def run(self, jobs: Int[Tensor, "row 2"]) -> Float[Tensor, "row d_vocab"]:
        sender, example = jobs.to(self.tokens.device).unbind(1)
        tokens = self.tokens[example]
        scored = torch.arange(tokens.shape[1], device=tokens.device) == self.scored[example][:, None]
        frozen = [
            *((f"blocks.{layer}.attn.hook_z", self._freeze_z(layer, sender, example)) for layer in self.base_z),
            *((f"blocks.{layer}.hook_mlp_out", self._freeze_mlp(layer, sender, example)) for layer in self.base_mlp),
        ]
        if not self.reads:
            with add_hooks(self.model, frozen):
                return logits_at(self.model, tokens, scored)
        recorded: Recorded = {layer: {} for layer in self.reads}
        with add_hooks(self.model, frozen + record_reads(self.reads, recorded)):
            run_until(self.model, tokens, f"blocks.{self.stop}.attn.hook_z")
        with add_hooks(self.model, [hook for layer in self.reads for hook in write_reads(layer, self.reads, recorded)]):
            return logits_at(self.model, tokens, scored)

    def _freeze_z(self, layer: int, sender: Tensor, example: Tensor) -> HookFunction:
        def freeze(z: Float[Tensor, "row pos head_index d_head"], hook: HookPoint) -> Tensor:
            patched = self.heads[sender, layer][:, None, :] & self.at[example][..., None]  # [row pos head]
            return torch.where(patched[..., None], self.source_z[layer][example], self.base_z[layer][example])

        return freeze

    def _freeze_mlp(self, layer: int, sender: Tensor, example: Tensor) -> HookFunction:
        def freeze(out: Float[Tensor, "row pos d_model"], hook: HookPoint) -> Tensor:
            mine = self.mlp_senders[sender, layer][:, None, None]
            other = out if self.recomputed else self.base_mlp[layer][example]
            there = torch.where(self.at[example][..., None], self.source_mlp[layer][example], other)
            return torch.where(mine, there, other)

        return freeze


class SuffixPaths(SuffixRuns):
    """Changes of the residual stream up to the receivers, then runs from there; all scored at their last position."""

    def __init__(
        self,
        model: HookedTransformer,
        base: Int[Tensor, "example pos"],
        source: Int[Tensor, "example pos"],
        scored: Int[Tensor, "example"],
        *,
        heads: Bool[Tensor, "sender layer head"],
        mlp_senders: Bool[Tensor, "sender layer"],
        positions: Bool[Tensor, "example pos"],
        reads: Reads,
        mlps: MlpPaths,
    ) -> None:
        sending = heads.any(-1).any(0).nonzero()[:, 0].tolist()
        super().__init__(model, base, source, scored, site="z", layers=sending)
        length = int(scored[0]) + 1
        self.reads, self.stop = reads, last_reader(model, reads, not reads)
        self.recomputed = mlps == "recomputed" and not model.cfg.attn_only
        self.heads, self.mlp_senders = heads.to(base.device), mlp_senders.to(base.device)
        self.at = positions[:, :length].to(base.device)
        self.moved = {layer: (self.written.pop(layer) - self.replaced.pop(layer)) for layer in sending}
        self.first_layer = (self.heads.any(-1) | self.mlp_senders).int().argmax(dim=-1)  # [sender]
        between = range(int(self.first_layer.min()), self.stop)
        needed = [layer for layer in between if self.recomputed or mlp_senders[:, layer].any()]
        self.base_mlp = record(model, base[:, :length], {layer: f"blocks.{layer}.hook_mlp_out" for layer in needed})
        sending_mlps = [layer for layer in needed if mlp_senders[:, layer].any()]
        theirs = record(model, source[:, :length], {layer: f"blocks.{layer}.hook_mlp_out" for layer in sending_mlps})
        self.moved_mlp = {layer: theirs[layer] - self.base_mlp[layer] for layer in sending_mlps}
        for moved in (*self.moved.values(), *self.moved_mlp.values()):
            moved[~self.at] = 0
        self.first_read = self.find_changes().int().argmax(dim=-1)  # [sender example]
        if not reads:  # the logits read the last position alone
            self.first_read.fill_(length - 1)

    def find_changes(self) -> Bool[Tensor, "sender example pos"]:
        """Where the senders write something else in the source run than in the base run."""
        z = {layer: (moved != 0).any(-1) for layer, moved in self.moved.items()}
        mlp = {layer: (moved != 0).any(-1) for layer, moved in self.moved_mlp.items()}
        return _spread_changes(z, mlp, self.heads, self.mlp_senders, self.at)

    def run(self, jobs: Int[Tensor, "row 2"]) -> Float[Tensor, "row d_vocab"]:
        sender, example = jobs.to(self.residual[0].device).unbind(1)
        first_read = self.first_read[sender, example]
        start = int(first_read.min())  # before it the rows are as in the base run
        change = torch.zeros_like(self.residual[0][example, start:])
        recorded: Recorded = {}
        first = int(self.first_layer[sender].min())
        for layer in range(first, self.stop):
            if layer in self.reads and layer > first:
                recorded[layer] = self._read(layer, change, example, start)
            change = self._pass(layer, change, sender, example, start)
        if not self.reads:
            return self._unembed(self.residual[self.stop][example, -1] + change[:, -1])
        recorded[self.stop] = self._read(self.stop, change, example, start)
        rows = Rows(cell=sender, example=example, head=None, position=first_read[:, None])
        stream = self.residual[min(recorded)][example, start:]
        for layer in range(min(recorded), self.stop + 1):
            block, past = self.model.blocks[layer], self._past_of(layer, rows, start)
            if layer not in recorded:
                stream = run_block(block, stream, past)
                continue
            with add_hooks(self.model, write_reads(layer, self.reads, recorded)):
                stream = block(stream, past_kv_cache_entry=past)
        return self._unembed(self._run_from(self.stop + 1, stream, rows, start))

    def _pass(
        self, layer: int, change: Float[Tensor, "row suffix d_model"], sender: Tensor, example: Tensor, start: int
    ) -> Float[Tensor, "row suffix d_model"]:
        """The change of the stream after a block whose heads are frozen."""
        block = self.model.blocks[layer]
        middle = change.clone()
        mine = self.heads[sender, layer]  # [row head]
        for head in mine.any(0).nonzero()[:, 0].tolist():
            rows = mine[:, head].nonzero()[:, 0]
            middle[rows] += self.moved[layer][example[rows], start:, head] @ block.attn.W_O[head]
        written = torch.zeros_like(change)
        if self.recomputed:
            read = change if self.model.cfg.parallel_attn_mlp else middle
            stream = self.residual[layer] if self.model.cfg.parallel_attn_mlp else self._middle(layer)
            after = (self.first_layer[sender] <= layer).nonzero()[:, 0]  # before its sender a row is as in the base run
            x = stream[example[after], start:] + read[after]
            written[after] = add_mlp(block, x) - x - self.base_mlp[layer][example[after], start:]
        if layer in self.moved_mlp:
            there = self.mlp_senders[sender, layer][:, None, None] & self.at[example, start:, None]
            written = torch.where(there, self.moved_mlp[layer][example, start:], written)
        return middle + written

    def _read(
        self, layer: int, change: Float[Tensor, "row suffix d_model"], example: Tensor, start: int
    ) -> dict[ReadKind, Tensor]:
        """What the receivers of a layer make of the changed stream, at their hooks: before any norm of queries and keys."""
        block, kinds = self.model.blocks[layer], self.reads[layer]
        read = normalise(block.ln1, self.residual[layer][example, start:] + change)
        kept: Recorded = {layer: {}}
        with add_hooks(self.model, record_reads({layer: kinds}, kept)):
            block.attn.calculate_qkv_matrices(*(read if kind in kinds else read[:, :1] for kind in "qkv"))
        return kept[layer]

    def _unembed(self, final: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_vocab"]:
        everywhere = torch.ones(len(final), 1, dtype=torch.bool, device=final.device)
        return logits_at(self.model, everywhere.long(), everywhere, start=(len(self.model.blocks), final[:, None]))


def record_reads(reads: Reads, recorded: Recorded) -> list[tuple[str, HookFunction]]:
    """Hooks that keep what the receivers' layers compute."""

    def store(layer: int, kind: ReadKind) -> HookFunction:
        def keep_read(activation: Float[Tensor, "row pos head d_head"], hook: HookPoint) -> None:
            recorded[layer][kind] = activation.clone()

        return keep_read

    return [(f"blocks.{layer}.attn.hook_{kind}", store(layer, kind)) for layer in reads for kind in reads[layer]]


def write_reads(layer: int, reads: Reads, recorded: Recorded) -> list[tuple[str, HookFunction]]:
    """Hooks that put the receivers of a layer to what was recorded."""

    def write(kind: ReadKind) -> HookFunction:
        def put(activation: Float[Tensor, "row pos head d_head"], hook: HookPoint) -> Tensor:
            edited = activation.clone()
            edited[:, :, reads[layer][kind]] = recorded[layer][kind][:, :, reads[layer][kind]]
            return edited

        return put

    return [(f"blocks.{layer}.attn.hook_{kind}", write(kind)) for kind in recorded[layer]]


def _spread_changes(
    z: dict[int, Bool[Tensor, "example pos head"]],
    mlp: dict[int, Bool[Tensor, "example pos"]],
    heads: Bool[Tensor, "sender layer head"],
    mlp_senders: Bool[Tensor, "sender layer"],
    at: Bool[Tensor, "example pos"],
) -> Bool[Tensor, "sender example pos"]:
    """From each layer's changes those of each sender."""
    n_examples, n_positions = next(iter((*z.values(), *mlp.values()))).shape[:2]
    found = torch.zeros(len(heads), n_examples, n_positions, dtype=torch.bool, device=heads.device)
    for layer, changed in z.items():
        for head in heads[:, layer].any(0).nonzero()[:, 0].tolist():
            found[heads[:, layer, head]] |= changed[..., head]
    for layer, changed in mlp.items():
        found[mlp_senders[:, layer]] |= changed
    return found & at
