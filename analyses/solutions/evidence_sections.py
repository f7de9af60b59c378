"""Why the models of a grid answer as they do: circuits, weights, and training."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyses.report.page import Figure, Section
from analyses.report.table import Link
from analyses.solutions.behaviour_section import GAMMA
from analyses.solutions.cells import RANDOM_EDGES
from analyses.solutions.definitions import COMPLEXITY, MECHANISM
from analyses.solutions.finished import KINDS, Finished, find_lines, find_metrics, group_settings, say
from analyses.solutions.pictures import RANK, draw_ranks, find_random, take_curves, take_ranks
from analyses.solutions.shares import Share
from interp.figures.seeds import seed_panels
from interp.figures.svg import to_svg
from interp.figures.transition import Transition, transition

_MOST_LINES = 6
_SHORT = {"none": "without a behaviour"}


def write_mechanism(finished: Sequence[Finished]) -> Section:
    """By which circuit the models answer."""
    labelled = [one for one in finished if one.record.about["agrees"] is not None]
    agreeing = Share(found=sum(bool(one.record.about["agrees"]) for one in labelled), n=len(labelled))
    pairs = Counter((one.behaviour, one.mechanism) for one in finished)
    told = "; ".join(
        f"{kind}: {', '.join(f'{mechanism} {count}' for (of, mechanism), count in pairs.most_common() if of == kind)}"
        for kind in KINDS
        if any(of == kind for of, _ in pairs)
    )
    fits = (
        f"Where a behaviour was found, its usual mechanism was too in {agreeing}."
        if labelled
        else "No model shows one of the behaviours, so no mechanism can fit one."
    )
    table = _tabulate_mechanism(finished)
    controls = [
        one.number(metric, control=RANDOM_EDGES)
        for one in finished
        for metric in find_metrics(one.record.frame, "mechanism: kept alone")
    ]
    return Section(
        anchor="mechanism",
        title="By which circuit",
        question="Which edges between key, anchors and the last token break the answer when cut, and suffice when kept alone?",
        verdict=f"{fits} Mechanisms by behaviour: {told}.",
        control=f"With as many random edges kept in place of a circuit, accuracy is {np.nanmean(controls):.2f} on average, "
        f"at most {np.nanmax(controls):.2f} in a model."
        if controls
        else "",
        table=table,
        table_caption="A row is a model: accuracy on trained sequences with all edges, a circuit kept alone, edges cut.",
        notes=(
            "Early: in all layers before the last one; late: in the last layer.",
            "Edges are cut before the softmax; both kinds of cut: whether cutting after it names the same mechanism.",
        ),
        definitions=MECHANISM,
    )


def _tabulate_mechanism(finished: Sequence[Finished]) -> pd.DataFrame:
    frame = finished[0].record.frame
    metrics = [
        *find_metrics(frame, "mechanism: uncut", "mechanism: kept alone"),
        *find_metrics(frame, "mechanism: cut"),
    ]
    rows = []
    for one in finished:
        row: dict[str, object] = {"model": one.link, "behaviour": one.behaviour}
        row |= {"mechanism": one.mechanism, "agrees": say(one.record.about["agrees"])}
        row |= {"both kinds of cut": say(one.record.about.get("cuts_agree"))}
        row |= {_shorten(metric): one.number(metric) for metric in metrics}
        rows.append(row)
    return pd.DataFrame(rows)


def _shorten(metric: str) -> str:
    """`mechanism: cut · key → last, last layer` as `cut late: key → last`."""
    kind, _, edges = metric.removeprefix("mechanism: ").partition(" · ")
    for where, short in ((", before the last layer", " early"), (", last layer", " late")):
        if edges.endswith(where):
            kind, edges = kind + short, edges.removesuffix(where)
    return f"{kind.replace('kept alone', 'alone')}: {edges}" if edges else kind


def write_weights(finished: Sequence[Finished]) -> Section | None:
    """How complex their weights are, beside random matrices; None where there is no control or too many lines to draw."""
    random = find_random(finished[0].record)
    lines = [
        Transition(
            label=name,
            x=np.array([one.cell.gamma for one in models]),
            values=np.array([one.number(RANK) for one in models]),
        )
        for name, models in find_lines(finished).items()
    ]
    rows = [
        {
            "setting": Link(text=name, anchor=models[0].setting_anchor),
            **{
                what: float(np.mean([one.number(what) for one in models]))
                for what in find_metrics(finished[0].record.frame, "stable rank", "directions")
            },
            "models": len(models),
        }
        for name, models in group_settings(finished).items()
    ]
    if random is None or len(lines) > _MOST_LINES:
        return None
    by_kind = {
        kind: [one.number(RANK) for one in finished if one.behaviour == kind]
        for kind in KINDS
        if any(one.behaviour == kind for one in finished)
    }
    told = ", ".join(
        f"{np.mean(values):.1f} ({len(values)} {_SHORT.get(kind, kind)})" for kind, values in by_kind.items()
    )
    low, mean, high = random
    return Section(
        anchor="weights",
        title="How complex the weights are",
        question="How many directions does the first layer use?",
        verdict=f"The stable rank of the first layer's W_Q is on average {told}.",
        control=f"In random matrices of its shape it is {mean:.1f} [{low:.1f}, {high:.1f}].",
        figures=(
            Figure(
                svg=to_svg(transition(lines, label=RANK, x_label=GAMMA, control=mean, control_interval=(low, high))),
                caption="A dot is a model, a line goes through the mean of the seeds. Dashed with its band: the mean and the "
                "central 95% of random matrices.",
            ),
        ),
        table=pd.DataFrame(rows),
        table_caption="Means over the models of a setting, first layer.",
        definitions=COMPLEXITY,
    )


def write_training(finished: Sequence[Finished]) -> Section:
    """When they learn what, and when their weights get simple."""
    groups = {name: [one.record for one in models] for name, models in group_settings(finished).items()}
    curves = [take_curves(records, title=name) for name, records in groups.items()]
    ranks = [panel for name, records in groups.items() if (panel := take_ranks(records, title=name)) is not None]
    figures = [
        Figure(
            svg=to_svg(seed_panels(curves, label="share of answers")),
            caption="Faint: each seed; solid: their mean. Unseen keys: right answers on trained pairs; reasoning and "
            "symmetric: answers by that rule on pairs never trained.",
        )
    ]
    if ranks:
        picture = draw_ranks(ranks, finished[0].record)
        caption = (
            "Stable rank of the first layer's W_Q over training, in the same order. Faint: each seed; solid: their mean. "
            "Dashed with its band: the mean and the central 95% of random matrices."
        )
        figures.append(Figure(svg=to_svg(picture), caption=caption, verdict=_tell_ranks(finished)))
    return Section(
        anchor="training",
        title="When they learn it",
        question="Which comes first: unseen keys, or pairs that were never trained? When do the weights get simple?",
        verdict=_tell_first(finished),
        figures=tuple(figures),
    )


def _tell_ranks(finished: Sequence[Finished]) -> str:
    """From which stable rank to which, on average, by behaviour."""
    told = []
    for kind in KINDS:
        known = [one.record.arrays["rank"] for one in finished if one.behaviour == kind and "rank" in one.record.arrays]
        if known:
            first, last = (np.mean([ranks[end] for ranks in known]) for end in (0, -1))
            told.append(f"from {first:.1f} to {last:.1f} ({len(known)} {_SHORT.get(kind, kind)})")
    return f"The stable rank goes {', '.join(told)}."


def _tell_first(finished: Sequence[Finished]) -> str:
    """The step at which half of the answers are right, for models that get there."""

    def reach(one: Finished, column: str) -> float:
        arrays = one.record.arrays
        above = np.flatnonzero(arrays.get(f"history_{column}", np.zeros(1)) >= 0.5)
        return float(arrays["history_step"][above[0]]) if len(above) else float("nan")

    both = np.array([[reach(one, "id_accuracy"), reach(one, "held_out_reasoning")] for one in finished])
    both = both[~np.isnan(both).any(axis=1)]
    if not len(both):
        return "No model reaches half of the composed answers on pairs never trained."
    first = Share(found=int((both[:, 0] < both[:, 1]).sum()), n=len(both))
    return (
        f"{len(both)} of {len(finished)} models come to compose half of the time or more on the pairs never trained, at step "
        f"{np.median(both[:, 1]):,.0f} (median); half of their unseen keys were right at step {np.median(both[:, 0]):,.0f}. "
        f"The keys came first in {first}."
    )
