"""Do states of one label lie together?

- `nearest_same`: the share of states whose nearest other state has the same label.
- `silhouette`: (b - a) / max(a, b) with a the mean distance to the other states of the same label and b that to the
  nearest other label (Rousseeuw 1987); 0 for a state that is alone with its label.

A picture of clusters (t-SNE above all) shows clusters where there are none, so these numbers are of the states
themselves. The control shuffles labels among states.

>>> states = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
>>> score = cluster_score(states, torch.tensor([0, 0, 1, 1]))
>>> score.nearest_same, score.silhouette.round(2)
(array([1., 1., 1., 1.]), array([0.9 , 0.89, 0.89, 0.9 ]))
"""

from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.complexity.representation.shared import as_states, normalise, one_hot, shuffles
from interp.errors import InputError
from interp.statistics import bootstrap_interval, permutation_p_value

Distance = Literal["euclidean", "cosine"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterScore:
    """How well states of one label lie together, state by state."""

    nearest_same: Float[np.ndarray, "state"]
    """1 where the nearest other state has the same label (the share, where several are equally near)."""
    silhouette: Float[np.ndarray, "state"]
    """-1 to 1: positive where a state is nearer to its own label than to any other."""
    shuffled_nearest_same: Float[np.ndarray, "shuffle"]
    """Mean of `nearest_same` with labels shuffled."""
    shuffled_silhouette: Float[np.ndarray, "shuffle"]
    """Mean silhouette with labels shuffled."""
    n_labels: int
    """Number of different labels."""
    seed: int
    """Seed of the shuffles."""

    def to_frame(self) -> pd.DataFrame:
        """One row a measure: value, low, high, shuffled mean, p, n."""
        pairs = (
            ("nearest_same", self.nearest_same, self.shuffled_nearest_same),
            ("silhouette", self.silhouette, self.shuffled_silhouette),
        )
        rows = []
        for name, values, shuffled in pairs:
            low, high = bootstrap_interval(values, seed=self.seed)
            value, p = float(values.mean()), permutation_p_value(float(values.mean()), shuffled)
            interval = {"value": value, "low": float(low), "high": float(high)}
            rows.append({"measure": name, **interval, "shuffled": shuffled.mean(), "p": p, "n": len(values)})
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        nearest, silhouette = self.to_frame().itertuples()
        return (
            f"ClusterScore({self.n_labels} labels: nearest neighbour of the same label {nearest.value:.2f} "
            f"[{nearest.low:.2f}, {nearest.high:.2f}], shuffled {nearest.shuffled:.2f}, p = {nearest.p:.3f}; silhouette "
            f"{silhouette.value:.2f} [{silhouette.low:.2f}, {silhouette.high:.2f}]; n={nearest.n} states)"
        )


def cluster_score(
    states: Float[Tensor, "state d_model"],
    labels: Int[Tensor, "state"],
    *,
    distance: Distance = "euclidean",
    n_shuffles: int = 199,
    seed: int = 0,
) -> ClusterScore:
    """Do states of one label lie together? For `"cosine"` no state may be zero.

    Raises `InputError` unless there are at least two labels and one of them has two states.
    """
    x = as_states(states)
    member = one_hot(labels, len(x))
    if distance not in get_args(Distance):
        raise InputError(f"distance={distance!r} isn't known; use {' or '.join(map(repr, get_args(Distance)))}.")
    if distance == "cosine":
        x = normalise(x)
    apart = torch.cdist(torch.from_numpy(x), torch.from_numpy(x), compute_mode="donot_use_mm_for_euclid_dist").numpy()
    if distance == "cosine":
        apart = np.square(apart) / 2  # 1 - cosine
    others = apart + np.diag(np.full(len(x), np.inf))
    near = (others <= others.min(axis=1, keepdims=True)).astype(float)
    near /= near.sum(axis=1, keepdims=True)

    def score(member: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ((near @ member) * member).sum(axis=1), _silhouette(apart @ member, member)

    same, silhouette = score(member)
    drawn = [tuple(values.mean() for values in score(member[order])) for order in shuffles(len(x), n_shuffles, seed)]
    shuffled = np.array(drawn)
    return ClusterScore(
        nearest_same=same,
        silhouette=silhouette,
        shuffled_nearest_same=shuffled[:, 0],
        shuffled_silhouette=shuffled[:, 1],
        n_labels=member.shape[1],
        seed=seed,
    )


def _silhouette(
    sums: Float[np.ndarray, "state label"], member: Float[np.ndarray, "state label"]
) -> Float[np.ndarray, "state"]:
    """From the sum of a state's distances to the states of each label."""
    sizes = member.sum(axis=0)
    own_others = member @ sizes - 1
    within = (sums * member).sum(axis=1) / np.maximum(own_others, 1)
    between = np.where(member > 0, np.inf, sums / sizes).min(axis=1)
    largest = np.maximum(within, between)
    return np.where((own_others > 0) & (largest > 0), (between - within) / np.where(largest > 0, largest, 1), 0.0)
