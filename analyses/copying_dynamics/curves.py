"""The curves of training: setting by setting, and with every seed put to where its error fell."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from analyses.copying_dynamics.trained import TrainedCopying
from analyses.copying_dynamics.transition import find_fall
from analyses.labs.trained import group_by_setting
from interp.figures.seeds import SeedPanel, seed_panels
from interp.figures.style import Picture

_DRAWN = {
    "ood_error": "error out of distribution",
    "induction": "induction attention",
    "diagonal": "Z / √d_head",
    "match_rms": "subspace match",
}


def draw_curves(trained: Sequence[TrainedCopying]) -> Picture:
    """A panel a setting: every seed, and their mean."""
    panels = [
        SeedPanel(
            title=name,
            steps=models[0].history["step"],
            lines={line: np.stack([one.history[column] for one in models]) for column, line in _DRAWN.items()},
        )
        for name, models in group_by_setting(trained).items()
    ]
    return seed_panels(panels, label="share, or score")


def draw_aligned(trained: Sequence[TrainedCopying]) -> Picture:
    """The curves of the models with a transition, counted from the step at which the error had fallen."""
    falling = [(one.history, find_fall(one.history["step"], one.history["ood_error"])) for one in trained]
    falling = [(history, fallen) for history, fallen in falling if np.isfinite(fallen)]
    common = reduce(np.intersect1d, [history["step"] - fallen for history, fallen in falling])
    panel = SeedPanel(
        title="steps from the fall of the error",
        steps=common,
        lines={
            line: np.stack([history[column][np.isin(history["step"] - fallen, common)] for history, fallen in falling])
            for column, line in _DRAWN.items()
        },
    )
    return seed_panels([panel], label="share, or score")
