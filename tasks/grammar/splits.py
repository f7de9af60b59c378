"""The lines of each split, drawn once: validation and generalisation first, then training lines that are in neither.

A test batch goes through its lines in a random order, each at most once until all have been. A training batch draws
with replacement, `"one_length"` only lines as long as a randomly chosen one: then no position is padding, and over
batches every line is still as likely as any other.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tasks.checks import check_number
from tasks.grammar.grammar import Derivation, Sentence
from tasks.grammar.lines import Lines, Patterns
from tasks.seeding import derive_generator
from tasks.task import Batch, TaskError

Batches = Literal["mixed", "one_length"]
"""Whether the lines of a training batch are of any length, or all as long."""


def draw_splits(
    patterns: Patterns,
    *,
    weights: Mapping[str, Float[Tensor, " pattern"]],
    sizes: Mapping[str, int],
    disambiguating: float,
    seed: int,
) -> dict[str, Lines]:
    """`train`, `validation` and `generalisation`; a share `disambiguating` of train is of the third one's kind."""

    def draw(split: str, n: int, kind: str, apart_from: list[Lines]) -> Lines:
        generator = derive_generator(seed, "grammar", split, kind)
        return patterns.draw_distinct(n, weights=weights[kind], generator=generator, apart_from=apart_from)

    held_out = [draw(split, sizes[split], split, []) for split in ("validation", "generalisation")]
    extra = round(disambiguating * sizes["train"])
    parts = [draw("train", sizes["train"] - extra, "train", held_out)]
    if extra:
        parts.append(draw("train", extra, "generalisation", held_out))
    train = Lines(tokens=torch.cat([one.tokens for one in parts]), pattern=torch.cat([one.pattern for one in parts]))
    return {"train": train, "validation": held_out[0], "generalisation": held_out[1]}


def draw_batch(
    patterns: Patterns, lines: Lines, n: int, *, batches: Batches | None, generator: torch.Generator
) -> Batch:
    """`n` of the lines: of a training split as `batches` says, of a test split (None) each at most once in turn.

    Rows are as long as the longest of the split, with `"one_length"` as all of the batch.
    """
    check_number(n)
    if len(lines) == 0:
        raise TaskError("none of the validation lines is of this split's kind: give validation more of them")
    rows, width = _choose_rows(patterns, lines, n, batches=batches, generator=generator)
    return patterns.assemble(lines.take(rows), width=width, scored="answer")


def list_sentences(
    patterns: Patterns, lines: Lines, derivations: Sequence[Derivation], *, vocabulary: Sequence[str]
) -> list[Sentence]:
    """The words in the role `source` of each line with their gold tree; derivation i has the patterns 2 i and 2 i + 1."""
    sources = patterns.roles["source"][lines.pattern]
    return [
        Sentence(
            words=tuple(vocabulary[token] for token in tokens[source].tolist()),
            tree=derivations[pattern // 2].tree,
            labels=derivations[pattern // 2].labels,
        )
        for tokens, source, pattern in zip(lines.tokens, sources, lines.pattern.tolist(), strict=True)
    ]


def _choose_rows(
    patterns: Patterns, lines: Lines, n: int, *, batches: Batches | None, generator: torch.Generator
) -> tuple[Int[Tensor, " n"], int]:
    """Which lines, and how wide a row is."""
    if batches is None:
        rows = torch.randperm(len(lines), generator=generator)[torch.arange(n) % len(lines)]
        return rows, int(patterns.lengths[lines.pattern].max())
    order, begins = _sort_by_length(patterns, lines)
    if batches == "mixed":
        return torch.randint(len(lines), (n,), generator=generator), len(begins) - 2
    example = int(torch.randint(len(lines), (1,), generator=generator))
    length = int(patterns.lengths[lines.pattern[example]])
    begin, end = begins[length], begins[length + 1]
    return order[begin + torch.randint(end - begin, (n,), generator=generator)], length


@lru_cache(maxsize=8)
def _sort_by_length(patterns: Patterns, lines: Lines) -> tuple[Int[Tensor, " line"], list[int]]:
    """The lines in order of length, and where those of each length begin, up to the longest and the one behind it."""
    lengths = patterns.lengths[lines.pattern]
    counts = torch.bincount(lengths, minlength=int(lengths.max()) + 1)
    return lengths.argsort(stable=True), [0, *counts.cumsum(0).tolist()]


def check_sizes(sizes: Mapping[str, int], *, disambiguating: float, batches: str) -> None:
    """Every split has a line, and the knobs of the training set are what they can be.

    Raises:
        TaskError: one of them is not.
    """
    for split, size in sizes.items():
        if size < 1:
            raise TaskError(f"{split}={size} leaves the split empty: give at least 1 line")
    if not 0 <= disambiguating < 1:
        raise TaskError(f"disambiguating={disambiguating} must be a share of the training lines, from 0 to below 1")
    if batches not in ("mixed", "one_length"):
        raise TaskError(f"batches={batches!r} is unknown: give 'mixed' or 'one_length'")
