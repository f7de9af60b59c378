"""The stable rank of the first layer's W_Q while a model is trained: where it falls, few directions are left.

A run that is watched by `observe_rank` has it at each evaluation; of other runs it is read from the checkpoints.

>>> from interp.models.build import build
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=20, n_ctx=9, attn_only=True, seed=0)
>>> list(observe_rank(model, 0))
['stable_rank_W_Q']
"""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from interp.complexity.over_training import measure_over_training
from interp.complexity.parts import find_matrices
from interp.complexity.spectra import stable_rank
from interp.errors import InputError

COLUMN = "stable_rank_W_Q"
"""Its name in a training history."""


def observe_rank(model: Any, step: int) -> dict[str, float]:
    """The stable rank now, for a training history; all heads are one matrix."""
    return {COLUMN: float(stable_rank(find_matrices(model, parts=("W_Q",))[0].weights))}


def follow_rank(history: pd.DataFrame, folder: Path | None) -> dict[str, np.ndarray]:
    """Arrays `rank_step` and `rank`, from the history or else from the checkpoints in `folder`; none where there is neither."""
    if COLUMN in history:
        watched = history[history[COLUMN].notna()]
        steps, values = watched["step"], watched[COLUMN]
    elif folder is not None:
        try:
            frame = measure_over_training(folder, parts=("W_Q",))
        except InputError:  # its checkpoints were deleted
            return {}
        first = frame[frame["name"].eq("0.W_Q") & frame["measure"].eq("stable_rank")]
        steps, values = first["step"], first["value"]
    else:
        return {}
    return {"rank_step": steps.to_numpy(dtype=np.float64), "rank": values.to_numpy(dtype=np.float64)}
