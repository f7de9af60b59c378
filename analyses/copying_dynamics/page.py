"""The report of a lab: the curves, what came first, and, where pools differ, which of them are remembered."""

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyses.copying import SPLITS
from analyses.copying_dynamics.curves import draw_aligned, draw_curves
from analyses.copying_dynamics.definitions import DEFINITIONS
from analyses.copying_dynamics.progress import MEASURES
from analyses.copying_dynamics.trained import TrainedCopying
from analyses.copying_dynamics.transition import FALLEN, Leads, find_leads
from analyses.labs.lab import Lab
from analyses.labs.trained import group_by_setting, read_trained
from analyses.report.page import Figure, ModelPart, Page, Section, write_page
from analyses.solutions.shares import Share
from analyses.versions import describe_versions
from interp.figures.pools import Pool, pool_diagram
from interp.figures.svg import to_svg
from interp.records.store import Store
from interp.statistics import bootstrap_interval
from tasks.copying import Copying


def write_lab_page(lab: Lab, store: Store, *, command: str, failed: Mapping[str, str] | None = None) -> Path:
    """`report.html` beside the records, on the models that are finished; returns its path."""
    trained = read_trained(lab, store, TrainedCopying)
    sections = tuple(
        section
        for section in (write_curves(trained, failed or {}), write_order(trained), write_pools(trained))
        if section is not None
    )
    page = Page(
        title="When do they come to copy by a rule, and what comes with it?",
        summary=tuple(f"{section.verdict} {section.control}".strip() for section in sections),
        parts=(
            ModelPart(
                name=f"{len(trained)} models" + (f" of {len(lab.cells)}" if len(trained) < len(lab.cells) else ""),
                line=_describe(lab),
                sections=sections,
            ),
        ),
        command=command,
        versions=describe_versions(),
        created=time.strftime("%Y-%m-%d"),
    )
    path = store.folder / "report.html"
    write_page(page, path)
    return path


def write_curves(trained: Sequence[TrainedCopying], failed: Mapping[str, str]) -> Section:
    """How each setting learns."""
    if not trained:
        return Section(anchor="nothing", title="Nothing yet", question="What is done?", verdict="No model is finished.")
    groups = group_by_setting(trained)
    told = []
    for name, models in groups.items():
        share = Share(found=sum(one.error("ood") < FALLEN for one in models), n=len(models))
        errors = [one.error("ood") for one in models]
        told.append(f"{name}: {share} below {FALLEN}, from {min(errors):.3f} to {max(errors):.3f}")
    vocabulary = trained[0].cell.setting.model["d_vocab"]
    return Section(
        anchor="curves",
        title="Learning to copy",
        question="Does copying hold on longer segments of other tokens, and since when?",
        verdict=f"Error out of distribution after training, seeds with their Wilson interval: {'; '.join(told)}.",
        control=f"Chance is an error of {1 - 1 / vocabulary:.3f}.",
        figures=(
            Figure(
                svg=to_svg(draw_curves(trained)),
                caption="Faint: each seed; solid: their mean. A model of one layer has no pair of heads one above the other: its "
                "Z and match are those of the layer with itself.",
            ),
        ),
        table=pd.DataFrame(_tabulate(trained)),
        table_caption="A row is a model: errors on 1,000 fresh sequences of each kind, and where each measure ended.",
        definitions=DEFINITIONS,
        notes=tuple(f"{name} is missing: {error}" for name, error in failed.items()),
    )


def write_order(trained: Sequence[TrainedCopying]) -> Section | None:
    """Whether heads compose before copying is there."""
    deep, flat = [one for one in trained if one.composes], [one for one in trained if not one.composes]
    if not deep:
        return None
    leads = find_leads(
        [one.history for one in deep],
        {"id_error": "error in distribution", "ood_error": "error out of distribution", **MEASURES},
        error="ood_error",
    )
    if not leads.n:
        return None
    table = leads.to_frame()
    led = {str(row["measure"]): row for row in table.to_dict("records")}
    told = " ".join(
        f"{_upper(MEASURES[column])} jumps {_tell_lead(led[MEASURES[column]])}, first in "
        f"{Share(found=led[MEASURES[column]]['leads'], n=leads.n)}."
        for column in ("diagonal", "match_rms")
    )
    return Section(
        anchor="order",
        title="What comes first",
        question="Do the heads compose before copying is there?",
        verdict=f"In {leads.n} of {len(deep)} models the error out of distribution falls below {FALLEN}, at step "
        f"{_tell_fall(leads)}. {told}",
        control=_tell_flat(deep, flat),
        figures=(
            Figure(
                svg=to_svg(draw_aligned(deep)),
                caption=f"Two layers, each seed put so that its error falls below {FALLEN} at step 0; solid: the mean.",
            ),
        ),
        table=table,
        table_caption=f"Steps. Lead: how long before the error had fallen below {FALLEN} the measure was half of its way, mean "
        "with a bootstrap interval over models; leads: in how many it came first.",
        definitions=(),
        notes=(
            "An interval over few seeds is narrow by chance as easily as wide.",
            "That one thing comes before another does not say that it causes it.",
        ),
    )


def write_pools(trained: Sequence[TrainedCopying]) -> Section | None:
    """Errors against the size of the pool."""
    pools = [
        Pool(
            size=one.cell.setting.task.pool_size,
            inside=one.error("id"),
            outside=one.error("ood"),
        )
        for one in trained
        if isinstance(one.cell.setting.task, Copying)
    ]
    if len({pool.size for pool in pools}) < 3:
        return None
    remembered = sorted({pool.size for pool in pools if pool.size and pool.inside < 0.5 < pool.outside})
    composed = sorted({pool.size for pool in pools if pool.size and pool.outside < FALLEN})
    verdict = (
        f"With pools of {', '.join(map(str, remembered))} some model copies the pool's segments and no others. "
        if remembered
        else "No model copies its pool's segments alone. "
    )
    verdict += (
        f"From a pool of {composed[0]} on some model copies by a rule."
        if composed
        else "No model with a pool copies by a rule."
    )
    return Section(
        anchor="pools",
        title="From memory to rule",
        question="How many different segments does it take until they aren't remembered but copied?",
        verdict=verdict,
        control="Without a pool every segment is new.",
        figures=(
            Figure(
                svg=to_svg(pool_diagram(pools)),
                caption="A dot is a model: its error on segments of the pool, and on longer segments of other tokens.",
            ),
        ),
    )


def _tabulate(trained: Sequence[TrainedCopying]) -> list[dict[str, object]]:
    return [
        {
            "setting": one.cell.setting.name,
            "seed": one.cell.seed,
            **{f"error {where}": one.error(split) for split, where in SPLITS.items()},
            **{name: float(one.history[column][-1]) for column, name in MEASURES.items()},
            "seconds": one.record.about["seconds"],
        }
        for one in trained
    ]


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _tell_lead(row: Mapping[Hashable, Any]) -> str:
    return f"{row['lead']:,.0f} steps before that [{row['lead_low']:,.0f}, {row['lead_high']:,.0f}]"


def _tell_fall(leads: Leads) -> str:
    fallen = leads.fallen[np.isfinite(leads.fallen)]
    low, high = bootstrap_interval(fallen)
    interval = "" if math.isnan(float(low)) else f" [{float(low):,.0f}, {float(high):,.0f}]"
    return f"{fallen.mean():,.0f}{interval}, from {fallen.min():,.0f} to {fallen.max():,.0f}"


def _tell_flat(deep: Sequence[TrainedCopying], flat: Sequence[TrainedCopying]) -> str:
    if not flat:
        return ""
    told = []
    for column in ("diagonal", "match_rms"):
        peaks = [max(one.history[column].max() for one in models) for models in (deep, flat)]
        told.append(f"{MEASURES[column]} at most {peaks[1]:.2f} (two layers {peaks[0]:.2f})")
    return f"With one layer no error falls, and over all of training {' and '.join(told)}."


def _describe(lab: Lab) -> str:
    setting = lab.settings[0]
    return (
        f"{len(lab.settings)} settings, {lab.seeds} seeds · attention alone, width {setting.model['d_model']}, "
        f"{setting.model['n_heads']} head a layer, rotary positions · {setting.config.steps:,} steps of "
        f"{setting.config.batch_size} sequences"
    )
