"""Read the folder of a training run: its model, its history, its task.

>>> find_run("smollm2") is None
True
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd

from interp.errors import InputError
from interp.models.checkpoint import is_checkpoint


def find_run(name: str | Path) -> Path | None:
    """The path of `name` where it is the folder of a training run, else None."""
    path = Path(name).expanduser()
    return path if (path / "run.json").is_file() and (path / "checkpoints").is_dir() else None


def find_run_model(run: Path) -> Path:
    """The checkpoint of the finished run, or the last one of a run that was stopped."""
    kept = [run / "model", *sorted((run / "checkpoints").glob("step_*"), reverse=True)]
    for path in kept:
        if is_checkpoint(path):
            return path
    raise InputError(f"The training run {run} has no checkpoint yet; train it first.")


def list_checkpoints(folder: str | Path) -> dict[int, Path]:
    """The checkpoints of a run by step, first to last; `InputError` for a folder that holds no run, or one without any."""
    run = find_run(folder)
    if run is None:
        raise InputError(f"{folder} is not the folder of a training run; give the one that `interp.train` wrote.")
    paths = [path for path in sorted((run / "checkpoints").glob("step_*")) if is_checkpoint(path)]
    if not paths:
        raise InputError(f"The training run {run} has no checkpoint yet; train it first.")
    return {int(path.name.removeprefix("step_")): path for path in paths}


def read_history(run: Path) -> pd.DataFrame:
    """One row an evaluation."""
    try:
        return pd.read_parquet(run / "history.parquet")
    except (OSError, ValueError) as error:
        raise InputError(f"The history of the training run {run} can't be read: {error}") from error


def read_task(run: Path) -> dict[str, Any]:
    """`name` and `settings` of the task that the run trains on."""
    return _read_description(run)["task"]


def read_config(run: Path) -> dict[str, Any]:
    """The fields of the run's `TrainConfig`."""
    return _read_description(run)["config"]


def _read_description(run: Path) -> dict[str, Any]:
    try:
        description = json.loads((run / "run.json").read_text())
        return {part: description[part] for part in ("task", "config")}
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"The description of the training run {run} can't be read: {error}") from error
