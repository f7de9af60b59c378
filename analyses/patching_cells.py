"""What the cells of the patching analysis hold: results taken apart for the store and put together again."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from jaxtyping import Int

from analyses.patching_removal import HeadRemoval
from interp.interventions.patch_result import PatchResult
from interp.interventions.select import Head
from interp.models.provenance import Provenance
from interp.records.store import Cell

_ARRAYS = ("values", "clean", "corrupted")
_TUPLES = ("layers", "heads", "positions", "position_labels", "scored", "notes")


def pack_patch(result: PatchResult) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, plain JSON)."""
    arrays = {name: getattr(result, name) for name in _ARRAYS}
    names = {field.name for field in fields(result)} - set(_ARRAYS) - {"provenance", "others"}
    return arrays, {name: getattr(result, name) for name in sorted(names)}


def restore_patch(provenance: Provenance, cell: Cell) -> PatchResult:
    """The `PatchResult` that a cell was written from."""
    about: dict[str, Any] = {
        field.name: cell.about[field.name] for field in fields(PatchResult) if field.name in cell.about
    }
    for name in _TUPLES:
        about[name] = None if about[name] is None else tuple(about[name])
    if about["query_heads"] is not None:
        about["query_heads"] = tuple(tuple(group) for group in about["query_heads"])
    return PatchResult(**{**about, **{name: cell.arrays[name] for name in _ARRAYS}, "provenance": provenance})


def pack_removal(result: HeadRemoval) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, plain JSON)."""
    arrays = {"whole": result.whole, "removed": result.removed, "control": result.control}
    arrays |= {"heads": np.array(result.heads), "control_heads": np.array(result.control_heads)}
    return arrays, {"seed": result.seed, "notes": list(result.notes)}


def restore_removal(cell: Cell) -> HeadRemoval:
    """The `HeadRemoval` that a cell was written from."""
    arrays = dict(cell.arrays)
    heads, controls = arrays.pop("heads"), arrays.pop("control_heads")
    return HeadRemoval(
        heads=tuple((int(layer), int(head)) for layer, head in heads),
        control_heads=tuple(tuple((int(layer), int(head)) for layer, head in draw) for draw in controls),
        seed=cell.about["seed"],
        notes=tuple(cell.about["notes"]),
        **arrays,
    )


def is_informative(cells: Mapping[str, Cell]) -> bool:
    """Whether the model prefers IO to S more often than a coin would, so that a sweep has something to explain."""
    return bool(cells["patching/behaviour"].about["informative"])


def best_place(result: PatchResult) -> Int[np.ndarray, "layer head"]:
    """For each head the entry of the position axis at which its patch recovers most."""
    return result.recovery.argmax(axis=-1)


def rank_heads(result: PatchResult, n: int) -> list[Head]:
    """The `n` heads whose patch recovers most, at the better of their positions."""
    strongest = result.recovery.max(axis=-1)
    order = np.argsort(-strongest, axis=None, kind="stable")[:n]
    return [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, strongest.shape), strict=True)]


def choose_count(n_heads: int) -> int:
    """Ten heads; in a small model one in four, and at least one."""
    return min(10, max(1, n_heads // 4))
