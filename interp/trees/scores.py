"""How far a tree is above chance in its chart: the published t-score, and what it was meant to be.

All four are one difference: what the spans of the tree score, less a baseline. With c the chart, T the tree, (i, j) its
nodes of two words or more, and k the points between i and j at which such a node could be split,

    t = sum of c over the spans of T except the root, minus

    uniform_split   the mean of that sum over random trees, each span split at a uniform point
    catalan         the mean of that sum over random trees, each tree as likely as any other
    closed          the sum over the nodes of T of the mean over k of c(i, k) + c(k, j)
    sampled         the sum over the nodes of T of c(i, r) + c(r, j) for one random point r each

`uniform_split` and `catalan` are equation 2 of Murty et al. 2022 (https://arxiv.org/abs/2211.01288), without sampling: the
mean is a sum over spans weighted by the probability that a random tree has them (`span_probabilities`). `sampled` is what
the code of Murty et al. 2023 (https://arxiv.org/abs/2305.18741) reports, here with a seed; `closed` is its mean over r.
A greedy tree has the best split of every node, so these two are **above 0 for an untrained model**: 0.2 to 1.4 for small
ones of several kinds, where equation 2 gives -0.6 to 0.2. So compare each with the same score of the same model untrained,
drawn several times, never with 0.

>>> charts = torch.full((1, 4, 5), 0.5)
>>> charts[0, 0, 2] = charts[0, 2, 4] = 0.9
>>> [float(score_trees(charts, [((0, 1), (2, 3))], score=score).round(3)[0]) for score in ("uniform_split", "closed")]
[0.4, 0.533]
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.trees.project import check_charts, mark_spans
from tasks.seeding import derive_generator
from tasks.trees import Law, Tree, count_trees

Score = Literal["uniform_split", "catalan", "closed", "sampled"]


def score_trees(
    charts: Float[Tensor, "sentence start end"],
    trees: Sequence[Tree],
    *,
    score: Score,
    per: Literal["sentence", "span"] = "sentence",
    seed: int = 0,
    places: Sequence[int] | None = None,
) -> Float[np.ndarray, "sentence"]:
    """The score of each tree in its chart, in units of the chart; any tree can be scored, a gold one too.

    A sentence of n words has n - 1 nodes: `per="span"` divides by that, since longer sentences have more to gain. Only
    `sampled` draws: for each sentence from `seed` and its place in the corpus, so that its score doesn't depend on the
    batch it is in; `places` are 0, 1, 2, ... unless given. Raises `InputError` for charts that aren't [sentence, n, n + 1]
    or have a span without a finite score, and for trees that don't go with them.
    """
    chart = check_charts(charts)
    n_words = chart.shape[1]
    if len(trees) != len(chart):
        raise InputError(f"{len(trees)} trees were given for {len(chart)} charts; give each chart its tree.")
    spans = mark_spans(trees, n_words)
    if score == "uniform_split" or score == "catalan":
        baseline = torch.tensor(span_probabilities(n_words, score)) * chart
    elif score == "closed":
        baseline = spans * _average_splits(chart)
    elif score == "sampled":
        baseline = spans * _draw_splits(chart, range(len(chart)) if places is None else places, seed)
    else:
        raise InputError(f"score={score!r} isn't known; use one of {', '.join(get_args(Score))}.")
    per_sentence = (spans * chart - baseline).sum(dim=(1, 2))
    return (per_sentence if per == "sentence" else per_sentence / max(n_words - 1, 1)).numpy()


@lru_cache(maxsize=256)
def span_probabilities(n_words: int, law: Law) -> Float[np.ndarray, "start end"]:
    """The probability that a random binary tree over n words has the span [start, end), its words and root included.

    For a span of m words. `uniform_split`: 1 for the root, 1 / m for a span at either edge, 2 / (m (m + 1)) inside.
    `catalan`: C(m - 1) C(n - m) / C(n - 1) with the Catalan numbers C. Both sum to 2 n - 1.

    >>> span_probabilities(3, "uniform_split")[0, 2], span_probabilities(3, "catalan")[1, 3]
    (np.float64(0.5), np.float64(0.5))
    """
    if law not in get_args(Law) or n_words < 1:
        raise InputError(
            f"span_probabilities was given n_words={n_words} and law={law!r}; it needs a word or more and one of "
            f"{', '.join(get_args(Law))}."
        )
    start, end = np.arange(n_words)[:, None], np.arange(n_words + 1)
    length = np.maximum(end - start, 0)
    if law == "catalan":
        rooted = [count_trees(m) * count_trees(n_words - m + 1) / count_trees(n_words) for m in range(1, n_words + 1)]
        table = np.array([0.0, *rooted])[length]
    else:
        inside, edge = 2 / np.maximum(length * (length + 1), 1), 1 / np.maximum(length, 1)
        table = np.where((start == 0) | (end == n_words), edge, inside) * (length > 0)
        table[0, n_words] = 1.0
    table.setflags(write=False)  # shared by all who ask
    return table


def _average_splits(chart: Float[Tensor, "sentence start end"]) -> Float[Tensor, "sentence start end"]:
    """For each span the mean over its split points of what both parts score; 0 for a word."""
    left = chart.cumsum(dim=2) - chart  # [i, j]: c(i, k) over k < j
    right = chart.flip(1).cumsum(dim=1).flip(1) - chart  # [i, j]: c(k, j) over k > i
    n_words = chart.shape[1]
    n_splits = torch.arange(n_words + 1) - torch.arange(n_words)[:, None] - 1
    return torch.where(n_splits > 0, (left + right) / n_splits.clamp(min=1), 0.0)


def _draw_splits(
    chart: Float[Tensor, "sentence start end"], places: Sequence[int], seed: int
) -> Float[Tensor, "sentence start end"]:
    """For each span what both parts score at one split point that is drawn uniformly; 0 for a word."""
    if len(places) != len(chart):
        raise InputError(f"{len(places)} places were given for {len(chart)} charts; give each sentence its place.")
    n_words = chart.shape[1]
    draws = [
        torch.rand(
            n_words, n_words + 1, dtype=torch.float64, generator=derive_generator(seed, "random split", int(place))
        )
        for place in places
    ]
    start, end = torch.arange(n_words)[:, None], torch.arange(n_words + 1)
    n_splits = (end - start - 1).clamp(min=0)
    cut = (start + 1 + (torch.stack(draws) * n_splits).long()).clamp(max=n_words - 1)
    row = torch.arange(len(chart))[:, None, None]
    return torch.where(n_splits > 0, chart[row, start, cut] + chart[row, cut, end], 0.0)
