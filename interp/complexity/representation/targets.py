"""Are states with the same target alike in direction?

    mean cosine of two states with equal targets - mean cosine of two states with different targets

A model that computes the target brings different inputs with one target to parallel states before the unembedding; one
that stores each case needn't (arXiv:2405.05409, figure 4). The control shuffles targets among states. The interval
resamples states, not pairs, and leaves out pairs of a state with its own copy, since pairs that share a state depend on
each other.

>>> import torch
>>> states = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
>>> result = target_cosine(states, torch.tensor([5, 5, 8, 8]))
>>> result.equal, result.unequal
(1.0, 0.0)
"""

from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from torch import Tensor

from interp.complexity.representation.shared import as_states, normalise, one_hot, resample, shuffles
from interp.statistics import permutation_p_value


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetCosine:
    """Mean cosine between states with equal targets against that between states with different ones."""

    equal: float
    """Mean cosine over pairs with equal targets."""
    unequal: float
    """Mean cosine over pairs with different targets."""
    interval: tuple[float, float]
    """95% interval of `difference`: states are resampled, pairs of a state with itself left out."""
    shuffled: Float[np.ndarray, "shuffle"]
    """The difference with targets shuffled among states."""
    n_states: int
    """Number of states."""

    @property
    def difference(self) -> float:
        """`equal` - `unequal`: 0 where the target leaves no trace in the direction, at most 2."""
        return self.equal - self.unequal

    @property
    def p_value(self) -> float:
        """Share of shuffles that reach the difference."""
        return permutation_p_value(self.difference, self.shuffled)

    def to_frame(self) -> pd.DataFrame:
        """One row: equal, unequal, difference, low, high, shuffled mean, p, n."""
        low, high = self.interval
        numbers = {
            "equal": self.equal,
            "unequal": self.unequal,
            "difference": self.difference,
            "low": low,
            "high": high,
        }
        return pd.DataFrame([numbers | {"shuffled": self.shuffled.mean(), "p": self.p_value, "n": self.n_states}])

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        low, high = self.interval
        return (
            f"TargetCosine(equal targets {self.equal:.2f}, different {self.unequal:.2f}, difference {self.difference:.2f} "
            f"[{low:.2f}, {high:.2f}], shuffled {self.shuffled.mean():.2f}, p = {self.p_value:.3f}; "
            f"n={self.n_states} states)"
        )


def target_cosine(
    states: Float[Tensor, "state d_model"], targets: Int[Tensor, "state"], *, n_shuffles: int = 199, seed: int = 0
) -> TargetCosine:
    """Are states with the same target more alike in direction than others?

    Raises `InputError` unless there are at least two targets and one of them has two states, or for a zero state.
    """
    x = normalise(as_states(states))
    member = one_hot(targets, len(x))

    def compare(member: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
        """(equal, unequal) of states that count `weight` times; a state makes no pair with itself or its copies."""
        own = float(np.square(weight).sum())
        sums = member.T @ (x * weight[:, None])  # [target, d_model]
        alike = float(np.square(sums).sum()) - own
        n_alike = float(np.square(member.T @ weight).sum()) - own
        others = float(np.square(sums.sum(axis=0)).sum()) - own - alike
        n_others = float(weight.sum() ** 2) - own - n_alike
        return (alike / n_alike if n_alike else np.nan), (others / n_others if n_others else np.nan)

    once = np.ones(len(x))
    equal, unequal = compare(member, once)
    resampled = [compare(member, counts) for counts in resample(len(x), seed)]
    differences = [one - other for one, other in resampled]
    low, high = np.nanquantile(differences, [0.025, 0.975])
    shuffled = [compare(member[order], once) for order in shuffles(len(x), n_shuffles, seed)]
    return TargetCosine(
        equal=equal,
        unequal=unequal,
        interval=(float(low), float(high)),
        shuffled=np.array([one - other for one, other in shuffled]),
        n_states=len(x),
    )
