"""Which solution did one model find? `interp report CHECKPOINT --analyses solutions`, for a run on an anchor task.

The task comes from the run's folder; the training history gives the curves.
"""

from typing import Any

import numpy as np
import pandas as pd

from analyses.analysis import Analysis, Cells, Options, Outcome, Part, Subject
from analyses.report.page import Figure, Section
from analyses.solutions.cells import RANDOM_EDGES, RANDOM_MATRIX, measure_solution
from analyses.solutions.definitions import BEHAVIOUR, COMPLEXITY, MECHANISM
from analyses.solutions.evidence_sections import CURVES
from interp.errors import InputError
from interp.figures.seeds import SeedPanel, seed_panels
from interp.figures.svg import to_svg
from interp.models.provenance import Provenance
from interp.solutions.circuits import check_circuit_task
from interp.training.runs import read_history, read_task
from tasks.anchor.composite import Composite
from tasks.anchor.functions import AnchorFunction

_ANSWERS = {
    "reasoning": "It reasons: it composes the maps of two anchors it never saw together",
    "symmetric": "It uses a symmetry: it answers as it was trained to for the same anchors in the other order",
    "memorising": "It memorises: it is right on what it was trained on and wrong on other keys",
    "none": "Its answers follow none of the three rules throughout",
}


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
    return Outcome(measurements=outcome.measurements, arrays=outcome.arrays | arrays, about=outcome.about)


def _write_section(provenance: Provenance, cells: Cells) -> Section:
    cell = cells["solutions/classification"]
    frame, about = cell.frame, cell.about
    table = frame[frame["control"].isna() & frame["metric"].str.contains("behaviour: |mechanism: ")]
    lines = {
        name: cell.arrays[f"history_{column}"][None]
        for column, name in CURVES.items()
        if f"history_{column}" in cell.arrays
    }
    panel = SeedPanel(title="this model", steps=cell.arrays["history_step"], lines=lines)
    return Section(
        anchor="solutions",
        title="Reasoning, symmetry or memory",
        question=SOLUTIONS.question,
        verdict=f"{_ANSWERS[about['behaviour']]}{'' if about['settled'] else ' (by a hair: the scores allow another label)'}. "
        f"{_tell_scores(about['scores'])} {_tell_mechanism(about)}",
        control=_tell_control(frame),
        figures=(
            Figure(
                svg=to_svg(seed_panels([panel], label="share of answers")),
                caption="Over training: right answers on trained pairs with unseen keys, and answers by either rule on the "
                "pairs never trained.",
            ),
        ),
        table=_tabulate(frame, table),
        table_caption=f"Scores, and accuracy on trained sequences with edges cut or a circuit kept alone; {about['n']:,} "
        "sequences a score.",
        definitions=(*BEHAVIOUR, *MECHANISM, *COMPLEXITY),
        notes=(f"Trained on: {about['task']}.",),
    )


def _tell_scores(scores: dict[str, dict[str, float]]) -> str:
    def share(name: str) -> str:
        score = scores[name]
        return f"{score['value']:.0%} [{score['low']:.0%}, {score['high']:.0%}]"

    mirrored = f" and mirrors {share('symmetric')}" if "symmetric" in scores else ""
    return f"It is right on {share('id')} of unseen keys, composes {share('reasoning')} of the pairs never trained{mirrored}."


def _tell_mechanism(about: dict[str, Any]) -> str:
    fits = {True: ", as is usual for that", False: ", which is unusual for that", None: ""}[about["agrees"]]
    return f"Mechanism: {about['mechanism']}{fits}."


def _tell_control(frame: pd.DataFrame) -> str:
    kept = frame[frame["metric"].str.startswith("mechanism: kept alone") & frame["control"].fillna("").eq(RANDOM_EDGES)]
    rank = frame[frame["metric"].eq("stable rank of W_Q")]
    own, random = rank[rank["control"].isna()], rank[rank["control"].fillna("").eq(RANDOM_MATRIX)]
    told = (
        f"As many random edges kept alone leave an accuracy of {kept['value'].max():.2f} at most." if len(kept) else ""
    )
    if len(own) and len(random):
        told += f" Stable rank of the first W_Q {own['value'].iloc[0]:.1f}, of random matrices {random['value'].iloc[0]:.1f}."
    return told.strip()


def _tabulate(frame: pd.DataFrame, shown: pd.DataFrame) -> pd.DataFrame:
    controls = frame[frame["control"].notna()].groupby("metric")["value"].first()
    return pd.DataFrame(
        {
            "what": shown["metric"],
            "value": shown["value"].astype(float),
            "low": shown["low"].astype(float),
            "high": shown["high"].astype(float),
            "random edges": shown["metric"].map(controls).astype(float),
            "n": shown["n"],
        }
    ).reset_index(drop=True)


SOLUTIONS = Analysis(
    name="solutions",
    question="Does it reason, use a symmetry, or memorise, and by which circuit?",
    parts=(Part(name="classification", measure=_measure),),
    write_section=_write_section,
    applies=_refuse,
)
