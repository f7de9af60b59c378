"""The nine task families of the anchor-function paper (Zhang et al., arXiv 2401.08309), by name.

    FAMILIES["working memory"]() is a task with the published sizes: keys and noise from 20 to 99, 201 tokens

Five are composite tasks with other settings, made here. Of the others, `tasks.anchor.one_anchor` has multi-anchor and
statistical output, `tasks.anchor.lookup` recitation, reading comprehension and working memory. The generators of
reading comprehension, classification and working memory weren't published: those are ours, and say so.

All keep a key for the test where key = position (mod 8), as that paper's code does.

>>> for name, make in FAMILIES.items():
...     batch = make().sample(4, split="id", seed=0)
...     assert batch.scored.sum() == 4, name
>>> len(FAMILIES)
9
"""

from collections.abc import Callable, Mapping
from typing import Any

from tasks.anchor.composite import Composite
from tasks.anchor.designs import dropped_pairs
from tasks.anchor.functions import AnchorFunction
from tasks.anchor.lookup import ReadingComprehension, Recitation, WorkingMemory
from tasks.anchor.one_anchor import MultiAnchor, StatisticalOutput
from tasks.task import Task, TaskError


def identity(**settings: Any) -> Composite:
    """`3 x -> x`: the token behind the anchor is the answer."""
    return _before_key({3: 0}, title="identity", group_size=1, **settings)


def composition(**settings: Any) -> Composite:
    """`a_1 a_2 x -> g(g(x; a_1); a_2)` with (3, 4) and (4, 3) held out: here the pair stands before the key."""
    fixed = {"key_offset": 2, "modulus": 8, "d_vocab": 201, "title": "composition"}
    return dropped_pairs(**{**fixed, **settings})


def classification(*, n_classes: int = 4, first_class: int = 10, **settings: Any) -> Composite:
    """`3 x -> the class of x`: `n_classes` equal intervals of keys, with a token each. The generator is ours."""
    first, last = settings.get("first_key", 20), settings.get("last_key", 99)
    n_keys = last - first + 1
    if not 1 < n_classes <= n_keys:
        raise TaskError(f"n_classes={n_classes} is out of range: give from 2 to {n_keys}, the number of keys")
    if first_class < 4 or first_class + n_classes > first:
        raise TaskError(
            f"the class tokens {first_class} to {first_class + n_classes - 1} meet the anchor 3 or the keys: "
            f"give first_class from 4 to {first - n_classes}"
        )
    table = [first_class + max(x - first, 0) * n_classes // n_keys for x in range(last + 1)]
    return _before_key({3: table}, title="classification", group_size=1, **settings)


def synonym(*, weight: float = 0.1, **settings: Any) -> Composite:
    """The composition with a fifth anchor, 9, that does what 3 does and is rarely seen.

    `weight` is how often a pair with a 9 is trained on, relative to the others. (4, 9) and (9, 4) never are: they are
    right if 9 was recognised as a 3. Published: few sequences with 9 in a growing set of sequences with 3.
    """
    rare = [(a, 9) for a in (1, 2, 3, 9)] + [(9, a) for a in (1, 2, 3)]
    fixed = {"held_out": [(4, 9), (9, 4)], "weights": dict.fromkeys(rare, weight), "title": "synonym"}
    return _before_key({1: 5, 2: 1, 3: -2, 4: -8, 9: -2}, **{**fixed, **settings})


def _before_key(maps: Mapping[int, int | list[int]], **settings: Any) -> Composite:
    """Anchors first, then the key, with this paper's modulus and vocabulary."""
    fixed = {"key_offset": settings.get("group_size", 2), "modulus": 8, "d_vocab": 201}
    return Composite(function=AnchorFunction.from_maps(maps), **{**fixed, **settings})


FAMILIES: Mapping[str, Callable[..., Task]] = {
    "identity": identity,
    "composition": composition,
    "reading comprehension": ReadingComprehension,
    "classification": classification,
    "working memory": WorkingMemory,
    "synonym": synonym,
    "recitation": Recitation,
    "multi-anchor": MultiAnchor,
    "statistical output": StatisticalOutput,
}
"""Name: what makes the task, with the published settings unless told otherwise."""
