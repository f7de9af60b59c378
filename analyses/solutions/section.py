"""Which solution did one model find? `interp report CHECKPOINT --analyses solutions`, for a run on an anchor task.

The task comes from the run's folder; the training history gives the curves.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.report.page import Figure, Section
from analyses.solutions.cells import measure_solution
from analyses.solutions.definitions import BEHAVIOUR, COMPLEXITY, EVIDENCE, MECHANISM
from analyses.solutions.model_section import write_model
from analyses.solutions.pictures import draw_rank
from analyses.solutions.ranks import follow_rank
from interp.errors import InputError
from interp.figures.svg import to_svg
from interp.models.provenance import Provenance
from interp.solutions.circuits import check_circuit_task
from interp.training.runs import read_history, read_task
from tasks.anchor.composite import Composite
from tasks.anchor.functions import AnchorFunction


def restore_task(settings: dict[str, Any]) -> Composite:
    """The composite task of a run's `run.json`, whose lists were tuples and dictionaries."""
    function = settings["function"]
    maps = tuple(tuple(of) if isinstance(of, list) else of for of in function["maps"])
    given = {
        **settings,
        "function": AnchorFunction(anchors=tuple(function["anchors"]), maps=maps, order=function["order"]),
        "held_out": tuple(tuple(pair) for pair in settings["held_out"]),
        "key_positions": tuple(settings["key_positions"]),
    }
    given |= {name: {tuple(pair): value for pair, value in settings[name]} for name in ("altered", "weights")}
    return Composite(**given)


def _refuse(subject: Subject) -> str | None:
    if subject.run is None:
        return "it doesn't come from a training run on an anchor task"
    task = read_task(subject.run)
    settings = task.get("settings") or {}
    if not {"function", "held_out", "altered"} <= set(settings):
        return f"it was trained on {task['name']}, which is no anchor task"
    if not settings["held_out"] or settings["modulus"] is None:
        return f"its task, {task['name']}, keeps no pair of anchors or no key for the test"
    try:
        check_circuit_task(subject.model, restore_task(settings), mode="mask")
    except InputError as error:
        return str(error).rstrip(".")
    return None


def _measure(subject: Subject, options: Options, cells: Cells) -> Outcome:
    assert subject.run is not None
    task = restore_task(read_task(subject.run)["settings"])
    n, n_controls = 20 * options.n_sequences, 8 if options.quick else 20
    outcome = measure_solution(subject.model, task, n=n, n_controls=n_controls, seed=options.seed)
    history = read_history(subject.run)
    arrays = {f"history_{name}": history[name].to_numpy(dtype=np.float64) for name in history}
    return replace(outcome, arrays=outcome.arrays | arrays | follow_rank(history, subject.run))


def _write_section(provenance: Provenance, cells: Cells) -> Section:
    cell = cells["solutions/classification"]
    section = write_model(
        cell, anchor="solutions", title="Reasoning, symmetry or memory", question=SOLUTIONS.question, states="all"
    )
    rank = draw_rank(cell, title="over training")
    caption = (
        "Stable rank of the first layer's W_Q; dashed with its band: the mean and the central 95% of random matrices."
    )
    figures = () if rank is None else (Figure(svg=to_svg(rank), caption=caption),)
    return replace(
        section,
        figures=(*section.figures, *figures),
        definitions=(*BEHAVIOUR, *MECHANISM, *EVIDENCE, *COMPLEXITY),
        notes=(f"Trained on: {cell.about['task']}.",),
    )


SOLUTIONS = Analysis(
    name="solutions",
    question="Does it reason, use a symmetry, or memorise, and by which circuit?",
    parts=(Part(name="classification", measure=_measure),),
    write_section=_write_section,
    applies=_refuse,
)
