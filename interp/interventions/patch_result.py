"""What a sweep of patches gives: a value for every example and cell, with intervals, p-values, a table and a map.

`recovery` is that of `interp.interventions.recovery`: 0 like the corrupted run, 1 like the clean one. A sweep by several
metrics gives the first one's result, and the others' by name: `result["KL to clean"]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.errors import InputError
from interp.interventions.recovery import as_column, find_recovery, find_recovery_interval, scale_recovery
from interp.models.provenance import Provenance
from interp.statistics import bootstrap_interval, sign_flip_p_values

if TYPE_CHECKING:
    from interp.figures.style import Picture

Direction = Literal["denoise", "noise"]
Site = Literal["resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "z", "result", "q", "k", "v", "pattern"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PatchResult:
    """The metric after each patch, and in the clean and the corrupted run; a cell is a layer, head and position."""

    site: Site
    """Which activation was patched."""
    direction: Direction
    """`denoise`: clean activations into the corrupted run. `noise`: corrupted activations into the clean run."""
    metric: str
    """What the values are."""
    layers: tuple[int, ...]
    """The layer of each entry along the layer axis."""
    heads: tuple[int, ...] | None
    """The head of each entry along the head axis, key-value heads for `k` and `v`; None where the site has no heads."""
    positions: tuple[int, ...] | None
    """The position of each entry along the position axis; None where every example has its own, or all were patched at
    once."""
    query_heads: tuple[tuple[int, ...], ...] | None
    """The query heads that each entry of `heads` serves: more than one where they share keys and values."""
    values: Float[np.ndarray, "example layer *cell"]
    """The metric of each example after each patch: [example, layer, (head), (position)]."""
    clean: Float[np.ndarray, "example"]
    """The metric of the clean run."""
    corrupted: Float[np.ndarray, "example"]
    """The metric of the corrupted run."""
    scored: tuple[int, ...]
    """The scored position of each example."""
    engine: Literal["suffix", "whole"]
    """`suffix`: runs began at the patch. `whole`: every run was a full forward pass."""
    n_runs: int
    """How many (cell, example) pairs were run; for the others the two runs agree at the patch, so nothing changes."""
    seed: int
    """Seed of the bootstrap and of the sign flips."""
    data_sha256: str
    """Hash of the clean and the corrupted token ids."""
    provenance: Provenance
    """The model that was patched."""
    position_labels: tuple[str, ...] | None = None
    """The name of each entry along the position axis, a role, where every example has its own position."""
    notes: tuple[str, ...] = ()
    """Halved batches."""
    others: tuple["PatchResult", ...] = ()
    """The same sweep by the other metrics that were given."""

    def __getitem__(self, metric: str) -> "PatchResult":
        """The result by one of the metrics."""
        named = {result.metric: result for result in (self, *self.others)}
        if metric not in named:
            raise InputError(f"The sweep was not measured by {metric!r}; its metrics: {', '.join(named)}.")
        return named[metric]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of `mean` and of every array like it."""
        return ("layer", *(["head"] if self.heads is not None else []), *(["position"] if self._entries else []))

    @property
    def effects(self) -> Float[np.ndarray, "example layer *cell"]:
        """How far each patch moved the metric from the run that was patched."""
        return self.values - as_column(self.corrupted if self.direction == "denoise" else self.clean, self.values)

    @property
    def mean(self) -> Float[np.ndarray, "layer *cell"]:
        """Mean of `values` over examples."""
        return self.values.mean(axis=0)

    @property
    def standard_error(self) -> Float[np.ndarray, "layer *cell"]:
        """Standard error of `mean`; NaN for a single example."""
        n = len(self.values)
        return self.values.std(axis=0, ddof=1) / np.sqrt(n) if n > 1 else np.full(self.mean.shape, np.nan)

    @property
    def interval(self) -> tuple[Float[np.ndarray, "layer *cell"], Float[np.ndarray, "layer *cell"]]:
        """(low, high), the 95% bootstrap interval of `mean` over examples; NaN for a single example."""
        return bootstrap_interval(self.values, seed=self.seed)

    @property
    def effect_interval(self) -> tuple[Float[np.ndarray, "layer *cell"], Float[np.ndarray, "layer *cell"]]:
        """(low, high), the 95% bootstrap interval of the mean of `effects`, in which examples are their own controls."""
        return bootstrap_interval(self.effects, seed=self.seed)

    @property
    def recovery(self) -> Float[np.ndarray, "layer *cell"]:
        """0 like the corrupted run, 1 like the clean one; NaN where these two have the same mean."""
        return find_recovery(self.values, clean=self.clean, corrupted=self.corrupted)

    @property
    def recovery_interval(self) -> tuple[Float[np.ndarray, "layer *cell"], Float[np.ndarray, "layer *cell"]]:
        """95% bootstrap interval of `recovery` over examples, of the ratio as linearised at its value."""
        return find_recovery_interval(self.values, clean=self.clean, corrupted=self.corrupted, seed=self.seed)

    @property
    def p_values(self) -> Float[np.ndarray, "layer *cell"]:
        """Two-sided sign-flip p-value of each mean effect, corrected for the number of cells by the max-statistic."""
        return sign_flip_p_values(self.effects, seed=self.seed)

    @property
    def single_p_values(self) -> Float[np.ndarray, "layer *cell"]:
        """The same of each cell as if it alone had been patched: for cells that were chosen beforehand."""
        return sign_flip_p_values(self.effects, correction="none", seed=self.seed)

    def top(self, n: int) -> list[tuple[Any, ...]]:
        """The n cells that were moved furthest, as (layer, head, position or role) without the axes that are not there."""
        order = np.argsort(-np.abs(self.effects.mean(axis=0)), axis=None, kind="stable")[:n]
        labels = self._labels()
        places = np.stack(np.unravel_index(order, self.mean.shape), axis=1)
        return [tuple(label[i] for label, i in zip(labels, place, strict=True)) for place in places]

    def to_frame(self, *, rows: Literal["cells", "examples"] = "cells") -> pd.DataFrame:
        """One row a cell: mean, recovery and effect with intervals, both p-values, the baselines.

        With `rows="examples"` one row for each cell and example: its value and effect, and the example's baselines. Where
        every example has its own positions, the column `position` has their roles. Other metrics' rows follow; the column
        `metric` tells them apart.
        """
        if rows not in ("cells", "examples"):
            raise InputError(f"rows={rows!r} isn't known; use 'cells' or 'examples'.")
        if self.others:
            results = [replace(result, others=()) for result in (self, *self.others)]
            return pd.concat([result.to_frame(rows=rows) for result in results], ignore_index=True)
        grid = np.meshgrid(*self._labels(), indexing="ij")
        frame = pd.DataFrame({name: values.ravel() for name, values in zip(self.axes, grid, strict=True)})
        if self.heads is not None and self.query_heads is not None and self.site in ("k", "v"):
            served = dict(zip(self.heads, (",".join(map(str, group)) for group in self.query_heads), strict=True))
            frame["query_heads"] = frame["head"].map(served)
        if rows == "examples":
            n, n_cells = len(self.values), self.mean.size
            frame = pd.concat([frame] * n, ignore_index=True)
            frame["example"] = np.repeat(np.arange(n), n_cells)
            baselines = {name: np.repeat(values, n_cells) for name, values in self._baselines.items()}
            columns = {"value": self.values, "effect": self.effects}
        else:
            baselines = {name: values.mean() for name, values in self._baselines.items()} | {"n": len(self.values)}
            columns = self._summarise()
        for name, values in columns.items():
            frame[name] = values.ravel()
        return frame.assign(**baselines, metric=self.metric)

    def _summarise(self) -> dict[str, Float[np.ndarray, "layer *cell"]]:
        (low, high), (recovery_low, recovery_high) = self.interval, self.recovery_interval
        effect_low, effect_high = self.effect_interval
        return {
            "value": self.mean,
            "low": low,
            "high": high,
            "effect": self.effects.mean(axis=0),
            "effect_low": effect_low,
            "effect_high": effect_high,
            "recovery": self.recovery,
            "recovery_low": recovery_low,
            "recovery_high": recovery_high,
            "p_value": self.p_values,
            "single_p_value": self.single_p_values,
        }

    @property
    def _baselines(self) -> dict[str, Float[np.ndarray, "example"]]:
        return {"clean": self.clean, "corrupted": self.corrupted}

    def figure(self, *, labels: Sequence[str] | None = None) -> "Picture":
        """Recovery of every cell; where heads and positions both vary, of each head at the position moved furthest.

        `labels` are written below the positions, one for each entry of the position axis, such as the tokens of the first
        example; where the positions are roles, each stands below its role. Raises `InputError` for another number of
        them, where the columns aren't positions, and where clean and corrupted run have the same mean.
        """
        from interp.figures.heads import head_map

        if np.isnan(self.recovery).all():
            raise InputError(
                f"The clean and the corrupted run have the same mean {self.metric} ({self.clean.mean():.3g}), "
                "so there is no recovery to draw; draw `mean` yourself, or give other examples."
            )
        entries = self._entries if self.heads is None else None
        if labels is not None and len(labels) != len(entries or ()):
            drawn_are = "heads" if self.heads else f"{len(entries)} positions" if entries else "all positions at once"
            raise InputError(
                f"{len(labels)} labels were given, but the columns of this figure are {drawn_are}; "
                "give one for each entry of the position axis of a site without heads."
            )
        recovery, label = self.recovery, f"recovery of the {self.metric}"
        if self.heads is not None and self._entries:
            furthest = np.abs(self.effects.mean(axis=0)).argmax(axis=-1)[..., None]
            recovery = np.take_along_axis(recovery, furthest, axis=-1)[..., 0]
            label += ", at each head's strongest position"
        columns = self.heads or self.positions or range(len(entries or (0,)))
        if recovery.ndim == 1:
            recovery = recovery[:, None]
        # Layers and columns that were left out stay empty, so that every tick is the layer or head it says.
        drawn = np.full((max(self.layers) + 1, max(columns) + 1), np.nan)
        drawn[np.ix_(self.layers, columns)] = recovery
        below = [""] * drawn.shape[1]
        for column, text in zip(columns, labels or (), strict=False):
            below[column] = text
        most, note = scale_recovery(recovery)
        return head_map(
            drawn,
            label=label + note,
            top=list(dict.fromkeys(self._cell_of(place) for place in self.top(3))),
            title=f"Patching {self.site}, {self.direction}",
            columns="head" if self.heads is not None else "position" if self._entries else "all positions",
            column_names=self.position_labels if entries else None,
            column_labels=below if labels is not None else None,
            vmax=most,
        )

    @property
    def _entries(self) -> tuple[Any, ...] | None:
        """Entries of the position axis: roles or positions."""
        return self.position_labels or self.positions

    def _cell_of(self, place: tuple[Any, ...]) -> tuple[int, int]:
        """Row and column of the figure."""
        column = place[1] if len(place) > 1 else 0
        if self.heads is None and self.position_labels:
            column = self.position_labels.index(column)
        return (place[0], column)

    def _labels(self) -> list[tuple[Any, ...]]:
        return [axis for axis in (self.layers, self.heads, self._entries) if axis is not None]

    def _repr_html_(self) -> str:
        if np.isnan(self.recovery).all():
            return f"<code>{escape(repr(self))}</code>"
        return self.figure()._repr_html_()

    def __repr__(self) -> str:
        best = self.top(1)[0]
        at = tuple(label.index(i) for label, i in zip(self._labels(), best, strict=True))
        low, high = (bound[at] for bound in self.recovery_interval)
        shape = " x ".join(f"{n} {name}s" for n, name in zip(self.mean.shape, self.axes, strict=True))
        where = ", ".join(f"{name} {i}" for name, i in zip(self.axes, best, strict=True))
        also = f"; also by {', '.join(result.metric for result in self.others)}" if self.others else ""
        return (
            f"PatchResult({self.provenance.model}: {self.site}, {self.direction}, {shape}; {self.metric} "
            f"{self.clean.mean():.2f} clean, {self.corrupted.mean():.2f} corrupted; strongest {where}: recovery "
            f"{self.recovery[at]:.2f} [{low:.2f}, {high:.2f}], p = {self.p_values[at]:.3f}{also}; n={len(self.values)} examples)"
        )
