"""What the cells of the bridge analysis hold: results taken apart for the store and put together again."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from interp.bridge.find import Bridge
from interp.bridge.plan import SweepPlan
from interp.bridge.result import BridgeRun, BridgeSweep
from interp.bridge.shuffle import HeadShuffle
from interp.circuits.pair_result import PairScores
from interp.interventions.select import Head
from interp.models.provenance import Provenance
from interp.records.store import Cell

Packed = tuple[dict[str, np.ndarray], dict[str, Any]]

_PAIR_ARRAYS = ("layer_pairs", "values", "heads", "diagonal", "composition", "match")
_RUN_ARRAYS = ("error", "probability", "text_loss")
_SWEEP_ARRAYS = ("error", "probability", "text_loss")
_SHUFFLE_ARRAYS = (
    *("error", "shuffled_error", "control_error"),
    *("probability", "shuffled_probability", "control_probability"),
)


def pack_pairs(result: PairScores) -> Packed:
    """(arrays, plain JSON)."""
    return _arrays(result, _PAIR_ARRAYS), _others(result, _PAIR_ARRAYS)


def restore_pairs(provenance: Provenance, cell: Cell) -> PairScores:
    """The `PairScores` that a cell was written from."""
    arrays: dict[str, Any] = cell.arrays
    return PairScores(**cell.about["result"], **arrays, provenance=provenance)


def pack_sweep(result: BridgeSweep) -> Packed:
    """(arrays, plain JSON); the runs' arrays lie behind one another, with their lengths beside them."""
    arrays = _arrays(result, _SWEEP_ARRAYS)
    about = _others(result, (*_SWEEP_ARRAYS, "bridge", "runs", "plan"))
    for name in _RUN_ARRAYS:
        parts = [getattr(run, name) for run in result.runs]
        arrays[f"runs/{name}"] = np.concatenate(parts)
        arrays[f"runs/{name}_length"] = np.array([len(part) for part in parts])
    about["runs"] = [_others(run, _RUN_ARRAYS) for run in result.runs]
    bridge = result.bridge
    arrays |= {"bridge/basis": bridge.basis.numpy(), "bridge/singular_values": bridge.singular_values.numpy()}
    about["bridge"] = _others(bridge, ("basis", "singular_values"))
    about["plan"] = {name: getattr(result.plan, name) for name in ("n_sequences", "n_passages", "n_blocks")}
    return arrays, about


def restore_sweep(provenance: Provenance, cell: Cell) -> BridgeSweep:
    """The `BridgeSweep` that a cell was written from; its plan has no steps, which the runs are."""
    about: dict[str, Any] = dict(cell.about["result"])
    arrays: dict[str, Any] = cell.arrays
    parts: dict[str, Any] = {
        name: np.split(arrays[f"runs/{name}"], np.cumsum(arrays[f"runs/{name}_length"])[:-1]) for name in _RUN_ARRAYS
    }
    runs = tuple(BridgeRun(**run, **_pick(parts, i)) for i, run in enumerate(about.pop("runs")))
    spectrum = dict(about.pop("bridge"))
    bridge = Bridge(
        basis=torch.from_numpy(arrays["bridge/basis"]),
        singular_values=torch.from_numpy(arrays["bridge/singular_values"]),
        heads=_heads(spectrum.pop("heads")),
        key_value_heads=_heads(spectrum.pop("key_value_heads")),
        provenance=provenance,
        **spectrum,
    )
    return BridgeSweep(
        bridge=bridge,
        runs=runs,
        plan=SweepPlan(steps=(), **about.pop("plan")),
        edited_heads=_heads(about.pop("edited_heads")),
        collateral_heads=_heads(about.pop("collateral_heads")),
        control_heads=tuple(_heads(draw) for draw in about.pop("control_heads")),
        ranks=tuple(about.pop("ranks")),
        control_ranks=tuple(about.pop("control_ranks")),
        notes=tuple(about.pop("notes")),
        provenance=provenance,
        **{name: arrays[name] for name in _SWEEP_ARRAYS},
        **about,
    )


def pack_shuffle(result: HeadShuffle) -> Packed:
    """(arrays, plain JSON)."""
    return _arrays(result, _SHUFFLE_ARRAYS), _others(result, _SHUFFLE_ARRAYS)


def restore_shuffle(provenance: Provenance, cell: Cell) -> HeadShuffle:
    """The `HeadShuffle` that a cell was written from."""
    about: dict[str, Any] = dict(cell.about["result"])
    arrays: dict[str, Any] = cell.arrays
    return HeadShuffle(
        heads=_heads(about.pop("heads")),
        permutations=tuple(_heads(one) for one in about.pop("permutations")),
        control_heads=tuple(_heads(one) for one in about.pop("control_heads")),
        notes=tuple(about.pop("notes")),
        provenance=provenance,
        **about,
        **arrays,
    )


def _pick(parts: dict[str, Any], i: int) -> dict[str, Any]:
    return {name: arrays[i] for name, arrays in parts.items()}


def _arrays(result: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    return {name: getattr(result, name) for name in names}


def _others(result: Any, names: Sequence[str]) -> dict[str, Any]:
    """All fields of a dataclass but the named ones and its provenance."""
    left_out = {*names, "provenance"}
    return {field.name: getattr(result, field.name) for field in fields(result) if field.name not in left_out}


def _heads(pairs: Sequence[Sequence[int]]) -> tuple[Head, ...]:
    return tuple((int(layer), int(head)) for layer, head in pairs)
