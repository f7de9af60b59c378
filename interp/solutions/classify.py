"""Does a model reason, use a symmetry, or memorise? Its behaviour and its mechanism, each with its evidence.

The two are different questions with different answers: the same behaviour comes from different circuits, and where the
name of the behaviour and that of the mechanism don't fit each other (a symmetric answer from a parallel circuit with an
exception), that is the finding. The mechanism is measured by both kinds of cut, and named by the first (`mask`).

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> classify_solution(model, dropped_pairs(), n=20, n_controls=2)
Solution(built: behaviour none, mechanism none)
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import pandas as pd

from interp.models.provenance import Provenance, get_provenance
from interp.solutions.behaviour import Behaviour, measure_behaviour
from interp.solutions.circuits import CutMode, check_circuit_task
from interp.solutions.mechanism import measure_mechanism
from interp.solutions.mechanism_result import Mechanism
from interp.solutions.stages import SecondStage, check_second_stage
from interp.solutions.thresholds import Thresholds
from tasks.anchor.composite import Composite

if TYPE_CHECKING:
    from interp.figures.style import Picture

EXPECTED = {"reasoning": ("parallel", "serial"), "symmetric": ("symmetric",), "memorising": ("distributed",)}
"""The mechanisms by which a behaviour is usually explained."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Solution:
    """What a model found."""

    behaviour: Behaviour
    """What it answers."""
    mechanisms: Mapping[CutMode, Mechanism]
    """The circuit it answers by, on what it was trained on, by each kind of cut."""
    provenance: Provenance
    """The model."""

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism by cuts before the softmax, after which the rest of the attention still sums to 1."""
        return self.mechanisms["mask"]

    @property
    def cuts_agree(self) -> bool:
        """Whether both kinds of cut name the same mechanism."""
        return len({mechanism.label for mechanism in self.mechanisms.values()}) == 1

    @property
    def agrees(self) -> bool | None:
        """Whether the mechanism is one by which the behaviour is usually explained; None without a behaviour."""
        if self.behaviour.label == "none":
            return None
        return self.mechanism.label in EXPECTED[self.behaviour.label]

    def to_frame(self) -> pd.DataFrame:
        """One row a number, of the behaviour's scores and of both mechanisms' interventions."""
        parts = [self.behaviour.to_frame().rename(columns={"value": "accuracy"}).assign(evidence="behaviour")]
        parts += [m.to_frame().assign(evidence=f"mechanism, {mode}") for mode, m in self.mechanisms.items()]
        frame = pd.concat(parts, ignore_index=True)
        return frame[["evidence", *(name for name in frame.columns if name != "evidence")]]

    def figure(self) -> "Picture":
        """The mechanism's evidence: accuracy after each cut and of each circuit kept alone."""
        return self.mechanism.figure()

    def _repr_html_(self) -> str:
        pictures = [self.behaviour.figure(), *(mechanism.figure() for mechanism in self.mechanisms.values())]
        return f"<p><code>{escape(repr(self))}</code></p>" + "".join(picture._repr_html_() for picture in pictures)

    def __repr__(self) -> str:
        odd = ", which don't usually go together" if self.agrees is False else ""
        zeroed = "" if self.cuts_agree else f" ({self.mechanisms['zero'].label} by cuts after the softmax)"
        return (
            f"Solution({self.provenance.model}: behaviour {self.behaviour.label}, mechanism {self.mechanism.label}"
            f"{zeroed}{odd})"
        )


def classify_solution(
    model: Any,
    task: Composite,
    *,
    second_stage: SecondStage = "found",
    n: int = 500,
    n_controls: int = 20,
    thresholds: Thresholds | None = None,
    seed: int = 0,
) -> Solution:
    """Measure behaviour on `n` sequences of each split, and mechanism on at most `n` trained ones, by both kinds of cut.

    `second_stage` is the layer at which the circuits' second stage begins, found by the first kind of cut and taken for both;
    see `measure_mechanism`. For errors see there and `measure_behaviour`.
    """
    check_circuit_task(model, task, mode="mask")
    check_second_stage(model, second_stage)
    behaviour = measure_behaviour(model, task, n=n, thresholds=thresholds, seed=seed)
    measure = partial(measure_mechanism, model, task, n=n, n_controls=n_controls, thresholds=thresholds, seed=seed)
    mask = measure(mode="mask", second_stage=second_stage)
    zero = measure(mode="zero", second_stage=mask.second_stage)
    return Solution(behaviour=behaviour, mechanisms={"mask": mask, "zero": zero}, provenance=get_provenance(model))
