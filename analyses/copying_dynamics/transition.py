"""When a model comes to copy out of distribution, and whether its heads composed before.

A measure **jumps** where it first passes half of the way from its value before training to the furthest that it gets,
with a straight line between two evaluations. An error has **fallen** where it first lies below 0.1. A model has a
transition where its error out of distribution falls at all. Leads are differences of the steps of one model.

>>> steps = np.array([0.0, 100.0, 200.0, 300.0])
>>> find_jump(steps, np.array([0.0, 0.0, 0.8, 1.0]))
162.5
>>> find_fall(steps, np.array([1.0, 0.9, 0.3, 0.05]))
300.0
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.statistics import bootstrap_interval

FALLEN = 0.1
"""An error below this has fallen."""


def find_jump(steps: Float[np.ndarray, "point"], values: Float[np.ndarray, "point"]) -> float:
    """The step of half the way from the first value to the furthest from it; NaN where nothing moves."""
    moved = np.abs(values - values[0])
    if not moved.max() > 0:
        return math.nan
    half = moved.max() / 2
    after = int(np.flatnonzero(moved >= half)[0])
    share = (half - moved[after - 1]) / (moved[after] - moved[after - 1])
    return float(steps[after - 1] + share * (steps[after] - steps[after - 1]))


def find_fall(steps: Float[np.ndarray, "point"], errors: Float[np.ndarray, "point"]) -> float:
    """The first step with an error below `FALLEN`; NaN without one."""
    fallen = np.flatnonzero(errors < FALLEN)
    return float(steps[fallen[0]]) if len(fallen) else math.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class Leads:
    """How long before the error had fallen each measure jumped, model by model."""

    fallen: Float[np.ndarray, "model"]
    """The step at which the error out of distribution had fallen; NaN without a transition."""
    jumps: Mapping[str, Float[np.ndarray, "model"]]
    """The step of each measure's jump."""

    @property
    def n(self) -> int:
        """Models with a transition."""
        return int(np.isfinite(self.fallen).sum())

    def to_frame(self, *, seed: int = 0) -> pd.DataFrame:
        """One row a measure: mean step of the jump, mean lead with its bootstrap interval over models, how many led."""
        there = np.isfinite(self.fallen)
        rows = []
        for name, jumps in self.jumps.items():
            leads = (self.fallen - jumps)[there]
            low, high = bootstrap_interval(leads, seed=seed) if len(leads) else (math.nan, math.nan)
            rows.append(
                {
                    "measure": name,
                    "jump": float(jumps[there].mean()) if len(leads) else math.nan,
                    "lead": float(leads.mean()) if len(leads) else math.nan,
                    "lead_low": float(low),
                    "lead_high": float(high),
                    "leads": int((leads > 0).sum()),
                    "n": len(leads),
                }
            )
        return pd.DataFrame(rows)


def find_leads(
    histories: Sequence[Mapping[str, Float[np.ndarray, "point"]]], measures: Mapping[str, str], *, error: str
) -> Leads:
    """Of models' histories: `measures` and `error` are columns, measures with the names they get."""
    return Leads(
        fallen=np.array([find_fall(history["step"], history[error]) for history in histories]),
        jumps={
            name: np.array([find_jump(history["step"], history[column]) for history in histories])
            for column, name in measures.items()
        },
    )
