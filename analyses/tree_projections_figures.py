"""The pictures and tables of the tree analysis: numbers by layer, trees over their sentences, brackets by kind."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from analyses.report.page import Figure
from analyses.tree_projections_cells import SCORES, SHUFFLED, UNTRAINED, Condition, Measured, only
from analyses.tree_projections_compare import TreeContrasts
from interp.figures.layers import LayerLine, LayerPanel, layer_panels
from interp.figures.svg import to_svg
from interp.figures.tree import tree_picture
from interp.statistics import bootstrap_interval
from interp.trees.brackets import Parser
from interp.trees.scores import Score
from tasks.grammar import CONSTRUCTIONS

F1 = "F1, without root"
GOLD = "t of the gold tree, uniform_split"
BASELINES: dict[Parser, str] = {
    "left": "left-branching trees",
    "right": "right-branching trees",
    "uniform_split": "random trees by splits",
    "catalan": "random trees, each alike",
}
"""What trees that know nothing of the words are called in the rows, by parser."""
SCORE_NAMES: dict[Score, str] = {
    "uniform_split": "equation 2, uniform splits",
    "catalan": "equation 2, every tree alike",
    "closed": "published code, in closed form",
    "sampled": "published code, sampled",
}
_MODEL, _UNTRAINED = "this model", "untrained models, least to largest"
_SHORT: dict[Parser, str] = {"left": "left-branching", "right": "right-branching", "uniform_split": "random"}
_MOST_DRAWN, _SHORTEST_DRAWN, _LONGEST_DRAWN = 4, 6, 10


def find_row(frame: pd.DataFrame, metric: str, control: str | None = None, *, layer: int | None = None) -> pd.Series:
    """The row of a metric, of the model or of a control, at a layer where it has one."""
    rows = _select(frame, metric, control)
    return (rows if layer is None else rows[rows["layer"].eq(layer)]).iloc[0]


def find_by_layer(frame: pd.DataFrame, metric: str, control: str | None = None) -> pd.DataFrame:
    """Value, low and high by layer."""
    rows = _select(frame, metric, control)
    rows = rows[rows["layer"].notna()]
    return rows.set_index(rows["layer"].astype(int))[["value", "low", "high"]].astype(float).sort_index()


def find_untrained(frame: pd.DataFrame, metric: str) -> Float[np.ndarray, "draw layer"]:
    """The value of every untrained model at every layer."""
    rows = _select(frame, metric, UNTRAINED)
    table = rows.pivot_table(index="note", columns="layer", values="value")
    return table.to_numpy(dtype=float)


def draw_layers(measured: Measured, contrasts: TreeContrasts, frame: pd.DataFrame, *, verdict: str) -> Figure:
    """Gold phrases and the gold tree in the model's charts, F1 and scores of its own trees, by layer."""
    levels = {_SHORT[parser]: find_row(frame, F1, BASELINES[parser])["value"] for parser in ("right", "left")}
    levels["random trees"] = find_row(frame, F1, BASELINES["uniform_split"])["value"]
    panels = [
        LayerPanel(
            title="phrases against same first word",
            lines=_draw_lines(measured, lambda one: one.same_start),
            marked=contrasts.phrase_layer,
        ),
        LayerPanel(
            title="phrases against same last word",
            lines=_draw_lines(measured, lambda one: one.same_end),
            marked=contrasts.phrase_layer,
        ),
        LayerPanel(title="gold tree, equation 2", lines=_draw_lines(measured, lambda one: one.gold)),
        LayerPanel(
            title="gold brackets its own trees find (F1)",
            lines=_draw_f1(measured, frame),
            levels={name: float(value) for name, value in levels.items()},
            marked=contrasts.f1_beyond_right.best,
        ),
        LayerPanel(
            title="its own trees, equation 2", lines=_draw_lines(measured, lambda one: one.scores["uniform_split"])
        ),
        LayerPanel(
            title="its own trees, published code", lines=_draw_lines(measured, lambda one: one.scores["sampled"])
        ),
    ]
    untrained = (
        f" Grey: {len(measured.untrained)} untrained models of this shape, from the least mean to the largest."
        if measured.untrained
        else ""
    )
    return Figure(
        svg=to_svg(layer_panels(panels, layers=measured.layers)),
        caption=f"Means over {len(measured.sentences)} sentences with their 95% intervals, by layer.{untrained} Words "
        "in random order keep their sentence's gold tree. F1 is without the root. Dotted uprights: layers named in the text.",
        verdict=verdict,
    )


def draw_trees(measured: Measured, layer: int) -> tuple[Figure, ...]:
    """The first sentence of each construction that is short enough to be read."""
    figures: list[Figure] = []
    for construction in CONSTRUCTIONS:
        place = next(
            (
                place
                for place, one in enumerate(measured.sentences)
                if one.construction == construction and _SHORTEST_DRAWN <= len(one.words) <= _LONGEST_DRAWN
            ),
            None,
        )
        if place is None or len(figures) == _MOST_DRAWN:
            continue
        one = measured.sentences[place]
        picture = tree_picture(one.words, measured.model.trees[layer][place], below=one.tree, names=("model", "gold"))
        figures.append(
            Figure(
                svg=to_svg(picture),
                caption=f"Subject with {_name(construction)}, layer {layer}: the first such sentence of {_SHORTEST_DRAWN} to "
                f"{_LONGEST_DRAWN} words.",
            )
        )
    return tuple(figures)


def tabulate_layers(measured: Measured, contrasts: TreeContrasts, frame: pd.DataFrame) -> pd.DataFrame:
    """One row a layer, with what the verdict rests on."""
    own, model, mixed = find_by_layer(frame, F1), measured.model, measured.shuffled
    return pd.DataFrame(
        {
            "layer": list(measured.layers),
            "same first word": model.same_start.mean(axis=1),
            "first, random order": mixed.same_start.mean(axis=1),
            "p (first)": contrasts.start_beyond_shuffled.p_value,
            "same last word": model.same_end.mean(axis=1),
            "last, random order": mixed.same_end.mean(axis=1),
            "p (last)": contrasts.end_beyond_shuffled.p_value,
            "F1": own["value"].to_numpy(),
            "F1 low": own["low"].to_numpy(),
            "F1 high": own["high"].to_numpy(),
            "F1 − right": contrasts.f1_beyond_right.value,
            "p (right)": contrasts.f1_beyond_right.p_value,
        }
    )


def tabulate_scores(measured: Measured, frame: pd.DataFrame) -> pd.DataFrame:
    """One row a score, unit and layer."""
    kinds = [("gold tree, equation 2", "sentence", GOLD)]
    kinds += [
        (f"own tree, {SCORE_NAMES[score]}", per, f"{prefix}, {score}")
        for score in SCORES
        for per, prefix in (("sentence", "t"), ("node", "t a node"))
    ]
    parts = []
    for name, per, metric in kinds:
        part = find_by_layer(frame, metric).reset_index(names="layer")
        part.insert(0, "score", name)
        part.insert(1, "per", per)
        part["words in random order"] = find_by_layer(frame, metric, SHUFFLED)["value"].to_numpy()
        if measured.untrained:
            drawn = find_untrained(frame, metric)
            part["untrained"] = drawn.mean(axis=0)
            part["least draw"], part["largest draw"] = drawn.min(axis=0), drawn.max(axis=0)
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def tabulate_kinds(measured: Measured, frame: pd.DataFrame, layer: int) -> pd.DataFrame:
    """Gold brackets found at a layer: of all, of each constituent type, and of each construction."""
    scored = measured.brackets[layer]
    own = only(scored, "projected").to_frame().set_index("group")
    shares = scored.hits.sum(axis=2) / scored.totals.sum(axis=1)[:, None]  # [group, parser]
    rows: list[dict[str, Any]] = []
    for place, group in enumerate(scored.groups):
        rows.append(
            {
                "brackets": group,
                "found": own["found"].iloc[place],
                "found low": own["low"].iloc[place],
                "found high": own["high"].iloc[place],
                "words in random order": find_row(frame, name_metric(group), SHUFFLED, layer=layer)["value"],
                **{name: shares[place, scored.parsers.index(parser)] for parser, name in _SHORT.items()},
                "n": int(scored.totals[place].sum()),
            }
        )
    without = scored.groups.index("without root")
    for construction in CONSTRUCTIONS:
        places = [place for place, one in enumerate(measured.sentences) if one.construction == construction]
        total = scored.totals[without, places].sum()
        if total:
            found = dict(zip(scored.parsers, scored.hits[without][:, places].sum(axis=1) / total, strict=True))
            rows.append(
                {
                    "brackets": f"subject with {_name(construction)}",
                    "found": found["projected"],
                    **{name: found[parser] for parser, name in _SHORT.items()},
                    "n": int(total),
                }
            )
    return pd.DataFrame(rows)


def name_metric(group: str) -> str:
    """What the rows of a group of brackets are called."""
    return f"F1, {group}" if group in ("with root", "without root") else f"gold brackets found, {group}"


def _draw_lines(
    measured: Measured, pick: Callable[[Condition], Float[np.ndarray, "layer sentence"]]
) -> tuple[LayerLine, ...]:
    own = pick(measured.model)
    low, high = bootstrap_interval(own.T)
    lines = [
        LayerLine(name=_MODEL, values=own.mean(axis=1), low=low, high=high),
        LayerLine(name=SHUFFLED, values=pick(measured.shuffled).mean(axis=1)),
    ]
    if measured.untrained:
        lines.append(_draw_band(np.stack([pick(one).mean(axis=1) for one in measured.untrained])))
    return tuple(lines)


def _draw_f1(measured: Measured, frame: pd.DataFrame) -> tuple[LayerLine, ...]:
    own = find_by_layer(frame, F1)
    lines = [
        LayerLine(name=_MODEL, **{name.replace("value", "values"): own[name].to_numpy() for name in own.columns}),
        LayerLine(name=SHUFFLED, values=find_by_layer(frame, F1, SHUFFLED)["value"].to_numpy()),
    ]
    if measured.untrained:
        lines.append(_draw_band(find_untrained(frame, F1)))
    return tuple(lines)


def _draw_band(drawn: Float[np.ndarray, "draw layer"]) -> LayerLine:
    return LayerLine(name=_UNTRAINED, values=drawn.mean(axis=0), low=drawn.min(axis=0), high=drawn.max(axis=0))


def _select(frame: pd.DataFrame, metric: str, control: str | None) -> pd.DataFrame:
    rows = frame[frame["metric"].eq(metric)]
    return rows[rows["control"].isna()] if control is None else rows[rows["control"].eq(control).fillna(False)]


def _name(construction: str) -> str:
    if construction == "plain":
        return "nothing behind its noun"
    return f"{'an' if construction[0] in 'aeiou' else 'a'} {construction.replace('_', ' ')}"
