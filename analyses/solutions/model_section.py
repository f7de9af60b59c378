"""One model: what it answers, by which circuit, with its pictures and numbers, written from its cell alone."""

from collections.abc import Iterator
from typing import Any, Literal

import pandas as pd

from analyses.report.page import Figure, Section
from analyses.solutions.cells import RANDOM_EDGES, RANDOM_MATRIX
from analyses.solutions.pictures import LEAST_LOST, RANK, draw_curves, draw_flow, draw_mechanism, draw_states
from interp.figures.svg import to_svg
from interp.records.store import Cell

ANSWERS = {
    "reasoning": "It reasons: it composes the maps of two anchors it never saw together",
    "symmetric": "It uses a symmetry: it answers as it was trained to for the same anchors in the other order",
    "memorising": "It memorises: it is right on what it was trained on and wrong on other keys",
    "none": "Its answers follow none of the three rules throughout",
}

SCORES = {
    "train": "right on what was trained",
    "id": "right on unseen keys",
    "altered": "right on the altered pair",
    "reasoning": "composed, pairs never trained",
    "symmetric": "mirrored, pairs never trained",
    "other": "neither, pairs never trained",
    "commutes": "the same in both orders",
}
"""The scores of a behaviour in words."""

_FLOW_CAPTION = (
    "Who reads whom, from below to above a layer: a line is as wide as the accuracy that is lost on {n} trained sequences "
    "when it is cut, and dashed where random edges of the same attention cost as much. Less than {least:g} isn't drawn."
)
STATES_CAPTION = "States of the last token on unseen keys, a mark a sequence: a picture, whose measure is the cosine."


def write_model(
    record: Cell, *, anchor: str, title: str, question: str = "", states: Literal["PCA", "all"] = "PCA"
) -> Section:
    """The section on one model; without the pictures for which a cell of an earlier version has no arrays.

    `states` says by which methods those of the last token are drawn: fewer take less room.
    """
    frame, about = record.frame, record.about
    settled = "" if about["settled"] else " (by a hair: the scores allow another label)"
    n = int(frame.loc[frame["metric"].str.startswith("behaviour: "), "n"].max())
    return Section(
        anchor=anchor,
        title=title,
        question=question,
        verdict=f"{ANSWERS[about['behaviour']]}{settled}. {tell_scores(about['scores'])} {_tell_mechanism(about)}",
        control=_tell_control(frame),
        figures=tuple(_list_figures(record, states=states)),
        table=_tabulate(frame),
        table_caption=f"Scores, and accuracy on trained sequences with edges cut or a circuit kept alone; {n:,} sequences a "
        "score. Control: random edges, or shuffled targets.",
    )


def tell_flow_caption(record: Cell) -> str:
    """How to read the flow of a model."""
    return _FLOW_CAPTION.format(n=record.about["flow"]["n"], least=LEAST_LOST)


def _list_figures(record: Cell, *, states: Literal["PCA", "all"]) -> Iterator[Figure]:
    drawn = (
        (
            draw_mechanism(record),
            "Accuracy on trained sequences with edges cut, before the softmax, and with a circuit kept alone.",
        ),
        (draw_flow(record), tell_flow_caption(record) if "flow" in record.about else ""),
        (draw_states(record, method=states), STATES_CAPTION),
        (
            draw_curves(record, title="over training"),
            "Right answers on trained pairs with unseen keys, and answers by either rule on the pairs never trained.",
        ),
    )
    for picture, caption in drawn:
        if picture is not None:
            yield Figure(svg=to_svg(picture), caption=caption)


def tell_scores(scores: dict[str, dict[str, float]]) -> str:
    """Shares of right, composed and mirrored answers, each with its interval."""

    def share(name: str) -> str:
        score = scores[name]
        return f"{score['value']:.0%} [{score['low']:.0%}, {score['high']:.0%}]"

    mirrored = f" and mirrors {share('symmetric')}" if "symmetric" in scores else ""
    return f"It is right on {share('id')} of unseen keys, composes {share('reasoning')} of the pairs never trained{mirrored}."


def _tell_mechanism(about: dict[str, Any]) -> str:
    fits = {True: ", as is usual for that", False: ", which is unusual for that", None: ""}[about["agrees"]]
    zeroed = about.get("mechanism_zero", "another")
    cuts = {True: "cuts after the softmax name the same", False: f"cuts after the softmax name {zeroed}", None: ""}
    also = cuts[about.get("cuts_agree")]
    last = about.get("n_layers", 2) - 1
    stage = about.get("second_stage", last)
    begins = f" What is called the last layer begins at layer {stage} of {last + 1} here." if stage < last else ""
    return f"Mechanism: {about['mechanism']}{fits}{f'; {also}' if also else ''}.{begins}"


def _tell_control(frame: pd.DataFrame) -> str:
    kept = frame[frame["metric"].str.startswith("mechanism: kept alone") & frame["control"].fillna("").eq(RANDOM_EDGES)]
    rank = frame[frame["metric"].eq(RANK)]
    own, random = rank[rank["control"].isna()], rank[rank["control"].fillna("").eq(RANDOM_MATRIX)]
    told = (
        f"As many random edges kept alone leave an accuracy of {kept['value'].max():.2f} at most." if len(kept) else ""
    )
    if len(own) and len(random):
        told += f" Stable rank of the first W_Q {own['value'].iloc[0]:.1f}, of random matrices {random['value'].iloc[0]:.1f}."
    return told.strip()


def _tabulate(frame: pd.DataFrame) -> pd.DataFrame:
    shown = frame[frame["control"].isna() & frame["metric"].str.contains(r"^(?:behaviour|mechanism|states): ")]
    controls = frame[frame["control"].notna()].groupby("metric")["value"].first()
    return pd.DataFrame(
        {
            "what": [_say(metric) for metric in shown["metric"]],
            "value": shown["value"].astype(float),
            "low": shown["low"].astype(float),
            "high": shown["high"].astype(float),
            "control": shown["metric"].map(controls).astype(float),
            "n": shown["n"],
        }
    ).reset_index(drop=True)


def _say(metric: str) -> str:
    """The name of a number as a reader of one model has it."""
    part, _, name = metric.partition(": ")
    return {"behaviour": SCORES.get(name, name), "states": name.replace("cosine", "cosine of states")}.get(
        part, name.replace(" · ", ": ", 1)
    )
