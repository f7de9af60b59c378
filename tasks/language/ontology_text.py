"""Questions about an ontology, written out: every sentence has a slot, and empty places are closed up at the end.

    rule       every KIND is KIND .        every KIND is [not] PROPERTY .
    fact       NAME is KIND .
    question   ? NAME is [not] PROPERTY :
    chain      NAME is KIND .  NAME is KIND .  ...  NAME is [not] PROPERTY .      the fact again, then a step a rule
    answer     true | false

>>> len(CONCEPTS), len(PROPERTIES), len(INDIVIDUALS), len(VOCABULARY)
(24, 8, 6, 47)
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tasks.language.sequences import PAD

CONCEPTS = (
    "wug", "dax", "fip", "kel", "blick", "tove", "zolt", "mip", "gorp", "nork", "rast", "vint",
    "lum", "pim", "quil", "yed", "urm", "jave", "crev", "drim", "frob", "bem", "sarn", "hupp",
)  # fmt: skip
PROPERTIES = ("red", "loud", "cold", "tiny", "sour", "soft", "fast", "old")
INDIVIDUALS = ("ada", "ben", "cleo", "dan", "eve", "finn")
VOCABULARY = ("pad", "every", "is", "not", ".", "?", ":", "false", "true", *CONCEPTS, *PROPERTIES, *INDIVIDUALS)

_EVERY, _IS, _NOT, _STOP, _ASK, _SEPARATOR, _FALSE = (
    VOCABULARY.index(word) for word in ("every", "is", "not", ".", "?", ":", "false")
)
_CONCEPT, _PROPERTY, _INDIVIDUAL = (VOCABULARY.index(words[0]) for words in (CONCEPTS, PROPERTIES, INDIVIDUALS))
_HOLE = -1
_REGIONS = ("own_rules", "other_rules", "fact", "question", "chain", "rest")


@dataclass(frozen=True, kw_only=True, slots=True)
class Questions:
    """What is said and asked; the first branch is the one that the fact begins."""

    individual: Int[Tensor, " batch"]
    """Who it is about."""
    about: Int[Tensor, " batch"]
    """The property."""
    hops: Int[Tensor, " batch"]
    """Rules of each branch, the one to the property included."""
    concepts: Int[Tensor, "batch branch step"]
    """The kinds of each branch from its root on; those from `hops` on are not used."""
    ends_not: Bool[Tensor, "batch branch"]
    """Whether a branch ends in the property's opposite."""
    asked_not: Bool[Tensor, " batch"]
    """Whether the opposite is asked for."""
    true: Bool[Tensor, " batch"]
    """The answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """Rows of tokens, padded on the right."""

    tokens: Int[Tensor, "batch pos"]
    lengths: Int[Tensor, "batch 1"]
    roles: dict[str, Bool[Tensor, "batch pos"]]


def write(questions: Questions, *, targets: Literal["chain", "answer"], generator: torch.Generator) -> Text:
    """The text of each question, its rules in random order."""
    q = questions
    n, branches, steps = q.concepts.shape
    name, about = q.individual + _INDIVIDUAL, q.about + _PROPERTY
    step = torch.arange(steps)
    is_last = (step == q.hops[:, None] - 1)[:, None]  # [batch, 1, step]
    used = (step < q.hops[:, None])[:, None].expand(n, branches, steps)

    subjects = q.concepts + _CONCEPT
    objects = torch.where(is_last, about[:, None, None], subjects.roll(-1, dims=2))
    negated = is_last & q.ends_not[:, :, None]
    rules = _fill((n, branches, steps), _EVERY, subjects, _IS, _mark(negated, _NOT), objects, _STOP, where=used)
    places = torch.where(torch.arange(branches) == 0, 0, 1)[:, None].expand(branches, steps).flatten()
    order = torch.rand((n, branches * steps), generator=generator).argsort(1)
    rules = rules.flatten(1, 2).gather(1, order[:, :, None].expand(-1, -1, rules.shape[-1]))

    fact = _fill((n,), name, _IS, subjects[:, 0, 0], _STOP)
    question = _fill((n,), _ASK, name, _IS, _mark(q.asked_not, _NOT), about)
    step_by_step = torch.full((n,), targets == "chain")
    premise = _fill((n,), name, _IS, subjects[:, 0, 0], _STOP, where=step_by_step)
    written = used[:, 0] & step_by_step[:, None]
    chain = _fill((n, steps), name[:, None], _IS, _mark(negated[:, 0], _NOT), objects[:, 0], _STOP, where=written)
    answer = q.true.long() + _FALSE

    parts = [
        (rules.flatten(1), places[order].repeat_interleave(rules.shape[-1], dim=1)),
        (fact, 2),
        (question, 3),
        (torch.full((n, 1), _SEPARATOR), 5),
        (premise, 4),
        (chain.flatten(1), 4),
        (answer[:, None], 5),
    ]
    words = torch.cat([part for part, _ in parts], dim=1)
    regions = torch.cat([torch.as_tensor(region).expand(part.shape) for part, region in parts], dim=1)
    return _close_up(words, regions)


def _fill(
    shape: tuple[int, ...], *words: int | Int[Tensor, "..."], where: Bool[Tensor, "..."] | None = None
) -> Int[Tensor, "*shape word"]:
    """One sentence for each element of `shape`; all holes where it isn't wanted."""
    sentence = torch.stack([torch.as_tensor(word).expand(shape) for word in words], dim=-1)
    return sentence if where is None else sentence.masked_fill(~where[..., None], _HOLE)


def _mark(where: Bool[Tensor, "..."], word: int) -> Int[Tensor, "..."]:
    return torch.where(where, word, _HOLE)


def _close_up(words: Int[Tensor, "batch pos"], regions: Int[Tensor, "batch pos"]) -> Text:
    """Move the words of each row to the left, in their order."""
    hole = words == _HOLE
    order = hole.long().argsort(dim=1, stable=True)
    tokens, regions, empty = words.gather(1, order), regions.gather(1, order), hole.gather(1, order)
    return Text(
        tokens=tokens.masked_fill(empty, PAD),
        lengths=(~hole).sum(1, keepdim=True),
        roles={role: (regions == number) & ~empty for number, role in enumerate(_REGIONS[:-1])},
    )
