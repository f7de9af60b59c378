"""What is kept of a trained model: its errors on fresh sequences, its whole history, when it jumped."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from analyses.copying import CHANCE, SPLITS
from analyses.copying_dynamics.progress import MEASURES
from analyses.labs.keep import list_history, share_fields, write_model
from analyses.labs.lab import LabCell
from interp.records.schema import Measurement
from interp.statistics import bootstrap_interval
from interp.training.result import TrainRun
from tasks.copying import Copying
from tasks.seeding import derive_seed

N_FRESH = 1000
"""Sequences of each kind on which a trained model is scored."""


def keep_model(cell: LabCell, run: TrainRun, folder: Path, *, seconds: float) -> None:
    """Score a trained model and write its cell into the store of `folder`; `seconds` is what training took."""
    start = time.perf_counter()
    task = cell.setting.task
    assert isinstance(task, Copying)
    errors = {split: _errors(run.model, task, split, seed=cell.seed) for split in SPLITS}
    seconds += time.perf_counter() - start
    shared = share_fields(cell, run, seconds=seconds)
    rows = []
    for split, values in errors.items():
        low, high = bootstrap_interval(values, seed=cell.seed)
        rows.append(
            Measurement(metric=f"error, {SPLITS[split]}", value=float(values.mean()), low=float(low), high=float(high),
                        n=len(values), step=run.config.steps, **shared)
        )  # fmt: skip
    rows.append(
        Measurement(metric=f"error, {SPLITS['ood']}", value=1 - 1 / task.d_vocab, control=CHANCE,
                    note="exact: tokens out of distribution are uniform", **shared)
    )  # fmt: skip
    names = {"id_error": "error in distribution", "ood_error": "error out of distribution", **MEASURES}
    rows += list_history(run, names, shared=shared)
    write_model(cell, run, folder, rows=rows, seconds=seconds)


@torch.inference_mode()
def _errors(model: Any, task: Copying, split: str, *, seed: int) -> np.ndarray:
    batch = task.sample(N_FRESH, split=split, seed=derive_seed(seed, "copying dynamics"))
    logits = torch.cat([model(rows.to(model.cfg.device)).cpu() for rows in batch.tokens.split(100)])
    return task.score(logits, batch)["error"].numpy()
