"""What attribution patching gives: an estimate for every example and cell, and how well the estimates rank the cells.

Spearman's rank correlation of the mean estimates with the mean exact effects, signs included, is taken over the
strongest cells and over random others. A screen can be right about what it puts on top and still leave out what matters,
so `missed` names the random cells whose exact effect is larger than that of the weakest on top.

>>> rank_correlation(np.array([[3.0, 1.0, 2.0]]), np.array([[9.0, 7.0, 8.0]]))
array([1.])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.interventions.patch_result import PatchResult
from interp.statistics import bootstrap_interval
from tasks.seeding import derive_seed

if TYPE_CHECKING:
    from interp.figures.style import Picture

_N_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True, eq=False)
class AttributionResult:
    """Estimated effects of all patches of a sweep, and exact effects of the strongest and of random others."""

    estimated: PatchResult
    """The sweep as it would be if every effect were as estimated; it has the axes, the baselines and the provenance."""
    estimates: Float[np.ndarray, "example layer *cell"]
    """Estimated effect of each patch on the metric: [example, layer, (head), (position)]."""
    steps: int
    """0: gradient in the base run. n: mean over n points between the two activations."""
    cells: tuple[tuple[Any, ...], ...]
    """The strongest cells by |mean estimate|, strongest first, as (layer, head, position or role)."""
    exact: Float[np.ndarray, "example top"]
    """Effect of the patch of each of `cells`, by `interp.patch`."""
    control_cells: tuple[tuple[Any, ...], ...]
    """Random cells that are not among `cells`, of those in which a patch can do something."""
    control_exact: Float[np.ndarray, "example control"]
    """Effect of the patch of each of `control_cells`."""

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of `mean`."""
        return self.estimated.axes

    @property
    def mean(self) -> Float[np.ndarray, "layer *cell"]:
        """Mean of `estimates` over examples."""
        return self.estimates.mean(axis=0)

    @property
    def rank_correlation(self) -> float:
        """Of mean estimates with mean exact effects of the strongest cells; NaN with fewer than two of them."""
        return self._correlate(self.cells, self.exact)

    @property
    def rank_correlation_interval(self) -> tuple[float, float]:
        """95% bootstrap interval of `rank_correlation` over examples; NaN for a single example."""
        return self._correlation_interval(self.cells, self.exact)

    @property
    def control_rank_correlation(self) -> float:
        """The same of the random other cells."""
        return self._correlate(self.control_cells, self.control_exact)

    @property
    def control_rank_correlation_interval(self) -> tuple[float, float]:
        """95% bootstrap interval of `control_rank_correlation` over examples."""
        return self._correlation_interval(self.control_cells, self.control_exact)

    @property
    def missed(self) -> tuple[tuple[Any, ...], ...]:
        """Random cells whose mean exact effect is larger in size than that of the weakest of the strongest."""
        if not self.cells:
            return ()
        sizes, least = np.abs(self.control_exact.mean(axis=0)), np.abs(self.exact.mean(axis=0)).min()
        return tuple(cell for cell, size in zip(self.control_cells, sizes, strict=True) if size > least)

    def top(self, n: int) -> list[tuple[Any, ...]]:
        """The n cells with the largest |mean estimate|, as (layer, head, position or role)."""
        return self.estimated.top(n)

    def to_frame(self) -> pd.DataFrame:
        """One row a cell: estimated and, where it was patched, exact effect, with intervals, and why it was patched."""
        axes = list(self.axes)
        frame = self.estimated.to_frame()
        frame = frame[[*axes, *(["query_heads"] if "query_heads" in frame else []), "clean", "corrupted", "n"]]
        low, high = bootstrap_interval(self.estimates, seed=self.estimated.seed)
        frame = frame.assign(estimate=self.mean.ravel(), estimate_low=low.ravel(), estimate_high=high.ravel())
        exact = np.concatenate([self.exact, self.control_exact], axis=1)
        checked = pd.DataFrame([*self.cells, *self.control_cells], columns=axes)
        checked["checked"] = ["top"] * len(self.cells) + ["control"] * len(self.control_cells)
        checked["exact"] = exact.mean(axis=0)
        checked["exact_low"], checked["exact_high"] = bootstrap_interval(exact, seed=self.estimated.seed)
        return frame.merge(checked.astype(frame[axes].dtypes.to_dict()), on=axes, how="left")

    def figure(self, *, labels: Sequence[str] | None = None) -> "Picture":
        """The map of `PatchResult.figure`, of estimated recoveries."""
        return self.estimated.figure(labels=labels)

    def _estimates_of(self, cells: tuple[tuple[Any, ...], ...]) -> Float[np.ndarray, "example cell"]:
        axes = self.estimated._labels()
        places = [tuple(axis.index(i) for axis, i in zip(axes, cell, strict=True)) for cell in cells]
        shape = self.mean.shape
        columns = [int(np.ravel_multi_index(place, shape)) for place in places]
        return self.estimates.reshape(len(self.estimates), -1)[:, columns]

    def _correlate(self, cells: tuple[tuple[Any, ...], ...], exact: Float[np.ndarray, "example cell"]) -> float:
        means = (self._estimates_of(cells).mean(axis=0)[None], exact.mean(axis=0)[None])
        return float(rank_correlation(*means)[0])

    def _correlation_interval(
        self, cells: tuple[tuple[Any, ...], ...], exact: Float[np.ndarray, "example cell"]
    ) -> tuple[float, float]:
        n = len(exact)
        if n == 1 or len(cells) < 2:
            return np.nan, np.nan
        generator = np.random.default_rng(derive_seed(self.estimated.seed, "rank correlation"))
        counts = generator.multinomial(n, np.full(n, 1 / n), size=_N_RESAMPLES)  # [resample, example]
        draws = rank_correlation(counts @ self._estimates_of(cells) / n, counts @ exact / n)
        low, high = np.nanquantile(draws, [0.025, 0.975]) if np.isfinite(draws).any() else (np.nan, np.nan)
        return float(low), float(high)

    def _repr_html_(self) -> str:
        if np.isnan(self.estimated.recovery).all():
            return f"<code>{escape(repr(self))}</code>"
        return f"{self.figure()._repr_html_()}<code>{escape(repr(self))}</code>"

    def __repr__(self) -> str:
        estimated, best = self.estimated, (self.cells or self.top(1))[0]
        where = ", ".join(f"{name} {i}" for name, i in zip(self.axes, best, strict=True))
        shape = " x ".join(f"{n} {name}s" for n, name in zip(self.mean.shape, self.axes, strict=True))
        checked = "none was patched"
        if self.cells:
            (low, high), count = self.rank_correlation_interval, len(self.control_cells)
            checked = (
                f"exact {self.exact[:, 0].mean():.2f}; rank correlation with exact {self.rank_correlation:.2f} "
                f"[{low:.2f}, {high:.2f}] on the top {len(self.cells)}, {self.control_rank_correlation:.2f} on {count} "
                f"random others, {len(self.missed)} of them missed"
            )
        return (
            f"AttributionResult({estimated.provenance.model}: {estimated.site}, {estimated.direction}, {shape}; "
            f"{self.steps} steps; strongest {where}: estimated effect on the {estimated.metric.removesuffix(', estimated')} "
            f"{self._estimates_of((best,)).mean():.2f}, {checked}; n={len(self.estimates)} examples)"
        )


def rank_correlation(
    first: Float[np.ndarray, "draw cell"], second: Float[np.ndarray, "draw cell"]
) -> Float[np.ndarray, "draw"]:
    """Spearman's rank correlation of each row, ties at their mean rank; NaN where all of a row are equal."""
    if first.shape[1] < 2:
        return np.full(len(first), np.nan)
    ranks = [pd.DataFrame(values).rank(axis=1).to_numpy() for values in (first, second)]
    one, other = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
    spread = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
    return np.divide((one * other).sum(axis=1), spread, out=np.full(len(one), np.nan), where=spread > 0)
