"""Where one solution ends and the next begins: every number that a label rests on, in one place.

>>> Thresholds(reasons=0.9).sufficient
0.8
>>> Thresholds(fitted=9.5)
Traceback (most recent call last):
interp.errors.InputError: fitted=9.5 is no share of sequences; give a number from 0 to 1.
"""

from dataclasses import dataclass, fields

from interp.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Shares from 0 to 1; those of behaviour are accuracies, those of mechanism are relative to the uncut accuracy."""

    fitted: float = 0.95
    """Behaviour: least accuracy on what was trained on; below it no solution was found."""
    remembers: float = 0.5
    """Largest accuracy on unseen keys of a model that memorises."""
    generalises: float = 0.9
    """Least accuracy on unseen keys of one that doesn't (arXiv 2405.05409)."""
    reasons: float = 0.85
    """Least share of held-out answers that are the composition."""
    mirrors: float = 0.6
    """Least share of held-out answers that follow the other order."""
    spares: float = 0.15
    """Largest share of held-out answers that follow the rule which the model is said not to use."""
    answers: float = 0.5
    """Mechanism: least uncut accuracy; below it there is no answer whose circuit could be asked for."""
    sufficient: float = 0.8
    """Least share of the uncut accuracy that a circuit kept alone keeps."""
    needed: float = 0.5
    """Largest share of the uncut accuracy that is left when needed edges are cut."""
    matched: float = 0.9
    """Least share of the attention of the cut edges that random edges must carry, in each layer, to be their control."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value <= 1:
                raise InputError(f"{field.name}={value} is no share of sequences; give a number from 0 to 1.")
