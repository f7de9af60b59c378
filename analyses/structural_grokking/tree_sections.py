"""What trees, attention and weights do over training, and whether they go along with generalisation."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.report.page import Figure, Section
from analyses.structural_grokking.curves import draw_measures, group_by_depth
from analyses.structural_grokking.definitions import TREES
from analyses.structural_grokking.over_seeds import correlate
from analyses.structural_grokking.progress import MEASURES
from analyses.structural_grokking.trained import TrainedGrammar
from interp.figures.svg import to_svg
from interp.figures.tree import tree_picture
from interp.statistics import bootstrap_interval
from tasks.trees import Tree, count_leaves, list_spans

_CLOSED, _F1 = MEASURES["t_closed"], MEASURES["f1"]
_SHORT = {
    "t_closed": "t, closed",
    "t_uniform_split": "t, eq. 2",
    "t_catalan": "t, eq. 2, all trees alike",
    "f1": "F1",
    "entropy": "entropy",
    "entropy_published": "entropy, published",
    "norm_rms": "rms",
    "norm_per_layer": "norm / layers",
}


def write_measures(trained: Sequence[TrainedGrammar]) -> Section:
    """t-scores, F1, attention and weights over training, beside the untrained floor, and over seeds beside generalisation."""
    told, related = [], []
    for depth, models in group_by_depth(trained).items():
        t, floor = ([one.value(_CLOSED) for one in models], [one.untrained(_CLOSED) for one in models])
        f1 = [one.value(_F1) for one in models]
        told.append(f"{depth} layers {_tell(t)} (untrained {_tell(floor)}), F1 {_tell(f1)}")
        r = correlate(np.array(t), np.array([one.outcome.final for one in models]))
        related.append(f"{depth} layers {r}")
    right = trained[0].value(_F1, control="right trees")
    random = trained[0].value(_F1, control="uniform split trees")
    n_seeds = max(len(models) for models in group_by_depth(trained).values())
    return Section(
        anchor="measures",
        title="Do they compute along the tree?",
        question="Do projected trees, attention and weights change with generalisation?",
        verdict=f"t-score (closed form) after training: {'; '.join(told)}. Over seeds its correlation with final generalisation: "
        f"{'; '.join(related)}.",
        control=f"F1 of right-branching trees is {right:.2f}, of random ones {random:.2f}.",
        figures=(
            Figure(
                svg=to_svg(draw_measures(trained)),
                caption="Faint: each seed; solid: their mean. The first point of a line is the untrained floor, which for the "
                "closed form is above 0. Dashed: trees that know no words.",
            ),
        ),
        table=pd.DataFrame([_tabulate(one) for one in trained]),
        table_caption="A row is a model: after training, and before it in brackets. Trees are of the last layer, on sources of "
        "validation.",
        definitions=TREES,
        notes=(
            f"A correlation over {n_seeds} seeds has a wide interval, and goes along with many causes.",
            "‖θ‖ / layers, the published norm, is largest for shallow models by construction; compare depths by the rms.",
        ),
    )


def write_trees(trained: Sequence[TrainedGrammar]) -> Section:
    """Some trees of the model that generalises most, before and after training."""
    one = max(trained, key=lambda one: one.outcome.final)
    drawn = one.trees
    gold = [_list_brackets(each["gold"]) for each in drawn]
    found = {
        when: sum(len(own & _list_brackets(each[when])) for own, each in zip(gold, drawn, strict=True))
        for when in ("before", "after")
    }
    return Section(
        anchor="trees",
        title="Some trees",
        question=f"What do they look like in the model that generalises most, with {one.depth} layers and seed {one.cell.seed}?",
        verdict=f"Of the {sum(map(len, gold))} gold brackets of {len(drawn)} sentences, roots aside, {found['after']} are in the "
        f"trees after training.",
        control=f"Before training {found['before']} are.",
        figures=tuple(
            Figure(
                svg=to_svg(tree_picture(each["words"], each[when], below=each["gold"], names=(when, "gold"))),
                caption=f"{when.capitalize()} training: the projected tree above, the gold one below.",
            )
            for each in drawn
            for when in ("before", "after")
        ),
    )


def _list_brackets(tree: Tree) -> set[tuple[int, int]]:
    return {span for span in list_spans(tree) if span != (0, count_leaves(tree))}


def _tell(values: Sequence[float]) -> str:
    low, high = bootstrap_interval(np.array(values))
    mean = f"{np.mean(values):.2f}"
    return mean if np.isnan(low) else f"{mean} [{float(low):.2f}, {float(high):.2f}]"


def _tabulate(one: TrainedGrammar) -> dict[str, object]:
    row: dict[str, object] = {"layers": one.depth, "seed": one.cell.seed, "end": one.outcome.final}
    for column, name in _SHORT.items():
        _, values = one.follow(column)
        row[name] = f"{values[-1]:.2f} ({values[0]:.2f})"
    return row
