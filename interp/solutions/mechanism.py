"""By which circuit a model answers a composite task: what breaks when it is cut, and what suffices when it is kept alone.

Every cut of edges between roles is compared with random edges of the same layers that carry the same attention, every
circuit kept alone with as many random edges (see `cutting`); what is sufficient and needed by that, and the circuit that
it names, is in `mechanism_result`.

The circuits have two stages, the second of which begins where the last token has to read for the last time (see `stages`): with
two layers in the last, in a deeper model perhaps earlier. The names of the cuts are those of two layers.

`followed` is a test of its own: the state of the last token after each layer is replaced by that of a sequence with the
same key and noise but other anchors. Where the anchors are brought to the last token first, the answer follows early.
The circuits are those of Zhang et al. 2024 (arXiv 2405.05409, figure 3) and the serial one.

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> measure_mechanism(model, dropped_pairs(), n=20, n_controls=2).label
'none'
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from interp.errors import InputError
from interp.solutions.circuits import (
    CIRCUITS,
    CutMode,
    check_circuit_task,
    check_fits,
    leave_last_free,
    spread_circuit,
    spread_complement,
)
from interp.solutions.cutting import CutRuns, Edges
from interp.solutions.following import follow_anchors
from interp.solutions.mechanism_result import CUTS, Mechanism
from interp.solutions.stages import SecondStage, check_second_stage, choose_second_stage
from interp.solutions.thresholds import Thresholds
from tasks.anchor.composite import Composite


@torch.no_grad()
def measure_mechanism(
    model: Any,
    task: Composite,
    *,
    split: str = "train",
    mode: CutMode = "mask",
    second_stage: SecondStage = "found",
    n: int = 500,
    n_controls: int = 20,
    thresholds: Thresholds | None = None,
    seed: int = 0,
) -> Mechanism:
    """Cut and keep the circuits on sequences of `split` whose last token is none of the anchors, at most `n` of them.

    `second_stage` is the layer at which the circuits' second stage begins, by its number, `last`, or found by the rule of
    `interp.solutions.stages`, which with two layers is the last.

    `followed` compares trained pairs with each other, on keys of the training and noise of its own.

    Raises `InputError` for a model of one layer, in which no state can be read that another layer wrote, a model too
    small for the task, a task of other than two anchors or with the key behind them, a mode other than `mask` and
    `zero`, a second stage that is no layer with another before it, and no control.
    """
    check_circuit_task(model, task, mode=mode)
    check_fits(model, task)
    check_second_stage(model, second_stage)
    if n_controls < 1:
        raise InputError(f"n_controls={n_controls} leaves an effect without anything to compare; give at least 1.")
    thresholds = thresholds or Thresholds()
    batch = leave_last_free(task, split=split, n=n, seed=seed)
    runs = CutRuns(model, batch, mode=mode, n_controls=n_controls, seed=seed)
    begin, without_last = choose_second_stage(runs, second_stage, thresholds=thresholds)
    cuts = {
        name: spread_circuit(model, batch, circuit, second_stage=begin)
        for name, circuit in {**CUTS, **CIRCUITS}.items()
    }
    keeps = {name: spread_complement(model, batch, circuit, second_stage=begin) for name, circuit in CIRCUITS.items()}
    cut, cut_control, control_mass, kept, kept_control = {}, {}, {}, {}, {}
    for name, edges in cuts.items():
        draws = _list_draws(runs.draw_cuts(name, edges))
        cut[name] = runs.answer([edges])[0]
        cut_control[name] = runs.answer(draws).mean(axis=1)
        control_mass[name] = np.stack([runs.weigh(draw) for draw in draws])
    for name, edges in keeps.items():
        kept[name] = runs.answer([edges])[0]
        kept_control[name] = runs.answer(_list_draws(runs.draw_keeps(name, edges))).mean(axis=1)
    return Mechanism(
        split=split,
        mode=mode,
        uncut=runs.answer([{}])[0],
        cut=cut,
        cut_mass={name: runs.weigh(edges) for name, edges in cuts.items()},
        cut_control=cut_control,
        control_mass=control_mass,
        kept=kept,
        kept_control=kept_control,
        followed=follow_anchors(model, task, n=n, seed=seed),
        second_stage=begin,
        without_last=without_last,
        thresholds=thresholds,
        seed=seed,
    )


def _list_draws(draws: Mapping[int, Tensor]) -> list[Edges]:
    n_draws = len(next(iter(draws.values())))
    return [{layer: drawn[draw] for layer, drawn in draws.items()} for draw in range(n_draws)]
