"""What `compare_induction` gives: every definition of an induction head side by side, and how far they agree.

Two definitions agree as far as their ranks of the heads do: Spearman's correlation, with a bootstrap interval over heads.

>>> up = np.arange(20.0)
>>> [round(x, 6) for x in rank_correlation(up, up**3)]
[1.0, 1.0, 1.0]
>>> value, low, high = rank_correlation(up, np.sin(2 * up))
>>> low < value < high
True
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from interp.errors import InputError
from interp.interventions.select import Head
from interp.models.provenance import Provenance
from interp.statistics import bootstrap_interval, permutation_p_value
from tasks.seeding import derive_seed

if TYPE_CHECKING:
    from interp.figures.style import Picture

Order = Literal["raw", "sink_removed", "prefix_matching", "value_share", "eigenvalues", "diagonal", "removal"]

GROUPS: Mapping[str, str] = {
    "raw": "attention",
    "sink_removed": "attention",
    "prefix_matching": "attention",
    "value_share": "values",
    "eigenvalues": "weights alone",
    "diagonal": "weights alone",
    "removal": "effect",
}
"""What each definition looks at."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class InductionTable:
    """Every definition of an induction head, for every head."""

    values: Mapping[str, Float[np.ndarray, "layer head"]]
    """The value by each definition; NaN for a head before all partners, or one that wasn't removed."""
    per_sequence: Mapping[str, Float[np.ndarray, "sequence layer head"]]
    """Of the definitions that read sequences: the value on each of them."""
    partners: Int[np.ndarray, "layer head 2"]
    """(layer, head) of the previous-token head that a head's diagonal score is with; -1 where there is none."""
    previous_token_heads: tuple[Head, ...]
    """The partners that were tried, strongest first."""
    removed: tuple[Head, ...]
    """The heads that were taken out, each alone: the first ones by any other definition."""
    whole_loss: Float[np.ndarray, "removal_sequence"]
    """Loss of the whole model on the second copy, in nats."""
    removed_loss: Float[np.ndarray, "removed removal_sequence"]
    """The same without each removed head."""
    controls: tuple[Head, ...]
    """Random other heads of the same layers, taken out each alone."""
    control_loss: Float[np.ndarray, "control removal_sequence"]
    """The loss without each of these."""
    copies: int
    """Copies that `prefix_matching` sums over, the last one's queries included."""
    bos: int | None
    """The id that stood first, or None."""
    seed: int
    """Seed of the sequences, the controls and the intervals."""
    provenance: Provenance
    """The model that was measured."""
    notes: tuple[str, ...] = ()
    """Where something was measured otherwise than asked for."""

    @property
    def n_heads(self) -> int:
        """How many heads the model has."""
        return self.values["raw"].size

    @property
    def control_effects(self) -> Float[np.ndarray, "control"]:
        """Rise of the loss without each control head, in nats."""
        return (self.control_loss - self.whole_loss).mean(axis=1)

    def ranks(self, definition: Order) -> Int[np.ndarray, "layer head"]:
        """1 for the largest value, in reading order for equal ones; 0 where there is none."""
        values = self._values(definition)
        order = np.argsort(-values, axis=None, kind="stable")  # NaN last
        ranks = np.zeros(values.size, dtype=np.int64)
        n_known = int(np.isfinite(values).sum())
        ranks[order[:n_known]] = np.arange(1, n_known + 1)
        return ranks.reshape(values.shape)

    def top(self, definition: Order, n: int) -> list[Head]:
        """The first `n` heads of a definition as (layer, head), or as many as have a value."""
        ranks = self.ranks(definition)
        return [(int(layer), int(head)) for rank in range(1, n + 1) for layer, head in np.argwhere(ranks == rank)]

    def interval(self, definition: Order) -> tuple[Float[np.ndarray, "layer head"], Float[np.ndarray, "layer head"]]:
        """95% bootstrap interval over sequences, (low, high); NaN for the weights' score, which has no sample."""
        values = self._values(definition)
        if definition in self.per_sequence:
            return bootstrap_interval(self.per_sequence[definition], seed=self.seed)
        low, high = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
        if definition == "removal" and self.removed:
            ends = bootstrap_interval((self.removed_loss - self.whole_loss).T, seed=self.seed)
            for i, head in enumerate(self.removed):
                low[head], high[head] = ends[0][i], ends[1][i]
        return low, high

    def to_frame(self) -> pd.DataFrame:
        """One row a head: its partner, and of each definition value, low, high and rank; p of its removal."""
        layers, heads = np.divmod(np.arange(self.n_heads), self.values["raw"].shape[1])
        columns: dict[str, np.ndarray] = {"layer": layers, "head": heads}
        for name in _names(self.values):
            low, high = self.interval(name)
            columns |= {name: self.values[name].ravel(), f"{name}_low": low.ravel(), f"{name}_high": high.ravel()}
            columns[f"{name}_rank"] = self.ranks(name).ravel()
        columns["partner_layer"], columns["partner_head"] = self.partners.reshape(-1, 2).T
        effects = self.control_effects
        if len(effects):
            p_values = np.full(self.values["raw"].shape, np.nan)
            for head in self.removed:
                p_values[head] = permutation_p_value(self.values["removal"][head], effects)
            columns["removal_p"] = p_values.ravel()
        return pd.DataFrame(columns)

    def agreement(self, *, n_top: int = 10) -> pd.DataFrame:
        """One row for each two definitions: rank correlation with its interval, over n heads that have both.

        `shared_top` heads are among the first `n_top` of both, where chance gives `shared_by_chance`; NaN where there are
        fewer than twice `n_top` heads.
        """
        rows = []
        for first, second in combinations(self.values, 2):
            one, other = self.values[first].ravel(), self.values[second].ravel()
            both = np.isfinite(one) & np.isfinite(other)
            value, low, high = rank_correlation(one[both], other[both], seed=self.seed)
            n = int(both.sum())
            here = [set(np.argsort(-values[both], kind="stable")[:n_top].tolist()) for values in (one, other)]
            rows.append(
                {
                    "first": first,
                    "second": second,
                    "rank_correlation": value,
                    "low": low,
                    "high": high,
                    "n": n,
                    "shared_top": len(here[0] & here[1]) if n >= 2 * n_top else np.nan,
                    "shared_by_chance": n_top**2 / n if n >= 2 * n_top else np.nan,
                }
            )
        return pd.DataFrame(rows)

    def figure(self, *, n_top: int = 5) -> "Picture":
        """The first `n_top` heads of any definition, with their rank by each; the largest mean log rank comes last."""
        from interp.figures.rank_table import Order as Column
        from interp.figures.rank_table import rank_table

        shown = [name for name in _names(self.values) if np.isfinite(self.values[name]).any()]
        ranks = {name: self.ranks(name) for name in shown}
        heads = {head for name in shown for head in self.top(name, n_top)}
        ranking = [ranks[name] for name in shown if name != "removal"]  # which has a rank for few heads
        logs = [np.log(np.where(rank > 0, rank, self.n_heads)) for rank in ranking]
        ordered = sorted(heads, key=lambda head: (np.mean([log[head] for log in logs]), head))
        groups = dict(GROUPS)
        groups["removal"] += f" of {len(self.removed)} head" + "s" * (len(self.removed) != 1)
        columns = [
            Column(
                name=name.replace("_", " "),
                group=groups[name],
                values=np.array([self.values[name][head] for head in ordered]),
                largest=float(np.nanmax(self.values[name])),
            )
            for name in shown
        ]
        return rank_table(
            ordered,
            columns,
            ranks=np.array([[ranks[name][head] for name in shown] for head in ordered]),
            n_ranked=self.n_heads,
            n_bold=n_top,
            title=f"Definitions of an induction head · {self.provenance.model}",
        )

    def _values(self, definition: str) -> Float[np.ndarray, "layer head"]:
        if definition not in self.values:
            raise InputError(f"There is no definition {definition!r}; this table has {', '.join(self.values)}.")
        return self.values[definition]

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        firsts = []
        for name in _names(self.values):
            for layer, head in self.top(name, 1):
                firsts.append(f"{name} {layer}.{head} {self.values[name][layer, head]:.2f}")
        worst = self.agreement().query("second != 'removal'").sort_values("rank_correlation").iloc[0]
        control = f" (control heads at most {self.control_effects.max():.2f})" if self.controls else ""
        return (
            f"InductionTable({self.provenance.model}: {self.n_heads} heads; first by {', '.join(firsts)}{control}; least "
            f"agreement {worst['first']} and {worst['second']}, rank correlation {worst['rank_correlation']:.2f} "
            f"[{worst['low']:.2f}, {worst['high']:.2f}]; n={len(self.per_sequence['raw'])} sequences)"
        )


def _names(values: Mapping[str, Any]) -> list[Order]:
    return [cast(Order, name) for name in values]


def rank_correlation(
    first: Float[np.ndarray, "head"], second: Float[np.ndarray, "head"], *, n_resamples: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Spearman's correlation and its 95% percentile interval over resampled heads, whose ranks are kept.

    NaN where fewer than three heads have both values, or all are equal.
    """
    n = len(first)
    if n < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return (float("nan"),) * 3
    ranks = np.stack([pd.Series(values).rank().to_numpy() for values in (first, second)])  # [2 head], ties averaged
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    generator = np.random.default_rng(derive_seed(seed, "rank correlation"))
    weights = np.vstack([np.full(n, 1 / n), generator.multinomial(n, np.full(n, 1 / n), size=n_resamples) / n])
    means = weights @ centred.T  # [resample 2]
    covariance = weights @ (centred[0] * centred[1]) - means[:, 0] * means[:, 1]
    variances = weights @ (centred**2).T - means**2
    found = covariance / np.sqrt(np.maximum(variances.prod(axis=1), np.finfo(float).tiny))
    low, high = np.quantile(found[1:], [0.025, 0.975])
    return float(found[0]), float(low), float(high)
