"""A finite set of training strings, and test strings whose depth shapes it has or lacks (arXiv 2305.18741).

    (a [b b] a) {c c}      shape, by component: "(())" and "()";      by string: "(())()"

    id     every shape of the string is one of the training set, the string itself isn't
    ood    at least one shape of the string is none of the training set

A shape is the sequence of depths, without the kinds of brackets. The paper speaks of whole strings; its program splits
them at each return to nothing open, and looks at the components. By component fewer strings are `ood`, but those that
are hold something never seen, and not merely a new order of things seen.

What a training set lacks is what is rare, and that is long: the published `ood` strings are more than five times as long
as the published `id` ones. Two settings take length out. `withheld_share` keeps chosen shapes from the training set,
of all lengths from 8 brackets on. Matched lengths keep as many `id` as `ood` strings of each length, the most that there are.

>>> strings = Strings(brackets=torch.tensor([0, 1, 4, 3, 2, 5, 0, 3, 0, 3]), lengths=torch.tensor([6, 4]))
>>> list_shapes(strings, types=3, held_out="component")
[('(())', '()'), ('()', '()')]
>>> list_shapes(strings, types=3, held_out="string")
[('(())()',), ('()()',)]
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from tasks.dyck.strings import Strings, draw_strings, join
from tasks.seeding import derive_generator, derive_seed
from tasks.task import TaskError

HeldOut = Literal["component", "string"]
Lengths = Literal["as_drawn", "matched"]

_ALWAYS_TRAINED = 6
"""Shapes up to so many brackets are never withheld: four components, 69% of all that are drawn."""
_AT_ONCE = 8192


def list_shapes(strings: Strings, *, types: int, held_out: HeldOut) -> list[tuple[str, ...]]:
    """The shapes of each string, as brackets of one kind: of its components, or the one of the whole string."""
    closes = strings.brackets >= types
    text = (closes + ord("(")).to(torch.uint8).numpy().tobytes().decode()
    ends = strings.lengths.cumsum(0)
    if held_out == "string":
        return [(text[start:end],) for start, end in pairwise([0, *ends.tolist()])]
    heights = (1 - 2 * closes.long()).cumsum(0)  # every string ends at 0, so one sum runs over all of them
    borders = torch.cat([torch.zeros(1, dtype=torch.long), (heights == 0).nonzero()[:, 0] + 1])
    components = [text[start:end] for start, end in pairwise(borders.tolist())]
    behind = torch.searchsorted(borders, ends).tolist()
    return [tuple(components[start:end]) for start, end in pairwise([0, *behind])]


@lru_cache(maxsize=4)
def draw_corpora(
    *,
    types: int,
    depth: int,
    max_length: int,
    held_out: HeldOut,
    withheld_share: float,
    lengths: Lengths,
    n_train: int,
    n_test: int,
    data_seed: int,
) -> Mapping[str, Strings]:
    """The strings of `train`, `id` and `ood`; TaskError where too few of a kind are found."""

    def draw(label: str) -> Callable[[], Strings]:
        generator = derive_generator(data_seed, "dyck", label)
        return lambda: draw_strings(_AT_ONCE, types=types, depth=depth, max_length=max_length, generator=generator)

    def find_shapes(strings: Strings) -> list[tuple[str, ...]]:
        return list_shapes(strings, types=types, held_out=held_out)

    @cache
    def is_withheld(shape: str) -> bool:
        if len(shape) <= _ALWAYS_TRAINED or not withheld_share:
            return False
        return derive_seed(data_seed, "dyck", "withheld", shape) < withheld_share * 2**63

    def place_train(strings: Strings) -> list[str]:
        return ["" if any(map(is_withheld, shapes)) else "train" for shapes in find_shapes(strings)]

    train = _fill({"train": n_train}, draw("train"), place_train)["train"]
    seen = {shape for shapes in find_shapes(train) for shape in shapes}
    known = set(_list_keys(train))

    def place_test(strings: Strings) -> list[str]:
        return [
            "ood" if not seen.issuperset(shapes) else "" if key in known else "id"
            for shapes, key in zip(find_shapes(strings), _list_keys(strings), strict=True)
        ]

    test = _fill({"id": n_test, "ood": n_test}, draw("test"), place_test)
    return {"train": train, **(_match_lengths(test) if lengths == "matched" else test)}


def _fill(
    wanted: Mapping[str, int], draw: Callable[[], Strings], place: Callable[[Strings], Sequence[str]]
) -> dict[str, Strings]:
    """As many strings of each split as wanted, in the order in which they are drawn."""
    kept: dict[str, list[Strings]] = {split: [] for split in wanted}
    missing = dict(wanted)
    rounds = 20 + 40 * max(wanted.values()) // _AT_ONCE
    for _ in range(rounds):
        strings = draw()
        places = place(strings)
        for split in wanted:
            rows = [row for row, found in enumerate(places) if found == split][: missing[split]]
            kept[split].append(strings.take(torch.tensor(rows, dtype=torch.long)))
            missing[split] -= len(rows)
        if not any(missing.values()):
            return {split: join(parts) for split, parts in kept.items()}
    split = max(missing, key=lambda name: missing[name])
    raise TaskError(
        f"only {wanted[split] - missing[split]:,} of {wanted[split]:,} strings for {split!r} were found among "
        f"{rounds * _AT_ONCE:,}: give more types or depth, or a smaller n_train or n_test"
    )


def _match_lengths(test: Mapping[str, Strings]) -> dict[str, Strings]:
    """Equally many strings of each length in `id` and in `ood`."""
    longest = max(int(strings.lengths.max()) for strings in test.values())
    counts = {split: torch.bincount(strings.lengths, minlength=longest + 1) for split, strings in test.items()}
    shared = torch.minimum(counts["id"], counts["ood"])
    if not shared.any():
        raise TaskError(
            "no length has both 'id' and 'ood' strings, so lengths='matched' leaves none: "
            "give a larger n_test, or a withheld_share above 0"
        )
    return {split: strings.take(_first_of_each(strings.lengths, shared)) for split, strings in test.items()}


def _first_of_each(lengths: Int[Tensor, " strings"], shared: Int[Tensor, " sizes"]) -> Int[Tensor, " kept"]:
    """Rows of the first `shared[length]` strings of each length."""
    order = lengths.argsort(stable=True)
    counts = torch.bincount(lengths, minlength=len(shared))
    first = counts.cumsum(0) - counts
    rank = torch.arange(len(lengths)) - first[lengths[order]]
    return order[rank < shared[lengths[order]]].sort().values


def _list_keys(strings: Strings) -> list[bytes]:
    """Each string as bytes, to be looked up in a set."""
    text, size = strings.brackets.numpy().tobytes(), strings.brackets.element_size()
    return [text[size * start : size * end] for start, end in pairwise([0, *strings.lengths.cumsum(0).tolist()])]
