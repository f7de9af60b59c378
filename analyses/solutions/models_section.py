"""Every model of a grid: a row in a table, and below its setting a section of its own that is folded until it's asked for."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from analyses.report.page import Section
from analyses.solutions.definitions import BEHAVIOUR
from analyses.solutions.finished import KINDS, Finished, group_settings, say
from analyses.solutions.model_section import write_model
from analyses.solutions.pictures import RANK
from analyses.solutions.shares import Share

_SCORES = {
    "train": "trained",
    "id": "unseen keys",
    "altered": "altered",
    "reasoning": "reasoning",
    "symmetric": "symmetric",
    "commutes": "commutes",
}


def write_models(finished: Sequence[Finished]) -> Section:
    """Every model: a row each, and a section each that is folded below its setting."""
    rows = []
    for one in finished:
        about, scores = one.record.about, one.record.about["scores"]
        row: dict[str, object] = {"model": one.link, "behaviour": one.behaviour}
        row |= {"settled": say(about["settled"]), "mechanism": one.mechanism, "agrees": say(about["agrees"])}
        row |= {name: scores.get(score, {}).get("value", float("nan")) for score, name in _SCORES.items()}
        row |= {RANK: one.number(RANK), "seconds": one.record.about["seconds"]}
        row |= {"commonest answer": f"{about['copied_share']:.0%} {about['copies'] or 'no pair'}"}
        rows.append(row)
    engines = Counter(str(one.record.about["engine"]) for one in finished)
    n = finished[0].cell.n
    return Section(
        anchor="models",
        title="Every model",
        question="What did each seed of each setting find?",
        verdict=f"{len(finished)} models, {_tell_engines(engines)}.",
        table=pd.DataFrame(rows),
        table_caption=f"A row is a model, and leads to its section; shares of {n} sequences a score.",
        definitions=BEHAVIOUR,
        notes=(
            "Commonest answer: what a model answers most on the pairs never trained, and whose shift that is.",
            "Each model is in the folder `models/`; `interp report` on one of them gives it a page of its own.",
        ),
        within=tuple(_write_setting(name, models) for name, models in group_settings(finished).items()),
    )


def _write_setting(name: str, models: Sequence[Finished]) -> Section:
    counts = Counter(one.behaviour for one in models)
    said = (f"{kind} in {Share(found=counts[kind], n=len(models))}" for kind in KINDS if counts[kind])
    return Section(
        anchor=models[0].setting_anchor,
        title=name,
        question="",
        verdict=f"{', '.join(said).capitalize()}.",
        folded=tuple(write_model(one.record, anchor=one.anchor, title=_title(one)) for one in models),
    )


def _title(one: Finished) -> str:
    behaviour = "no behaviour" if one.behaviour == "none" else one.behaviour
    return f"Seed {one.cell.seed}: {behaviour}, {one.mechanism if one.mechanism != 'none' else 'no'} mechanism"


def _tell_engines(engines: Mapping[str, int]) -> str:
    words = {"separate": "each trained by itself", "stacked": "trained in one computation with others"}
    if len(engines) == 1:
        return words[next(iter(engines))]
    return " and ".join(f"{count} {words[engine]}" for engine, count in engines.items())
