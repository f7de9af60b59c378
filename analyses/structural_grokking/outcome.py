"""What the training curve of one model says: when it saturated, when it rose, and which rule it ended with.

Accuracy is the share of lines answered by the hierarchical rule, on validation and on generalisation. Curves move up and
down, so the end is the mean of the last evaluations, and the running maximum stands beside it.

    saturated        first evaluation with validation accuracy of at least 99%
    early stopping   generalisation at the earliest evaluation with the best validation
    lowest           smallest generalisation from saturation on
    grokked          validation of at least 99% with generalisation below 20%, and later generalisation of at least three
                     times that bound (three times the value itself would be nothing where it is 0)
    rose             first evaluation with generalisation of at least 80%

Which rule it ended with, by the means of the last evaluations:

    hierarchical     generalisation above 80%, and above 60% on object relative clauses
    shortcut         the relative-clause shortcut followed in over 80%, object relative clauses answered rightly in under 20%
    linear           the linear rule followed in over 80%
    none             no rule followed in over 80%
    mixed            anything else

>>> steps = np.array([0.0, 500, 1000, 1500, 2000])
>>> curve = Curve(steps=steps, seconds=steps / 50, validation=np.array([0.2, 1, 1, 1, 1]),
...               generalisation=np.array([0.3, 0.05, 0.1, 0.9, 0.85]), object_relative=np.array([0.3, 0, 0, 0.8, 0.8]),
...               shares={"linear": np.array([0.3, 0.95, 0.9, 0.1, 0.15]), "other": np.array([0.4, 0, 0, 0, 0])})
>>> found = describe_curve(curve, n_last=2)
>>> found.saturated, found.early, found.lowest, found.rose, found.rule, found.grokked
(500.0, 0.05, 0.05, 1500.0, 'hierarchical', True)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from interp.errors import InputError

Rule = Literal["hierarchical", "shortcut", "linear", "mixed", "none"]

SATURATED, LOW, RISEN, HIGH = 0.99, 0.2, 0.6, 0.8
N_LAST = 5
"""Evaluations whose mean is the end."""
_OBJECT_HIGH, _OBJECT_LOW = 0.6, 0.2

Points = Float[np.ndarray, "point"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """The accuracies of one model at its evaluations."""

    steps: Points
    """Updates made."""
    seconds: Points
    """Time since the start."""
    validation: Points
    """Share that is right on lines of the training's kind."""
    generalisation: Points
    """Share that is right where the rules differ."""
    object_relative: Points
    """The same on object relative clauses alone; NaN where there is none."""
    shares: Mapping[str, Points]
    """On generalisation, the share that follows each other rule: `linear`, `other` (none), and `shortcut` where there is one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a curve says; NaN where nothing of the kind happened."""

    saturated: float
    """Step at which validation was saturated."""
    early_step: float
    """Step of early stopping."""
    early: float
    """Generalisation at early stopping."""
    lowest: float
    """Smallest generalisation from saturation on."""
    best: float
    """Largest generalisation."""
    final: float
    """Generalisation, a mean of the last evaluations."""
    final_object_relative: float
    """The same on object relative clauses."""
    rose: float
    """Step at which generalisation first was 80%."""
    rose_seconds: float
    """Time at which it was."""
    variation: float
    """Sum of the absolute changes of generalisation from one evaluation to the next, from saturation on."""
    fall: float
    """How far generalisation lay below its maximum so far, at most, from saturation on."""
    rule: Rule
    """Which rule it ended with."""
    grokked: bool
    """Whether it generalised long after it was right on validation."""


def describe_curve(curve: Curve, *, n_last: int = N_LAST) -> Outcome:
    """What the curve says; `InputError` for a curve without a point, or fewer evaluations than `n_last`."""
    if not 1 <= n_last <= len(curve.steps):
        raise InputError(f"n_last={n_last} of {len(curve.steps)} evaluations can't be averaged: give 1 to all of them.")
    saturated = _first(curve.validation >= SATURATED)
    rose = _first(curve.generalisation >= HIGH)
    early = int(curve.validation.argmax())
    ends = {name: float(values[-n_last:].mean()) for name, values in curve.shares.items()}
    after = curve.generalisation[:0] if saturated is None else curve.generalisation[saturated:]
    final, final_object = (float(values[-n_last:].mean()) for values in (curve.generalisation, curve.object_relative))
    return Outcome(
        saturated=_at(curve.steps, saturated),
        early_step=float(curve.steps[early]),
        early=float(curve.generalisation[early]),
        lowest=float(after.min()) if len(after) else math.nan,
        best=float(curve.generalisation.max()),
        final=final,
        final_object_relative=final_object,
        rose=_at(curve.steps, rose),
        rose_seconds=_at(curve.seconds, rose),
        variation=float(np.abs(np.diff(after)).sum()) if len(after) else math.nan,
        fall=float((np.maximum.accumulate(after) - after).max()) if len(after) else math.nan,
        rule=choose_rule(final, final_object, ends),
        grokked=_grokked(curve),
    )


def choose_rule(hierarchical: float, object_relative: float, shares: Mapping[str, float]) -> Rule:
    """The rule that these accuracies and shares of the generalisation split speak for; NaN where a construction is absent."""
    if hierarchical > HIGH and not object_relative <= _OBJECT_HIGH:
        return "hierarchical"
    if shares.get("shortcut", 0.0) > HIGH and object_relative < _OBJECT_LOW:
        return "shortcut"
    if shares["linear"] > HIGH:
        return "linear"
    return "none" if shares["other"] > HIGH else "mixed"


def _grokked(curve: Curve) -> bool:
    low = _first((curve.validation >= SATURATED) & (curve.generalisation < LOW))
    return low is not None and bool(curve.generalisation[low:].max() >= RISEN)


def _first(there: np.ndarray) -> int | None:
    found = np.flatnonzero(there)
    return int(found[0]) if len(found) else None


def _at(values: Points, index: int | None) -> float:
    return math.nan if index is None else float(values[index])
