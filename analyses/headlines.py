"""The few numbers of a run that a person reads first, each beside its control.

They are picked from the stored rows, so `interp show` needs no model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

_N_INDUCTION = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Headline:
    """One number and what it is to be compared with."""

    model: str
    """The model."""
    what: str
    """What was measured, in words."""
    value: float
    """The number."""
    low: float | None
    """Lower end of its 95% interval."""
    high: float | None
    """Upper end of its 95% interval."""
    n: int | None
    """Sequences behind it."""
    control_value: float | None
    """The same number in the control."""
    control: str | None
    """What the control is."""
    unit: str | None = None
    """Unit of the number and its control."""


def pick_headlines(frame: pd.DataFrame) -> list[Headline]:
    """Headlines of every model in a results frame, in the order of the frame."""
    found = []
    for model in frame["model"].dropna().unique():
        rows = frame[frame["model"] == model]
        found += [*_copying(model, rows), *_heads(model, rows), *_induction(model, rows), *_patching(model, rows)]
        found += [*_bridge(model, rows), *_rules(model, rows), *_solutions(model, rows), *_grokking(model, rows)]
        found += _trees(model, rows)
    return found


def _copying(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    final = rows[
        rows["analysis"].isin(["copying", "copying_dynamics"])
        & rows["metric"].isin(["error, in distribution", "error, out of distribution"])
    ]
    for _, row in final[final["control"].isna()].iterrows():
        controls = final[(final["metric"] == row["metric"]) & final["control"].notna()]
        yield _headline(model, row["metric"], row, controls)


def _heads(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    scores = rows[rows["analysis"] == "heads"]
    for metric, n_heads in (("induction", _N_INDUCTION), ("previous_token", 1)):
        named = scores[scores["metric"] == metric]
        strongest = named[named["control"].isna()].sort_values("value", ascending=False, kind="stable").head(n_heads)
        for _, row in strongest.iterrows():
            same = named["layer"].eq(row["layer"]) & named["head"].eq(row["head"])
            control = "tokens not repeated" if metric == "induction" else "uniform attention"
            controls = named[named["control"].eq(control) & (same | named["layer"].isna()).fillna(False)]
            what = f"{metric.replace('_', '-')} score of head {row['layer']}.{row['head']}"
            yield _headline(model, what, row, controls)


def _induction(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    removal = rows[rows["analysis"] == "induction"]
    for metric in ("loss", "accuracy"):
        whole = removal[removal["metric"] == f"{metric}, second copy, whole model"]
        removed = removal[removal["metric"] == f"{metric}, second copy, induction heads removed"]
        for _, row in whole.iterrows():
            yield _headline(model, f"{metric} on the second copy, whole model", row, whole.iloc[:0])
        for _, row in removed[removed["control"].isna()].iterrows():
            what = f"{metric} on the second copy, top induction heads removed"
            yield _headline(model, what, row, removed[removed["control"].notna()])
    for _, row in removal[removal["metric"].str.startswith("loss beyond")].iterrows():
        yield _headline(model, "rise of that loss beyond random heads", row, removal.iloc[:0])
    for _, row in removal[removal["metric"].str.startswith("p-value")].iterrows():
        yield _headline(model, "p-value of that rise, over draws", row, removal.iloc[:0])


def _patching(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    names = {
        "prefers_io": "receiver's name above giver's",
        "accuracy": "receiver's name above every token",
        "logit_difference": "logit difference, receiver - giver",
        "share of the logit difference": "share of it that the top heads carry",
    }
    patched = rows[rows["analysis"] == "patching"]
    for metric, what in names.items():
        named = patched[patched["metric"].eq(metric)]
        for _, row in named[named["control"].isna()].iterrows():
            yield _headline(model, what, row, named[named["control"].notna()])
    for _, row in patched[patched["metric"].str.startswith("share beyond")].iterrows():
        yield _headline(model, "that share beyond random heads", row, patched.iloc[:0])
    for _, row in patched[patched["metric"].str.startswith("p-value")].iterrows():
        yield _headline(model, "p-value of that share, over draws", row, patched.iloc[:0])


def _bridge(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    """The untouched error, and that without the bridge at the largest rank that has controls."""
    errors = rows[(rows["analysis"] == "bridge") & rows["metric"].str.startswith("error of copying, QK")]
    for _, row in errors[errors["metric"].str.endswith("untouched")].iterrows():
        yield _headline(model, "error of copying", row, errors.iloc[:0])
    removed = errors[errors["metric"].str.endswith("removed")]
    controls = removed[removed["control"].eq("random")]
    for metric in controls["metric"].unique():
        own = removed[removed["metric"].eq(metric) & removed["control"].isna()]
        for _, row in own.iterrows():
            what = metric.replace("error of copying, QK,", "error of copying, bridge of")
            draws = controls[controls["metric"].eq(metric)]
            mean = draws.head(1).assign(value=draws["value"].mean(), control="random subspaces, mean")
            yield _headline(model, what, row, mean)


def _rules(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    rules = rows[rows["analysis"] == "rules"]
    for task in rules["task"].dropna().unique():
        named = rules[rules["task"] == task]
        whole = named[named["metric"].eq("accuracy")]
        for _, row in whole[whole["control"].isna()].iterrows():
            yield _headline(model, f"{task}: accuracy", row, whole[whole["control"].notna()])
        removed = named[named["metric"].str.fullmatch(r"accuracy, \d+ heads? removed")]
        for _, row in removed[removed["control"].isna()].head(1).iterrows():
            same = removed[removed["metric"].eq(row["metric"]) & removed["control"].notna()]
            yield _headline(model, f"{task}: {row['metric'].replace('head', 'induction head')}", row, same)


def _solutions(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    names = {
        "behaviour: train": "right on what was trained",
        "behaviour: id": "right on unseen keys",
        "behaviour: reasoning": "composes pairs never trained",
        "behaviour: symmetric": "mirrors pairs never trained",
    }
    circuits = [f"mechanism: kept alone · {circuit}" for circuit in ("parallel", "serial", "symmetric")]
    names |= {metric: f"accuracy, {metric.partition(' · ')[2]} circuit kept alone" for metric in circuits}
    names |= {"stable rank of W_Q": "stable rank of the first W_Q"}
    found = rows[rows["analysis"] == "solutions"]
    for metric, what in names.items():
        named = found[found["metric"].eq(metric)]
        for _, row in named[named["control"].isna()].iterrows():
            yield _headline(model, what, row, named[named["control"].notna()])


def _grokking(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    """Generalisation, on object relative clauses too, and trees beside the untrained ones and those that know no words."""
    names = {
        "generalisation: hierarchical rule": ("right where the rules differ", "untrained model"),
        "generalisation: object relative": ("right on object relative clauses", "untrained model"),
        "t-score, closed form": ("t-score of its trees, closed form", "untrained model"),
        "bracket F1 without the root": ("bracket F1 of its trees", "right trees"),
    }
    found = rows[rows["analysis"] == "structural_grokking"]
    for metric, (what, control) in names.items():
        named = found[found["metric"].eq(metric)]
        for _, row in named[named["control"].isna()].iterrows():
            yield _headline(model, what, row, named[named["control"].eq(control).fillna(False)])


def _trees(model: str, rows: pd.DataFrame) -> Iterator[Headline]:
    """At the layers that the report names, gold phrases and F1; at the last layer, a score of the model's own trees."""
    trees = rows[rows["analysis"] == "trees"]
    layers = trees[trees["metric"].str.startswith("layer named for")].set_index("metric")["value"]
    if layers.empty:
        return
    shuffled, phrases = "the same words in random order", int(layers["layer named for phrases"])
    names = {
        "gold phrases above spans with the same first word": ("phrases against same first word", phrases, shuffled),
        "gold phrases above spans with the same last word": ("phrases against same last word", phrases, shuffled),
        "F1, without root": ("F1 of its trees", int(layers["layer named for F1"]), "right-branching trees"),
        "t, uniform_split": ("equation 2 of its trees", int(trees["layer"].max()), "untrained model"),
    }
    for metric, (what, layer, control) in names.items():
        named = trees[trees["metric"].eq(metric) & (trees["layer"].eq(layer) | trees["layer"].isna())]
        controls = named[named["control"].eq(control).fillna(False)]
        mean = controls.head(1).assign(value=controls["value"].mean())
        for _, row in named[named["control"].isna()].iterrows():
            yield _headline(model, f"{what}, layer {layer}", row, mean)


def _headline(model: str, what: str, row: pd.Series, controls: pd.DataFrame) -> Headline:
    control = controls.iloc[0] if len(controls) else None
    return Headline(
        model=model,
        what=what,
        value=float(row["value"]),
        low=_optional(row["low"]),
        high=_optional(row["high"]),
        n=None if pd.isna(row["n"]) else int(row["n"]),
        control_value=None if control is None else float(control["value"]),
        control=None if control is None else str(control["control"]),
        unit=None if pd.isna(row["unit"]) else str(row["unit"]),
    )


def _optional(value: object) -> float | None:
    return None if pd.isna(value) else float(value)  # type: ignore[call-overload, arg-type]
