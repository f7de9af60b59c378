"""When does the bridge form? The bridge of the same heads at every checkpoint of a training run.

>>> follow_bridge("no_such_folder", [(1, 0)], rank=5)
Traceback (most recent call last):
interp.errors.InputError: no_such_folder is not the folder of a training run; give the one that `interp.train` wrote.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from interp.bridge.find import Bridge, find_bridge
from interp.bridge.overlap import measure_overlap
from interp.circuits.factors import Distance, Fold
from interp.interventions.select import Head
from interp.models.checkpoint import load_checkpoint
from interp.training.runs import list_checkpoints


def follow_bridge(
    folder: str | Path,
    induction_heads: Sequence[Head],
    *,
    rank: int,
    distance: Distance = "none",
    fold: Fold = "norms",
) -> pd.DataFrame:
    """One row a checkpoint: `step`, the bridge's `energy`, and its overlap with those of other checkpoints.

    `overlap_with_previous` compares with the checkpoint before (none for the first), `overlap_with_last` with the last one;
    `null` is the overlap of random subspaces, rank / d_model. Raises `InputError` for a folder that holds no run, a run
    without a checkpoint, and as `find_bridge` does.
    """
    checkpoints = list_checkpoints(folder)
    bridges: list[Bridge] = [
        find_bridge(load_checkpoint(path), induction_heads, rank=rank, distance=distance, fold=fold)
        for path in checkpoints.values()
    ]
    rows: list[dict[str, Any]] = []
    for i, (step, bridge) in enumerate(zip(checkpoints, bridges, strict=True)):
        rows.append(
            {
                "step": step,
                "energy": bridge.energy,
                "overlap_with_previous": measure_overlap(bridges[i - 1].basis, bridge.basis) if i else float("nan"),
                "overlap_with_last": measure_overlap(bridges[-1].basis, bridge.basis),
                "null": rank / bridge.d_model,
            }
        )
    return pd.DataFrame(rows)
