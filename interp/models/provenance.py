"""Where a model's weights come from, which class holds them, and what was done to them.

`weights_sha256` is the hash of the parameters that are measured: after conversion, processing and the cast to `dtype`. What
`interp.models.architecture` knows of a model, beyond its configuration, is hashed with them: the same parameters are another
model where norms stand elsewhere.
Two published checkpoints with one hash are one model, whatever their names say.

>>> model = torch.nn.Linear(2, 2, bias=False)
>>> again = {"weight": model.weight.detach().clone()}
>>> hash_weights(model) == hash_weights(again), count_parameters(model)
(True, 4)
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from interp.models.architecture import architecture_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What a reader must know to load the same weights again."""

    model: str
    """The name that was typed, or `built`."""
    source: str
    """`hub`, `folder`, `gguf`, `checkpoint`, `object` or `built`."""
    revision: str | None
    """The commit of the hub, where there is one; else the revision that was asked for."""
    weights_sha256: str
    """`hash_weights` of the model as it was loaded."""
    model_class: str
    """`HookedTransformer`, `PostNormTransformer` or `TransformerBridge`."""
    reason: str
    """Why it is that class."""
    max_logit_difference: float | None
    """Largest difference of a logit from the Hugging Face model's, on unprocessed fp32 weights; None without one."""
    processing: str
    """`raw`, `fold_norm` or `fold_norm+center`."""
    dtype: str
    """The parameters' dtype, such as `float32`."""
    device: str
    """The device that the model was loaded to."""
    n_parameters: int
    """Weights of the original model, those that share storage counted once."""
    step: int | None
    """Training step, where the source names one."""
    notes: tuple[str, ...] = ()
    """Sentences that belong beside every number measured on this model."""


def get_provenance(model: Any) -> Provenance:
    """The provenance that `load` or `build` attached; for any other model, what can be read off the object."""
    attached = getattr(model, "provenance", None)
    if isinstance(attached, Provenance):
        return attached
    parameter = next(model.parameters())
    return Provenance(
        model=str(getattr(model.cfg, "model_name", None) or type(model).__name__),
        source="object",
        revision=None,
        weights_sha256=hash_weights(model),
        model_class=type(model).__name__,
        reason="given as this class",
        max_logit_difference=None,
        processing="fold_norm" if str(model.cfg.normalization_type).endswith("Pre") else "raw",
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=str(parameter.device),
        n_parameters=count_parameters(model),
        step=None,
    )


def hash_weights(model_or_state_dict: torch.nn.Module | Mapping[str, Tensor]) -> str:
    """SHA-256 over sorted names, dtypes, shapes and bytes: of a module's parameters, or of each tensor in a mapping."""
    digest = hashlib.sha256()
    if isinstance(model_or_state_dict, torch.nn.Module):
        tensors: dict[str, Tensor] = dict(model_or_state_dict.named_parameters())
        digest.update(str(architecture_of(model_or_state_dict)).encode())  # nothing, for TransformerLens's own kinds
    else:
        tensors = dict(model_or_state_dict)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def count_parameters(model: torch.nn.Module) -> int:
    """How many weights the model holds; tied tensors, which share their storage, count once."""
    return sum(parameter.numel() for parameter in _distinct(model.parameters()))


def _distinct(tensors: Iterable[Tensor]) -> Iterable[Tensor]:
    # Meta tensors and empty ones all start at address 0, so an address alone would merge them.
    seen: set[tuple[int, int]] = set()
    for tensor in tensors:
        key = (tensor.data_ptr() or id(tensor), tensor.numel())
        if key not in seen:
            seen.add(key)
            yield tensor
