"""From a chart of span scores to a binary tree: greedily from the top, or the best tree of all.

A chart holds c(i, j), the score of the words i to j-1, at [i, j]; what isn't a span (j <= i) is ignored, and so is the
root, which every tree has. Murty et al. 2022, "Characterizing intrinsic compositionality in transformers with Tree
Projections", https://arxiv.org/abs/2211.01288; Algorithm 1 is the greedy one.

    greedy   split (i, j) at argmax over k of c(i, k) + c(k, j), and go on with both parts
    CKY      argmax over trees T of the sum of c over the spans of T

**A causal model needs the greedy one.** There the masked pass of a span that starts the sentence is the unmasked pass, so
c(0, k) is 1 for every k. Each of the n - 2 spans of a tree besides its root and its words scores at most 1, and the
left-branching tree has only prefixes: exact CKY returns it for every sentence. Greedy splits see the prefixes of the
sentence as one constant. `exclude_prefixes` makes CKY usable: a prefix counts what the other spans of its length count on
average. (To drop prefixes from the sum, at scores near 1, is a mistake too: a tree would gain by having none.)

>>> chart = torch.full((1, 4, 5), 0.5)
>>> chart[0, 0, 2] = chart[0, 2, 4] = 0.9
>>> project_greedy(chart), project_cky(chart)
([((0, 1), (2, 3))], [((0, 1), (2, 3))])
"""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from interp.errors import InputError
from tasks.task import TaskError
from tasks.trees import Tree, check_tree, list_spans

TIE = 1e-6
"""Splits whose sums differ by less, relative to sums above 1, are equal, and the leftmost of them wins: charts are computed
in float32, and rounding must not choose the tree."""


def project_greedy(charts: Float[Tensor, "sentence start end"]) -> list[Tree]:
    """The tree of each chart by the best split of each span from the top; the charts are of sentences of equal length.

    Of equal splits (`TIE`) the leftmost wins. Raises `InputError` for a shape other than [sentence, n, n + 1] and for a
    span without a finite score.
    """
    chart = check_charts(charts)
    splits = torch.zeros(chart.shape, dtype=torch.long)
    for length in range(2, chart.shape[1] + 1):
        start, cut, end = _list_splits(chart.shape[1], length)
        best = _choose_first(chart[:, start, cut] + chart[:, cut, end])
        splits[:, start[:, 0], end[:, 0]] = start[:, 0] + 1 + best
    return [_read_tree(table, 0, len(table)) for table in splits.tolist()]


def project_cky(charts: Float[Tensor, "sentence start end"]) -> list[Tree]:
    """The tree of each chart with the largest sum of scores; the charts are of sentences of equal length.

    The charts of a causal model go through `exclude_prefixes` first, otherwise every tree is left-branching. Of equal
    splits (`TIE`) the leftmost wins. Raises as `project_greedy`.
    """
    best = check_charts(charts)
    splits = torch.zeros(best.shape, dtype=torch.long)
    for length in range(2, best.shape[1] + 1):
        start, cut, end = _list_splits(best.shape[1], length)
        sums = best[:, start, cut] + best[:, cut, end]
        chosen = _choose_first(sums)
        splits[:, start[:, 0], end[:, 0]] = start[:, 0] + 1 + chosen
        best[:, start[:, 0], end[:, 0]] += sums.gather(2, chosen[:, :, None]).squeeze(2)
    return [_read_tree(table, 0, len(table)) for table in splits.tolist()]


def exclude_prefixes(charts: Float[Tensor, "sentence start end"]) -> Float[Tensor, "sentence start end"]:
    """The charts with each prefix of two words or more scored as the other spans of its length are on average.

    So a prefix neither draws a tree nor repels it. Words are in every tree and stay as they are; the root is scored 0.
    """
    chart = check_charts(charts)
    for length in range(2, chart.shape[1]):
        starts = torch.arange(1, chart.shape[1] - length + 1)
        chart[:, 0, length] = chart[:, starts, starts + length].mean(dim=1)
    return chart


def check_charts(charts: Float[Tensor, "sentence start end"]) -> Float[Tensor, "sentence start end"]:
    """The charts in float64 on the CPU, with 0 for the root and for what isn't a span. Raises as `project_greedy`."""
    n_words = charts.shape[1]
    if n_words < 1 or charts.shape[2] != n_words + 1:
        raise InputError(
            f"The charts have shape {tuple(charts.shape)}; charts of sentences of n words are [sentence, n, n + 1], with "
            "the score of the words i to j - 1 at [i, j]."
        )
    chart = charts.detach().cpu().double().triu(1)
    chart[:, 0, n_words] = 0.0
    wrong = (~chart.isfinite()).nonzero()
    if len(wrong):
        sentence, start, end = wrong[0].tolist()
        raise InputError(
            f"The score of the words {start} to {end - 1} of chart {sentence} is {float(chart[sentence, start, end])}; "
            "every span needs a finite score."
        )
    return chart


def check_trees(trees: Sequence[Tree], lengths: Sequence[int], *, what: str = "Tree") -> None:
    """Each tree is binary and has the words of its sentence. Raises `InputError` that names the first which isn't."""
    if len(trees) != len(lengths):
        raise InputError(
            f"{len(trees)} {what.lower()}s were given for {len(lengths)} sentences; give each sentence its tree."
        )
    for row, (tree, n_words) in enumerate(zip(trees, lengths, strict=True)):
        try:
            check_tree(tree, n_words)
        except TaskError as error:
            raise InputError(f"{what} {row} doesn't fit its sentence: {error}.") from error


def mark_spans(trees: Sequence[Tree], n_words: int) -> Bool[Tensor, "sentence start end"]:
    """Which spans each tree has, its words and its root included. Raises as `check_trees`."""
    check_trees(trees, [n_words] * len(trees))
    marks = torch.zeros(len(trees), n_words, n_words + 1, dtype=torch.bool)
    marks[:, range(n_words), range(1, n_words + 1)] = True
    for row, tree in enumerate(trees):
        for start, end in list_spans(tree):
            marks[row, start, end] = True
    return marks


def _list_splits(
    n_words: int, length: int
) -> tuple[Int[Tensor, "span 1"], Int[Tensor, "span split"], Int[Tensor, "span 1"]]:
    """Start, split points and end of every span of this length."""
    start = torch.arange(n_words - length + 1)[:, None]
    return start, start + torch.arange(1, length), start + length


def _choose_first(sums: Float[Tensor, "sentence span split"]) -> Int[Tensor, "sentence span"]:
    most = sums.amax(dim=2, keepdim=True)
    return (sums >= most - TIE * most.abs().clamp(min=1.0)).int().argmax(dim=2)


def _read_tree(splits: list[list[int]], start: int, end: int) -> Tree:
    if end - start == 1:
        return start
    cut = splits[start][end]
    return _read_tree(splits, start, cut), _read_tree(splits, cut, end)
