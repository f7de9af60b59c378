"""Grids of models that train in no time, and finished models with labels of one's choice."""

from dataclasses import replace

import numpy as np

from analyses.solutions.finished import Finished
from analyses.solutions.grid import make_grid
from interp.records.schema import Measurement, to_frame
from interp.records.store import Cell


def shrink(grid, *, seeds=1, steps=3):
    """The same grid with models of width 16 that make 3 updates."""
    settings = tuple(
        replace(
            setting,
            model={**setting.model, "d_model": 16, "d_mlp": 16},
            config=replace(setting.config, steps=steps, warmup_steps=1, batch_size=8, eval_sequences=20, eval_every=2),
        )
        for setting in grid.settings
    )
    return replace(grid, settings=settings, seeds=seeds, n=30, n_controls=2)


def make_tiny(*, gammas=(0.4, 0.8), seeds=1, **axes):
    return shrink(make_grid(gammas=gammas, weight_decays=axes.pop("weight_decays", (0.01,)), **axes), seeds=seeds)


def finish(cell, *, behaviour, mechanism="parallel", agrees=True, rank=5.0):
    """A model that is done, of a cell, with these labels."""
    steps = np.array([0.0, 500.0, 1000.0])
    rows = [
        Measurement(analysis="solutions", metric="mechanism: uncut", value=1.0),
        Measurement(analysis="solutions", metric="mechanism: kept alone · parallel", value=0.9),
        Measurement(
            analysis="solutions", metric="mechanism: kept alone · parallel", value=0.02, control="random edges"
        ),
        Measurement(analysis="solutions", metric="stable rank of W_Q", value=rank),
        Measurement(
            analysis="solutions", metric="stable rank of W_Q", value=17.0, low=15.0, high=19.0,
            control="random matrix of the same shape",
        ),
    ]  # fmt: skip
    about = {
        "behaviour": behaviour, "mechanism": mechanism, "agrees": agrees, "settled": True, "engine": "separate",
        "seconds": 1.0, "scores": {"train": {"value": 1.0}, "reasoning": {"value": 0.9}}, "copies": "copies (4, 4)",
        "copied_share": 0.4,
    }  # fmt: skip
    arrays = {
        "history_step": steps,
        "history_id_accuracy": np.array([0.0, 0.6, 1.0]),
        "history_held_out_reasoning": np.array([0.0, 0.2, 0.9 if behaviour == "reasoning" else 0.1]),
    }
    return Finished(cell=cell, record=Cell(frame=to_frame(rows), arrays=arrays, about=about))
