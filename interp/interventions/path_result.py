"""What a sweep over paths gives: a value for every example and sender, with intervals, p-values, a table and a map.

Recovery is that of `interp.patch`: 0 like the corrupted run, 1 like the clean run, in either direction.
"""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.errors import InputError
from interp.interventions.patch_result import Direction
from interp.interventions.path_engine import MlpPaths
from interp.interventions.paths import Receiver, Sender, members
from interp.interventions.recovery import find_recovery, find_recovery_interval, scale_recovery
from interp.models.provenance import Provenance
from interp.statistics import bootstrap_interval, sign_flip_p_values

if TYPE_CHECKING:
    from interp.figures.style import Picture


@dataclass(frozen=True, kw_only=True, eq=False)
class PathPatchResult:
    """The metric after patching the paths from each sender into the receivers, and in the clean and corrupted run."""

    receivers: tuple[Receiver, ...] | Literal["logits"]
    """Who received, all at once: (layer, head, "q"), "k" or "v", or the logits."""
    senders: tuple[Sender | tuple[Sender, ...], ...]
    """Who sent, an entry of the sender axis each: one sender, or a tuple of those that were patched together."""
    mlps: MlpPaths
    """Whether MLPs between sender and receiver were `recomputed` or `frozen` at the base run."""
    direction: Direction
    """`denoise`: clean outputs sent in the corrupted run. `noise`: corrupted outputs sent in the clean run."""
    metric: str
    """What the values are."""
    values: Float[np.ndarray, "example sender"]
    """The metric of each example after each patch."""
    clean: Float[np.ndarray, "example"]
    """The metric of the clean run."""
    corrupted: Float[np.ndarray, "example"]
    """The metric of the corrupted run."""
    scored: tuple[int, ...]
    """The scored position of each example."""
    engine: Literal["suffix", "whole"]
    """`suffix`: runs began at the first receiver. `whole`: every run was full forward passes."""
    n_runs: int
    """How many (sender, example) pairs were run; for the others the sender writes the same in both runs."""
    seed: int
    """Seed of the bootstrap and of the sign flips."""
    data_sha256: str
    """Hash of the clean and the corrupted token ids."""
    provenance: Provenance
    """The model that was patched."""
    notes: tuple[str, ...] = ()
    """Halved batches."""

    @property
    def effects(self) -> Float[np.ndarray, "example sender"]:
        """How far each patch moved the metric from the run that was patched."""
        return self.values - (self.corrupted if self.direction == "denoise" else self.clean)[:, None]

    @property
    def mean(self) -> Float[np.ndarray, "sender"]:
        """Mean of `values` over examples."""
        return self.values.mean(axis=0)

    @property
    def interval(self) -> tuple[Float[np.ndarray, "sender"], Float[np.ndarray, "sender"]]:
        """(low, high), the 95% bootstrap interval of `mean` over examples; NaN for a single example."""
        return bootstrap_interval(self.values, seed=self.seed)

    @property
    def recovery(self) -> Float[np.ndarray, "sender"]:
        """0 like the corrupted run, 1 like the clean one; NaN where these two have the same mean."""
        return find_recovery(self.values, clean=self.clean, corrupted=self.corrupted)

    @property
    def recovery_interval(self) -> tuple[Float[np.ndarray, "sender"], Float[np.ndarray, "sender"]]:
        """95% bootstrap interval of `recovery` over examples, of the ratio as linearised at its value."""
        return find_recovery_interval(self.values, clean=self.clean, corrupted=self.corrupted, seed=self.seed)

    @property
    def p_values(self) -> Float[np.ndarray, "sender"]:
        """Two-sided sign-flip p-value of each mean effect, corrected for the number of senders by the max-statistic."""
        return sign_flip_p_values(self.effects, seed=self.seed)

    def top(self, n: int) -> list[Sender | tuple[Sender, ...]]:
        """The n entries of `senders` that moved the metric furthest."""
        return [self.senders[i] for i in self._order()[:n]]

    def to_frame(self) -> pd.DataFrame:
        """One row a sender: mean, effect and recovery with intervals, the corrected p-value, the baselines."""
        (low, high), (recovery_low, recovery_high) = self.interval, self.recovery_interval
        return pd.DataFrame(
            {
                "sender": [name_sender(entry) for entry in self.senders],
                "receivers": name_receivers(self.receivers),
                "value": self.mean,
                "low": low,
                "high": high,
                "effect": self.effects.mean(axis=0),
                "recovery": self.recovery,
                "recovery_low": recovery_low,
                "recovery_high": recovery_high,
                "p_value": self.p_values,
                "clean": self.clean.mean(),
                "corrupted": self.corrupted.mean(),
                "n": len(self.values),
            }
        )

    def figure(self) -> "Picture":
        """A map of the heads: recovery of the metric through the paths from each into the receivers, three outlined.

        Raises `InputError` where a sender is an MLP or a set, or where the clean and the corrupted run have the same mean.
        """
        from interp.figures.heads import head_map

        if np.isnan(self.recovery).all():
            raise InputError(
                f"The clean and the corrupted run have the same mean {self.metric} ({self.clean.mean():.3g}), "
                "so there is no recovery to draw; draw `mean` yourself, or give other examples."
            )
        heads = [(int(str(entry[0])), entry[1]) for entry in self.senders if isinstance(entry[1], int)]
        if len(heads) < len(self.senders):
            raise InputError("The map has a cell for each head, but a sender is an MLP or a set; use `to_frame()`.")
        drawn = np.full((max(layer for layer, _ in heads) + 1, max(head for _, head in heads) + 1), np.nan)
        drawn[tuple(np.array(heads).T)] = self.recovery
        most, note = scale_recovery(self.recovery)
        return head_map(
            drawn,
            label=f"recovery of the {self.metric} through paths into {name_receivers(self.receivers)}{note}",
            top=self.top(3),  # type: ignore[arg-type]
            title=f"Patching paths, {self.direction}",
            vmax=most,
        )

    def _order(self) -> list[int]:
        return np.argsort(-np.abs(self.effects.mean(axis=0)), kind="stable").tolist()

    def _repr_html_(self) -> str:
        if np.isnan(self.recovery).all() or not all(isinstance(entry[1], int) for entry in self.senders):
            return f"<code>{escape(repr(self))}</code>"
        return self.figure()._repr_html_()

    def __repr__(self) -> str:
        best = self._order()[0]
        low, high = (bound[best] for bound in self.recovery_interval)
        return (
            f"PathPatchResult({self.provenance.model}: {len(self.senders)} senders into {name_receivers(self.receivers)}, "
            f"{self.direction}, MLPs {self.mlps}; {self.metric} {self.clean.mean():.2f} clean, "
            f"{self.corrupted.mean():.2f} corrupted; strongest {name_sender(self.senders[best])}: recovery "
            f"{self.recovery[best]:.2f} [{low:.2f}, {high:.2f}], p = {self.p_values[best]:.3f}; "
            f"n={len(self.values)} examples)"
        )


def name_sender(entry: Sender | tuple[Sender, ...]) -> str:
    """`0.3` for a head, `0.mlp` for an MLP, joined by + where they were patched together."""
    return " + ".join(f"{layer}.{place}" for layer, place in members(entry))


def name_receivers(receivers: tuple[Receiver, ...] | Literal["logits"]) -> str:
    """`8.6 q, 8.10 q`; more than four are counted."""
    if isinstance(receivers, str):
        return "the logits"
    named = [f"{layer}.{head} {kind}" for layer, head, kind in receivers]
    return ", ".join(named) if len(named) <= 4 else f"{', '.join(named[:3])} and {len(named) - 3} more"
