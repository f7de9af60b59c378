"""What stands behind the subject's noun, by which every score of these tasks is to be split.

| construction            | example                      | its verb or auxiliary stands    |
|-------------------------|------------------------------|---------------------------------|
| `plain`                 | the newt                     |                                 |
| `prepositional_phrase`  | the newt near the yak        |                                 |
| `intransitive_relative` | the newt who does sleep      | right behind the relativiser    |
| `subject_relative`      | the newt who does see a yak  | right behind the relativiser    |
| `object_relative`       | the newt who the yak does see | behind a noun of its own       |
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from tasks.task import Batch

Construction = Literal["plain", "prepositional_phrase", "intransitive_relative", "subject_relative", "object_relative"]
"""What stands behind the subject's noun; `plain` is nothing."""

CONSTRUCTIONS: tuple[Construction, ...] = get_args(Construction)


def name_construction(behind_noun: tuple[str, ...]) -> Construction:
    """The construction of these categories of words, which follow the subject's noun."""
    if not behind_noun:
        return "plain"
    if behind_noun[0] == "P":
        return "prepositional_phrase"
    if behind_noun[1] == "Det":
        return "object_relative"
    return "intransitive_relative" if behind_noun[-1].startswith("V.intr") else "subject_relative"


def mark_construction(construction: Construction, between: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """The roles of a pattern: the words `between` under their construction's name, none under the others'."""
    return {name: between if name == construction else (0, 0) for name in CONSTRUCTIONS[1:]}


def split_by_construction(values: Float[Tensor, " batch"], batch: Batch) -> dict[Construction, Float[Tensor, " rows"]]:
    """The values, one of each row, of the rows of each construction that is in the batch."""
    marked = {name: batch.roles[name].any(1) for name in CONSTRUCTIONS[1:]}
    marked = {"plain": ~torch.stack(list(marked.values())).any(0), **marked}
    return {name: values[rows.to(values.device)] for name, rows in marked.items() if rows.any()}
