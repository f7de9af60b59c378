"""Do the neurons of a layer point in few directions?

At small initialisation the input weights of neurons condense: they align into a few groups (Luo et al. 2021,
arXiv:2007.07497; Zhang et al. 2024, arXiv:2405.05409, figures 10 and 15). For W [d_in, d_out], as TransformerLens stores
matrices, neuron i is column i. With cos_ij the cosine between columns i and j, neurons are grouped greedily: the neuron
with the most ungrouped others above the threshold leads a group and takes them (ties: the lowest index), until none is
left. The number of groups is the number of condensed directions, from 1 to the number of neurons; groups never grow
along the way. A neuron without any weight points nowhere and is in no group.

The control is a Gaussian random matrix of the same shape, drawn `n_controls` times: in few dimensions random vectors
are often alike.

>>> W = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.1, 1.0]])  # columns 0 and 1 are nearly parallel
>>> condense(W, n_controls=5).groups
((0, 1), (2,))
"""

from dataclasses import dataclass
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.complexity.spectra import random_triangle
from interp.errors import InputError
from interp.statistics import permutation_p_value
from tasks.seeding import derive_seed

if TYPE_CHECKING:
    from interp.figures.style import Picture

Sign = Literal["signed", "absolute"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Condensation:
    """The groups of a matrix's neurons, beside those of random matrices of its shape."""

    cosines: Float[np.ndarray, "neuron neuron"]
    """Cosine between the input weights of each two neurons; 0 where one of them has none."""
    groups: tuple[tuple[int, ...], ...]
    """Neurons of each group: the largest group first, in it the leader, then by falling cosine with the leader."""
    silent: tuple[int, ...]
    """Neurons whose input weights are all zero."""
    threshold: float
    """Cosine above which a neuron joins a leader."""
    sign: Sign
    """`signed`, as in the papers, or `absolute`: opposite weights count as one direction."""
    control_sizes: tuple[tuple[int, ...], ...]
    """Sizes of the groups in each random matrix, largest first."""
    control_cosines: Float[np.ndarray, "neuron neuron"]
    """Cosines of the first random matrix, in its own sorted order, for the picture."""
    shape: tuple[int, int]
    """(d_in, d_out) of the matrix."""
    seed: int
    """Seed of the random matrices."""

    @property
    def n_directions(self) -> int:
        """Number of groups."""
        return len(self.groups)

    @property
    def control_directions(self) -> Float[np.ndarray, "draw"]:
        """Number of groups in each random matrix."""
        return np.array([len(sizes) for sizes in self.control_sizes], dtype=float)

    @property
    def p_value(self) -> float:
        """Share of random matrices, the measured one among them, with as few directions: at best 1 / (1 + draws)."""
        return permutation_p_value(-float(self.n_directions), -self.control_directions)

    @property
    def order(self) -> tuple[int, ...]:
        """The permutation of neurons that shows the groups as blocks; silent neurons come last."""
        return (*(neuron for group in self.groups for neuron in group), *self.silent)

    def share_in_largest(self, n: int = 1) -> float:
        """Share of all neurons that are in the `n` largest groups."""
        return sum(map(len, self.groups[:n])) / self.shape[1]

    @cached_property
    def _frame(self) -> pd.DataFrame:
        def summarise(measure: str, value: float, draws: np.ndarray) -> dict[str, object]:
            low, high = np.quantile(draws, [0.025, 0.975])
            control = {"control": draws.mean(), "control_low": low, "control_high": high, "n_controls": len(draws)}
            return {"measure": measure, "value": value, **control}

        rows = [summarise("n_directions", float(self.n_directions), self.control_directions)]
        for n in (1, 3, 10):
            draws = np.array([sum(sizes[:n]) / self.shape[1] for sizes in self.control_sizes])
            rows.append(summarise(f"share_in_largest_{n}", self.share_in_largest(n), draws))
        return pd.DataFrame(rows)

    def to_frame(self) -> pd.DataFrame:
        """One row a measure: value, and mean and central 95% of the random matrices' values."""
        return self._frame.copy()

    def figure(self, *, title: str = "") -> "Picture":
        """The cosines in sorted order beside a random matrix's: condensed directions are dark blocks."""
        from interp.figures.condensation import condensation_map

        order = list(self.order)
        control = self.control_directions
        return condensation_map(
            self.cosines[np.ix_(order, order)],
            self.control_cosines,
            groups=[len(group) for group in self.groups],
            control_groups=list(self.control_sizes[0]),
            note=f"random: {control.mean():.0f} on average, {control.min():.0f} to {control.max():.0f} "
            f"in {len(control)} draws",
            sign=self.sign,
            threshold=self.threshold,
            title=title,
        )

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        control = self.control_directions
        return (
            f"Condensation({self.n_directions} directions among {self.shape[1]} neurons at cosine > {self.threshold:g}, "
            f"random matrices {control.mean():.1f} [{control.min():.0f}, {control.max():.0f}], p = {self.p_value:.3f}; "
            f"largest group {len(self.groups[0]) if self.groups else 0}; n={len(control)} draws)"
        )


def condense(
    matrix: Float[Tensor, "d_in d_out"],
    *,
    threshold: float = 0.7,
    sign: Sign = "signed",
    n_controls: int = 20,
    seed: int = 0,
) -> Condensation:
    """Group the columns of a matrix by direction, and those of `n_controls` Gaussian matrices of its shape.

    Raises `InputError` for a threshold outside of (0, 1), no control, an empty matrix or one that isn't finite.
    """
    _check(matrix, threshold=threshold, sign=sign, n_controls=n_controls)
    cosines = cosine_matrix(matrix)
    groups = group_directions(cosines, threshold=threshold, sign=sign)
    grouped = {neuron for group in groups for neuron in group}
    d_in, d_out = matrix.shape
    sizes, shown = [], np.zeros((0, 0))
    for draw in range(n_controls):
        random = random_matrix(d_in, d_out, draw=draw, seed=seed)
        theirs = cosine_matrix(random)
        random_groups = group_directions(theirs, threshold=threshold, sign=sign)
        sizes.append(tuple(map(len, random_groups)))
        if draw == 0:
            order = [neuron for group in random_groups for neuron in group]
            shown = theirs[np.ix_(order, order)]
    return Condensation(
        cosines=cosines,
        groups=groups,
        silent=tuple(neuron for neuron in range(d_out) if neuron not in grouped),
        threshold=threshold,
        sign=sign,
        control_sizes=tuple(sizes),
        control_cosines=shown,
        shape=(d_in, d_out),
        seed=seed,
    )


def random_matrix(d_in: int, d_out: int, *, draw: int, seed: int) -> Float[Tensor, "row d_out"]:
    """One of the Gaussian matrices that a matrix of this shape is compared with.

    Where it would be tall, [d_out, d_out] stands for it: the triangle whose columns have the same cosines.
    """
    generator = np.random.default_rng(derive_seed(seed, "random matrix", d_in, d_out, draw))
    if d_in > d_out:
        return random_triangle(d_in, d_out, generator=generator)
    return torch.from_numpy(generator.standard_normal((d_in, d_out)))


def cosine_matrix(matrix: Float[Tensor, "d_in d_out"]) -> Float[np.ndarray, "d_out d_out"]:
    """Cosine between each two columns; 0 in the row and column of an all-zero one."""
    columns = matrix.detach().double().cpu()
    columns = columns / columns.abs().amax(0).clamp_min(torch.finfo(torch.float64).tiny)
    columns = columns / columns.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    return (columns.T @ columns).clamp(-1, 1).numpy()


def group_directions(
    cosines: Float[np.ndarray, "neuron neuron"], *, threshold: float, sign: Sign = "signed"
) -> tuple[tuple[int, ...], ...]:
    """Neurons grouped greedily, the largest group first; all-zero neurons (cosine 0 with themselves) are in none."""
    likeness = np.abs(cosines) if sign == "absolute" else cosines
    alike = likeness > threshold  # [neuron, neuron]
    left = alike.diagonal().copy()
    counts = alike.sum(axis=1)  # ungrouped neurons that each one would take
    groups = []
    while left.any():
        leader = int(np.where(left, counts, -1).argmax())
        members = np.flatnonzero(alike[leader] & left)
        others = members[members != leader]
        by_cosine = others[np.argsort(-likeness[leader, others], kind="stable")]
        groups.append((leader, *map(int, by_cosine)))
        left[members] = False
        counts = counts - alike[members].sum(axis=0)
    return tuple(groups)


def _check(matrix: Tensor, *, threshold: float, sign: str, n_controls: int) -> None:
    if matrix.dim() != 2 or 0 in matrix.shape:
        raise InputError(
            f"condense was given a tensor of shape {tuple(matrix.shape)}; give one matrix [d_in, d_out], a column for each "
            "neuron."
        )
    if not matrix.isfinite().all():
        raise InputError("condense was given a matrix with a NaN or an infinity; only finite weights have directions.")
    if not 0 < threshold < 1:
        raise InputError(f"threshold={threshold} is no cosine to group by; give a number between 0 and 1, such as 0.7.")
    if sign not in get_args(Sign):
        raise InputError(f"sign={sign!r} isn't known; use {' or '.join(map(repr, get_args(Sign)))}.")
    if n_controls < 1:
        raise InputError(f"n_controls={n_controls} leaves no random matrix to compare with; give at least 1.")
