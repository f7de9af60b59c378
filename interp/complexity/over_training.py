"""How the complexity of a model's weights changes along a training run: `measure_complexity` of each checkpoint.

The random matrices are drawn once and serve every checkpoint.

>>> measure_over_training("no_such_folder")
Traceback (most recent call last):
interp.errors.InputError: no_such_folder is not the folder of a training run; give the one that `interp.train` wrote.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from interp.complexity.measure import measure_complexity
from interp.complexity.parts import Heads, Part
from interp.models.checkpoint import load_checkpoint
from interp.training.runs import list_checkpoints


def measure_over_training(
    folder: str | Path,
    *,
    parts: Sequence[Part] | None = None,
    heads: Heads = "together",
    threshold: float = 0.7,
    n_controls: int = 20,
    seed: int = 0,
) -> pd.DataFrame:
    """The rows of `Complexity.to_frame()` for every checkpoint, with its `step` in front.

    The norms of the whole model follow as rows named `all`, with the measures `norm`, `rms` and `norm_per_layer`.
    Raises `InputError` for a folder that holds no run, or a run without a checkpoint.
    """
    frames = []
    for step, path in list_checkpoints(folder).items():
        complexity = measure_complexity(
            load_checkpoint(path), parts=parts, heads=heads, threshold=threshold, n_controls=n_controls, seed=seed
        )
        norms = complexity.norms
        whole = {"norm": norms.norm, "rms": norms.rms, "norm_per_layer": norms.norm_per_layer}
        rows = pd.DataFrame([{"name": "all", "measure": name, "value": value} for name, value in whole.items()])
        frame = pd.concat([complexity.to_frame(), rows], ignore_index=True)
        frame.insert(0, "step", step)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)
