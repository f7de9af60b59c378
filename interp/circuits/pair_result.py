"""What `score_pairs` gives: the scores of pairs of heads, their p- and q-values, a table and a picture.

A pair is named reader <- writer, as "18.6 <- 16.0". Of the measure that ranks the pairs every value is kept, of the others
those of the kept pairs. p- and q-values are computed from these: `interp.circuits.nulls` says how.
"""

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp.circuits.composition import Kind
from interp.circuits.factors import Distance, Fold
from interp.circuits.nulls import Measure, empirical_p_values, q_values, random_p_values, random_scale
from interp.circuits.subspaces import Match
from interp.errors import InputError
from interp.interventions.select import Head
from interp.models.provenance import Provenance

if TYPE_CHECKING:
    from interp.figures.style import Picture

By = Literal["diagonal", "composition", "match"]

_SIGNS = {"diagonal": "Z", "composition": "composition", "largest": "cosine", "rms": "rms cosine"}

CALLED = 0.05
"""The false discovery rate up to which `repr` and figure count pairs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PairScores:
    """Scores of pairs of a writing and a reading head, strongest first; `values` has every pair that was looked at."""

    kind: Kind
    """What the reader reads with: K for keys, Q for queries, V for values."""
    by: By
    """The measure that ranks the pairs, and whose null was measured."""
    distance: Distance
    """The distance at which keys are turned to queries: `none`, `mean`, or a number of tokens."""
    fold: Fold
    """Whether norms were folded into the weights."""
    score: Match
    """Which subspace match: `largest` or `rms` cosine."""
    rank: int
    """How many directions of each head were matched."""
    d_model: int
    """Width of the residual stream."""
    d_head: int
    """Width of a head."""
    layer_pairs: Int[np.ndarray, "layer_pair 2"]
    """(writer layer, reader layer) along the first axis of `values`."""
    values: Float[np.ndarray, "layer_pair reader_head writer_head"]
    """The ranking measure of every pair, causal or mirrored."""
    heads: Int[np.ndarray, "pair 4"]
    """Writer layer, writer head, reader layer, reader head of each kept pair, strongest first."""
    diagonal: Float[np.ndarray, "pair"]
    """Z of the kept pairs."""
    composition: Float[np.ndarray, "pair"]
    """Composition score of the kept pairs."""
    match: Float[np.ndarray, "pair"]
    """Subspace match of the kept pairs."""
    provenance: Provenance
    """The model that was measured."""

    @property
    def order(self) -> list[str]:
        """`causal` for kept pairs whose writer is in an earlier layer, otherwise `same layer` or `acausal`."""
        names = {1: "causal", 0: "same layer", -1: "acausal"}
        return [names[sign] for sign in np.sign(self.heads[:, 2] - self.heads[:, 0]).tolist()]

    @property
    def normalised(self) -> Float[np.ndarray, "pair"]:
        """Z / sqrt(d_head) of the kept pairs: 1 where d_head directions arrive unchanged, 0 for chance."""
        return self.diagonal / np.sqrt(self.d_head)

    @property
    def null(self) -> Float[np.ndarray, "mirror"]:
        """The ranking measure of all mirrored pairs, which can't compose; empty with `null="none"`."""
        return self.values[self.layer_pairs[:, 0] > self.layer_pairs[:, 1]].ravel()

    @property
    def n_pairs(self) -> int:
        """How many causal pairs there are."""
        return len(self._sorted)

    @property
    def random_scale(self) -> float:
        """What random heads show of the ranking measure: sd of Z, root mean square or median of the others."""
        return random_scale(self._measure, d_model=self.d_model, rank=self.rank)

    @property
    def p_values(self) -> Float[np.ndarray, "pair"]:
        """Rank of each kept causal pair among the mirrored pairs; NaN for other pairs, and without mirrors."""
        return np.where(self._is_causal, self._rank_in_null(self._ranked), np.nan)

    @property
    def q_values(self) -> Float[np.ndarray, "pair"]:
        """False discovery rate among all causal pairs at which each kept one is just called; NaN as for `p_values`."""
        return self._look_up(self._all_q_values)

    @property
    def random_q_values(self) -> Float[np.ndarray, "pair"]:
        """The same against random heads in closed form: far too small for real heads, which share directions."""
        return self._look_up(
            q_values(random_p_values(self._sorted, self._measure, d_model=self.d_model, rank=self.rank))
        )

    @property
    def n_called(self) -> int:
        """How many causal pairs have a q-value of at most 0.05."""
        return int((self._all_q_values <= CALLED).sum())

    def top(self, n: int) -> list[tuple[Head, Head]]:
        """The n strongest kept pairs as (writer, reader), each of them (layer, head)."""
        if not 0 < n <= len(self.heads):
            raise InputError(f"The top {n} pairs were asked for, but 1 to {len(self.heads)} were kept.")
        return [((w_layer, writer), (r_layer, reader)) for w_layer, writer, r_layer, reader in self.heads[:n].tolist()]

    def to_frame(self) -> pd.DataFrame:
        """One row a kept pair, strongest first: both heads, every score, p and q."""
        return self._frame.copy()

    @cached_property
    def _frame(self) -> pd.DataFrame:
        writer_layer, writer_head, reader_layer, reader_head = self.heads.T
        return pd.DataFrame(
            {
                "reader_layer": reader_layer,
                "reader_head": reader_head,
                "writer_layer": writer_layer,
                "writer_head": writer_head,
                "order": self.order,
                "diagonal": self.diagonal,
                "normalised": self.normalised,
                "composition": self.composition,
                "match": self.match,
                "p_value": self.p_values,
                "q_value": self.q_values,
                "random_q_value": self.random_q_values,
            }
        )

    def figure(self, *, n: int = 12) -> "Picture":
        """The largest score of each two layers, causal pairs above the diagonal and their mirrors below, beside the top n."""
        from interp.figures.pairs import pair_map

        layers = sorted(set(self.layer_pairs.ravel().tolist()))
        place = {layer: index for index, layer in enumerate(layers)}
        largest = np.full((len(layers), len(layers)), np.nan)  # [reader layer, writer layer]
        for (writer, reader), values in zip(self.layer_pairs.tolist(), self.values, strict=True):
            largest[place[reader], place[writer]] = values.max()
        shown = range(min(n, len(self.heads)))
        return pair_map(
            largest,
            layers=layers,
            names=[self._name(i) for i in shown],
            cells=[(place[self.heads[i, 2]], place[self.heads[i, 0]]) for i in shown],
            scores=self._ranked[: len(shown)],
            q_values=self.q_values[: len(shown)],
            label=f"largest {_SIGNS[self._measure]}",
            sign=_SIGNS[self._measure],
            title=f"{self.kind}-composition · {self.provenance.model}",
        )

    @property
    def _measure(self) -> Measure:
        return self.score if self.by == "match" else self.by

    @property
    def _ranked(self) -> Float[np.ndarray, "pair"]:
        return {"diagonal": self.diagonal, "composition": self.composition, "match": self.match}[self.by]

    @property
    def _is_causal(self) -> Bool[np.ndarray, "pair"]:
        return self.heads[:, 0] < self.heads[:, 2]

    @cached_property
    def _sorted(self) -> Float[np.ndarray, "causal"]:
        return np.sort(self.values[self.layer_pairs[:, 0] < self.layer_pairs[:, 1]], axis=None)

    @cached_property
    def _all_q_values(self) -> Float[np.ndarray, "causal"]:
        return q_values(self._rank_in_null(self._sorted))

    def _rank_in_null(self, values: Float[np.ndarray, "some"]) -> Float[np.ndarray, "some"]:
        null = self.null
        return empirical_p_values(values, null) if len(null) else np.full(len(values), np.nan)

    def _look_up(self, of_sorted: Float[np.ndarray, "causal"]) -> Float[np.ndarray, "pair"]:
        """What belongs to each kept pair's value; NaN for a pair that isn't causal."""
        if not len(of_sorted):
            return np.full(len(self.heads), np.nan)
        places = np.searchsorted(self._sorted, self._ranked).clip(max=len(of_sorted) - 1)
        return np.where(self._is_causal, of_sorted[places], np.nan)

    def _name(self, i: int) -> str:
        writer_layer, writer, reader_layer, reader = self.heads[i].tolist()
        return f"{reader_layer}.{reader} ← {writer_layer}.{writer}"

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        null = self.null
        against = f"q = {self.q_values[0]:.2g}; {self.n_called} pairs with q <= {CALLED}" if len(null) else "no null"
        largest = f", largest of {len(null)} mirrored pairs {null.max():.2f}" if len(null) else ""
        share = f" ({self.normalised[0]:.2f} of sqrt(d_head))" if self.by == "diagonal" else ""
        return (
            f"PairScores({self.provenance.model}: {self.kind}-composition of {self.n_pairs} causal pairs, by {self.by}; "
            f"strongest {self._name(0)}: {_SIGNS[self._measure]} {self._ranked[0]:.2f}{share}, {against}{largest}; "
            f"random heads {self.random_scale:.2g})"
        )
