"""A lab of grammar models that trains in no time, and finished models with curves of one's choice."""

from dataclasses import replace

import numpy as np

from analyses.labs.lab import Lab
from analyses.structural_grokking.progress import Progress


def shrink(lab: Lab, *, seeds: int = 2, steps: int = 4) -> Lab:
    """The same lab with models of width 8, one and two layers deep, on few lines."""
    settings = []
    for setting, depth in zip(lab.settings[:2], (1, 2), strict=True):
        task = replace(setting.task, train=200, validation=60, generalisation=40)
        settings.append(
            replace(
                setting,
                name=f"{task.name}, {depth} layers",
                model={**setting.model, "n_layers": depth, "d_model": 8, "n_heads": 2, "d_mlp": 16},
                task=task,
                config=replace(
                    setting.config, steps=steps, warmup_steps=1, batch_size=2, eval_every=2, eval_sequences=20
                ),
                observe=Progress(task=task, every=4, n_lines=20, n_trees=6),
            )
        )
    return replace(lab, settings=tuple(settings), seeds=seeds)


def put_curves(one, **columns):
    """The finished model `one` with other columns in its history, of which `step` gives the length."""
    n = len(columns["step"])
    kept = {name: np.resize(values, n) for name, values in one.record.arrays.items()}
    given = {f"history_{name}": np.asarray(values, dtype=np.float64) for name, values in columns.items()}
    return replace(one, record=replace(one.record, arrays=kept | given))
