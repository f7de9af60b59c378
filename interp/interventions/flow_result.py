"""What following the answer gives: for each layer and pair of roles, what is attended and what is lost when it is cut.

Everything is kept per example, and of each random control draw the mean over examples. `p_values` are of the permutation
form (1 + #{draws at least as extreme}) / (1 + #draws), Phipson & Smyth (2010): they ask whether cutting these edges does
more than cutting random ones that carry as much attention.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp.errors import InputError
from interp.interventions.knock_out import KnockOutMode
from interp.models.provenance import Provenance
from interp.statistics import bootstrap_interval

if TYPE_CHECKING:
    from interp.figures.style import Picture

FlowWeight = Literal["kl", "accuracy", "mass"]

_ROUNDING = 1e-9
"""Effects closer than this are the same: a KL of so many nats is rounding."""
_Interval = tuple[Float[np.ndarray, "layer role role"], Float[np.ndarray, "layer role role"]]


@dataclass(frozen=True, kw_only=True, eq=False)
class InformationFlow:
    """Attention between roles, and the answer after cutting it; an edge is (layer, query role, key role)."""

    roles: tuple[str, ...]
    """The role of each entry along both role axes; `rest` are the positions without a role."""
    layers: tuple[int, ...]
    """The layer of each entry along the layer axis."""
    heads: tuple[tuple[int, ...], ...]
    """The heads in which edges are cut, for each of `layers`."""
    mode: KnockOutMode
    """How edges are cut, see `knock_out_attention`."""
    attention_mass: Float[np.ndarray, "example layer head role role"]
    """Uncut attention from the query role to the key role, summed over keys, mean over queries; of every head."""
    removed_mass: Float[np.ndarray, "example layer role role"]
    """Attention that is cut, summed over heads and over edges that can matter; NaN here and below: no such edge."""
    accuracy: Float[np.ndarray, "example layer role role"]
    """Share of scored positions whose most likely token is the target, after the cut."""
    kl: Float[np.ndarray, "example layer role role"]
    """KL(uncut || cut) at the scored positions, in nats."""
    log_prob: Float[np.ndarray, "example layer role role"]
    """Log-probability of the target after the cut, in nats."""
    uncut_accuracy: Float[np.ndarray, "example"]
    """`accuracy` of the model as it is."""
    uncut_log_prob: Float[np.ndarray, "example"]
    """`log_prob` of the model as it is."""
    control_accuracy: Float[np.ndarray, "draw layer role role"]
    """Mean `accuracy` over examples after cutting random edges instead, a fresh set for each example of a draw."""
    control_kl: Float[np.ndarray, "draw layer role role"]
    """Mean `kl` of each draw."""
    control_mass: Float[np.ndarray, "draw layer role role"]
    """Mean attention that each draw cut: below `removed_mass` where the other edges don't carry as much."""
    engine: Literal["suffix", "whole"]
    """`suffix`: runs began at the cut. `whole`: every run was a full forward pass."""
    n_runs: int
    """How many rows were run: a pair or a draw, and an example."""
    seed: int
    """Seed of the draws and of the bootstrap."""
    data_sha256: str
    """Hash of the token ids."""
    provenance: Provenance
    """The model."""
    notes: tuple[str, ...] = ()
    """Halved batches."""

    @property
    def mean_kl(self) -> Float[np.ndarray, "layer role role"]:
        """Mean of `kl` over the examples that have the edge."""
        return self._mean(self.kl)

    @property
    def kl_interval(self) -> _Interval:
        """(low, high), the 95% bootstrap interval of `mean_kl` over examples."""
        return self._interval(self.kl)

    @property
    def accuracy_drop(self) -> Float[np.ndarray, "layer role role"]:
        """Mean of uncut accuracy minus `accuracy` over the examples that have the edge."""
        return self._mean(self._drops)

    @property
    def accuracy_drop_interval(self) -> _Interval:
        """(low, high), the 95% bootstrap interval of `accuracy_drop` over examples."""
        return self._interval(self._drops)

    @property
    def control_accuracy_drop(self) -> Float[np.ndarray, "draw layer role role"]:
        """`accuracy_drop` of each draw."""
        uncut = self._mean(self.accuracy + self._drops)
        return uncut - self.control_accuracy

    @property
    def p_values(self) -> Float[np.ndarray, "layer role role"]:
        """P-value of `mean_kl` against the draws, for each edge by itself; never below 1 / (1 + #draws)."""
        return self._compare(self.mean_kl, self.control_kl)

    @property
    def accuracy_p_values(self) -> Float[np.ndarray, "layer role role"]:
        """P-value of `accuracy_drop` against the draws."""
        return self._compare(self.accuracy_drop, self.control_accuracy_drop)

    @property
    def beyond_control(self) -> Bool[np.ndarray, "layer role role"]:
        """Whether the edge's `mean_kl` is above that of every draw."""
        return _exceed(self.mean_kl, self.control_kl)

    @property
    def n_examples(self) -> Int[np.ndarray, "role role"]:
        """How many examples have an edge of the pair."""
        return np.isfinite(self.kl[:, 0]).sum(axis=0)

    def top(self, n: int) -> list[tuple[int, str, str]]:
        """The n edges whose cut has the largest mean KL, as (layer, query role, key role)."""
        order = np.argsort(-np.nan_to_num(self.mean_kl, nan=-1.0), axis=None, kind="stable")
        places = np.stack(np.unravel_index(order, self.mean_kl.shape), axis=1).tolist()
        known = [(i, q, k) for i, q, k in places if np.isfinite(self.mean_kl[i, q, k])]
        return [(self.layers[i], self.roles[q], self.roles[k]) for i, q, k in known[:n]]

    def to_frame(self) -> pd.DataFrame:
        """One row an edge, strongest first: masses, KL and drop of accuracy with intervals, controls, p-values and n."""
        layer, query, key = np.meshgrid(self.layers, self.roles, self.roles, indexing="ij")
        attention = self._mean(self.attention_mass.mean(axis=2))
        removed = self._mean(self.removed_mass)
        columns = {
            "layer": layer,
            "query": query,
            "key": key,
            "attention_mass": attention,
            "removed_mass": removed,
            "control_mass": self.control_mass.mean(axis=0),
            "kl": self.mean_kl,
            "kl_low": self.kl_interval[0],
            "kl_high": self.kl_interval[1],
            "control_kl_mean": self.control_kl.mean(axis=0),
            "control_kl_max": self.control_kl.max(axis=0),
            "p_value": self.p_values,
            "accuracy_drop": self.accuracy_drop,
            "accuracy_drop_low": self.accuracy_drop_interval[0],
            "accuracy_drop_high": self.accuracy_drop_interval[1],
            "control_accuracy_drop_mean": self.control_accuracy_drop.mean(axis=0),
            "control_accuracy_drop_max": self.control_accuracy_drop.max(axis=0),
            "accuracy_p_value": self.accuracy_p_values,
            "n": np.broadcast_to(self.n_examples, self.mean_kl.shape),
        }
        frame = pd.DataFrame({name: values.ravel() for name, values in columns.items()})
        frame = frame[np.isfinite(self.mean_kl).ravel()]
        return frame.sort_values("kl", ascending=False, kind="stable").reset_index(drop=True)

    def figure(self, weight: FlowWeight = "kl", *, tokens: Mapping[str, str] | None = None) -> "Picture":
        """Roles left to right, layers bottom to top, a line for each edge as wide as its `weight`.

        Lines are dashed and pale where some random draw of the same mass does as much when it is cut as the edge: by
        accuracy where that is drawn, else by KL. `tokens` gives a text for some roles, such as the token of one example.
        """
        from interp.figures.flow import flow_picture

        if weight not in get_args(FlowWeight):
            raise InputError(f"weight={weight!r} isn't known; use one of {', '.join(get_args(FlowWeight))}.")
        strange = sorted(set(tokens or {}) - set(self.roles))
        if strange:
            raise InputError(f"tokens= names the role {strange[0]!r}; this result's roles: {', '.join(self.roles)}.")
        drawn, label, solid = {
            "kl": (self.mean_kl, "KL (nats) when the edge is cut", self.beyond_control),
            "accuracy": (
                self.accuracy_drop,
                "accuracy lost when the edge is cut",
                _exceed(self.accuracy_drop, self.control_accuracy_drop),
            ),
            "mass": (self._mean(self.attention_mass.mean(axis=2)), "attention, mean over heads", self.beyond_control),
        }[weight]
        drawn = np.where(np.isfinite(self.mean_kl), drawn, np.nan)
        names = [role if not (tokens or {}).get(role) else f"{role}\n{(tokens or {})[role]}" for role in self.roles]
        return flow_picture(
            names,
            drawn,
            label=label,
            layers=self.layers,
            solid=solid,
            n_draws=len(self.control_kl),
            title=f"What carries the answer · {self.provenance.model}",
        )

    @property
    def _drops(self) -> Float[np.ndarray, "example layer role role"]:
        return self.uncut_accuracy[:, None, None, None] - self.accuracy

    def _mean(self, values: Float[np.ndarray, "example layer role role"]) -> Float[np.ndarray, "layer role role"]:
        """Of each pair over the examples that have it; NaN where none has."""
        result = np.full(values.shape[1:], np.nan)
        for pairs, known in _group_pairs(values):
            result[:, pairs] = known.mean(axis=0)
        return result

    def _interval(self, values: Float[np.ndarray, "example layer role role"]) -> _Interval:
        low, high = np.full((2, *values.shape[1:]), np.nan)
        for pairs, known in _group_pairs(values):
            low[:, pairs], high[:, pairs] = bootstrap_interval(known, seed=self.seed)
        return low, high

    def _compare(
        self, observed: Float[np.ndarray, "layer role role"], draws: Float[np.ndarray, "draw layer role role"]
    ) -> Float[np.ndarray, "layer role role"]:
        with np.errstate(invalid="ignore"):
            as_extreme = (draws >= observed - _ROUNDING).sum(axis=0)
        return np.where(np.isfinite(observed), (1 + as_extreme) / (1 + len(draws)), np.nan)

    def _repr_html_(self) -> str:
        return f"<code>{escape(repr(self))}</code>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        layer, query, key = self.top(1)[0]
        at = self.layers.index(layer), self.roles.index(query), self.roles.index(key)
        low, high = (bound[at] for bound in self.kl_interval)
        draws = self.control_kl[(slice(None), *at)]
        removed = np.nanmean(self.removed_mass[(slice(None), *at)])
        carried = self.control_mass[(slice(None), *at)].mean()
        return (
            f"InformationFlow({self.provenance.model}: {len(self.layers)} layers, roles {', '.join(self.roles)}, "
            f"mode {self.mode}; uncut accuracy {self.uncut_accuracy.mean():.2f}; strongest edge layer {layer} "
            f"{query} <- {key}: KL {self.mean_kl[at]:.2f} [{low:.2f}, {high:.2f}] nats, accuracy "
            f"{0.0 - self.accuracy_drop[at]:+.2f}; {len(draws)} random sets: KL {draws.mean():.2f}, at most {draws.max():.2f}, "
            f"mass {carried:.2f} of {removed:.2f}, p = {self.p_values[at]:.3f}; n={len(self.kl)} examples)"
        )


def _exceed(
    observed: Float[np.ndarray, "layer role role"], draws: Float[np.ndarray, "draw layer role role"]
) -> Bool[np.ndarray, "layer role role"]:
    """Whether it is above every draw; False where there is no edge."""
    with np.errstate(invalid="ignore"):
        return observed > draws.max(axis=0) + _ROUNDING


def _group_pairs(
    values: Float[np.ndarray, "example layer role role"],
) -> Iterator[tuple[Bool[np.ndarray, "role role"], Float[np.ndarray, "known layer pair"]]]:
    """Pairs that the same examples have, and the values of those examples."""
    known = np.isfinite(values[:, 0])  # the same in every layer
    for pattern in np.unique(known.reshape(len(known), -1), axis=1).T:
        if pattern.any():
            pairs = (known == pattern[:, None, None]).all(axis=0)
            yield pairs, values[pattern][:, :, pairs]
