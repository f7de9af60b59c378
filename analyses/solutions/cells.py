"""One model of a grid: train it, classify it, measure its weights and states, and keep all of that as rows and arrays.

`measure_solution` is the measuring alone, for a model that is there already.

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, d_mlp=8, act_fn="relu")
>>> outcome = measure_solution(model, dropped_pairs(), n=20, n_controls=2)
>>> outcome.about["behaviour"], outcome.about["mechanism"], outcome.measurements[0].metric
('none', 'none', 'behaviour: train')
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyses.analysis import Outcome
from analyses.solutions.evidence import keep_controls, measure_flow, measure_states
from analyses.solutions.grid import GridCell
from analyses.solutions.ranks import follow_rank
from interp import __version__
from interp.complexity.measure import Complexity, measure_complexity
from interp.complexity.parts import Part
from interp.models.provenance import get_provenance
from interp.records.schema import Measurement
from interp.records.store import Store
from interp.solutions.classify import Solution, classify_solution
from interp.training.result import TrainRun
from tasks.anchor.composite import Composite

RANDOM_EDGES = "random edges"
RANDOM_MATRIX = "random matrix of the same shape"
_WEIGHTS = {"stable_rank": "stable rank", "n_directions": "directions"}
_FOLLOWED = ("loss", "id_accuracy", "altered_accuracy", "held_out_reasoning", "held_out_symmetric")


def keep_cell(cell: GridCell, run: TrainRun, folder: Path, *, seconds: float) -> None:
    """Classify a trained model and write its cell into the store of `folder`; `seconds` is what training took."""
    start = time.perf_counter()
    outcome = measure_solution(run.model, cell.task, n=cell.n, n_controls=cell.n_controls)
    provenance = get_provenance(run.model)
    history = {f"history_{name}": run.history[name].to_numpy(dtype=np.float64) for name in run.history}
    history |= follow_rank(run.history, run.folder)
    seconds += time.perf_counter() - start
    rows = [
        replace(
            row, model=cell.name, weights_sha256=provenance.weights_sha256, seed=cell.seed, dtype=provenance.dtype,
            device=provenance.device, seconds=seconds, version=__version__,
            step=run.config.steps if row.step is None else row.step,
        )
        for row in [*outcome.measurements, *_list_history(run.history, cell)]
    ]  # fmt: skip
    about = {
        "setting": cell.setting.name,
        "cell": cell.name,
        "seed": cell.seed,
        "engine": run.engine,
        "seconds": seconds,
        "provenance": asdict(provenance),
        **outcome.about,
    }
    Store(folder).write(cell.key, rows, arrays=outcome.arrays | history, about=about)


def measure_solution(model: Any, task: Composite, *, n: int, n_controls: int, seed: int = 0) -> Outcome:
    """Behaviour, mechanism, weights and states of a trained model, as rows with their controls, arrays and labels."""
    solution = classify_solution(model, task, n=n, n_controls=n_controls, seed=seed)
    parts: tuple[Part, ...] = ("W_Q", "W_in") if model.cfg.d_mlp and not model.cfg.attn_only else ("W_Q",)
    complexity = measure_complexity(model, parts=parts, seed=seed)
    behaviour, mechanism = solution.behaviour, solution.mechanism
    arrays = {f"behaviour/{name}": values.astype(np.uint8) for name, values in behaviour.scores.items()}
    deviations = behaviour.deviations.to_frame()
    arrays |= {f"deviations/{column}": deviations[column].to_numpy() for column in ("deviation", "count")}
    kept = keep_controls(mechanism)
    flow = measure_flow(model, task, n=n, n_controls=n_controls, seed=seed)
    states = measure_states(model, task, seed=seed)
    return Outcome(
        measurements=[*_list_solution(solution, task), *_list_weights(complexity, task), *states.measurements],
        arrays=arrays | kept.arrays | flow.arrays | states.arrays,
        about={
            "task": task.name,
            "n": n,
            "n_controls": n_controls,
            "behaviour": behaviour.label,
            "settled": behaviour.settled,
            "mechanism": mechanism.label,
            "mechanism_zero": solution.mechanisms["zero"].label,
            "agrees": solution.agrees,
            "cuts_agree": solution.cuts_agree,
            "scores": behaviour.to_frame().set_index("score")[["value", "low", "high"]].to_dict("index"),
            "copies": deviations["name"].iloc[0] if len(deviations) else "",
            "copied_share": float(deviations["share"].iloc[0]) if len(deviations) else 0.0,
            **kept.about,
            **flow.about,
            **states.about,
        },
    )


def _list_solution(solution: Solution, task: Composite) -> Iterator[Measurement]:
    for score in _records(solution.behaviour.to_frame()):
        yield Measurement(
            analysis="solutions", metric=f"behaviour: {score['score']}", value=score["value"], low=score["low"],
            high=score["high"], n=score["n"], task=task.name, note=f"behaviour {solution.behaviour.label}",
        )  # fmt: skip
    for row in _records(solution.mechanism.to_frame()):
        what = " · ".join(part for part in (row["intervention"], row["edges"]) if part)
        shared: dict[str, Any] = {
            "analysis": "solutions", "metric": f"mechanism: {what}", "task": task.name,
            "note": f"mechanism {solution.mechanism.label}",
        }  # fmt: skip
        yield Measurement(value=row["accuracy"], low=row["low"], high=row["high"], n=row["n"], **shared)
        if not pd.isna(row["control"]):
            yield Measurement(
                value=row["control"], low=row["control_low"], high=row["control_high"], control=RANDOM_EDGES, **shared
            )


def _list_weights(complexity: Complexity, task: Composite) -> Iterator[Measurement]:
    frame = complexity.to_frame()
    for row in _records(frame[(frame["layer"] == 0) & frame["measure"].isin(list(_WEIGHTS))]):
        shared: dict[str, Any] = {
            "analysis": "solutions", "metric": f"{_WEIGHTS[row['measure']]} of {row['part']}", "layer": 0, "task": task.name
        }  # fmt: skip
        yield Measurement(value=row["value"], **shared)
        yield Measurement(
            value=row["control"], low=row["control_low"], high=row["control_high"], n=row["n_controls"],
            control=RANDOM_MATRIX, **shared,
        )  # fmt: skip


def _list_history(history: pd.DataFrame, cell: GridCell) -> Iterator[Measurement]:
    shown = [name for name in _FOLLOWED if name in history]
    for row in _records(history):
        for name in shown:
            if not pd.isna(row[name]):
                yield Measurement(
                    analysis="solutions", metric=f"training: {name}", value=row[name], step=int(row["step"]),
                    n=cell.setting.config.eval_sequences, task=cell.task.name,
                )  # fmt: skip


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]
