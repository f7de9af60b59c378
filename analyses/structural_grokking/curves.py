"""The pictures of a lab: every seed's curves, what depth does, the measures over training."""

from collections.abc import Sequence

import numpy as np

from analyses.structural_grokking.outcome import HIGH
from analyses.structural_grokking.over_seeds import count_ends
from analyses.structural_grokking.trained import TrainedGrammar
from interp.figures.depth import DepthSeeds, depth_curve
from interp.figures.grokking import SeedCurve, grokking_panels
from interp.figures.measures import Measure, measure_rows
from interp.figures.style import Picture

_SHORTCUT = 4 / 7
"""Generalisation of the relative-clause shortcut in question formation: the share without object relative clauses."""

_CONTROLS = {"left": "left-branching", "right": "right-branching", "uniform split": "random"}
_DRAWN = {
    "t_closed": "t-score, closed form (published code)",
    "t_uniform_split": "t-score, equation 2 (0 is chance)",
    "f1": "bracket F1 without the root",
    "entropy": "attention entropy / log of the number of keys",
    "norm_rms": "root mean square of a weight",
}


def group_by_depth(trained: Sequence[TrainedGrammar]) -> dict[int, list[TrainedGrammar]]:
    """Models of one task by their number of layers."""
    groups: dict[int, list[TrainedGrammar]] = {}
    for one in trained:
        groups.setdefault(one.depth, []).append(one)
    return dict(sorted(groups.items()))


def draw_seeds(trained: Sequence[TrainedGrammar]) -> Picture:
    """Every model's validation and generalisation, with object relative clauses apart."""
    has_shortcut = any("shortcut" in one.curve.shares for one in trained)
    rows = {
        f"{depth} layers": [
            SeedCurve(
                title=f"seed {one.cell.seed}",
                note=one.outcome.rule,
                steps=one.curve.steps,
                lines={
                    "validation": one.curve.validation,
                    "generalisation": one.curve.generalisation,
                    "object relatives": one.curve.object_relative,
                },
                saturated=one.outcome.saturated,
                rose=one.outcome.rose,
            )
            for one in models
        ]
        for depth, models in group_by_depth(trained).items()
    }
    return grokking_panels(
        rows,
        label="accuracy",
        level=("shortcut", _SHORTCUT) if has_shortcut else None,
        marks=("validation 99%", "generalisation 80%"),
    )


def draw_depths(trained: Sequence[TrainedGrammar]) -> Picture:
    """Where the seeds of each depth end."""
    points = []
    for depth, models in group_by_depth(trained).items():
        finals = np.array([one.outcome.final for one in models])
        high, _, _ = count_ends(finals)
        points.append(DepthSeeds(depth=depth, finals=finals, share=(high.value, *high.interval)))
    return depth_curve(points, label="final generalisation", bound=HIGH)


def draw_measures(trained: Sequence[TrainedGrammar]) -> Picture:
    """Trees, attention and weights over training; their first point is the untrained floor."""
    measures = []
    for name, label in _DRAWN.items():
        steps, _ = trained[0].follow(name)
        seeds = {
            f"{depth} layers": np.stack([one.follow(name)[1] for one in models])
            for depth, models in group_by_depth(trained).items()
        }
        controls = {}
        if name == "f1":
            controls = {
                told: trained[0].value("bracket F1 without the root", control=f"{of} trees")
                for of, told in _CONTROLS.items()
            }
        measures.append(Measure(label=label, steps=steps, seeds=seeds, controls=controls))
    return measure_rows(measures)
