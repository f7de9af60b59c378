"""The models of a lab that are done."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from analyses.labs.lab import Lab, LabCell
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


T = TypeVar("T", bound=Trained)


def read_trained(lab: Lab, store: Store, kind: type[T]) -> list[T]:
    """The models that are done, in the order of the settings, then by seed."""
    order = {setting.name: i for i, setting in enumerate(lab.settings)}
    cells = sorted(lab.cells, key=lambda cell: (order[cell.setting.name], cell.seed))
    return [kind(cell=cell, record=store.read(cell.key)) for cell in cells if cell.key in store]


def group_by_setting(trained: Sequence[T]) -> dict[str, list[T]]:
    """Models by the name of their setting."""
    groups: dict[str, list[T]] = {}
    for one in trained:
        groups.setdefault(one.cell.setting.name, []).append(one)
    return groups
