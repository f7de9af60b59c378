"""What a sweep found: errors and losses of every edit, sequence by sequence, and the bridge against each control."""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.bridge.contrast import NAMES, Contrast, count_of
from interp.bridge.edit import SharedKeys, Side
from interp.bridge.find import Bridge
from interp.bridge.plan import SweepPlan
from interp.bridge.subspaces import CONTROLS, Control, Fit
from interp.errors import InputError
from interp.interventions.project import Part
from interp.interventions.select import Head
from interp.models.provenance import Provenance
from interp.statistics import bootstrap_interval

if TYPE_CHECKING:
    from interp.figures.style import Picture

TOLERATED_RISE = 0.1
"""Nats that the loss on text may rise at the rank that is reported first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BridgeRun:
    """One edit of the weights."""

    fit: Fit
    """Which subspace."""
    part: Part
    """Whether it was removed, or all but it."""
    rank: int
    """The bridge's rank."""
    dims: int
    """Dimensions of the subspace: more than the rank for a control of equal energy."""
    draw: int
    """Which draw of a control; 0 for the bridge."""
    energy_weights: float
    """Share of the edited weights' squared norm in the subspace."""
    energy_stack: float
    """Share of the stacked W_QK's squared norm in the subspace."""
    error: Float[np.ndarray, "sequence"]
    """Share of wrong tokens on the second copy."""
    probability: Float[np.ndarray, "sequence"]
    """Probability of the right token there."""
    text_loss: Float[np.ndarray, "passage"]
    """Nats per token of ordinary text; empty where it was not measured."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BridgeSweep:
    """Every edit of one side, with the untouched model."""

    side: Side
    """`QK`: what the keys of the induction heads read; `OV`: what the previous-token heads write."""
    headline: Fit
    """`cross_fitted`, or `own` where all induction heads lie in the one edited layer."""
    bridge: Bridge
    """The bridge of all induction heads, of the largest rank."""
    edited_heads: tuple[Head, ...]
    """The heads that were chosen for the edit."""
    collateral_heads: tuple[Head, ...]
    """Heads that were edited as well, since they share a key-value head with a chosen one."""
    shared_keys: SharedKeys
    """Whether shared keys were edited as they are, or copied for the chosen heads first."""
    control_heads: tuple[tuple[Head, ...], ...]
    """The heads of each draw of `other_heads`."""
    error: Float[np.ndarray, "sequence"]
    """Of the untouched model."""
    probability: Float[np.ndarray, "sequence"]
    """Of the untouched model."""
    text_loss: Float[np.ndarray, "passage"]
    """Of the untouched model; empty for a model without a tokenizer."""
    runs: tuple[BridgeRun, ...]
    """Every edit."""
    ranks: tuple[int, ...]
    """Ranks of the bridge."""
    control_ranks: tuple[int, ...]
    """Ranks that have controls."""
    plan: SweepPlan
    """What was run."""
    bos: int | None
    """The id that stood first, or None."""
    seed: int
    """Seed of the sequences and of the draws."""
    data_sha256: str
    """Hash of the token ids that were read."""
    provenance: Provenance
    """The model."""
    notes: tuple[str, ...] = ()
    """What a reader must know: fits that coincide, layers without enough other heads, halved batches."""

    def find(self, fit: Fit, rank: int, part: Part = "remove") -> tuple[BridgeRun, ...]:
        """The runs of a fit at a rank, one a draw. Raises `InputError` where there is none."""
        found = tuple(run for run in self.runs if (run.fit, run.rank, run.part) == (fit, rank, part))
        if not found:
            run_ranks = sorted({run.rank for run in self.runs if (run.fit, run.part) == (fit, part)})
            raise InputError(
                f"This sweep has no run of {fit!r} with part={part!r} at rank {rank}; it has ranks "
                f"{', '.join(map(str, run_ranks)) or 'none'} of them."
            )
        return found

    def compare(self, control: Control, rank: int, part: Part = "remove") -> Contrast:
        """The headline's edit against the draws of a control."""
        draws = np.stack([run.error for run in self.find(control, rank, part)])  # [draw, sequence]
        n_sequences = draws.shape[1]
        ours = self.find(self.headline, rank, part)[0].error[:n_sequences]
        paired = (ours - draws.mean(axis=0)) * (1 if part == "remove" else -1)
        low, high = bootstrap_interval(paired, seed=self.seed)
        return Contrast(
            control=control,
            part=part,
            rank=rank,
            bridge=float(ours.mean()),
            controls=draws.mean(axis=1),
            difference=float(paired.mean()),
            low=float(low),
            high=float(high),
            n_sequences=n_sequences,
        )

    def contrasts(self) -> pd.DataFrame:
        """One row a part, rank and control: bridge, mean control with its range, difference with its interval, p, n."""
        rows = []
        for part, rank, control in dict.fromkeys((run.part, run.rank, run.fit) for run in self.runs):
            if control not in CONTROLS:
                continue
            one = self.compare(control, rank, part)
            rows.append(
                {
                    "part": part,
                    "rank": rank,
                    "control": control,
                    "dims": float(np.mean([run.dims for run in self.find(control, rank, part)])),
                    "bridge_error": one.bridge,
                    "control_error": float(one.controls.mean()),
                    "control_min": float(one.controls.min()),
                    "control_max": float(one.controls.max()),
                    "difference": one.difference,
                    "low": one.low,
                    "high": one.high,
                    "p": one.p_value,
                    "n_draws": len(one.controls),
                    "n": one.n_sequences,
                }
            )
        return pd.DataFrame(rows)

    def text_rise(self, rank: int, part: Part = "remove") -> tuple[float, float, float]:
        """(value, low, high) of the rise of the loss on text under the headline's edit, in nats, paired over passages."""
        if self.text_loss.size == 0:
            raise InputError(
                "This sweep has no loss on text, since the model has no tokenizer; give `text=` token ids."
            )
        rise = self.find(self.headline, rank, part)[0].text_loss - self.text_loss
        low, high = bootstrap_interval(rise, seed=self.seed)
        return float(rise.mean()), float(low), float(high)

    @property
    def headline_rank(self) -> int:
        """The largest rank with controls at which removal leaves the loss on text within 0.1 nats.

        The smallest one where none does, and the middle one without text. The error on copying has no say in it.
        """
        if self.text_loss.size == 0:
            return self.control_ranks[len(self.control_ranks) // 2]
        spared = [rank for rank in self.control_ranks if self.text_rise(rank, self._part)[0] <= TOLERATED_RISE]
        return max(spared, default=min(self.control_ranks))

    @property
    def _part(self) -> Part:
        return "remove" if any(run.part == "remove" for run in self.runs) else "keep"

    def to_frame(self) -> pd.DataFrame:
        """One row an edit, the untouched model first: means with intervals over sequences or passages, and n."""
        untouched = {"fit": "untouched", "part": "none", "rank": 0, "dims": 0, "draw": 0}
        rows = [{**untouched, **self._summarise(self.error, self.probability, self.text_loss)}]
        for run in self.runs:
            named = {name: getattr(run, name) for name in ("fit", "part", "rank", "dims", "draw")}
            energy = {"energy_weights": run.energy_weights, "energy_stack": run.energy_stack}
            rows.append({**named, **energy, **self._summarise(run.error, run.probability, run.text_loss)})
        return pd.DataFrame(rows)

    def _summarise(self, error: np.ndarray, probability: np.ndarray, text_loss: np.ndarray) -> dict[str, float]:
        row: dict[str, float] = {}
        for name, values in (("error", error), ("probability", probability), ("text_loss", text_loss)):
            if values.size:
                low, high = bootstrap_interval(values, seed=self.seed)
                row |= {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}
        return {**row, "n": len(error), "n_passages": len(text_loss)}

    def figure(self) -> "Picture":
        """Error and loss on text against the rank, for the bridge and its controls."""
        from interp.figures.bridge import rank_sweep

        return rank_sweep(self)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        rank, part = self.headline_rank, self._part
        run = self.find(self.headline, rank, part)[0]
        low, high = bootstrap_interval(run.error, seed=self.seed)
        others = (
            f" (and of {count_of(len(self.collateral_heads), 'other')} sharing them)" if self.collateral_heads else ""
        )
        edited = f"{'the keys' if self.side == 'QK' else 'the outputs'} of {count_of(len(self.edited_heads), 'head')}{others}"
        fitted = "cross-fitted" if self.headline == "cross_fitted" else "fitted on the edited heads themselves"
        done = {"remove": f"removing the bridge, {fitted}, from", "keep": f"keeping only the bridge, {fitted}, in"}[
            part
        ]
        contrasts = []
        for control in dict.fromkeys(other.fit for other in self.runs if other.fit in CONTROLS and other.part == part):
            one = self.compare(control, rank, part)
            contrasts.append(f"{NAMES[control]} {one.controls.mean():.2f} (p = {one.p_value:.3f})")
        draws = self.find("random", rank, part)
        text = ""
        if self.text_loss.size:
            rise, rise_low, rise_high = self.text_rise(rank, part)
            text = f"; loss on text rises by {rise:.2f} [{rise_low:.2f}, {rise_high:.2f}] nats, n={len(self.text_loss)} passages"
        return (
            f"BridgeSweep({self.provenance.model}, {self.side} side, rank {rank}: {done} {edited} moves the error of copying "
            f"from {self.error.mean():.2f} to {run.error.mean():.2f} [{low:.2f}, {high:.2f}], n={len(self.error)} sequences; "
            f"{', '.join(contrasts)}, {count_of(len(draws), 'draw')} on {count_of(len(draws[0].error), 'sequence')}{text})"
        )
