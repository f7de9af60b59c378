"""An example of each behaviour: the flow of information between roles beside the states of the last token."""

from collections.abc import Sequence

import numpy as np

from analyses.report.page import Figure, Section
from analyses.solutions.definitions import EVIDENCE
from analyses.solutions.evidence import COSINE, SHUFFLED
from analyses.solutions.finished import KINDS, Finished
from analyses.solutions.model_section import STATES_CAPTION, tell_flow_caption, tell_scores
from analyses.solutions.pictures import draw_flow, draw_states, find_solid
from interp.figures.svg import to_svg

_OWN_SCORE = {
    "reasoning": ("reasoning", "by the pairs it composes"),
    "symmetric": ("symmetric", "by the pairs it mirrors"),
    "memorising": ("train", "by its answers on what it was trained on"),
    "none": ("reasoning", "by the pairs it composes"),
}
"""The score by which the models of a behaviour are ordered, and how that is said."""

_NAMES = {"none": "no behaviour"}
_MOST_EDGES = 3


def write_phases(finished: Sequence[Finished]) -> Section | None:
    """One model for each behaviour that was found; None where no cell has the arrays for its pictures."""
    chosen = {
        kind: choose_example([one for one in finished if one.behaviour == kind and "flow" in one.record.about], kind)
        for kind in KINDS
    }
    found = {kind: choice for kind, choice in chosen.items() if choice is not None}
    if not found:
        return None
    told = "; ".join(f"{_name(kind)}, {_tell_flow(one, n=1)}" for kind, (one, _) in found.items())
    control = np.mean([np.mean([cost for *_, cost in find_edges(one)] or [0.0]) for one, _ in found.values()])
    return Section(
        anchor="phases",
        title="An example of each",
        question="What does the answer of a typical model of each behaviour flow through, and what does its last state hold?",
        verdict=f"The edge without which most of the answer is lost, in an example: {told}.",
        control=f"Random edges of the same layers that carry as much attention cost {control:.2f} on average.",
        definitions=EVIDENCE,
        within=tuple(_write_phase(kind, one, how) for kind, (one, how) in found.items()),
        notes=("An example shows one model and no share; every model has these pictures in its own section below.",),
    )


def choose_example(models: Sequence[Finished], kind: str) -> tuple[Finished, str] | None:
    """The median model of a behaviour by that behaviour's score, of those whose label is settled, and how it was chosen."""
    if not models:
        return None
    settled = [one for one in models if one.record.about["settled"]]
    candidates = settled or list(models)
    score, by = _OWN_SCORE[kind]
    ordered = sorted(candidates, key=lambda one: one.record.about["scores"].get(score, {}).get("value", 0.0))
    kind_of = f"{'settled ' if settled else ''}model{'s' if len(ordered) > 1 else ''}"
    how = f"the median of {len(ordered)} {kind_of} {by}" if len(ordered) > 1 else f"the only {kind_of}"
    return ordered[(len(ordered) - 1) // 2], how


def find_edges(one: Finished) -> list[tuple[str, float, float]]:
    """The edges whose cut costs most and more than every control: (edge, accuracy lost, that of random edges)."""
    arrays, roles = one.record.arrays, one.record.about["flow"]["roles"]
    lost = np.where(find_solid(one.record), arrays["flow/lost"], 0.0)
    control = arrays["flow/control"].mean(axis=0)
    order = np.argsort(-lost, axis=None, kind="stable")[:_MOST_EDGES]
    places = [tuple(map(int, np.unravel_index(flat, lost.shape))) for flat in order]
    return [
        (f"{roles[key]} → {roles[query]} in layer {layer}", float(lost[layer, query, key]), float(control[layer, query, key]))
        for layer, query, key in places
        if lost[layer, query, key] > 0
    ]  # fmt: skip


def _write_phase(kind: str, one: Finished, how: str) -> Section:
    flow, states = draw_flow(one.record), draw_states(one.record)
    figures = [Figure(svg=to_svg(flow), caption=tell_flow_caption(one.record))] if flow is not None else []
    figures += [Figure(svg=to_svg(states), caption=STATES_CAPTION)] if states is not None else []
    return Section(
        anchor=f"phase-{kind}",
        title=f"{_name(kind).capitalize()}: {one.cell.setting.name}, seed {one.cell.seed}",
        question="",
        verdict=f"{how[0].upper()}{how[1:]}. {tell_scores(one.record.about['scores'])} Mechanism: {one.mechanism}. "
        f"Most is lost without {_tell_flow(one, n=_MOST_EDGES)}.{_tell_cosine(one)}",
        control=_tell_control(one),
        figures=tuple(figures),
    )


def _name(kind: str) -> str:
    return _NAMES.get(kind, kind)


def _tell_flow(one: Finished, *, n: int) -> str:
    edges = find_edges(one)[:n]
    return ", ".join(f"{edge} ({lost:.2f})" for edge, lost, _ in edges) or "no single edge more than random ones"


def _tell_cosine(one: Finished) -> str:
    value = one.number(COSINE)
    return "" if np.isnan(value) else f" Cosine of states at equal minus at different targets: {_write(value)}."


def _tell_control(one: Finished) -> str:
    costs = [cost for *_, cost in find_edges(one)]
    told = f"Random edges of the same attention cost {', '.join(map(_write, costs))}." if costs else ""
    shuffled = one.number(COSINE, control=SHUFFLED)
    return (
        told
        if np.isnan(shuffled)
        else f"{told} With shuffled targets the cosine differs by {_write(shuffled)}.".strip()
    )


def _write(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "−")
