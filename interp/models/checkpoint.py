"""A model in a folder: `model.safetensors` and `interp.json`, and its tokenizer where it has one. Never pickle.

    folder/interp.json          format version, configuration, what it has no fields for, provenance
    folder/model.safetensors    every parameter and buffer, as they are
    folder/tokenizer/           Hugging Face's files, only for a model with a tokenizer

A checkpoint is written beside its place and renamed into it, so that it is there whole or not at all. Loading compares
the weights with the hash in the provenance, and gives bit-identical logits. A model that is all in the configuration is
written as version 1; one with norms behind the sums, fixed positions or scaled embeddings (`interp.models.architecture`) as
version 2, which a toolkit that would take it for another model doesn't read.

>>> import tempfile
>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
>>> tokens = torch.tensor([[1, 2, 3, 4]])
>>> with tempfile.TemporaryDirectory() as folder:
...     save(model, f"{folder}/small")
...     torch.equal(load_checkpoint(f"{folder}/small", device="cpu")(tokens), model(tokens))
True
"""

import json
import os
import shutil
import uuid
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from safetensors.torch import load_file, save_file
from transformer_lens import HookedTransformer, HookedTransformerConfig

from interp.errors import InputError
from interp.models.architecture import Architecture, architecture_of, construct
from interp.models.build import check_device, quiet_construction
from interp.models.provenance import Provenance, get_provenance, hash_weights

_FORMAT = "interp-checkpoint"
_VERSIONS = (1, 2)
"""2 has the key `architecture`."""
_DESCRIPTION = "interp.json"
_WEIGHTS = "model.safetensors"
_TOKENIZER = "tokenizer"


def is_checkpoint(folder: str | Path) -> bool:
    """Whether `folder` was written by `save`."""
    try:
        return json.loads((Path(folder) / _DESCRIPTION).read_text()).get("format") == _FORMAT
    except (OSError, ValueError, AttributeError):
        return False


def save(model: HookedTransformer, folder: str | Path) -> None:
    """Write the model to `folder`, replacing an older checkpoint there but nothing else."""
    if not isinstance(model, HookedTransformer):
        raise InputError(
            f"a {type(model).__name__} cannot be saved as a checkpoint, only a HookedTransformer can: "
            "keep the Hugging Face folder that it came from and load that again"
        )
    folder = Path(folder)
    _check_replaceable(folder)
    provenance = replace(get_provenance(model), weights_sha256=hash_weights(model))
    description = {"format": _FORMAT, "version": 1, "config": _config_to_json(model.cfg)}
    architecture = architecture_of(model)
    if architecture != Architecture():
        description |= {"version": 2, "architecture": asdict(architecture)}
    description["provenance"] = asdict(provenance)
    beside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        beside.mkdir(parents=True)
        # safetensors takes neither shared storage nor a transposed tensor, and tied weights are both.
        packed = {
            name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in model.state_dict().items()
        }
        save_file(packed, beside / _WEIGHTS)
        (beside / _DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n")
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(beside / _TOKENIZER)
        _sync(beside)
        if folder.exists():
            old = folder.with_name(beside.name + ".old")
            os.rename(folder, old)
            os.rename(beside, folder)
            shutil.rmtree(old)
        else:
            os.rename(beside, folder)
    except (OSError, safetensors.SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"the checkpoint cannot be written to {folder}: {reason}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def load_checkpoint(
    folder: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> HookedTransformer:
    """The model that `save` wrote, in eval mode; on the default device and in its own dtype unless told otherwise."""
    folder = Path(folder)
    description = _read_description(folder)
    state = _read_weights(folder / _WEIGHTS)
    provenance = _as_provenance(description, folder)
    config = _config_from_json(description["config"], folder)
    chosen = config["dtype"] if dtype is None else dtype
    # TransformerLens would move the global random state for `seed` and ask the hub for `tokenizer_name`.
    kept = {name: config.pop(name, None) for name in ("seed", "tokenizer_name")}
    try:
        with quiet_construction():
            settings = config | {"dtype": chosen, "device": check_device(device), "init_weights": False}
            architecture = Architecture(**description.get("architecture", {}))
            model = construct(HookedTransformerConfig(**settings), architecture, move_to_device=False)
        model.load_state_dict(state, assign=True)
    except (AssertionError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        reason = str(error).strip().splitlines()[-1].strip()
        raise InputError(f"{folder / _WEIGHTS} does not fit the configuration beside it: {reason}") from error
    if hash_weights(model) != provenance.weights_sha256:
        raise InputError(f"{folder / _WEIGHTS} is damaged: its weights are not those that were saved; copy it again")
    model.cfg.seed, model.cfg.tokenizer_name = kept["seed"], kept["tokenizer_name"]
    if chosen != config["dtype"]:
        model.to(chosen)
    model.move_model_modules_to_device()
    if (folder / _TOKENIZER).is_dir():
        from transformers import AutoTokenizer

        # Set as it was saved: `set_tokenizer` would load it a second time and may ask the hub.
        model.tokenizer = AutoTokenizer.from_pretrained(folder / _TOKENIZER, local_files_only=True)
    model.eval()
    model.provenance = replace(  # type: ignore[assignment]
        provenance,
        source="checkpoint",
        weights_sha256=provenance.weights_sha256 if chosen == config["dtype"] else hash_weights(model),
        dtype=str(chosen).removeprefix("torch."),
        device=str(model.cfg.device),
    )
    return model


def _config_to_json(config: HookedTransformerConfig) -> dict[str, Any]:
    """Every field but the device, as JSON has it."""
    plain: dict[str, Any] = {}
    for field in fields(config):
        value = getattr(config, field.name)
        if isinstance(value, torch.dtype):
            value = str(value).removeprefix("torch.")
        elif isinstance(value, np.generic):
            value = value.item()
        plain[field.name] = value
    del plain["device"]
    return plain


def _config_from_json(plain: dict[str, Any], folder: Path) -> dict[str, Any]:
    known = {field.name for field in fields(HookedTransformerConfig)}
    unknown = sorted(set(plain) - known)
    dtype = getattr(torch, str(plain.get("dtype")), None)
    if unknown or not isinstance(dtype, torch.dtype):
        what = f"the unknown fields {', '.join(unknown)}" if unknown else f"the unknown dtype {plain.get('dtype')!r}"
        raise InputError(f"{folder / _DESCRIPTION} has {what}: it was made with another version of TransformerLens")
    return plain | {"dtype": dtype}


def _as_provenance(description: dict[str, Any], folder: Path) -> Provenance:
    try:
        stored = description["provenance"]
        return Provenance(**(stored | {"notes": tuple(stored["notes"])}))
    except (KeyError, TypeError) as error:
        raise InputError(f"the provenance in {folder / _DESCRIPTION} is incomplete: {error}") from error


def _read_description(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give the folder of a checkpoint that interp.save wrote")
    try:
        description = json.loads((folder / _DESCRIPTION).read_text())
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no {_DESCRIPTION}: it is not a checkpoint that interp.save wrote") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{folder / _DESCRIPTION} cannot be read as JSON: {error}") from error
    if not isinstance(description, dict) or description.get("format") != _FORMAT or "config" not in description:
        raise InputError(f"{folder / _DESCRIPTION} is not the description of a checkpoint that interp.save wrote")
    if description.get("version") not in _VERSIONS:
        raise InputError(
            f"{folder} has checkpoint version {description.get('version')!r}, this reads versions "
            f"{' and '.join(map(str, _VERSIONS))}: use the interp-toolkit that wrote it"
        )
    return description


def _read_weights(path: Path) -> dict[str, torch.Tensor]:
    if not path.is_file():
        raise InputError(f"{path} is missing: the checkpoint is incomplete, copy it again")
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path} is truncated or corrupt ({error}): copy it again") from error


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{folder} is a file: give the name of a folder for the checkpoint")
    others = sorted({entry.name for entry in folder.iterdir()} - {_DESCRIPTION, _WEIGHTS, _TOKENIZER})
    if others or (any(folder.iterdir()) and not is_checkpoint(folder)):
        found = ", ".join(others[:3] or sorted(entry.name for entry in folder.iterdir())[:3])
        raise InputError(f"{folder} holds other things than a checkpoint ({found}): give a new or an empty folder")


def _sync(folder: Path) -> None:
    """Flush the files to disk, so that the rename does not overtake them in a crash of the machine."""
    for path in folder.iterdir():
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
