"""The rule tasks by name, and what their cells hold: results taken apart for the store and put together again."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from interp.models.provenance import Provenance
from interp.prompts.choices import ChoiceScores
from interp.prompts.removal_result import RankedRemoval, RemovalStep
from interp.records.store import Cell
from tasks.prompts import FuzzyCopying, ICLClassification, IOIChoices, RuleTask


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A task in one of its forms."""

    title: str
    """What it is called in the report."""
    make: Callable[[Any], RuleTask]
    """Makes it for a tokenizer."""
    memorised: str | None = None
    """The part of the form that can be known by heart, where this one needs the rule and has such a counterpart."""
    by_heart: bool = False
    """Whether it can be known by heart itself."""


TASKS: dict[str, Variant] = {
    "fuzzy_copying": Variant(title="fuzzy copying", make=FuzzyCopying),
    "ioi_names": Variant(title="indirect object (names)", make=IOIChoices, by_heart=True),
    "ioi_symbols": Variant(
        title="indirect object (symbols)", make=partial(IOIChoices, people="symbols"), memorised="ioi_names"
    ),
    "icl_original": Variant(title="classes (original labels)", make=ICLClassification, by_heart=True),
    "icl_permuted": Variant(
        title="classes (permuted labels)", make=partial(ICLClassification, labels="permuted"), memorised="icl_original"
    ),
    "icl_symbols": Variant(
        title="classes (symbols as labels)", make=partial(ICLClassification, labels="symbols"), memorised="icl_original"
    ),
}
"""By the name of their part, in the order of the report."""

_MEASURED = ("log_probability", "likeliest", "control_items", "control_log_probability", "control_likeliest")


def pack_removal(result: RankedRemoval) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, plain JSON)."""
    names = ("log_probability", "likeliest", "n_tokens", "answers")
    arrays = {f"whole/{name}": getattr(result.whole, name) for name in names}
    for step in result.steps:
        arrays |= {f"{step.n_heads}/{name}": getattr(step, name) for name in _MEASURED}
        arrays |= {f"{step.n_heads}/heads": np.array(step.heads)}
        arrays |= {f"{step.n_heads}/control_heads": np.array(step.control_heads)}
    about = {"seed": result.seed, "notes": {str(step.n_heads): list(step.notes) for step in result.steps}}
    return arrays, about


def restore_removal(provenance: Provenance, cell: Cell) -> RankedRemoval:
    """The `RankedRemoval` that a cell was written from; without steps where the task is uninformative."""
    arrays, seed = cell.arrays, cell.about["seed"]
    names = ("log_probability", "likeliest", "n_tokens", "answers")
    whole = ChoiceScores(**{name: arrays[f"whole/{name}"] for name in names}, seed=seed, provenance=provenance)
    steps = []
    for count, notes in cell.about["notes"].items():
        heads, controls = arrays[f"{count}/heads"], arrays[f"{count}/control_heads"]
        steps.append(
            RemovalStep(
                whole=whole,
                heads=tuple((int(layer), int(head)) for layer, head in heads),
                control_heads=tuple(tuple((int(layer), int(head)) for layer, head in draw) for draw in controls),
                notes=tuple(notes),
                **{name: arrays[f"{count}/{name}"] for name in _MEASURED},
            )
        )
    return RankedRemoval(whole=whole, steps=tuple(steps), seed=seed)
