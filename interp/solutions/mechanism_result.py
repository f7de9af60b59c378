"""What cutting and keeping circuits did to a model's answers, and the circuit that this names.

With a the accuracy on trained sequences,

    sufficient: a(circuit kept alone) >= 0.8 a(uncut), and above every control
    needed:     a(circuit cut) <= 0.5 a(uncut), and below every control that is fair

A control is fair where it carries at least 0.9 of the attention of the edges that are cut, in each layer. In the last layer
only one query counts; where most of its attention is cut there are no other edges to match it, and the first half of
the rule decides alone.

| mechanism | what is sufficient |
|---|---|
| `parallel`, `serial`, `symmetric` | that circuit, it alone, and it is needed (see `circuits`) |
| `hybrid` | several of them, one that isn't needed, or only all their edges together |
| `distributed` | none: tokens without a role take part |
| `none` | the uncut accuracy is below 0.5, so that there is nothing to explain |

>>> list(CUTS)[0], CUTS["key → last, last layer"].last
('key → anchors, before the last layer', (('last', 'key'),))
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.solutions.circuits import CIRCUITS, Circuit, CutMode, list_layers
from interp.solutions.stages import tell_second_stage
from interp.solutions.thresholds import Thresholds
from interp.statistics import bootstrap_interval, permutation_p_value

if TYPE_CHECKING:
    from interp.figures.style import Picture

MechanismLabel = Literal["parallel", "serial", "symmetric", "hybrid", "distributed", "none"]

CUTS: Mapping[str, Circuit] = {
    "key → anchors, before the last layer": Circuit(first=(("anchor_1", "key"), ("anchor_2", "key"))),
    "anchor 1 → anchor 2, before the last layer": Circuit(first=(("anchor_2", "anchor_1"),)),
    "anchors → last, before the last layer": Circuit(first=(("last", "anchor_1"), ("last", "anchor_2"))),
    "key → last, last layer": Circuit(last=(("last", "key"),)),
    "anchors → last, last layer": Circuit(last=(("last", "anchor_1"), ("last", "anchor_2"))),
}
"""The cuts of single stages, in which the circuits differ."""

_SINGLE: tuple[Literal["parallel", "serial", "symmetric"], ...] = ("parallel", "serial", "symmetric")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Mechanism:
    """What cutting and keeping do to the answers, sequence by sequence."""

    split: str
    """Which sequences: `train`, `id`, `held_out` or `altered`."""
    mode: CutMode
    """How edges are cut."""
    uncut: Float[np.ndarray, "sequence"]
    """1 where the answer is the target."""
    cut: Mapping[str, Float[np.ndarray, "sequence"]]
    """The same with the edges of each entry of `CUTS` and of `CIRCUITS` cut."""
    cut_mass: Mapping[str, Float[np.ndarray, "layer"]]
    """Attention on those edges in each layer, summed over heads and queries, a mean over sequences."""
    cut_control: Mapping[str, Float[np.ndarray, "draw"]]
    """Accuracy with random edges cut that carry the same attention in the same layers."""
    control_mass: Mapping[str, Float[np.ndarray, "draw layer"]]
    """Attention that the random edges do carry: less than `cut_mass` where there are no others to match it."""
    kept: Mapping[str, Float[np.ndarray, "sequence"]]
    """Only each circuit of `CIRCUITS` kept."""
    kept_control: Mapping[str, Float[np.ndarray, "draw"]]
    """Accuracy with as many random edges kept instead."""
    followed: Float[np.ndarray, "other layer"]
    """1 where the answer follows other anchors, once the last token's state after a layer is theirs."""
    second_stage: int = 1
    """Layer at which the second stage begins: the last of a model of two layers."""
    without_last: Float[np.ndarray, "sequence layer"] | None = None
    """What that layer was found by: 1 where the answer is right with all edges from the last token to other positions cut in
    one layer. None where it wasn't looked for."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """What the label rests on."""
    seed: int
    """Seed of the sequences, of the controls and of the bootstrap."""

    def is_sufficient(self, circuit: str) -> bool:
        """Whether the circuit alone keeps most of the accuracy, and more than random edges do."""
        kept = self.kept[circuit].mean()
        enough = kept >= self.thresholds.sufficient * self.uncut.mean()
        return bool(enough and kept > self.kept_control[circuit].max())

    def is_needed(self, edges: str) -> bool:
        """Whether cutting these edges costs half of the accuracy or more, and more than their control, if it is fair."""
        left = self.cut[edges].mean()
        costs = left <= self.thresholds.needed * self.uncut.mean()
        return bool(costs and (left < self.cut_control[edges].min() or not self.is_matched(edges)))

    def is_matched(self, edges: str) -> bool:
        """Whether the random edges carry nearly the attention of these edges, in every layer."""
        return bool((self.control_mass[edges].mean(axis=0) >= self.thresholds.matched * self.cut_mass[edges]).all())

    @property
    def n_layers(self) -> int:
        """Layers of the model."""
        return self.followed.shape[1]

    @property
    def label(self) -> MechanismLabel:
        """The circuit that suffices and is needed; `none` where there is too little accuracy to explain."""
        if self.uncut.mean() < self.thresholds.answers:
            return "none"
        found = [name for name in _SINGLE if self.is_sufficient(name)]
        if len(found) == 1 and self.is_needed(found[0]):
            return found[0]
        return "hybrid" if found or self.is_sufficient("hybrid") else "distributed"

    def to_frame(self) -> pd.DataFrame:
        """One row an intervention: accuracy with its interval, the control's mean and range, p, n, and attention cut.

        `verdict` is `needed` or `sufficient` where these edges are. `mass` and `control_mass` are sums over the layers in
        which edges are cut, `layers`.
        """
        rows = [self._row("uncut", "", self.uncut)]
        for name, values in self.cut.items():
            masses: dict[str, Any] = {
                "mass": self.cut_mass[name].sum(),
                "control_mass": self.control_mass[name].sum(axis=1).mean(),
            }
            layers = list_layers({**CUTS, **CIRCUITS}[name], n_layers=self.n_layers, second_stage=self.second_stage)
            masses |= {"layers": f"{layers[0]}–{layers[-1]}" if len(layers) > 1 else f"{layers[0]}"}
            verdict = "needed" if self.is_needed(name) else ""
            rows.append(self._row("cut", name, values, self.cut_control[name], side=-1, verdict=verdict) | masses)
        for name, values in self.kept.items():
            verdict = "sufficient" if self.is_sufficient(name) else ""
            rows.append(self._row("kept alone", name, values, self.kept_control[name], verdict=verdict))
        for layer, values in enumerate(self.followed.T):
            rows.append(self._row("other anchors", f"last token after layer {layer}", values))
        return pd.DataFrame(rows)

    def figure(self) -> "Picture":
        """Accuracy after each cut and of each circuit kept alone, beside the random edges."""
        from interp.figures.solutions import mechanism_picture

        frame = self.to_frame()
        frame["edges"] = frame["edges"].map(self._say)
        cut_control = {self._say(edges): draws for edges, draws in self.cut_control.items()}
        return mechanism_picture(frame, cut_control, self.kept_control, title=self._title())

    def _say(self, edges: str) -> str:
        """The name of a cut, with its layers where the second stage isn't the last layer."""
        if self.second_stage == self.n_layers - 1:
            return edges
        before, behind = f"before layer {self.second_stage}", f"from layer {self.second_stage} on"
        return edges.replace("before the last layer", before).replace("last layer", behind)

    def _row(
        self,
        kind: str,
        edges: str,
        values: Float[np.ndarray, "sequence"],
        draws: Float[np.ndarray, "draw"] | None = None,
        *,
        side: Literal[1, -1] = 1,
        verdict: str = "",
    ) -> dict[str, Any]:
        accuracy = float(values.mean())
        low, high = bootstrap_interval(values, seed=self.seed)
        row: dict[str, Any] = {"intervention": kind, "edges": edges, "verdict": verdict, "accuracy": accuracy}
        row |= {"low": float(low), "high": float(high), "n": len(values)}
        if draws is not None:
            row |= {"control": draws.mean(), "control_low": draws.min(), "control_high": draws.max()}
            row |= {"p": permutation_p_value(side * accuracy, side * draws)}
        return row

    def _title(self) -> str:
        how = {"mask": "edges cut before the softmax", "zero": "edges cut after the softmax"}[self.mode]
        return f"Mechanism: {self.label} ({how})"

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        kept = ", ".join(f"{name} {values.mean():.2f}" for name, values in self.kept.items())
        stage = "" if self.second_stage == self.n_layers - 1 else f"; second stage from layer {self.second_stage} on"
        if self.without_last is not None:
            stage = f"; {tell_second_stage(self.without_last, self.second_stage, seed=self.seed)}"
        return (
            f"Mechanism({self.label}, mode {self.mode}: accuracy {self.uncut.mean():.2f}; kept alone {kept}"
            f"{stage}; n={len(self.uncut)})"
        )
