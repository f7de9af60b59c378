"""What else a training set may be made of: few templates, or much or little centre embedding.

A template is a sequence of parts of speech; a sentence whose subject has a relative clause is centre-embedded, since the
clause stands between the subject and its verb. Both decide which rule is taken, and how steadily (Qin, Saphra &
Alvarez-Melis, arXiv 2412.04619).

>>> weights = torch.tensor([0.5, 0.25, 0.25])
>>> embed(weights, torch.tensor([False, True, True]), share=0.8)
tensor([0.2000, 0.4000, 0.4000])
>>> sorted(choose_templates(["a", "b", "b", "c"], 1, seed=0, name="example"))  # the first one always
['a']
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tasks.seeding import derive_generator
from tasks.task import TaskError

N_TEMPLATES = 30
"""Templates of each of the two grammars: five subjects, and six ways to go on."""


def check_knobs(*, centre_embedding: float | None, templates: int | None) -> None:
    """TaskError for a share outside 0 to 1, or a number of templates that there isn't."""
    if centre_embedding is not None and not 0 <= centre_embedding <= 1:
        raise TaskError(f"centre_embedding={centre_embedding} must be a share from 0 to 1, or None")
    if templates is not None and not 1 <= templates <= N_TEMPLATES:
        raise TaskError(f"templates={templates} cannot be trained: give 1 to {N_TEMPLATES}, or None")


def choose_templates(parts_of_speech: Sequence[str], n: int | None, *, seed: int, name: str) -> frozenset[str]:
    """`n` of the templates, the first always and the others by seed; all of them for None."""
    first, *others = dict.fromkeys(parts_of_speech)
    if n is None:
        return frozenset([first, *others])
    order = torch.randperm(len(others), generator=derive_generator(seed, name, "templates")).tolist()
    return frozenset([first, *(others[i] for i in order[: n - 1])])


def embed(
    weights: Float[Tensor, " derivation"], embedded: Bool[Tensor, " derivation"], *, share: float
) -> Float[Tensor, " derivation"]:
    """The same total, of which the embedded have a share; TaskError where there is no embedded one."""
    total, inside = weights.sum(), weights[embedded].sum()
    if inside == 0:
        raise TaskError(
            f"centre_embedding={share} needs a template whose subject has a relative clause: raise templates"
        )
    return torch.where(embedded, weights * share / inside, weights * (1 - share) / (total - inside)) * total
