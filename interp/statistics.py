"""Intervals and p-values, so that a number is never alone.

`bootstrap_interval` resamples the first axis (sequences, prompts, seeds) and takes percentiles of the resampled means:
Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. `permutation_p_value` is the exact
Monte Carlo form (1 + #{draws at least as extreme}) / (1 + #draws): Phipson & Smyth (2010), so it is never 0.

`sign_flip_p_values` asks of many effects at once whether they are more than chance. If an intervention did nothing, the
effect on each example would be as likely positive as negative, so the signs are flipped at random, one flip per example
for all cells at once, which keeps the cells' dependence. With the statistic max over cells of |mean effect| the p-values
are corrected for the number of cells (single-step max-statistic: Westfall & Young 1993; Nichols & Holmes 2002).

>>> low, high = bootstrap_interval(np.arange(100.0), seed=0)
>>> bool(low < 49.5 < high)
True
>>> permutation_p_value(3.0, np.array([0.1, -0.2, 0.4]))
0.25
>>> effects = np.array([[1.0, 0.1], [1.2, -0.1], [0.9, 0.0], [1.1, 0.05], [1.0, -0.05]])
>>> sign_flip_p_values(effects).tolist()
[0.0625, 1.0]
"""

from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

from interp.errors import InputError
from tasks.seeding import derive_seed

_MOST_EXACT = 12
"""Up to so many examples every flip of signs is tried."""
_AT_ONCE = 256
_TAILS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "two_sided": np.abs,
    "greater": np.positive,
    "less": np.negative,
}


def bootstrap_interval(
    values: Float[np.ndarray, "sample *rest"], *, level: float = 0.95, n_resamples: int = 2000, seed: int = 0
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """Percentile interval of the mean over the first axis, element by element.

    The same resampled rows serve all elements, so their dependence is kept. With one sample the interval is unknown
    and both ends are NaN. Raises `InputError` for no sample or a level outside (0, 1).
    """
    if len(values) == 0:
        raise InputError("An interval needs at least one sample, but the array is empty.")
    if not 0 < level < 1:
        raise InputError(f"The level of an interval lies between 0 and 1, but {level} was given.")
    if len(values) == 1:
        unknown = np.full(values.shape[1:], np.nan)
        return unknown, unknown
    n = len(values)
    generator = np.random.default_rng(derive_seed(seed, "bootstrap"))
    counts = generator.multinomial(n, np.full(n, 1 / n), size=n_resamples)  # [resample, sample]
    means = counts @ values.reshape(n, -1).astype(np.float64) / n  # [resample, element]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def permutation_p_value(observed: float, draws: Float[np.ndarray, "draw"]) -> float:
    """One-sided p-value of `observed` against draws from the null: large values are extreme."""
    return float((1 + np.count_nonzero(draws >= observed)) / (1 + len(draws)))


def sign_flip_p_values(
    effects: Float[np.ndarray, "example *cells"],
    *,
    correction: Literal["all_cells", "none"] = "all_cells",
    alternative: Literal["two_sided", "greater", "less"] = "two_sided",
    seed: int = 0,
    n_flips: int = 2**_MOST_EXACT,
) -> Float[np.ndarray, "*cells"]:
    """P-value of each cell's mean effect, corrected for all cells, or of each cell as if it alone had been looked at.

    All 2^n flips are used up to n = 12 examples, otherwise `n_flips` with the identity among them, so that p is never 0.
    The means are compared as they are, not divided by their standard errors, so a corrected p-value also depends on how much
    the other cells' effects spread: a small effect without spread may have an interval far from 0 and a large p.
    """
    if correction not in ("all_cells", "none") or alternative not in _TAILS:
        raise InputError(
            f"correction={correction!r} and alternative={alternative!r} aren't both known; corrections are all_cells and "
            f"none, alternatives {', '.join(_TAILS)}."
        )
    tail = _TAILS[alternative]
    n = len(effects)
    flat = effects.reshape(n, -1).astype(np.float64)
    observed = tail(flat.mean(axis=0))
    if n <= _MOST_EXACT:
        flips = np.arange(2**n)[:, None] >> np.arange(n) & 1
    else:
        flips = np.random.default_rng(derive_seed(seed, "sign flips")).integers(0, 2, size=(n_flips, n))
        flips[0] = 0  # what was observed is one of the draws
    signs = 1.0 - 2.0 * flips  # [flip, example]
    rounding = 1e-9 * max(float(np.abs(flat).mean(axis=0).max(initial=0)), np.finfo(float).tiny)
    reached = np.zeros(flat.shape[1], dtype=np.int64)
    for start in range(0, len(signs), _AT_ONCE):
        drawn = tail(signs[start : start + _AT_ONCE] @ flat / n)  # [flip, cell]
        if correction == "none":
            reached += (drawn >= observed - rounding).sum(axis=0)
        else:
            largest = np.sort(drawn.max(axis=1))
            reached += len(largest) - np.searchsorted(largest, observed - rounding, side="left")
    return (reached / len(signs)).reshape(effects.shape[1:])
