"""How complex the weights of a model are: ranks, norms and condensed directions of every matrix, beside random ones.

At small initialisation, or under strong weight decay, training finds weights of few directions, and with them solutions
that reason rather than memorise (Zhang et al., arXiv:2405.05409, 2501.08537: the stable rank of W_Q falls where the
solution changes). The ranks are defined in `interp.complexity.spectra`, directions in `condensation`, norms in `norms`.

The control of a matrix is a Gaussian one of the same shape, drawn `n_controls` times, with the same Frobenius norm where
the scale counts; `p` is the share of draws, the measured matrix among them, that are as low.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=2, d_vocab=20, n_ctx=8, attn_only=True, seed=0)
>>> complexity = measure_complexity(model, parts=("W_Q", "W_V"), n_controls=5)
>>> complexity.names, complexity.values["stable_rank"].round(1)
(('0.W_Q', '0.W_V', '1.W_Q', '1.W_V'), array([4.9, 4.8, 5.3, 4.8]))
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from html import escape
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.complexity.condensation import cosine_matrix, group_directions, random_matrix
from interp.complexity.norms import WeightNorms, measure_norms
from interp.complexity.parts import Heads, Part, WeightMatrix, find_matrices
from interp.complexity.spectra import RANKS, random_ranks, singular_values
from interp.errors import InputError
from interp.models.provenance import Provenance, get_provenance
from interp.statistics import permutation_p_value

if TYPE_CHECKING:
    from interp.figures.style import Picture

Measure = Literal[
    "stable_rank", "effective_rank", "participation_ratio", "n_directions", "frobenius_norm", "spectral_norm"
]
"""What is measured of every matrix."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Complexity:
    """Ranks, norms and condensed directions of each matrix, beside Gaussian matrices of the same shape."""

    names: tuple[str, ...]
    """Of each matrix, such as `0.W_Q`; the matrices are in this order everywhere."""
    parts: tuple[Part, ...]
    """The part that each matrix is."""
    layers: tuple[int | None, ...]
    """The layer of each; None for embeddings and the unembedding."""
    heads: tuple[int | None, ...]
    """The head of each; None where a layer's heads are one matrix."""
    shapes: tuple[tuple[int, int], ...]
    """(d_in, d_out) of each."""
    values: Mapping[str, Float[np.ndarray, "matrix"]]
    """By measure; `n_directions` is NaN for a matrix that is larger than `largest_condensed`."""
    control: Mapping[str, Float[np.ndarray, "matrix draw"]]
    """By measure, the random matrices of each matrix; a Frobenius norm has none."""
    norms: WeightNorms
    """Norms of all used weights of the model, by group."""
    threshold: float
    """Cosine above which neurons count as one direction."""
    seed: int
    """Seed of the random matrices."""
    provenance: Provenance
    """The model that was measured."""

    @property
    def n_controls(self) -> int:
        """Number of random matrices of each shape."""
        return self.control["stable_rank"].shape[1]

    def p_values(self, measure: Measure = "stable_rank") -> Float[np.ndarray, "matrix"]:
        """For each matrix, the share of random ones, it among them, that are as low: at best 1 / (1 + n_controls)."""
        if measure not in self.control:
            raise InputError(f"{measure!r} has no control; the measures with one are {', '.join(self.control)}.")
        pairs = zip(self.values[measure], self.control[measure], strict=True)
        return np.array([np.nan if np.isnan(value) else permutation_p_value(-value, -draws) for value, draws in pairs])

    @cached_property
    def _frame(self) -> pd.DataFrame:
        rows: list[dict[str, Any]] = []
        p_values = {measure: self.p_values(measure) for measure in get_args(Measure) if measure in self.control}
        for i, name in enumerate(self.names):
            place = {"name": name, "part": self.parts[i], "layer": self.layers[i], "head": self.heads[i]}
            place |= {"d_in": self.shapes[i][0], "d_out": self.shapes[i][1]}
            for measure, values in self.values.items():
                row = {**place, "measure": measure, "value": values[i]}
                if measure in self.control:
                    low, mean, high = _summarise(self.control[measure][i])
                    row |= {"control": mean, "control_low": low, "control_high": high, "p": p_values[measure][i]}
                rows.append(row)
        frame = pd.DataFrame(rows).assign(n_controls=self.n_controls)
        return frame.astype({"layer": "Int64", "head": "Int64"})

    def to_frame(self) -> pd.DataFrame:
        """One row a matrix and measure: value, mean and central 95% of the control, p, number of random matrices."""
        return self._frame.copy()

    def figure(
        self, measure: Literal["stable_rank", "effective_rank", "participation_ratio"] = "stable_rank"
    ) -> "Picture":
        """A panel for each part: the rank by layer, beside that of random matrices of the same shape."""
        from interp.figures.ranks import Ranks, rank_panels

        if measure not in RANKS:
            raise InputError(f"{measure!r} can't be drawn; use one of {', '.join(RANKS)}.")
        panels = []
        for part in dict.fromkeys(self.parts):
            here = [i for i, other in enumerate(self.parts) if other == part]
            low, mean, high = _summarise(self.control[measure][here[0]])
            panels.append(
                Ranks(
                    part=part,
                    layers=tuple(self.layers[i] for i in here),
                    values=self.values[measure][here],
                    control=mean,
                    control_interval=(low, high),
                )
            )
        return rank_panels(panels, label=measure.replace("_", " "))

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        values, draws = self.values["stable_rank"], self.control["stable_rank"]
        lowest = int(np.argmin(values / draws.mean(axis=1)))
        low, mean, high = _summarise(draws[lowest])
        n_low = int((self.p_values("stable_rank") <= 1 / (1 + self.n_controls) + 1e-9).sum())
        return (
            f"Complexity({self.provenance.model}: {len(self.names)} matrices, {n_low} of them with a stable rank below "
            f"every random matrix's; lowest against random {self.names[lowest]}: {values[lowest]:.1f}, random {mean:.1f} "
            f"[{low:.1f}, {high:.1f}]; weight norm {self.norms.norm:.1f}; n={self.n_controls} random matrices a shape)"
        )


def measure_complexity(
    model: Any,
    *,
    parts: Sequence[Part] | None = None,
    heads: Heads = "together",
    threshold: float = 0.7,
    n_controls: int = 20,
    largest_condensed: int = 1024,
    seed: int = 0,
) -> Complexity:
    """Measure the weight matrices of a HookedTransformer or TransformerBridge; all that it has when `parts` is None.

    `heads="together"` is the papers' choice, one matrix a layer; `"apart"` measures each head's. Directions are counted
    (signed cosine > `threshold`) in matrices with at most `largest_condensed` output neurons, since the cosine matrix
    grows with their square. Raises `InputError` for parts that the model lacks and for settings that can't be used.
    """
    if not 0 < threshold < 1:
        raise InputError(f"threshold={threshold} is no cosine to group by; give a number between 0 and 1, such as 0.7.")
    if n_controls < 1:
        raise InputError(f"n_controls={n_controls} leaves no random matrix to compare with; give at least 1.")
    matrices = find_matrices(model, parts=parts, heads=heads)
    measured = [_measure(matrix, threshold, largest_condensed) for matrix in matrices]
    values = {name: np.array([row[name] for row in measured]) for name in get_args(Measure)}
    control: dict[str, list[np.ndarray]] = {name: [] for name in get_args(Measure) if name != "frobenius_norm"}
    for i, matrix in enumerate(matrices):
        shape = (matrix.weights.shape[0], matrix.weights.shape[1])
        for name, draws in _random_ranks(shape, n_controls, seed).items():
            control[name].append(draws)
        condensed = shape[1] <= largest_condensed
        directions = (
            _random_directions(shape, threshold, n_controls, seed) if condensed else np.full(n_controls, np.nan)
        )
        control["n_directions"].append(directions)
        control["spectral_norm"].append(values["frobenius_norm"][i] / np.sqrt(control["stable_rank"][i]))
    return Complexity(
        names=tuple(matrix.name for matrix in matrices),
        parts=tuple(matrix.part for matrix in matrices),
        layers=tuple(matrix.layer for matrix in matrices),
        heads=tuple(matrix.head for matrix in matrices),
        shapes=tuple((matrix.weights.shape[0], matrix.weights.shape[1]) for matrix in matrices),
        values=values,
        control={name: np.stack(draws) for name, draws in control.items()},
        norms=measure_norms(model),
        threshold=threshold,
        seed=seed,
        provenance=get_provenance(model),
    )


def _measure(matrix: WeightMatrix, threshold: float, largest_condensed: int) -> dict[str, float]:
    s = singular_values(matrix.weights)
    measured = {name: float(rank(s)) for name, rank in RANKS.items()}
    measured |= {"frobenius_norm": float(s.norm()), "spectral_norm": float(s[0]), "n_directions": np.nan}
    if matrix.weights.shape[1] <= largest_condensed:
        measured["n_directions"] = float(len(group_directions(cosine_matrix(matrix.weights), threshold=threshold)))
    return measured


# One draw serves every matrix of a shape, and every checkpoint of a run.
@lru_cache(maxsize=64)
def _random_ranks(shape: tuple[int, int], n_draws: int, seed: int) -> dict[str, np.ndarray]:
    return {name: draws.numpy() for name, draws in random_ranks(shape, n_draws=n_draws, seed=seed).items()}


@lru_cache(maxsize=64)
def _random_directions(shape: tuple[int, int], threshold: float, n_draws: int, seed: int) -> np.ndarray:
    drawn = (cosine_matrix(random_matrix(*shape, draw=draw, seed=seed)) for draw in range(n_draws))
    return np.array([len(group_directions(cosines, threshold=threshold)) for cosines in drawn], dtype=float)


def _summarise(draws: Float[np.ndarray, "draw"]) -> tuple[float, float, float]:
    """(low, mean, high), the ends enclosing the central 95% of the draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(draws.mean()), float(high)
