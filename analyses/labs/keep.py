"""What is kept of every trained model of a lab: its whole history, and what was measured after training."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from analyses.labs.lab import LabCell
from interp import __version__
from interp.models.provenance import get_provenance
from interp.records.schema import Measurement
from interp.records.store import Store
from interp.training.result import TrainRun


def share_fields(cell: LabCell, run: TrainRun, *, seconds: float) -> dict[str, Any]:
    """What all rows of a model have in common; `seconds` is what training and measuring took."""
    provenance = get_provenance(run.model)
    return {
        "analysis": cell.analysis, "model": cell.name, "weights_sha256": provenance.weights_sha256, "seed": cell.seed,
        "dtype": provenance.dtype, "device": provenance.device, "task": cell.setting.task.name, "version": __version__,
        "seconds": seconds,
    }  # fmt: skip


def list_history(run: TrainRun, names: Mapping[str, str], *, shared: Mapping[str, Any]) -> list[Measurement]:
    """A row for every number of the history whose column `names` has, under the name that it has there.

    Where a column has no number, because it wasn't measured at that evaluation, there is no row.
    """
    return [
        Measurement(metric=f"training: {name}", value=float(value), step=int(step), **shared)
        for column, name in names.items()
        for step, value in zip(run.history["step"], run.history[column], strict=True)
        if not np.isnan(value)
    ]


def write_model(
    cell: LabCell,
    run: TrainRun,
    folder: Path,
    *,
    rows: Sequence[Measurement],
    seconds: float,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write the cell of a model, with its history, into the store of `folder`."""
    Store(folder).write(
        cell.key,
        rows,
        arrays={f"history_{name}": run.history[name].to_numpy(dtype=np.float64) for name in run.history},
        about={
            "setting": cell.setting.name,
            "cell": cell.name,
            "seed": cell.seed,
            "engine": run.engine,
            "seconds": seconds,
            "provenance": asdict(get_provenance(run.model)),
            **(about or {}),
        },
    )
