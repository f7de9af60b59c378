"""How the complexity of a model changes along a training run: its weights, and where tokens are given its attention.

The random matrices are drawn once and serve every checkpoint.

>>> measure_over_training("no_such_folder")
Traceback (most recent call last):
interp.errors.InputError: no_such_folder is not the folder of a training run; give the one that `interp.train` wrote.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int
from torch import Tensor

from interp.complexity.measure import measure_complexity
from interp.complexity.norms import WeightNorms, measure_norms
from interp.complexity.parts import Heads, Part
from interp.complexity.sparsity import AttentionSparsity, attention_sparsity
from interp.models.checkpoint import load_checkpoint
from interp.training.runs import list_checkpoints


def measure_over_training(
    folder: str | Path,
    *,
    parts: Sequence[Part] | None = None,
    heads: Heads = "together",
    threshold: float = 0.7,
    n_controls: int = 20,
    tokens: Int[Tensor, "sequence pos"] | Sequence[Int[Tensor, "_pos"] | Sequence[int]] | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The rows of `Complexity.to_frame()` for every checkpoint, with its `step` in front.

    Rows named `all` follow, with the norms of the whole model: the measures `norm`, `rms` and `norm_per_layer`. With
    `tokens`, sequences as in `attention_sparsity`, the same rows have `attention_entropy` (nats), `attention_normalised` and
    `attention_published`, means over sequences, layers and heads, and each head has the first two, in a row named like
    `0.attention.3`. `parts=()` leaves the matrices out, which cost the most.

    Raises `InputError` for a folder that holds no run, or a run without a checkpoint.
    """
    frames = []
    for step, path in list_checkpoints(folder).items():
        model = load_checkpoint(path)
        if parts is not None and not len(parts):
            norms, matrices = measure_norms(model), pd.DataFrame()
        else:
            complexity = measure_complexity(
                model, parts=parts, heads=heads, threshold=threshold, n_controls=n_controls, seed=seed
            )
            norms, matrices = complexity.norms, complexity.to_frame()
        rows = _list_norms(norms)
        if tokens is not None:
            rows += _list_entropies(attention_sparsity(model, tokens))
        frame = pd.concat([matrices, pd.DataFrame(rows)], ignore_index=True)
        frame.insert(0, "step", step)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True).astype({"layer": "Int64", "head": "Int64"})


def _list_norms(norms: WeightNorms) -> list[dict[str, Any]]:
    whole = {"norm": norms.norm, "rms": norms.rms, "norm_per_layer": norms.norm_per_layer}
    place = {"name": "all", "layer": None, "head": None}
    return [{**place, "measure": measure, "value": value} for measure, value in whole.items()]


def _list_entropies(sparsity: AttentionSparsity) -> list[dict[str, Any]]:
    by_head = {"attention_entropy": sparsity.entropy, "attention_normalised": sparsity.normalised}
    whole = {name: values.mean() for name, values in by_head.items()}
    whole["attention_published"] = sparsity.published_per_sequence.mean()
    place = {"name": "all", "layer": None, "head": None}
    rows = [{**place, "measure": measure, "value": float(value)} for measure, value in whole.items()]
    for measure, values in by_head.items():
        for (layer, head), value in np.ndenumerate(values):
            place = {"name": f"{layer}.attention.{head}", "layer": layer, "head": head}
            rows.append({**place, "measure": measure, "value": float(value)})
    return rows
