"""The models of a grid that are done, and what tells their settings apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from analyses.report.table import Link
from analyses.solutions.grid import Grid, GridCell
from interp.records.store import Cell, Store

KINDS = ("reasoning", "symmetric", "memorising", "none")
"""Behaviours in the order in which a report names them."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """A model that is done."""

    cell: GridCell
    """What it is."""
    record: Cell
    """What was found."""

    @property
    def anchor(self) -> str:
        """The name of its section in links."""
        return self.cell.name

    @property
    def setting_anchor(self) -> str:
        """The name of the section on its setting."""
        return f"setting-{self.cell.name.rpartition('-seed_')[0]}"

    @property
    def link(self) -> Link:
        """What leads to its section."""
        return Link(text=f"{self.cell.setting.name}, seed {self.cell.seed}", anchor=self.anchor)

    @property
    def behaviour(self) -> str:
        """What it answers."""
        return str(self.record.about["behaviour"])

    @property
    def mechanism(self) -> str:
        """The circuit it answers by."""
        return str(self.record.about["mechanism"])

    def number(self, metric: str, *, control: str | None = None) -> float:
        """The last value of a metric."""
        frame = self.record.frame
        rows = frame[
            frame["metric"].eq(metric)
            & (frame["control"].isna() if control is None else frame["control"].fillna("").eq(control))
        ]
        return float(rows["value"].iloc[-1]) if len(rows) else float("nan")


def read_finished(grid: Grid, store: Store) -> list[Finished]:
    """The grid's models that are done, in the order of its settings, then by seed."""
    order = {setting.name: i for i, setting in enumerate(grid.settings)}
    cells = sorted(grid.cells, key=lambda cell: (order[cell.setting.name], cell.seed))
    return [Finished(cell=cell, record=store.read(cell.key)) for cell in cells if cell.key in store]


def group_settings(finished: Sequence[Finished]) -> dict[str, list[Finished]]:
    """Models by setting."""
    groups: dict[str, list[Finished]] = {}
    for one in finished:
        groups.setdefault(one.cell.setting.name, []).append(one)
    return groups


def find_lines(finished: Sequence[Finished]) -> dict[str, list[Finished]]:
    """Models that differ in gamma and seed alone, by what tells these lines apart."""
    cells = [one.cell for one in finished]
    differs = {
        "task": len({cell.task.name for cell in cells}) > 1 or len({str(cell.task.weights) for cell in cells}) > 1,
        "depth": len({cell.n_layers for cell in cells}) > 1,
        "decay": len({cell.weight_decay for cell in cells}) > 1,
    }
    lines: dict[str, list[Finished]] = {}
    for one in finished:
        cell = one.cell
        parts = [_name_task(cell)] if differs["task"] else []
        parts += [f"{cell.n_layers} layers"] if differs["depth"] else []
        parts += [f"decay {cell.weight_decay:g}"] if differs["decay"] or not parts else []
        lines.setdefault(", ".join(parts), []).append(one)
    return lines


def _name_task(cell: GridCell) -> str:
    task = cell.task
    kind = "one pair altered" if task.altered else "two pairs dropped"
    weights = [weight for _, weight in task.weights if weight != 1]
    kind += f", weight {weights[0]:g}" if weights else ""
    return kind + (f", {task.n_sequences:,} sequences" if task.n_sequences and task.n_sequences < 100_000 else "")


def find_metrics(frame: pd.DataFrame, *prefixes: str) -> list[str]:
    """Names of the metrics that begin so, controls left out."""
    metrics = frame.loc[frame["control"].isna(), "metric"].unique()
    return [str(metric) for metric in metrics if str(metric).startswith(prefixes)]


def say(value: bool | None) -> str:
    """A cell of a table."""
    return "–" if value is None else "yes" if value else "no"
