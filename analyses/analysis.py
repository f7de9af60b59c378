"""The shape of a question: parts that measure and are stored, and a section that is written from what was stored.

A part runs the model and returns an `Outcome`; it becomes one cell of the store, keyed by all that determines it, and is
never run again. The section of the report is made from cells alone, so a report can be made anew without the model.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from analyses.report.page import Section
from interp.models.provenance import Provenance
from interp.models.tokens import Bos
from interp.records.schema import Measurement
from interp.records.store import Cell


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """The model a question is asked of."""

    model: Any
    """A HookedTransformer or TransformerBridge."""
    provenance: Provenance
    """Where its weights come from."""
    run: Path | None = None
    """The folder of the training run it comes from, where it comes from one."""
    control: "Subject | None" = None
    """Another model to compare with, such as one of one layer trained alike."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the user chose for every analysis of a report."""

    seed: int = 0
    """All random sequences, draws and intervals come from it."""
    quick: bool = False
    """Fewer sequences: wider intervals in a fraction of the time."""
    bos: Bos = "auto"
    """What stands first in every sequence: how well a model copies depends on it."""

    @property
    def n_sequences(self) -> int:
        """Sequences a measurement runs on: 50 as published, 12 when quick."""
        return 12 if self.quick else 50


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a part measured."""

    measurements: list[Measurement]
    """One row a number; the runner adds the model, the dtype, the time and the version."""
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    """What the figures are drawn from."""
    about: dict[str, Any] = field(default_factory=dict)
    """Plain JSON: settings and notes."""


Cells = Mapping[str, Cell]
"""The finished parts of one analysis on one model, by part name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One cell's worth of measuring."""

    name: str
    """Its name within the analysis."""
    measure: Callable[[Subject, Options, Cells], Outcome]
    """Runs the model; the cells are the parts before it, and those of the analyses that the analysis needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A question with its parts and its section."""

    name: str
    """What is typed after --analyses."""
    question: str
    """What it asks, for `interp report --help` and the section's head."""
    parts: tuple[Part, ...]
    """In the order they run."""
    write_section: Callable[[Provenance, Cells], Section]
    """From the cells of its parts and of `needs`."""
    needs: tuple[str, ...] = ()
    """Analyses whose cells it reads; they run first."""
    applies: Callable[[Subject], str | None] = lambda subject: None
    """None where it can be asked of this model, else one sentence that says why not."""
