"""Cuts every pair of roles in every layer, and as many random sets of edges, and scores each example after each cut.

Examples are worked through in groups that fit the memory. In a layer all cuts of a group (pairs, and draws of their
controls) are rows of one list, from which the engine takes as many as it can run at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.interventions.cut_engine import CutRuns
from interp.interventions.edge_controls import draw_edges
from interp.interventions.knock_out import KnockOutMode
from interp.interventions.patch_sweep import to_numpy
from interp.interventions.role_edges import find_live_edges, keep_own_edge
from interp.models.batching import choose_batch_size, for_each_batch
from tasks.seeding import derive_generator

_KEPT_BYTES = 2**27
"""Uncut activations, and sets of edges, that are kept at once."""
_LOGIT_BYTES = 2**27
_ENOUGH_TOKENS = 4096
"""From here on a matrix product is hardly faster per token."""


class FlowSweep:
    """Arrays [example, cut, layer, query role, key role]: entry 0 of the axis `cut` is the pair's own cut, the others its
    controls. NaN where an example has no edge of the pair; where none of its edges can matter, the uncut value."""

    def __init__(
        self,
        model: Any,
        tokens: Int[Tensor, "example pos"],
        targets: Int[Tensor, "example pos"],
        scored: Bool[Tensor, "example pos"],
        where: Bool[Tensor, "example role pos"],
        *,
        heads: Mapping[int, Sequence[int]],
        mode: KnockOutMode,
        n_controls: int,
        seed: int,
        batch_size: int | Literal["auto"],
    ) -> None:
        self.model, self.tokens, self.targets, self.scored, self.where = model, tokens, targets, scored, where
        self.heads, self.mode, self.n_controls, self.seed, self.batch_size = heads, mode, n_controls, seed, batch_size
        self.legal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()
        """Edges [query_pos, key_pos] that `mode` can cut."""
        if mode == "bos":
            self.legal[:, 0] = False
        exists = _have_edges(where, self.legal)
        self.pairs = exists.any(dim=0).nonzero()
        """(query role, key role) of every pair that some example has an edge of."""
        n, n_roles = where.shape[:2]
        self.nothing = np.where(exists.cpu().numpy()[:, None, None], 0.0, np.nan)  # [example 1 1 role role]
        shape = (n, 1 + n_controls, len(heads), n_roles, n_roles)
        self.accuracy, self.kl, self.log_prob, self.removed_mass = (np.full(shape, np.nan) for _ in range(4))
        self.uncut_accuracy, self.uncut_log_prob = np.zeros(n), np.zeros(n)
        self.attention_mass = np.full((n, len(heads), model.cfg.n_heads, n_roles, n_roles), np.nan)
        self.engine: Literal["suffix", "whole"] = "whole"
        self.n_runs = 0
        self.notes: list[str] = []

    def run(self) -> None:
        n, length = self.tokens.shape
        at_once = max(1, min(n, _KEPT_BYTES // self._kept_bytes(), choose_batch_size(self.model, length)))
        if self.batch_size != "auto":
            at_once = min(at_once, self.batch_size)
        self.notes += for_each_batch(n, self._run_examples, batch_size=at_once)

    def _run_examples(self, rows: slice) -> None:
        scored, where = self.scored[rows], self.where[rows]
        mass: dict[int, Tensor] = {}
        reach: dict[int, Tensor] = {}

        def watch(layer: int, pattern: Tensor, seen: Tensor) -> None:
            mass[layer] = pattern[:, list(self.heads[layer])].sum(dim=1).float()
            reach[layer] = seen & torch.ones_like(seen[0]).tril()
            self.attention_mass[rows, list(self.heads).index(layer)] = _mean_mass(pattern.float(), where)

        runs = CutRuns(self.model, self.tokens[rows], scored, mode=self.mode, heads=self.heads, watch=watch)
        self.engine = "suffix" if runs.skips else "whole"
        judge = _Judge(runs.uncut, self.targets[rows], scored)
        accuracy, kl, log_prob = map(to_numpy, judge(runs.uncut, torch.arange(len(scored), device=scored.device)))
        self.uncut_accuracy[rows], self.uncut_log_prob[rows] = accuracy, log_prob
        for values, uncut in ((self.accuracy, accuracy), (self.kl, kl), (self.log_prob, log_prob)):
            values[rows] = self.nothing[rows] + uncut[:, None, None, None, None]
        self.removed_mass[rows] = self.nothing[rows]

        for index, layer in enumerate(self.heads):
            live = find_live_edges(scored, last_layer=layer == self.model.cfg.n_layers - 1) & reach[layer] & self.legal
            cuts = self._choose_cuts(rows, layer, live, mass[layer], reach[layer])
            removed = to_numpy(torch.einsum("epcij,eij->ecp", cuts.float(), mass[layer]))
            query, key = self.pairs.T.cpu().numpy()
            self.removed_mass[rows][:, :, index, query, key] = removed + self.nothing[rows][:, :, 0, query, key]
            self._run_cuts(rows, index, layer, cuts, runs, judge)

    def _run_cuts(
        self,
        rows: slice,
        index: int,
        layer: int,
        cuts: Bool[Tensor, "example pair cut query_pos key_pos"],
        runs: CutRuns,
        judge: "_Judge",
    ) -> None:
        """Runs the cuts of a layer that cut anything, and writes down how each example fares."""
        example, pair, cut = cuts.flatten(-2).any(dim=-1).nonzero().unbind(1)
        first_query = cuts[example, pair, cut].any(dim=-1).int().argmax(dim=-1)
        order = first_query.argsort(
            stable=True
        )  # rows that run together start at the first query that one of them cuts
        example, pair, cut = example[order], pair[order], cut[order]
        place = [axis.cpu().numpy() for axis in (example, cut, self.pairs[pair, 0], self.pairs[pair, 1])]

        def run(jobs: slice) -> None:
            logits = runs.logits(layer, example[jobs], cuts[example[jobs], pair[jobs], cut[jobs]])
            found = judge(logits.float(), example[jobs])
            at = tuple(axis[jobs] for axis in place)
            for values, measured in zip((self.accuracy, self.kl, self.log_prob), found, strict=True):
                values[rows][at[0], at[1], index, at[2], at[3]] = to_numpy(measured)

        self.notes += for_each_batch(len(example), run, batch_size=self._rows_at_once(len(self.tokens[rows])))
        self.n_runs += len(example)

    def _choose_cuts(
        self,
        rows: slice,
        layer: int,
        live: Bool[Tensor, "example query_pos key_pos"],
        mass: Float[Tensor, "example query_pos key_pos"],
        reach: Bool[Tensor, "example query_pos key_pos"],
    ) -> Bool[Tensor, "example pair cut query_pos key_pos"]:
        queries, keys = (self.where[rows][:, self.pairs[:, side]] for side in (0, 1))  # [example pair pos]
        between = queries[..., :, None] & keys[..., None, :] & live[:, None]
        cut = keep_own_edge(between, reach[:, None]) if self.mode == "mask" else between
        shape = (len(self.pairs), self.n_controls, live[0].numel() + 1)
        generators = [derive_generator(self.seed, "edges", layer, row) for row in range(len(self.tokens))[rows]]
        drawn = draw_edges(
            mass,
            live[:, None] & ~between,
            (mass[:, None] * cut).double().sum(dim=(-1, -2)),
            torch.stack([torch.rand(shape, generator=generator) for generator in generators]).to(mass.device),
            reach=reach if self.mode == "mask" else None,
        )
        return torch.cat([cut[:, :, None], drawn], dim=2)

    def _rows_at_once(self, n_examples: int) -> int:
        if self.batch_size != "auto":
            return self.batch_size
        length = self.tokens.shape[1]
        n_logits = self.model.cfg.d_vocab * (length if self.engine == "whole" else int(self.scored.sum(dim=1).max()))
        affordable = min(choose_batch_size(self.model, length), max(1, _LOGIT_BYTES // (32 * n_logits)))
        return min(affordable, max(n_examples, _ENOUGH_TOKENS // length))

    def _kept_bytes(self) -> int:
        """Bytes that one example keeps: the uncut stream, keys and values, logits, and the edges of a layer's cuts."""
        cfg, length = self.model.cfg, self.tokens.shape[1]
        stream = 4 * length * cfg.n_layers * (cfg.d_model + 2 * cfg.n_heads * cfg.d_head)
        edges = 50 * len(self.pairs) * (1 + self.n_controls) * length**2
        return stream + edges + 16 * cfg.d_vocab


class _Judge:
    """Accuracy, KL from the uncut prediction (nats) and log-probability of the target, one a row."""

    def __init__(
        self,
        uncut: Float[Tensor, "scored d_vocab"],
        targets: Int[Tensor, "example pos"],
        scored: Bool[Tensor, "example pos"],
    ) -> None:
        self.uncut, self.targets, self.scored = uncut.double().log_softmax(-1), targets, scored
        self.slot = (scored.flatten().cumsum(0) - 1).view(scored.shape)  # which row of `uncut` a scored position has

    def __call__(
        self, logits: Float[Tensor, "found d_vocab"], example: Int[Tensor, "row"]
    ) -> tuple[Float[Tensor, "row"], Float[Tensor, "row"], Float[Tensor, "row"]]:
        scored = self.scored[example]
        row, count = scored.nonzero()[:, 0], scored.sum(dim=1)
        theirs, ours = self.uncut[self.slot[example][scored]], logits.double().log_softmax(-1)
        target = self.targets[example][scored]

        def average(values: Tensor) -> Tensor:
            return values.new_zeros(len(count)).index_add(0, row, values) / count

        correct = (logits.argmax(dim=-1) == target).double()
        kl = (theirs.exp() * (theirs - ours)).sum(dim=-1)
        return average(correct), average(kl), average(ours.gather(1, target[:, None])[:, 0])


def _have_edges(
    where: Bool[Tensor, "example role pos"], legal: Bool[Tensor, "query_pos key_pos"]
) -> Bool[Tensor, "example role role"]:
    """Whether a position of the first role has a legal edge to one of the second."""
    return torch.einsum("eqi,ij,ekj->eqk", where.float(), legal.float(), where.float()) > 0


def _mean_mass(
    pattern: Float[Tensor, "example head_index query_pos key_pos"], where: Bool[Tensor, "example role pos"]
) -> Float[np.ndarray, "example head_index role role"]:
    """Attention summed over the keys of a role, mean over the queries of one; NaN where there is no edge."""
    weights = where.float()
    total = torch.einsum("eqi,ehij,ekj->ehqk", weights, pattern, weights)
    mean = total / weights.sum(dim=-1)[:, None, :, None]
    exists = _have_edges(where, torch.ones_like(pattern[0, 0], dtype=torch.bool).tril())
    return to_numpy(mean.where(exists[:, None], torch.nan))
