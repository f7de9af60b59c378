"""How large is a score that means nothing? Random heads in closed form, a model's own heads, and q-values.

**Random heads**: factors in random position, independent of each other, in d = d_model dimensions.

- Z has mean 0 and sd 1 / sqrt(d).
- Composition has mean square 1 / d.
- The rms match of two r-dimensional subspaces has mean square r / d exactly, with variance
  2 (d - r)^2 / (d^2 (d - 1) (d + 2)).
- Their largest squared cosine c is the greatest root of a Jacobi ensemble: logit(c) is close to mu + sigma T, T of the
  Tracy-Widom law of order 1 (Johnstone 2008, arXiv:0803.3408, theorem 1), with sin^2(g/2) = (r - 1/2) / (d - 1),
  mu = 2 log tan g, sigma^3 = 16 / ((d - 1)^2 sin^2(2g) sin^2(g)). T is replaced by a shifted gamma variable
  (Chiani 2014, arXiv:1209.3394). An approximation: its median was within 1% of simulated ones for ranks 10 to 32 in 64 to
  1600 dimensions, within 4% at rank 2, and 20% too large at rank 1. Subspaces of half the dimensions or more always meet.

**Own heads**: real heads share directions, so their scores spread far beyond those. The mirror of a causal pair is the same
two layers with the roles exchanged: what the later layer writes against what the earlier one reads. It can't happen in a
forward pass, comes from the same heads, and exists once for every causal pair, at the same distance between layers. The
p-value of a pair is its rank among all mirrors, (1 + #{mirrors at least as large}) / (1 + #mirrors) (Phipson & Smyth 2010).

**q-values** are the adjusted p-values of Benjamini & Hochberg (1995), q_(i) = min over j >= i of p_(j) n / j. With the mirrors as
null this is the target-decoy estimate of proteomics (Elias & Gygi 2007): among the pairs above a threshold, the share
expected to be false is #mirrors above it over #pairs above it. So even a single pair above every mirror has q of about 1; ten
have 0.1.

>>> empirical_p_values(np.array([3.0, 0.5]), np.array([0.0, 1.0, 2.0])).tolist()
[0.25, 0.75]
>>> q_values(np.array([0.01, 0.04, 0.03, 0.5])).round(4).tolist()
[0.04, 0.0533, 0.0533, 0.5]
"""

import math
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from interp.errors import InputError

Measure = Literal["diagonal", "composition", "largest", "rms"]

_TRACY_WIDOM = (46.446, 0.186054, 9.84801)
"""Shape, scale and shift of the gamma variable that stands for the Tracy-Widom law of order 1."""


def random_scale(measure: Measure, *, d_model: int, rank: int = 1) -> float:
    """What a random pair shows: the sd of Z, the root mean square of composition and rms match, the median of the largest.

    Raises `InputError` for an unknown measure.
    """
    if measure not in get_args(Measure):
        raise InputError(f"measure={measure!r} isn't known; use one of {', '.join(get_args(Measure))}.")
    if measure == "rms":
        return math.sqrt(rank / d_model)
    if measure in ("diagonal", "composition"):
        return 1 / math.sqrt(d_model)
    if rank >= d_model / 2:
        return 1.0
    centre, width = _locate_largest(d_model=d_model, rank=rank)
    shape, scale, shift = _TRACY_WIDOM
    median = scale * shape * (1 - 1 / (9 * shape)) ** 3 - shift  # Wilson & Hilferty's median of a gamma variable
    return math.sqrt(1 / (1 + math.exp(-(centre + width * median))))


def random_p_values(
    values: Float[np.ndarray, "*pair"], measure: Measure, *, d_model: int, rank: int = 1
) -> Float[np.ndarray, "*pair"]:
    """Chance that a pair in random position has as large a score; NaN for composition, whose spread depends on the heads.

    Z is taken as Gaussian, the squared rms as a gamma variable of the same mean and variance. Raises `InputError` for an
    unknown measure.
    """
    scale = random_scale(measure, d_model=d_model, rank=rank)
    if measure == "composition":
        return np.full(values.shape, np.nan)
    if measure == "diagonal":
        return _normal_tail(values / scale)
    if measure == "rms" and rank < d_model:
        own_shape = rank**2 * (d_model - 1) * (d_model + 2) / (2 * (d_model - rank) ** 2)  # mean^2 / variance
        return _gamma_tail(values**2 / scale**2 * own_shape, own_shape)
    if rank >= d_model / 2:  # they always meet
        return np.ones(values.shape)
    centre, width = _locate_largest(d_model=d_model, rank=rank)
    shape, gamma_scale, shift = _TRACY_WIDOM
    squares = torch.from_numpy(np.clip(np.asarray(values, dtype=np.float64) ** 2, 1e-300, 1 - 1e-12))
    return _gamma_tail((((squares.logit() - centre) / width + shift) / gamma_scale).numpy(), shape)


def empirical_p_values(
    values: Float[np.ndarray, "*pair"], null: Float[np.ndarray, "draw"]
) -> Float[np.ndarray, "*pair"]:
    """(1 + #{null at least as large}) / (1 + #null) for each value, never 0."""
    at_least = len(null) - np.searchsorted(np.sort(null), values, side="left")
    return (1 + at_least) / (1 + len(null))


def q_values(p_values: Float[np.ndarray, "pair"]) -> Float[np.ndarray, "pair"]:
    """Adjusted p-values of Benjamini & Hochberg: the false discovery rate at which each is just called."""
    n = len(p_values)
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * n / np.arange(1, n + 1)
    adjusted = np.empty(n)
    adjusted[order] = np.minimum.accumulate(stepped[::-1])[::-1]
    return np.minimum(adjusted, 1.0)


def _locate_largest(*, d_model: int, rank: int) -> tuple[float, float]:
    """mu and sigma of the logit of the largest squared cosine."""
    angle = 2 * math.asin(math.sqrt((rank - 0.5) / (d_model - 1)))
    cubed = 16 / ((d_model - 1) ** 2 * math.sin(2 * angle) ** 2 * math.sin(angle) ** 2)
    return 2 * math.log(math.tan(angle)), cubed ** (1 / 3)


def _normal_tail(deviations: Float[np.ndarray, "*pair"]) -> Float[np.ndarray, "*pair"]:
    return (torch.special.erfc(torch.from_numpy(np.asarray(deviations, dtype=np.float64)) / math.sqrt(2)) / 2).numpy()


def _gamma_tail(values: Float[np.ndarray, "*pair"], shape: float) -> Float[np.ndarray, "*pair"]:
    above = torch.from_numpy(np.asarray(values, dtype=np.float64)).clamp_min(0)
    return torch.special.gammaincc(torch.full_like(above, shape), above).numpy()
