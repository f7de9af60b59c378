"""At which layer does the second stage of a circuit begin? Where the last token has to read other positions for the last time.

With a the accuracy, and a(l) that with all edges from the last token to other positions cut in layer l,

    second stage = the greatest layer l >= 1 with a(l) <= 0.5 a(uncut)

and it goes on to the end of the model: what is read behind l completes it, and a layer that reads nothing changes nothing.
Layer 0 is left to the first stage, so in a model of two layers the second stage is always the last. It is the last layer
too where none is needed, and where a(uncut) < 0.5, so that there is no answer whose circuit could be asked for.

>>> left = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])  # the last of three layers is idle
>>> find_second_stage(left, uncut=1.0, thresholds=Thresholds())
1
"""

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float

from interp.errors import InputError
from interp.solutions.cutting import CutRuns
from interp.solutions.thresholds import Thresholds
from interp.statistics import bootstrap_interval

SecondStage = int | Literal["found", "last"]
"""A layer, the one that `find_second_stage` finds, or the last."""


def cut_last_token(runs: CutRuns) -> Float[np.ndarray, "sequence layer"]:
    """1 where the answer is right with every edge from the last token to other positions cut in one layer."""
    before = torch.ones(runs.n_positions, runs.n_positions, dtype=torch.bool).tril(-1)
    edges = runs.batch.scored[:, :, None] & before
    return np.stack([runs.answer([{layer: edges}])[0] for layer in range(runs.n_layers)], axis=1)


def find_second_stage(left: Float[np.ndarray, "sequence layer"], *, uncut: float | int, thresholds: Thresholds) -> int:
    """The layer at which the second stage begins, by what `cut_last_token` leaves of the accuracy `uncut`."""
    needed = np.flatnonzero(left[:, 1:].mean(axis=0) <= thresholds.needed * uncut)
    if uncut < thresholds.answers or not len(needed):
        return left.shape[1] - 1
    return 1 + int(needed[-1])


def choose_second_stage(
    runs: CutRuns, second_stage: SecondStage, *, thresholds: Thresholds
) -> tuple[int, Float[np.ndarray, "sequence layer"] | None]:
    """(the layer, what it was found by): None where it was given or there is only one that it could be."""
    if isinstance(second_stage, int):
        return second_stage, None
    if second_stage == "last" or runs.n_layers == 2:
        return runs.n_layers - 1, None
    left = cut_last_token(runs)
    return find_second_stage(left, uncut=float(runs.answer([{}]).mean()), thresholds=thresholds), left


def tell_second_stage(left: Float[np.ndarray, "sequence layer"], second_stage: int, *, seed: int) -> str:
    """In words: from which layer on, and what is left without it."""
    low, high = bootstrap_interval(left[:, second_stage], seed=seed)
    return (
        f"second stage from layer {second_stage} of {left.shape[1]} on, where cutting all of the last token's edges leaves "
        f"{left[:, second_stage].mean():.2f} [{low:.2f}, {high:.2f}]"
    )


def check_second_stage(model: Any, second_stage: SecondStage) -> None:
    """Raise `InputError` for what is no layer with another before it."""
    last = model.cfg.n_layers - 1
    if second_stage in ("found", "last") or (isinstance(second_stage, int) and 1 <= second_stage <= last):
        return
    raise InputError(
        f"second_stage={second_stage!r} is no layer with another before it; give 1 to {last}, 'found' or 'last'."
    )
