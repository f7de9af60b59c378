"""How often a sentence has a modified subject and an object: as in the published grammar, or as in the published files.

The files that McCoy et al. (arXiv 2001.03632) generated from their grammar were filtered afterwards in a way that isn't
described, and hold other proportions than it gives. In parts of all sentences, rounded from the first lines of their
validation files (365 of questions, 130 of tenses; counted by hand):

| subject              | questions: no object, an object | tenses: no object, an object |
|----------------------|---------------------------------|------------------------------|
| plain                | 1, 179                          | 0, 3                         |
| prepositional phrase | 18, 72                          | 1, 3                         |
| relative clause      | 27, 108                         | 1, 3                         |

In the grammar half of each have an object, and each subject has the same share. With these numbers the mean length and
the bracket F1 of the whole files come out (`docs/grammar_tasks.md`). In the generalisation file of questions 612 of 1,000
relative clauses are not object relatives, in the grammar 4 of 7.

>>> rebalance(torch.tensor([1.0, 3.0, 4.0]), [True, True, False], {True: 1, False: 3})
tensor([0.5000, 1.5000, 6.0000])
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import Literal, TypeVar, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.grammar.constructions import Construction
from tasks.task import TaskError

KindOf = TypeVar("KindOf", bound=Hashable)

Proportions = Literal["grammar", "published_files"]
"""Whose proportions the lines have."""

Subject = Literal["plain", "prepositional_phrase", "relative_clause"]
"""What stands behind the subject's noun, all relative clauses alike."""

Kind = tuple[Subject, bool]
"""The subject, and whether the main clause has an object."""

PUBLISHED_QUESTIONS: dict[Kind, int] = {
    ("plain", False): 1,
    ("plain", True): 179,
    ("prepositional_phrase", False): 18,
    ("prepositional_phrase", True): 72,
    ("relative_clause", False): 27,
    ("relative_clause", True): 108,
}
PUBLISHED_TENSES: dict[Kind, int] = {
    ("plain", False): 0,
    ("plain", True): 3,
    ("prepositional_phrase", False): 1,
    ("prepositional_phrase", True): 3,
    ("relative_clause", False): 1,
    ("relative_clause", True): 3,
}
PUBLISHED_GENERALISATION = {"object_relative": 388, "other_relative": 612}
"""Relative clauses of the subjects in the generalisation file of questions."""


def rebalance(
    weights: Float[Tensor, " derivation"], kinds: Sequence[KindOf], parts: Mapping[KindOf, int]
) -> Float[Tensor, " derivation"]:
    """The same total, shared out among kinds in the given parts; within a kind derivations keep their proportions."""
    shared = torch.zeros_like(weights)
    for kind, part in parts.items():
        here = torch.tensor([other == kind for other in kinds])
        shared[here] = weights[here] / weights[here].sum() * part
    return shared * weights.sum() / sum(parts.values())


def name_kind(construction: Construction, *, has_object: bool) -> Kind:
    """The kind of a sentence whose subject has this construction."""
    if construction == "plain" or construction == "prepositional_phrase":
        return construction, has_object
    return "relative_clause", has_object


def check_proportions(proportions: str) -> None:
    """TaskError unless the proportions are known."""
    if proportions not in get_args(Proportions):
        raise TaskError(f"proportions={proportions!r} is unknown: give 'grammar' or 'published_files'")
