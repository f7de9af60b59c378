"""Run one batch many times, each time with other attention edges cut, and draw the random edges to compare with.

- The control of a cut: other edges of each layer that carry the same attention (`interp.interventions.edge_controls`),
  out of those through which something can still come to the scored position.
- The control of a circuit kept alone: as many edges kept in each layer, out of the same.

Both are drawn anew for every sequence. Runs start at the first layer with a cut, and draws run together.

>>> from interp.models.build import build
>>> from interp.solutions.circuits import CIRCUITS, spread_circuit
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> batch = dropped_pairs().with_last_free().sample(6, split="train", seed=0)
>>> runs = CutRuns(model, batch, mode="mask", n_controls=3, seed=0)
>>> edges = spread_circuit(model, batch, CIRCUITS["serial"])
>>> runs.answer([edges]).shape, runs.draw_cuts("serial", edges)[1].shape
((1, 6), torch.Size([3, 6, 9, 9]))
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens import HookedTransformer
from transformer_lens.hook_points import HookPoint

from interp.interventions.edge_controls import draw_edges
from interp.interventions.hooks import HookFunction, add_hooks
from interp.interventions.role_edges import find_live_edges
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import logits_at
from interp.solutions.circuits import CutMode, cut_edges
from tasks.seeding import derive_generator
from tasks.task import Batch

Edges = Mapping[int, Bool[Tensor, "sequence query_pos key_pos"]]
"""{layer: the edges that are cut in all its heads}."""

_AT_ONCE = 1024
"""Sequences in a run: of small models more don't fit a processor's cache, and take half as long again."""


class CutRuns:
    """The uncut run of a batch, and its runs with edges cut."""

    def __init__(self, model: Any, batch: Batch, *, mode: CutMode, n_controls: int, seed: int) -> None:
        self.model, self.batch, self.mode, self.n_controls, self.seed = model, batch, mode, n_controls, seed
        self.n_layers, self.n_positions = model.cfg.n_layers, batch.tokens.shape[1]
        self.size = min(choose_batch_size(model, self.n_positions), _AT_ONCE)
        self.mass: dict[int, Tensor] = {}
        """Attention of each layer, summed over its heads, [sequence, query, key], on the CPU."""
        self.residual: dict[int, Tensor] = {}
        """The residual stream before each layer."""
        last = {layer: layer == self.n_layers - 1 for layer in range(self.n_layers)}
        self.live = {layer: find_live_edges(batch.scored, last_layer=is_last) for layer, is_last in last.items()}
        """Edges through which something can come to the scored position, the edge to itself among them."""
        self._read()

    def answer(self, cuts: Sequence[Edges]) -> Float[np.ndarray, "cut sequence"]:
        """1 where the answer is the target, under each of `cuts`, which cut in the same layers."""
        n, layers = len(self.batch.tokens), tuple(cuts[0])
        edges = {layer: torch.cat([cut[layer] for cut in cuts]) for layer in layers}
        first = min(layers, default=0)
        device = self.model.cfg.device
        right = torch.zeros(len(cuts) * n, dtype=torch.bool)

        def run(rows: slice) -> None:
            which = torch.arange(rows.start, rows.stop) % n
            scored = self.batch.scored[which].to(device)
            start = (first, self.residual[first][which.to(self.residual[first].device)]) if first else None
            chosen = {layer: cut[rows] for layer, cut in edges.items()}
            with cut_edges(self.model, chosen, mode=self.mode), add_hooks(self.model, self._narrow(scored)):
                logits = logits_at(self.model, self.batch.tokens[which].to(device), scored, start=start)
            right[rows] = logits.argmax(-1).cpu() == self.batch.targets[which][self.batch.scored[which]]

        for_each_batch(len(right), run, batch_size=self.size)
        return right.view(len(cuts), n).double().numpy()

    def draw_cuts(self, name: str, edges: Edges) -> dict[int, Bool[Tensor, "draw sequence query_pos key_pos"]]:
        """{layer: other edges of it that carry the attention of `edges`}; all others where they carry less."""
        draws = {}
        for layer, cut in edges.items():
            pool = (self.live[layer] & ~cut)[:, None]
            generator = derive_generator(self.seed, "mass control", name, layer)
            random = torch.rand(len(cut), 1, self.n_controls, cut[0].numel() + 1, generator=generator)
            legal = torch.ones(self.n_positions, self.n_positions, dtype=torch.bool).tril()
            reach = legal.expand_as(cut) if self.mode == "mask" else None
            target = (self.mass[layer] * cut).sum((-1, -2))[:, None]
            draws[layer] = draw_edges(self.mass[layer], pool, target, random, reach=reach)[:, 0].movedim(1, 0)
        return draws

    def draw_keeps(self, name: str, edges: Edges) -> dict[int, Bool[Tensor, "draw sequence query_pos key_pos"]]:
        """{layer: what to cut there so that as many random edges stay as `edges` leaves of the live ones}."""
        before = torch.ones(self.n_positions, self.n_positions, dtype=torch.bool).tril(-1)
        draws = {}
        for layer, cut in edges.items():
            live = self.live[layer] & before
            n_kept = (before & ~cut).flatten(1).sum(1)  # [sequence]
            generator = derive_generator(self.seed, "kept control", name, layer)
            order = torch.rand(self.n_controls, *cut.shape, generator=generator).where(live, 2).flatten(2)
            rank = order.argsort(-1).argsort(-1).view(-1, *cut.shape)
            draws[layer] = before & (rank >= n_kept[:, None, None])
        return draws

    def weigh(self, cut: Edges) -> Float[np.ndarray, "layer"]:
        """Attention that the edges carry in a sequence, on average, in each layer of the model."""
        weight = {layer: float((self.mass[layer] * edges).sum((-1, -2)).mean()) for layer, edges in cut.items()}
        return np.array([weight.get(layer, 0.0) for layer in range(self.n_layers)])

    def _narrow(self, scored: Bool[Tensor, "sequence pos"]) -> list[tuple[str, HookFunction]]:
        """Hooks that let the last MLP see the scored position only, since no other matters behind the last attention."""
        cfg = self.model.cfg
        if not isinstance(self.model, HookedTransformer) or cfg.attn_only or cfg.parallel_attn_mlp:
            return []

        def narrow(residual: Tensor, hook: HookPoint) -> Tensor:
            return residual[scored][:, None]

        def widen(residual: Tensor, hook: HookPoint) -> Tensor:
            return residual.expand(-1, self.n_positions, -1)

        block = f"blocks.{self.n_layers - 1}"
        return [(f"{block}.hook_resid_mid", narrow), (f"{block}.hook_resid_post", widen)]

    def _read(self) -> None:
        masses: dict[int, list[Tensor]] = {layer: [] for layer in range(self.n_layers)}
        residuals: dict[int, list[Tensor]] = {layer: [] for layer in range(self.n_layers)}

        def store(into: list[Tensor], *, of_heads: bool) -> HookFunction:
            def keep(activation: Tensor, hook: HookPoint) -> None:
                into.append(activation.sum(dim=1).float().cpu() if of_heads else activation.detach())

            return keep

        hooks = [(f"blocks.{i}.attn.hook_pattern", store(into, of_heads=True)) for i, into in masses.items()]
        hooks += [(f"blocks.{i}.hook_resid_pre", store(into, of_heads=False)) for i, into in residuals.items() if i]
        with add_hooks(self.model, hooks):
            for tokens in self.batch.tokens.split(self.size):
                self.model(tokens.to(self.model.cfg.device), return_type=None)
        self.mass = {layer: torch.cat(parts) for layer, parts in masses.items()}
        self.residual = {layer: torch.cat(parts) for layer, parts in residuals.items() if layer}
