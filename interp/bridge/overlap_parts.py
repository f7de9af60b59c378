"""Is the bridge common? The overlap of the bridges of single layers, or of single heads, with one another.

Each part, the chosen heads of one layer or one head, has a bridge of its own, and every pair of parts an overlap (mean squared
cosine). The control is the same table for other heads of the same layers: what parts of this model have in common whatever
they do. Chance is rank / d_model.

>>> import interp
>>> model = interp.build(n_layers=3, d_model=16, n_heads=4, d_vocab=20, n_ctx=8, attn_only=True)
>>> compare_part_bridges(model, [(1, 0), (2, 1), (2, 2)], by="layer", rank=2, n_draws=3).parts
('layer 1', 'layer 2')
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.bridge.find import check_heads, check_rank, fit_bridge
from interp.bridge.overlap import measure_overlap
from interp.circuits.factors import Distance, Fold, read_factors
from interp.errors import InputError
from interp.heads.control import draw_control_heads
from interp.interventions.select import Head
from interp.models.provenance import Provenance, get_provenance
from interp.statistics import permutation_p_value

By = Literal["layer", "head"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PartOverlaps:
    """Overlaps of the bridges of all parts."""

    parts: tuple[str, ...]
    """`layer 3`, or `3.1` for a head."""
    rank: int
    """Rank of every bridge."""
    overlap: Float[np.ndarray, "part part"]
    """Mean squared cosine of each pair; 1 on the diagonal."""
    control: Float[np.ndarray, "draw"]
    """Mean overlap of different parts, of as many other heads of the same layers."""
    null: float
    """Mean overlap of random subspaces, rank / d_model."""
    provenance: Provenance
    """The model."""
    notes: tuple[str, ...] = ()
    """Layers without enough other heads; draws that were left out."""

    @property
    def mean(self) -> float:
        """Mean overlap of different parts."""
        return _mean_of_pairs(self.overlap)

    @property
    def p_value(self) -> float:
        """Share of draws, the chosen heads among them, whose parts overlap as much."""
        return permutation_p_value(self.mean, self.control)

    def to_frame(self) -> pd.DataFrame:
        """One row a pair of parts: `one`, `other`, `overlap`, `null`."""
        first, second = np.triu_indices(len(self.parts), 1)
        parts = np.array(self.parts)
        pairs = {"one": parts[first], "other": parts[second], "overlap": self.overlap[first, second]}
        return pd.DataFrame(pairs).assign(null=self.null)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        return (
            f"PartOverlaps({self.provenance.model}: the bridges of rank {self.rank} of {len(self.parts)} parts overlap by "
            f"{self.mean:.2f}, those of other heads of the same layers by {self.control.mean():.2f} "
            f"({self.control.min():.2f} to {self.control.max():.2f}), by chance {self.null:.2f}; p = {self.p_value:.3f}, "
            f"{len(self.control)} draws)"
        )


def compare_part_bridges(
    model: Any,
    induction_heads: Sequence[Head],
    *,
    by: By = "layer",
    rank: int = 10,
    n_draws: int = 20,
    distance: Distance = "none",
    fold: Fold = "norms",
    seed: int = 0,
) -> PartOverlaps:
    """Overlaps of the bridges of the heads' layers, or of the heads one by one.

    Heads that share a key-value head read the same keys, so by head their bridges overlap for that reason alone.
    Raises `InputError` for fewer than two parts, and for a rank that one of them doesn't have.
    """
    if by not in get_args(By):
        raise InputError(f"by={by!r} isn't known; use one of {', '.join(get_args(By))}.")
    chosen = check_heads(model, induction_heads)
    if len(_divide(chosen, by)) < 2:
        raise InputError(
            f"The {len(chosen)} heads are one {by}, which overlaps with nothing; give heads of at least two "
            f"{'layers, or use by=' + repr('head') if by == 'layer' else 'different numbers'}."
        )
    control_heads, notes = draw_control_heads(model, chosen, n_draws=n_draws, seed=seed)
    layers = {layer for heads in (chosen, *control_heads) for layer, _ in heads}
    factors = {layer: read_factors(model, layer, fold=fold) for layer in sorted(layers)}
    provenance = get_provenance(model)

    def overlaps(heads: Sequence[Head]) -> Float[np.ndarray, "part part"]:
        bases = []
        for part in _divide(heads, by).values():
            whole = fit_bridge(factors, part, distance=distance, fold=fold, provenance=provenance)
            check_rank(rank, whole)
            bases.append(whole.basis[:, :rank])
        return np.array([[measure_overlap(one, other) for other in bases] for one in bases])

    return PartOverlaps(
        parts=tuple(_divide(chosen, by)),
        rank=rank,
        overlap=overlaps(chosen),
        control=np.array([_mean_of_pairs(overlaps(heads)) for heads in control_heads]),
        null=rank / model.cfg.d_model,
        provenance=provenance,
        notes=notes,
    )


def _divide(heads: Sequence[Head], by: By) -> dict[str, list[Head]]:
    parts: dict[str, list[Head]] = {}
    for layer, head in heads:
        parts.setdefault(f"layer {layer}" if by == "layer" else f"{layer}.{head}", []).append((layer, head))
    return parts


def _mean_of_pairs(overlap: Float[np.ndarray, "part part"]) -> float:
    n = len(overlap)
    return float((overlap.sum() - np.trace(overlap)) / (n * (n - 1)))
