"""The models of a lab that are done."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyses.copying import SPLITS
from analyses.copying_dynamics.lab import Lab, LabCell
from interp.records.store import Cell, Store


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that is done."""

    cell: LabCell
    """What it is."""
    record: Cell
    """What was found."""

    @property
    def history(self) -> dict[str, np.ndarray]:
        """Columns of its training history."""
        return {
            name.removeprefix("history_"): values
            for name, values in self.record.arrays.items()
            if name.startswith("history_")
        }

    @property
    def composes(self) -> bool:
        """Whether there is a layer above another."""
        return int(self.cell.setting.model["n_layers"]) > 1

    def error(self, split: str) -> float:
        """The error on fresh sequences after training."""
        frame = self.record.frame
        return float(
            frame.loc[frame["metric"].eq(f"error, {SPLITS[split]}") & frame["control"].isna(), "value"].iloc[0]
        )


def read_trained(lab: Lab, store: Store) -> list[Trained]:
    """The models that are done, in the order of the settings, then by seed."""
    order = {setting.name: i for i, setting in enumerate(lab.settings)}
    cells = sorted(lab.cells, key=lambda cell: (order[cell.setting.name], cell.seed))
    return [Trained(cell=cell, record=store.read(cell.key)) for cell in cells if cell.key in store]


def group_by_setting(trained: Sequence[Trained]) -> dict[str, list[Trained]]:
    """Models by the name of their setting."""
    groups: dict[str, list[Trained]] = {}
    for one in trained:
        groups.setdefault(one.cell.setting.name, []).append(one)
    return groups
