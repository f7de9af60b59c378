"""Intervals and p-values, so that a number is never alone.

`bootstrap_interval` resamples the first axis (sequences, prompts, seeds) and takes percentiles of the resampled means:
Efron & Tibshirani, An Introduction to the Bootstrap (1993), chapter 13. `permutation_p_value` is the exact
Monte Carlo form (1 + #{draws at least as extreme}) / (1 + #draws): Phipson & Smyth (2010), so it is never 0.

>>> low, high = bootstrap_interval(np.arange(100.0), seed=0)
>>> bool(low < 49.5 < high)
True
>>> permutation_p_value(3.0, np.array([0.1, -0.2, 0.4]))
0.25
"""

import numpy as np
from jaxtyping import Float

from interp.errors import InputError
from tasks.seeding import derive_seed


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
