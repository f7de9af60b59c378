"""How much two bridges have in common: principal angles, and their mean against chance.

With orthonormal A [d_model, r_a] and B [d_model, r_b], the singular values of A^T B are the cosines of the principal angles
(Björck & Golub 1973), and the overlap is their mean square,

    overlap = ||A^T B||_F^2 / min(r_a, r_b),     1 where one contains the other, 0 where they are orthogonal.

For a random (Haar) subspace in the place of one, its expectation is max(r_a, r_b) / d_model exactly; draws from it give the
interval and the p-value. Chance of this kind is a weak control: subspaces of real heads overlap more than random ones,
so `compare_part_bridges` puts the bridges of other heads of the same layers beside it.

>>> import interp
>>> from interp.bridge.find import find_bridge
>>> model = interp.build(n_layers=2, d_model=16, n_heads=4, d_vocab=20, n_ctx=8, attn_only=True)
>>> one, other = find_bridge(model, [(1, 0)], rank=3), find_bridge(model, [(1, 1)], rank=3)
>>> comparison = compare_bridges(one, other)
>>> round(comparison.null, 4), round(compare_bridges(one, one).overlap, 6)
(0.1875, 1.0)
"""

from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.bridge.find import Bridge
from interp.complexity.spectra import random_triangle
from interp.errors import InputError
from interp.statistics import permutation_p_value
from tasks.seeding import derive_seed


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BridgeComparison:
    """Two subspaces of one residual stream."""

    cosines: Float[np.ndarray, "angle"]
    """Cosines of the principal angles, largest first."""
    ranks: tuple[int, int]
    """Dimensions of the two."""
    d_model: int
    """Dimensions of the residual stream."""
    null_draws: Float[np.ndarray, "draw"]
    """Overlap with a random subspace in the place of the second."""

    @property
    def angles(self) -> Float[np.ndarray, "angle"]:
        """Principal angles in degrees, smallest first."""
        return np.degrees(np.arccos(np.clip(self.cosines, 0, 1)))

    @property
    def overlap(self) -> float:
        """Mean squared cosine."""
        return float(np.square(self.cosines).mean())

    @property
    def null(self) -> float:
        """Expected overlap of random subspaces."""
        return max(self.ranks) / self.d_model

    @property
    def null_interval(self) -> tuple[float, float]:
        """What encloses the central 95% of the draws."""
        low, high = np.quantile(self.null_draws, [0.025, 0.975])
        return float(low), float(high)

    @property
    def p_value(self) -> float:
        """Share of draws, the observed overlap among them, that reach it."""
        return permutation_p_value(self.overlap, self.null_draws)

    def to_frame(self) -> pd.DataFrame:
        """One row a principal angle: its cosine, and the angle in degrees."""
        return pd.DataFrame({"cosine": self.cosines, "degrees": self.angles})

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        low, high = self.null_interval
        return (
            f"BridgeComparison(ranks {self.ranks[0]} and {self.ranks[1]} of {self.d_model} dimensions: overlap "
            f"{self.overlap:.2f}, by chance {self.null:.2f} [{low:.2f}, {high:.2f}], p = {self.p_value:.3f}; "
            f"largest cosine {self.cosines[0]:.2f}, smallest {self.cosines[-1]:.2f}; {len(self.null_draws)} random draws)"
        )


def compare_bridges(a: Bridge, b: Bridge, *, n_draws: int = 200, seed: int = 0) -> BridgeComparison:
    """Principal angles between two bridges of one model, or of models of one width, such as two checkpoints.

    Raises `InputError` for bridges in residual streams of different width or in different coordinates (`fold`).
    """
    if a.d_model != b.d_model:
        raise InputError(
            f"The bridges lie in residual streams of {a.d_model} and {b.d_model} dimensions; compare bridges of one model, "
            "or of checkpoints of one."
        )
    if a.fold != b.fold:
        raise InputError(
            f"One bridge was found with fold={a.fold!r} and the other with fold={b.fold!r}, so they lie in different "
            "coordinates; find both in the same way."
        )
    return BridgeComparison(
        cosines=measure_cosines(a.basis, b.basis),
        ranks=(a.rank, b.rank),
        d_model=a.d_model,
        null_draws=draw_overlaps(a.d_model, (a.rank, b.rank), n_draws=n_draws, seed=seed),
    )


def measure_cosines(a: Float[Tensor, "d_model a"], b: Float[Tensor, "d_model b"]) -> Float[np.ndarray, "angle"]:
    """Cosines of the principal angles of two orthonormal bases, largest first."""
    return torch.linalg.svdvals(a.T @ b).numpy()


def measure_overlap(a: Float[Tensor, "d_model a"], b: Float[Tensor, "d_model b"]) -> float:
    """Mean squared cosine, without a decomposition."""
    return float((a.T @ b).square().sum() / min(a.shape[1], b.shape[1]))


def draw_overlaps(d_model: int, ranks: tuple[int, int], *, n_draws: int, seed: int) -> Float[np.ndarray, "draw"]:
    """Overlaps of a fixed subspace of the larger rank with random ones of the smaller, spanned by a Gaussian matrix.

    Of that matrix only the rows inside the fixed subspace are drawn as they are; of the other rows only the triangle of
    their QR decomposition counts, so the cost does not depend on d_model.
    """
    drawn, fixed = sorted(ranks)
    generator = np.random.default_rng(derive_seed(seed, "random overlaps", d_model, fixed, drawn))
    overlaps = []
    for _ in range(n_draws):
        inside = torch.from_numpy(generator.standard_normal((fixed, drawn)))
        n_outside = d_model - fixed
        if n_outside >= drawn:
            outside = random_triangle(n_outside, drawn, generator=generator)
        else:
            outside = torch.from_numpy(generator.standard_normal((n_outside, drawn)))
        triangle = torch.linalg.qr(torch.cat([inside, outside]), mode="r").R
        coordinates = torch.linalg.solve_triangular(triangle, inside, upper=True, left=False)  # A^T B
        overlaps.append(float(coordinates.square().sum()) / drawn)
    return np.array(overlaps)
