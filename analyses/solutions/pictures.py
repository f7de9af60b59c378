"""The pictures of one model, drawn from its cell alone; None where the cell was written before it had their arrays."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from analyses.solutions.cells import RANDOM_MATRIX
from interp.figures.flow import flow_picture
from interp.figures.seeds import SeedPanel, seed_panels
from interp.figures.solutions import mechanism_picture
from interp.figures.states import states_picture
from interp.figures.style import Picture
from interp.records.store import Cell

CURVES = {"id_accuracy": "unseen keys", "held_out_reasoning": "reasoning", "held_out_symmetric": "symmetric"}
"""Columns of a training history that are drawn, with their names."""

RANK = "stable rank of W_Q"
_ROUNDING = 1e-9
LEAST_LOST = 0.05
"""Edges that cost less accuracy are left out of the flow: the picture is of what the answer needs."""


def draw_mechanism(record: Cell) -> Picture | None:
    """`Mechanism.figure()`: accuracy after each cut and of each circuit kept alone, beside every draw of random edges."""
    verdicts = record.about.get("verdicts")
    if verdicts is None:
        return None
    rows = record.frame[record.frame["control"].isna() & record.frame["metric"].str.startswith("mechanism: ")]
    names = rows["metric"].str.removeprefix("mechanism: ")
    parts = names.str.partition(" · ")
    frame = pd.DataFrame(
        {
            "intervention": parts[0],
            "edges": parts[2],
            "verdict": [verdicts.get(name, "") for name in names],
            "accuracy": rows["value"].astype(float),
            "low": rows["low"].astype(float),
            "high": rows["high"].astype(float),
            "n": rows["n"].astype(int),
        }
    )
    cut, kept = (_pick(record.arrays, f"control/{kind} · ") for kind in ("cut", "kept alone"))
    return mechanism_picture(
        frame, cut, kept, title=f"Mechanism: {record.about['mechanism']} (edges cut before the softmax)"
    )


def draw_flow(record: Cell) -> Picture | None:
    """Which edges between roles the answer needs, layer by layer."""
    if "flow" not in record.about:
        return None
    lost = record.arrays["flow/lost"]
    with np.errstate(invalid="ignore"):
        shown = np.where(lost >= LEAST_LOST, lost, np.nan)
    return flow_picture(
        record.about["flow"]["roles"],
        shown,
        label="accuracy lost when the edge is cut",
        solid=find_solid(record),
        n_draws=len(record.arrays["flow/control"]),
        title="What the answer flows through",
    )


def find_solid(record: Cell) -> Bool[np.ndarray, "layer query_role key_role"]:
    """Edges whose cut costs more than that of every set of random edges of the same attention."""
    with np.errstate(invalid="ignore"):
        return record.arrays["flow/lost"] > record.arrays["flow/control"].max(axis=0) + _ROUNDING


def draw_states(record: Cell, *, method: Literal["PCA", "all"] = "PCA") -> Picture | None:
    """States of the last token in the plane, halfway and at the end, by PCA or by t-SNE too."""
    panels = record.about.get("states")
    if panels is None:
        return None
    notes = {name: note for name, note in panels if method == "all" or name.endswith(method)}
    planes = {name: record.arrays[f"states/{name}"].astype(np.float64) for name in notes}
    return states_picture(
        planes, record.arrays["states/pairs"], notes=notes, title="Where the states of the last token lie"
    )


def draw_curves(record: Cell, *, title: str) -> Picture:
    """Shares of right answers over training."""
    return seed_panels([take_curves([record], title=title)], label="share of answers")


def draw_rank(record: Cell, *, title: str) -> Picture | None:
    """The stable rank of the first W_Q over training."""
    panel = take_ranks([record], title=title)
    return None if panel is None else draw_ranks([panel], record)


def draw_ranks(panels: list[SeedPanel], record: Cell) -> Picture:
    """Stable ranks over training beside those of random matrices, which `record` knows."""
    control = find_random(record)
    top = 1.08 * max([*(float(np.nanmax(panel.lines[RANK])) for panel in panels), *((control or (0.0,))[-1:])])
    return seed_panels(panels, label="stable rank", limits=(0.0, top), control=control)


def take_curves(records: list[Cell], *, title: str) -> SeedPanel:
    """Curves of models of one setting."""
    first = records[0].arrays
    lines = {
        name: np.stack([record.arrays[f"history_{column}"] for record in records])
        for column, name in CURVES.items()
        if f"history_{column}" in first
    }
    return SeedPanel(title=title, steps=first["history_step"], lines=lines)


def take_ranks(records: list[Cell], *, title: str) -> SeedPanel | None:
    """Stable ranks of models of one setting, of those that have them at the same steps as the first that has any."""
    known = [record.arrays for record in records if len(record.arrays.get("rank", ()))]
    same = [arrays for arrays in known if np.array_equal(arrays["rank_step"], known[0]["rank_step"])]
    if not same:
        return None
    return SeedPanel(title=title, steps=same[0]["rank_step"], lines={RANK: np.stack([one["rank"] for one in same])})


def find_random(record: Cell) -> tuple[float, float, float] | None:
    """(low, mean, high) of the stable rank of random matrices of the shape of W_Q."""
    rows = record.frame[record.frame["metric"].eq(RANK) & record.frame["control"].fillna("").eq(RANDOM_MATRIX)]
    if not len(rows):
        return None
    row = rows.iloc[0]
    return float(row["low"]), float(row["value"]), float(row["high"])


def _pick(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, Float[np.ndarray, "draw"]]:
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
