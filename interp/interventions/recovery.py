"""How far a patch brings the metric from that of the corrupted run to that of the clean one.

With v the metric of a patched run, c that of the clean and r that of the corrupted run, and means over examples,

    recovery = mean(v - r) / mean(c - r)

is 0 where a patch leaves the corrupted run as it is and 1 where it restores the clean one, in either direction of
patching (Heimersheim & Nanda 2024, arXiv:2404.15255). It may lie outside of [0, 1].

The interval is that of the ratio as linearised at its value: with R the recovery, over examples i, of the mean of
R + (v_i - r_i - R (c_i - r_i)) / mean(c - r). Both terms come from the same examples, so a patch that restores every
example has no spread.

>>> find_recovery(np.array([[1.0], [2.0]]), clean=np.array([2.0, 4.0]), corrupted=np.zeros(2))
array([0.5])
>>> find_recovery_interval(np.array([[1.0], [2.0]]), clean=np.array([2.0, 4.0]), corrupted=np.zeros(2), seed=0)
(array([0.5]), array([0.5]))
"""

import numpy as np
from jaxtyping import Float

from interp.statistics import bootstrap_interval


def find_recovery(
    values: Float[np.ndarray, "example *cell"],
    *,
    clean: Float[np.ndarray, "example"],
    corrupted: Float[np.ndarray, "example"],
) -> Float[np.ndarray, "*cell"]:
    """NaN where the clean and the corrupted run have the same mean."""
    return ((values - as_column(corrupted, values)) / _find_gap(clean, corrupted)).mean(axis=0)


def find_recovery_interval(
    values: Float[np.ndarray, "example *cell"],
    *,
    clean: Float[np.ndarray, "example"],
    corrupted: Float[np.ndarray, "example"],
    seed: int,
) -> tuple[Float[np.ndarray, "*cell"], Float[np.ndarray, "*cell"]]:
    """(low, high), the 95% bootstrap interval over examples."""
    recovery = find_recovery(values, clean=clean, corrupted=corrupted)
    rest = values - as_column(corrupted, values) - recovery * as_column(clean - corrupted, values)
    low, high = bootstrap_interval(rest / _find_gap(clean, corrupted), seed=seed)
    return recovery + low, recovery + high


def scale_recovery(recovery: Float[np.ndarray, "*cell"]) -> tuple[float, str]:
    """Where a map's darkest colour lies, and what its label says of cells below 0, which are drawn as 0."""
    least, most = float(recovery.min()), float(recovery.max())
    note = f", least {least:.2f}" if least < -0.05 else ""
    return (1.0 if most > 0.6 else max(0.1, float(np.ceil(10 * most) / 10))), note


def as_column(
    per_example: Float[np.ndarray, "example"], values: Float[np.ndarray, "example *cell"]
) -> Float[np.ndarray, "example ..."]:
    """Such that it is broadcast over the cells."""
    return per_example.reshape(-1, *[1] * (values.ndim - 1))


def _find_gap(clean: Float[np.ndarray, "example"], corrupted: Float[np.ndarray, "example"]) -> float:
    return float((clean - corrupted).mean()) or np.nan
