"""The bridge against one control: does it matter more than a subspace that should not?

>>> Contrast(control="random", part="remove", rank=10, bridge=0.9, controls=np.array([0.4, 0.5, 0.45]), difference=0.45,
...          low=0.4, high=0.5, n_sequences=8)
Contrast(removing rank 10: error 0.90, random of equal rank 0.45 (0.40 to 0.50 in 3 draws), p = 0.250;
    difference 0.45 [0.40, 0.50], n=8 sequences)
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from interp.bridge.subspaces import Control, Fit
from interp.interventions.project import Part
from interp.statistics import permutation_p_value

NAMES: Mapping[Fit, str] = {
    "cross_fitted": "bridge, cross-fitted",
    "own": "bridge, fitted on all heads",
    "random": "random of equal rank",
    "equal_energy_weights": "random of equal energy (weights)",
    "equal_energy_stack": "random of equal energy (stack)",
    "other_heads": "bridge of other heads",
}
_DONE: Mapping[Part, str] = {"remove": "removing", "keep": "keeping only"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Contrast:
    """The bridge against one control, on the sequences that both were scored on."""

    control: Control
    """Which control."""
    part: Part
    """What was done with the subspace."""
    rank: int
    """The bridge's rank."""
    bridge: float
    """Mean error under the bridge's edit."""
    controls: Float[np.ndarray, "draw"]
    """Mean error of each draw."""
    difference: float
    """How much more the bridge matters: error beyond the mean draw's for `remove`, below it for `keep`."""
    low: float
    """Lower end of its paired 95% bootstrap interval over sequences."""
    high: float
    """Upper end."""
    n_sequences: int
    """Sequences."""

    @property
    def p_value(self) -> float:
        """Share of draws, the bridge among them, that matter as much: at best 1 / (1 + draws)."""
        sign = 1 if self.part == "remove" else -1
        return permutation_p_value(sign * self.bridge, sign * self.controls)

    def __repr__(self) -> str:
        return (
            f"Contrast({_DONE[self.part]} rank {self.rank}: error {self.bridge:.2f}, {NAMES[self.control]} "
            f"{self.controls.mean():.2f} ({self.controls.min():.2f} to {self.controls.max():.2f} in "
            f"{count_of(len(self.controls), 'draw')}), p = {self.p_value:.3f};\n"
            f"    difference {self.difference:.2f} [{self.low:.2f}, {self.high:.2f}], n={self.n_sequences} sequences)"
        )


def count_of(n: int, what: str) -> str:
    """`1 draw`, `20 draws`."""
    return f"{n} {what}" if n == 1 else f"{n} {what}s"
