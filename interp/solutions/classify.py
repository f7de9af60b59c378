"""Does a model reason, use a symmetry, or memorise? Its behaviour and its mechanism, each with its evidence.

The two are different questions with different answers: the same behaviour comes from different circuits, and where the
name of the behaviour and that of the mechanism don't fit each other (a symmetric answer from a parallel circuit with an
exception), that is the finding.

>>> from interp.models.build import build
>>> from tasks.anchor.designs import dropped_pairs
>>> model = build(n_layers=2, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> classify_solution(model, dropped_pairs(), n=20, n_controls=2)
Solution(built: behaviour none, mechanism none)
"""

from dataclasses import dataclass
from typing import Any

from interp.models.provenance import Provenance, get_provenance
from interp.solutions.behaviour import Behaviour, Thresholds, measure_behaviour
from interp.solutions.mechanism import Mechanism, measure_mechanism
from tasks.anchor.composite import Composite

EXPECTED = {"reasoning": ("parallel", "serial"), "symmetric": ("symmetric",), "memorising": ("distributed",)}
"""The mechanisms by which a behaviour is usually explained."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Solution:
    """What a model found."""

    behaviour: Behaviour
    """What it answers."""
    mechanism: Mechanism
    """The circuit it answers by, on what it was trained on."""
    provenance: Provenance
    """The model."""

    @property
    def agrees(self) -> bool | None:
        """Whether the mechanism is one by which the behaviour is usually explained; None without a behaviour."""
        if self.behaviour.label == "none":
            return None
        return self.mechanism.label in EXPECTED[self.behaviour.label]

    def __repr__(self) -> str:
        odd = ", which don't usually go together" if self.agrees is False else ""
        return (
            f"Solution({self.provenance.model}: behaviour {self.behaviour.label}, mechanism {self.mechanism.label}{odd})"
        )


def classify_solution(
    model: Any,
    task: Composite,
    *,
    n: int = 1000,
    n_controls: int = 20,
    thresholds: Thresholds | None = None,
    seed: int = 0,
) -> Solution:
    """Measure both on `n` sequences of each split; for their errors see `measure_behaviour` and `measure_mechanism`."""
    return Solution(
        behaviour=measure_behaviour(model, task, n=n, thresholds=thresholds, seed=seed),
        mechanism=measure_mechanism(model, task, n=n, n_controls=n_controls, seed=seed),
        provenance=get_provenance(model),
    )
