"""By which circuit a model answers a composite task: what breaks when it is cut, and what suffices when it is kept alone.

Every cut of edges between roles is compared with random edges of the same layers that carry the same attention, every
circuit kept alone with as many random edges. With a the accuracy on trained sequences,

    sufficient: a(circuit kept alone) >= 0.8 a(uncut),   needed: a(circuit cut) <= 0.5 a(uncut) and below every control

| mechanism | what is sufficient |
|---|---|
| `parallel`, `serial`, `symmetric` | that circuit, and it alone (see `circuits`) |
| `hybrid` | several of them, or only all their edges together |
| `distributed` | none: tokens without a role take part |

`followed` is a test of its own: the state of the last token after each layer is replaced by that of a sequence with the
same key and noise but other anchors. Where the anchors are brought to the last token first, the answer follows early.

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> measure_mechanism(model, dropped_pairs(), n=20, n_controls=2).label
'none'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from interp.errors import InputError
from interp.interventions.edge_controls import draw_edges
from interp.interventions.hooks import add_hooks
from interp.interventions.knock_out import KnockOutMode
from interp.interventions.patch import patch
from interp.interventions.role_edges import find_live_edges
from interp.solutions.circuits import CIRCUITS, Circuit, cut_edges, spread_circuit, spread_complement
from interp.statistics import bootstrap_interval, permutation_p_value
from tasks.anchor.composite import Composite
from tasks.seeding import derive_generator, derive_seed
from tasks.task import Batch

MechanismLabel = Literal["parallel", "serial", "symmetric", "hybrid", "distributed", "none"]

CUTS: Mapping[str, Circuit] = {
    "key → anchors, before the last layer": Circuit(first=(("anchor_1", "key"), ("anchor_2", "key"))),
    "anchor 1 → anchor 2, before the last layer": Circuit(first=(("anchor_2", "anchor_1"),)),
    "anchors → last, before the last layer": Circuit(first=(("last", "anchor_1"), ("last", "anchor_2"))),
    "key → last, last layer": Circuit(last=(("last", "key"),)),
    "anchors → last, last layer": Circuit(last=(("last", "anchor_1"), ("last", "anchor_2"))),
}
"""The cuts of single stages, in which the circuits differ."""

SUFFICIENT, NEEDED = 0.8, 0.5


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mechanism:
    """What cutting and keeping do to the answers, sequence by sequence."""

    split: str
    """Which sequences: `train`, `id`, `held_out` or `altered`."""
    mode: KnockOutMode
    """How edges are cut."""
    uncut: Float[np.ndarray, "sequence"]
    """1 where the answer is the target."""
    cut: Mapping[str, Float[np.ndarray, "sequence"]]
    """The same with the edges of each entry of `CUTS` and of `CIRCUITS` cut."""
    cut_control: Mapping[str, Float[np.ndarray, "draw"]]
    """Accuracy with random edges cut that carry the same attention in the same layers."""
    kept: Mapping[str, Float[np.ndarray, "sequence"]]
    """Only each circuit of `CIRCUITS` kept."""
    kept_control: Mapping[str, Float[np.ndarray, "draw"]]
    """Accuracy with as many random edges kept instead."""
    followed: Float[np.ndarray, "other layer"]
    """1 where the answer follows other anchors, once the last token's state after a layer is theirs."""
    seed: int
    """Seed of the sequences, of the controls and of the bootstrap."""

    def is_sufficient(self, circuit: str) -> bool:
        """Whether the circuit alone keeps most of the accuracy, and more than random edges do."""
        kept = self.kept[circuit].mean()
        return bool(kept >= SUFFICIENT * self.uncut.mean() and kept > self.kept_control[circuit].max())

    def is_needed(self, edges: str) -> bool:
        """Whether cutting these edges costs half of the accuracy or more, and more than random edges do."""
        left = self.cut[edges].mean()
        return bool(left <= NEEDED * self.uncut.mean() and left < self.cut_control[edges].min())

    @property
    def label(self) -> MechanismLabel:
        """The circuit that suffices; `none` where there is next to no accuracy to explain."""
        if self.uncut.mean() < NEEDED:
            return "none"
        single: tuple[MechanismLabel, ...] = ("parallel", "serial", "symmetric")
        found = [name for name in single if self.is_sufficient(name)]
        if len(found) == 1 and self.is_needed(found[0]):
            return found[0]
        return "hybrid" if found or self.is_sufficient("hybrid") else "distributed"

    def to_frame(self) -> pd.DataFrame:
        """One row an intervention: accuracy with its interval, the control's mean and range, p and n."""
        rows = [self._row("uncut", "", self.uncut, None, "greater")]
        rows += [self._row("cut", name, values, self.cut_control[name], "less") for name, values in self.cut.items()]
        rows += [
            self._row("kept alone", name, values, self.kept_control[name], "greater")
            for name, values in self.kept.items()
        ]
        rows += [
            self._row("other anchors", f"last token after layer {layer}", values, None, "greater")
            for layer, values in enumerate(self.followed.T)
        ]
        return pd.DataFrame(rows)

    def _row(
        self,
        kind: str,
        edges: str,
        values: Float[np.ndarray, "sequence"],
        draws: Float[np.ndarray, "draw"] | None,
        side: Literal["less", "greater"],
    ) -> dict[str, Any]:
        low, high = bootstrap_interval(values, seed=self.seed)
        sign = 1 if side == "greater" else -1
        return {
            "intervention": kind,
            "edges": edges,
            "accuracy": float(values.mean()),
            "low": float(low),
            "high": float(high),
            "control": np.nan if draws is None else float(draws.mean()),
            "control_low": np.nan if draws is None else float(draws.min()),
            "control_high": np.nan if draws is None else float(draws.max()),
            "p": np.nan if draws is None else permutation_p_value(sign * float(values.mean()), sign * draws),
            "n": len(values),
        }

    def __repr__(self) -> str:
        kept = ", ".join(f"{name} {values.mean():.2f}" for name, values in self.kept.items())
        return f"Mechanism({self.label}: accuracy {self.uncut.mean():.2f}; kept alone {kept}; n={len(self.uncut)})"


@torch.no_grad()
def measure_mechanism(
    model: Any,
    task: Composite,
    *,
    split: str = "train",
    mode: KnockOutMode = "mask",
    n: int = 500,
    n_controls: int = 20,
    seed: int = 0,
) -> Mechanism:
    """Cut and keep the circuits on sequences of `split` whose last token is none of the anchors, at most `n` of them.

    Raises `InputError` for a model of one layer, in which no state can be read that another layer wrote.
    """
    if model.cfg.n_layers < 2:
        raise InputError("A circuit of two stages needs at least two layers, but this model has one.")
    batch = _leave_last_free(task.sample(2 * n, split=split, seed=seed)).take(slice(n))
    run = _Cuts(model, batch, mode=mode, n_controls=n_controls, seed=seed)
    named = {**CUTS, **CIRCUITS}
    cuts = {name: spread_circuit(model, batch, circuit) for name, circuit in named.items()}
    keeps = {name: spread_complement(model, batch, circuit) for name, circuit in CIRCUITS.items()}
    return Mechanism(
        split=split,
        mode=mode,
        uncut=run.answer({}),
        cut={name: run.answer(edges) for name, edges in cuts.items()},
        cut_control={name: run.control_cut(name, edges) for name, edges in cuts.items()},
        kept={name: run.answer(edges) for name, edges in keeps.items()},
        kept_control={name: run.control_kept(name, edges) for name, edges in keeps.items()},
        followed=_follow_anchors(model, task, n=n, seed=seed),
        seed=seed,
    )


class _Cuts:
    """Runs one batch again and again, each time with other edges cut."""

    def __init__(self, model: Any, batch: Batch, *, mode: KnockOutMode, n_controls: int, seed: int) -> None:
        self.model, self.batch, self.mode, self.n_controls, self.seed = model, batch, mode, n_controls, seed
        self.tokens, self.targets = batch.tokens.to(model.cfg.device), batch.targets[:, -1].to(model.cfg.device)
        self.mass = self._read_attention()
        self.legal = torch.ones(batch.tokens.shape[1], batch.tokens.shape[1], dtype=torch.bool).tril()

    def answer(self, edges: Mapping[int, Bool[Tensor, "sequence query key"]]) -> Float[np.ndarray, "sequence"]:
        with cut_edges(self.model, edges, mode=self.mode):
            logits = self.model(self.tokens)[:, -1]
        return (logits.argmax(-1) == self.targets).double().cpu().numpy()

    def control_cut(
        self, name: str, edges: Mapping[int, Bool[Tensor, "sequence query key"]]
    ) -> Float[np.ndarray, "draw"]:
        """Other edges of each layer that carry the same attention, drawn anew for every sequence."""
        draws = {}
        for layer, cut in edges.items():
            live = find_live_edges(self.batch.scored, last_layer=layer == self.model.cfg.n_layers - 1)
            pool = (live & self.legal & ~cut)[:, None]
            target = (self.mass[layer] * cut).sum((-1, -2))[:, None]
            generator = derive_generator(self.seed, "mass control", name, layer)
            random = torch.rand(len(cut), 1, self.n_controls, cut[0].numel() + 1, generator=generator)
            reach = self.legal.expand_as(cut) if self.mode == "mask" else None
            draws[layer] = draw_edges(self.mass[layer], pool, target, random, reach=reach)[:, 0]
        each = [{layer: drawn[:, i] for layer, drawn in draws.items()} for i in range(self.n_controls)]
        return np.array([self.answer(edges).mean() for edges in each])

    def control_kept(
        self, name: str, edges: Mapping[int, Bool[Tensor, "sequence query key"]]
    ) -> Float[np.ndarray, "draw"]:
        """As many random edges kept in each layer, drawn anew for every sequence."""
        before = self.legal.tril(-1)
        accuracy = []
        for draw in range(self.n_controls):
            cut = {}
            for layer, others in edges.items():
                generator = derive_generator(self.seed, "kept control", name, layer, draw)
                order = torch.rand(others.shape, generator=generator).where(before, 2).flatten(1)
                n_kept = (before & ~others).flatten(1).sum(1)
                cut[layer] = before & (order.argsort(1).argsort(1) >= n_kept[:, None]).view_as(others)
            accuracy.append(self.answer(cut).mean())
        return np.array(accuracy)

    def _read_attention(self) -> dict[int, Float[Tensor, "sequence query key"]]:
        """Attention of each layer, summed over its heads, on the CPU."""
        found: dict[int, Tensor] = {}

        def keep(layer: int) -> Any:
            def store(pattern: Tensor, hook: HookPoint) -> None:
                found[layer] = pattern.sum(dim=1).float().cpu()

            return store

        layers = range(self.model.cfg.n_layers)
        with add_hooks(self.model, [(f"blocks.{layer}.attn.hook_pattern", keep(layer)) for layer in layers]):
            self.model(self.tokens, return_type=None)
        return found


def _leave_last_free(batch: Batch) -> Batch:
    """The rows whose last token is noise: elsewhere it would play two roles at once."""
    anchors = [position for role, position in batch.roles.items() if role.startswith("anchor")]
    free = (torch.cat([*anchors, batch.roles["key"]], dim=1) < batch.tokens.shape[1] - 1).all(dim=1)
    return batch.take(free.nonzero()[:, 0])


def _follow_anchors(model: Any, task: Composite, *, n: int, seed: int) -> Float[np.ndarray, "sequence layer"]:
    """Patch the last token's state after each layer with that of other anchors; whose answer is it?"""
    free, pairs = task.with_last_free(), list(task.trained_pairs)
    seed = derive_seed(seed, "other anchors")
    base = free.sample_pairs(n, pairs=pairs, seed=seed)
    other = free.sample_pairs(n, pairs=pairs[5:] + pairs[:5], seed=seed)  # the same keys and noise
    rows = (base.targets[:, -1] != other.targets[:, -1]).nonzero()[:, 0]
    base, other = base.take(rows), other.take(rows)
    target = other.targets[:, -1].to(model.cfg.device)

    def follows(logits: Tensor) -> Tensor:
        return (logits.argmax(-1) == target).double()

    patched = patch(model, other.tokens, base.tokens, follows, site="resid_post", positions=["last"], batch=base)
    values: np.ndarray = patched.values  # noqa: PD011 - no DataFrame
    return values[..., 0]
