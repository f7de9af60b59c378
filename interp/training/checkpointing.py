"""The folder of a training run: what it is, where it stands, the models along the way.

    folder/run.json                  configuration, and fingerprints of the task and of the model it started from
    folder/state.safetensors         parameters, AdamW's averages, history: all that resuming needs, in one file
    folder/checkpoints/step_00001000 the model after so many steps; `interp.load` takes it
    folder/model                     the model after the last step, once the run is finished
    folder/history.parquet           one row an evaluation

Every file or folder is written beside its place and renamed into it, so a kill at any moment leaves the last state.
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.models.architecture import architecture_of
from interp.models.checkpoint import is_checkpoint, save
from interp.models.provenance import hash_weights
from interp.training.config import TrainConfig
from interp.training.flat import FlatParameters
from interp.training.optimise import read_state, write_state
from tasks.seeding import derive_seed
from tasks.task import Task

_FORMAT = "interp-training-run"
_VERSION = 1


@dataclass(kw_only=True, slots=True)
class Progress:
    """Where a run stands between two updates."""

    step: int = 0
    """Updates made."""
    seconds: float = 0.0
    """Time spent, over all calls that worked on the run."""
    losses: list[float] = field(default_factory=list)
    """Training losses since the last row of the history."""
    rows: list[dict[str, float | int]] = field(default_factory=list)
    """The history."""


def describe_run(model: HookedTransformer, task: Task, config: TrainConfig) -> dict[str, Any]:
    """What makes two runs the same run; tasks are compared by what they draw, models by their weights."""
    drawn = hashlib.sha256()
    for split in task.splits:
        batch = task.sample(16, split=split, seed=derive_seed(config.seed, "fingerprint"))
        for tensor in (batch.tokens, batch.targets, batch.trained, batch.scored):
            drawn.update(tensor.cpu().contiguous().numpy().tobytes())
    return {
        "format": _FORMAT,
        "version": _VERSION,
        "config": asdict(config),
        "task": {
            "name": task.name,
            "settings": asdict(task) if is_dataclass(task) and not isinstance(task, type) else {},
            "sequences_sha256": drawn.hexdigest(),
        },
        "model": {"shape": _describe_shape(model), "weights_sha256": hash_weights(model)},
    }


class RunFolder:
    """The folder of one run; opening it sweeps what a killed write left and refuses a folder that holds another run."""

    def __init__(self, path: str | Path, description: Mapping[str, Any]) -> None:
        self.path = Path(path)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for leftover in [
                *self.path.glob(".*.partial"),
                *self.path.glob("checkpoints/.*"),
                *self.path.glob(".model.*"),
            ]:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
            if not (self.path / "run.json").exists():
                if any(self.path.iterdir()):
                    raise InputError(
                        f"{self.path} is not empty and holds no training run: give a new or an empty folder"
                    )
                self._write(self.path / "run.json", (json.dumps(description, indent=2) + "\n").encode())
        except OSError as error:
            raise InputError(f"the run folder {self.path} cannot be written: {error.strerror or error}") from error
        _check_same(json.loads(json.dumps(description)), self.path)

    def write(
        self, parameters: FlatParameters, optimizer: torch.optim.AdamW, progress: Progress, *, last: bool
    ) -> Path:
        """Keep this state; returns the folder of the model that can be loaded."""
        model = parameters.model
        checkpoint = self.path / "checkpoints" / f"step_{progress.step:08d}"
        checkpoint.parent.mkdir(exist_ok=True)
        save(model, checkpoint)
        if last:
            save(model, self.path / "model")
        partial = self.path / f".{uuid.uuid4().hex}.partial"
        pd.DataFrame(progress.rows).to_parquet(partial)
        self._replace(partial, self.path / "history.parquet")
        # The state comes last: a run that stands at a step has everything of that step.
        tensors = {
            f"model.{name}": value.detach().clone(memory_format=torch.contiguous_format)
            for name, value in model.state_dict().items()
        }
        for index, entries in read_state(optimizer, parameters).items():
            tensors |= {f"optimizer.{index}.{entry}": value.clone() for entry, value in entries.items()}
        partial = self.path / f".{uuid.uuid4().hex}.partial"
        save_file(tensors, partial, metadata={"progress": json.dumps(asdict(progress))})
        self._replace(partial, self.path / "state.safetensors")
        return checkpoint

    def restore(self, parameters: FlatParameters, optimizer: torch.optim.AdamW) -> Progress | None:
        """Bring model and optimizer to the last state; None for a run that has not begun."""
        path = self.path / "state.safetensors"
        if not path.exists():
            return None
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                progress = Progress(**json.loads(file.metadata()["progress"]))
        except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): delete the folder to begin the run again") from error
        parameters.model.load_state_dict(
            {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        )
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, entry = name.split(".")
                state.setdefault(int(index), {})[entry] = tensor
        write_state(optimizer, parameters, state)
        return progress

    def last_checkpoint(self) -> Path | None:
        """The model of the highest step that was kept."""
        kept = [path for path in sorted((self.path / "checkpoints").glob("step_*")) if is_checkpoint(path)]
        return kept[-1] if kept else None

    def _write(self, path: Path, content: bytes) -> None:
        partial = self.path / f".{uuid.uuid4().hex}.partial"
        partial.write_bytes(content)
        self._replace(partial, path)

    @staticmethod
    def _replace(partial: Path, path: Path) -> None:
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)


def _describe_shape(model: HookedTransformer) -> str:
    cfg = model.cfg
    size = f"{cfg.n_layers} layers, {cfg.n_heads} heads, d_model {cfg.d_model}, {cfg.d_vocab} tokens, n_ctx {cfg.n_ctx}"
    return ", ".join(filter(None, [size, str(architecture_of(model))]))


def _check_same(wanted: Mapping[str, Any], folder: Path) -> None:
    path = folder / "run.json"
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): give a new folder") from error
    if not isinstance(found, dict) or (found.get("format"), found.get("version")) != (_FORMAT, _VERSION):
        raise InputError(f"{path} does not describe a training run of this version: give a new folder")
    # A run that was begun by an earlier version lacks the fields that were added since, which then had their defaults.
    added = {f"config.{name}": value for name, value in json.loads(json.dumps(asdict(TrainConfig()))).items()}
    theirs, ours = added | _flatten(found), _flatten(wanted)
    for name in {**ours, **theirs}:
        if theirs.get(name) != ours.get(name):
            raise InputError(
                f"{folder} holds another run: its {name} is {theirs.get(name)!r} and not {ours.get(name)!r}; "
                "give another folder, or the same model, task and configuration to go on with it"
            )


def _flatten(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`."""
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat
