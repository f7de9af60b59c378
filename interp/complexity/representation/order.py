"""Do the embeddings of numbers lie in order of value?

Values are predicted by least squares on the first k principal components, each token from the folds that it isn't in:

    R² = 1 - sum_t (y_t - y'_t)² / sum_t (y_t - y0_t)²

with y' the prediction and y0 the mean of the other folds. 1 is a perfect prediction, 0 no better than the mean. An
embedding that is ordinal (arXiv:2405.05409) has a high R² on one or two components; a straight line needs
one, a curve more. The control shuffles values among tokens.

>>> import torch
>>> angle = torch.arange(40.0)[:, None] / 40 * 3.1
>>> half_circle = torch.cat([angle.cos(), angle.sin()], dim=1)
>>> order_of_values(half_circle, torch.arange(40.0), n_components=(1, 2)).r2.round(2)
array([0.99, 0.98])
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from interp.complexity.representation.projection import principal_components
from interp.complexity.representation.shared import as_states, resample, shuffles
from interp.errors import InputError
from interp.statistics import permutation_p_value
from tasks.seeding import derive_seed


@dataclass(frozen=True, kw_only=True, eq=False)
class ValueOrder:
    """Cross-validated R² of the value, for each number of principal components."""

    n_components: tuple[int, ...]
    """How many components were used."""
    squared_error: Float[np.ndarray, "component token"]
    """Squared error of each token's value, predicted from the other folds."""
    squared_deviation: Float[np.ndarray, "token"]
    """Squared distance of each token's value from the mean of the other folds."""
    shuffled_r2: Float[np.ndarray, "shuffle component"]
    """R² with values shuffled among tokens."""
    explained: Float[np.ndarray, "component"]
    """Share of the embedding's variance on so many components."""
    seed: int
    """Seed of the folds and shuffles."""

    @property
    def r2(self) -> Float[np.ndarray, "component"]:
        """1 is a perfect prediction, 0 is no better than the mean, and it may fall below 0."""
        return 1 - self.squared_error.sum(axis=1) / self.squared_deviation.sum()

    @property
    def interval(self) -> tuple[Float[np.ndarray, "component"], Float[np.ndarray, "component"]]:
        """95% bootstrap interval of `r2` over tokens."""
        counts = resample(len(self.squared_deviation), self.seed)
        r2 = 1 - (counts @ self.squared_error.T) / (counts @ self.squared_deviation)[:, None]
        low, high = np.quantile(r2, [0.025, 0.975], axis=0)
        return low, high

    @property
    def p_values(self) -> Float[np.ndarray, "component"]:
        """Share of shuffles that reach the R²."""
        return np.array([permutation_p_value(float(r), s) for r, s in zip(self.r2, self.shuffled_r2.T, strict=True)])

    def to_frame(self) -> pd.DataFrame:
        """One row a number of components: r2, low, high, shuffled mean, p, n."""
        low, high = self.interval
        return pd.DataFrame(
            {
                "n_components": self.n_components,
                "r2": self.r2,
                "low": low,
                "high": high,
                "shuffled": self.shuffled_r2.mean(axis=0),
                "p": self.p_values,
                "explained": self.explained,
                "n": len(self.squared_deviation),
            }
        )

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        rows = self.to_frame().itertuples()
        parts = [f"{row.n_components}: {row.r2:.2f} [{row.low:.2f}, {row.high:.2f}], p = {row.p:.3f}" for row in rows]
        return f"ValueOrder(R² from components {'; '.join(parts)}; n={len(self.squared_deviation)} tokens)"


def order_of_values(
    embedding: Float[Tensor, "token d_model"],
    values: Float[Tensor, "token"] | Int[Tensor, "token"],
    *,
    n_components: Sequence[int] = (1, 2, 10),
    n_folds: int = 5,
    n_shuffles: int = 199,
    seed: int = 0,
) -> ValueOrder:
    """How well the value of each token follows from the first principal components of all tokens.

    Components are those of the tokens alone and don't know the values. Raises `InputError` where there are too few
    tokens for the folds and components, or all values are the same.
    """
    x, y = as_states(embedding), values.detach().double().cpu().numpy()
    n, most = len(x), max(n_components, default=0)
    if len(y) != n or not np.isfinite(y).all() or np.ptp(y) == 0:
        raise InputError(
            f"order_of_values was given {n} tokens and {len(y)} values with {len(np.unique(y))} distinct ones; give one "
            "finite value for each token, not all the same."
        )
    if n_folds < 2 or min(n_components, default=0) < 1 or n - -(-n // n_folds) < most + 2 or most > x.shape[1]:
        raise InputError(
            f"{n} tokens of width {x.shape[1]} in n_folds={n_folds} folds can't fit n_components={tuple(n_components)}; "
            "each fit needs two tokens more than components: give more tokens or fewer components."
        )
    coordinates, explained = principal_components(x, most)
    fold = np.random.default_rng(derive_seed(seed, "folds")).permutation(n) % n_folds
    base = _cross_predict(np.zeros((n, 0)), fold)
    fits = [_cross_predict(coordinates[:, :k], fold) for k in n_components]
    shuffled = np.stack([y[order] for order in shuffles(n, n_shuffles, seed)])  # [shuffle, token]
    deviation = np.square(shuffled - shuffled @ base.T).sum(axis=1)
    r2 = [1 - np.square(shuffled - shuffled @ fit.T).sum(axis=1) / deviation for fit in fits]
    return ValueOrder(
        n_components=tuple(n_components),
        squared_error=np.stack([np.square(y - fit @ y) for fit in fits]),
        squared_deviation=np.square(y - base @ y),
        shuffled_r2=np.stack(r2, axis=1),
        explained=np.cumsum(explained)[np.array(n_components) - 1],
        seed=seed,
    )


def _cross_predict(
    x: Float[np.ndarray, "token component"], fold: Int[np.ndarray, "token"]
) -> Float[np.ndarray, "token token"]:
    """The matrix that maps values to their predictions: least squares with a constant, fitted on the other folds."""
    design = np.concatenate([np.ones((len(x), 1)), x], axis=1)
    predict = np.zeros((len(x), len(x)))
    for one in range(fold.max() + 1):
        test, train = np.flatnonzero(fold == one), np.flatnonzero(fold != one)
        predict[np.ix_(test, train)] = design[test] @ np.linalg.pinv(design[train])
    return predict
