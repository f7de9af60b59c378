"""What few seeds can say: whether depths differ, whether seeds fall apart in two, and whether one number foretells another.

**Depths.** If depth made no difference, the seeds could be dealt out to the depths anew. With g depths, n_g seeds and means m_g,
S = sum_g n_g (m_g - m)^2 is compared with its value for dealt-out seeds; p is exact where there are few ways to deal them, and
(1 + draws at least as large) / (1 + draws) otherwise (Phipson & Smyth 2010).

**Two numbers.** Pearson's r over seeds with a percentile bootstrap interval over seeds: with five seeds it says little.

>>> f'{compare_depths({"2": np.zeros(4), "6": np.ones(4)}):.4f}'
'0.0286'
>>> [str(part) for part in count_ends(np.array([0.1, 0.95, 0.9, 0.5]))]
['2 of 4 [15%, 85%]', '1 of 4 [5%, 70%]', '1 of 4 [5%, 70%]']
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float, Int

from analyses.solutions.shares import Share
from analyses.structural_grokking.outcome import HIGH, LOW
from interp.statistics import permutation_p_value
from tasks.seeding import derive_seed

_MOST_EXACT = 10_000
_ROUNDING = 1e-9

Seeds = Float[np.ndarray, "seed"]


def compare_depths(groups: Mapping[str, Seeds], *, seed: int = 0, n_draws: int = _MOST_EXACT) -> float:
    """p-value of the differences between the groups' means; NaN unless two groups or more, one of them of several seeds."""
    sizes = np.array([len(values) for values in groups.values()])
    if len(sizes) < 2 or sizes.max() < 2 or sizes.min() < 1:
        return math.nan
    values = np.concatenate(list(groups.values()))
    observed = _spread(values[None], sizes)[0] - _ROUNDING
    if len(sizes) == 2 and math.comb(len(values), sizes[0]) <= _MOST_EXACT:
        return float(np.mean(_spread(values[_deal(len(values), int(sizes[0]))], sizes) >= observed))
    generator = np.random.default_rng(derive_seed(seed, "depths"))
    dealt = generator.permuted(np.tile(values, (n_draws, 1)), axis=1)
    return permutation_p_value(observed, _spread(dealt, sizes))


def count_ends(finals: Seeds) -> tuple[Share, Share, Share]:
    """How many seeds end above 80%, below 20%, and between."""
    high, low = int((finals > HIGH).sum()), int((finals < LOW).sum())
    n = len(finals)
    return Share(found=high, n=n), Share(found=low, n=n), Share(found=n - high - low, n=n)


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Correlation:
    """Pearson's r over seeds."""

    value: float
    """r; NaN of fewer than three seeds, or where one of the numbers is the same in all."""
    low: float
    """Lower end of its 95% bootstrap interval over seeds."""
    high: float
    """Upper end."""
    n: int
    """Seeds."""

    def __repr__(self) -> str:
        return (
            "unknown"
            if math.isnan(self.value)
            else f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]".replace("-", "−")
        )


def correlate(x: Seeds, y: Seeds, *, seed: int = 0, n_resamples: int = 2000) -> Correlation:
    """r of the two numbers of each seed; draws in which one number is the same in all seeds say nothing."""
    n = len(x)
    if n < 3 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return Correlation(value=math.nan, low=math.nan, high=math.nan, n=n)
    rows = np.random.default_rng(derive_seed(seed, "correlation")).integers(0, n, size=(n_resamples, n))
    drawn = _pearson(x[rows], y[rows])
    low, high = np.quantile(drawn[np.isfinite(drawn)], [0.025, 0.975])
    return Correlation(value=float(_pearson(x[None], y[None])[0]), low=float(low), high=float(high), n=n)


def _pearson(x: Float[np.ndarray, "draw seed"], y: Float[np.ndarray, "draw seed"]) -> Float[np.ndarray, "draw"]:
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    scale = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
    return np.divide((x * y).sum(axis=1), scale, out=np.full(len(x), np.nan), where=scale > _ROUNDING)


def _spread(dealt: Float[np.ndarray, "draw seed"], sizes: Int[np.ndarray, "group"]) -> Float[np.ndarray, "draw"]:
    """S of each way to deal out the seeds, the first group's first."""
    means = np.add.reduceat(dealt, np.cumsum(sizes) - sizes, axis=1) / sizes
    return ((means - dealt.mean(axis=1, keepdims=True)) ** 2 * sizes).sum(axis=1)


def _deal(n: int, size: int) -> Int[np.ndarray, "draw seed"]:
    """Every choice of so many seeds, those chosen in front."""
    chosen = np.array(list(combinations(range(n), size)))
    return np.array([[*row, *np.setdiff1d(np.arange(n), row)] for row in chosen])
