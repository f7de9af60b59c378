"""Is the effect of a patch more than chance, among so many patches?

A sign-flip test: if a patch did nothing, the effect on each example would be as likely positive as negative, so the
signs are flipped at random, one flip per example for all cells at once, which keeps the cells' dependence. With the
statistic max over cells of |mean effect| the p-values are corrected for the number of cells (single-step
max-statistic: Westfall & Young 1993; Nichols & Holmes 2002). All 2^n flips are used up to n = 12 examples, otherwise
4,095 random ones beside the identity, so that p is never 0.

>>> effects = np.array([[1.0, 0.1], [1.2, -0.1], [0.9, 0.0], [1.1, 0.05], [1.0, -0.05]])
>>> sign_flip_p_values(effects).tolist()
[0.0625, 1.0]
"""

import numpy as np
from jaxtyping import Float

from tasks.seeding import derive_seed

_MOST_EXACT = 12
_AT_ONCE = 256


def sign_flip_p_values(
    effects: Float[np.ndarray, "example *cells"], *, seed: int = 0, n_flips: int = 2**_MOST_EXACT
) -> Float[np.ndarray, "*cells"]:
    """Two-sided p-value of each cell's mean effect, corrected for all cells."""
    n = len(effects)
    flat = effects.reshape(n, -1).astype(np.float64)
    observed = np.abs(flat.mean(axis=0))
    if n <= _MOST_EXACT:
        flips = np.arange(2**n)[:, None] >> np.arange(n) & 1
    else:
        flips = np.random.default_rng(derive_seed(seed, "sign flips")).integers(0, 2, size=(n_flips, n))
        flips[0] = 0  # what was observed is one of the draws
    signs = 1.0 - 2.0 * flips  # [flip, example]
    largest = np.concatenate(
        [np.abs(signs[i : i + _AT_ONCE] @ flat / n).max(axis=1) for i in range(0, len(signs), _AT_ONCE)]
    )
    rounding = 1e-9 * max(float(largest.max()), np.finfo(float).tiny)
    reached = np.searchsorted(np.sort(largest), observed - rounding, side="left")  # draws below
    return ((len(largest) - reached) / len(largest)).reshape(effects.shape[1:])
