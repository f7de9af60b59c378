"""What the cells of the tree analysis hold: the trees and scores of one condition, and the sentences they are of.

A tree is kept as the depth of the split between each two neighbouring words, from which it is read off again: the
shallowest split of a span is its own.

>>> pack_tree(((0, 1), (2, 3)))
[1, 0, 1]
>>> restore_tree([1, 0, 1])
((0, 1), (2, 3))
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Float

from analyses.tree_projections_sentences import GoldSentence, Readable
from interp.records.store import Cell
from interp.trees.brackets import BracketScores, Parser, compare_brackets
from interp.trees.projections import project_trees
from interp.trees.scores import Score, score_trees
from tasks.trees import Tree, list_spans

SHUFFLED = "the same words in random order"
UNTRAINED = "untrained model"
SCORES: tuple[Score, ...] = get_args(Score)
_NO_SPLIT = -1


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """A model on some sentences: what each layer's trees are and what they score."""

    layers: tuple[int, ...]
    """The layers, ascending."""
    trees: Mapping[int, tuple[Tree, ...]]
    """By layer, the tree of each sentence that is projected from its chart."""
    scores: Mapping[Score, Float[np.ndarray, "layer sentence"]]
    """What that tree scores, per sentence."""
    gold: Float[np.ndarray, "layer sentence"]
    """What the gold tree scores in the same chart, by equation 2 (`uniform_split`)."""
    same_start: Float[np.ndarray, "layer sentence"]
    """How much the gold phrases score above other spans that begin at the same word."""
    same_end: Float[np.ndarray, "layer sentence"]
    """How much they score above other spans that end at the same word."""

    def compare(self, sentences: Sequence[GoldSentence]) -> dict[int, BracketScores]:
        """By layer, the gold brackets that the trees have."""
        gold, labels = [one.tree for one in sentences], [one.labels for one in sentences]
        return {layer: compare_brackets(self.trees[layer], gold, labels=labels) for layer in self.layers}


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """All conditions of one model."""

    sentences: tuple[GoldSentence, ...]
    """The sentences, with gold trees."""
    model: Condition
    """The model on them."""
    shuffled: Condition
    """The model on their words in random order, under the same gold trees."""
    untrained: tuple[Condition, ...]
    """Models of its shape with random weights; none where the model's class has no such copy."""

    @property
    def layers(self) -> tuple[int, ...]:
        return self.model.layers

    @cached_property
    def n_words(self) -> Float[np.ndarray, " sentence"]:
        """The length of each sentence."""
        return np.array([float(len(one.words)) for one in self.sentences])

    @cached_property
    def brackets(self) -> dict[int, BracketScores]:
        """By layer, the gold brackets that the model's trees have."""
        return self.model.compare(self.sentences)


def only(scored: BracketScores, parser: Parser) -> BracketScores:
    """Of one parser alone, whose intervals then are the only ones to be drawn."""
    place = scored.parsers.index(parser)
    return replace(scored, parsers=(parser,), hits=scored.hits[:, place : place + 1])


def measure_condition(
    model: Any, sentences: Sequence[Readable], gold: Sequence[Tree], *, bos: int | None, seed: int
) -> Condition:
    """Projects the trees of every layer, and scores them and the gold ones."""
    found = project_trees(model, sentences, layer="all", bos="none" if bos is None else bos, n_untrained=0, seed=seed)
    lengths = found.charts.n_words
    gold_scores = np.zeros((len(found.layers), len(gold)))
    for i, layer in enumerate(found.layers):
        charts = found.charts[layer]
        for length in set(lengths):
            places = [place for place, n in enumerate(lengths) if n == length]
            stacked = torch.stack([charts[place] for place in places])
            gold_scores[i, places] = score_trees(stacked, [gold[place] for place in places], score="uniform_split")
    matched = np.stack(
        [
            match_spans(chart.double().numpy(), tree)
            for chart, tree in zip(found.charts.similarities, gold, strict=True)
        ],
        axis=2,
    )
    return Condition(
        layers=found.layers, trees=found.trees, scores=found.scores, gold=gold_scores,
        same_start=matched[0], same_end=matched[1],
    )  # fmt: skip


def match_spans(chart: Float[np.ndarray, "layer start end"], tree: Tree) -> Float[np.ndarray, "side layer"]:
    """The mean over the phrases of a gold tree of c less the mean of other spans with the same start, and with the same end.

    Phrases and spans have two words or more and don't begin the sentence. A phrase with nothing to compare with is left out;
    0 where none is left.
    """
    n = chart.shape[1]
    sides: tuple[list, list] = ([], [])
    for start, end in list_spans(tree):
        if start == 0:
            continue
        others = (
            [chart[:, start, other] for other in range(start + 2, n + 1) if other != end],
            [chart[:, other, end] for other in range(1, end - 1) if other != start],
        )
        for side, compared in zip(sides, others, strict=True):
            if compared:
                side.append(chart[:, start, end] - np.mean(compared, axis=0))
    return np.stack([np.mean(side, axis=0) if side else np.zeros(len(chart)) for side in sides])


def pack_condition(condition: Condition) -> dict[str, np.ndarray]:
    """The arrays of its cell."""
    depths = [[pack_tree(tree) for tree in condition.trees[layer]] for layer in condition.layers]
    width = max(len(one) for row in depths for one in row)
    padded = [[[*one, *[_NO_SPLIT] * (width - len(one))] for one in row] for row in depths]
    scores = {f"score/{name}": values for name, values in condition.scores.items()}
    return {
        "layers": np.array(condition.layers),
        "trees": np.array(padded, dtype=np.int16),
        "gold": condition.gold,
        "same_start": condition.same_start,
        "same_end": condition.same_end,
        **scores,
    }


def restore_condition(cell: Cell) -> Condition:
    """The `Condition` that a cell was written from."""
    arrays = cell.arrays
    layers = tuple(arrays["layers"].tolist())
    rows = arrays["trees"].tolist()
    return Condition(
        layers=layers,
        trees={
            layer: tuple(restore_tree([depth for depth in one if depth != _NO_SPLIT]) for one in row)
            for layer, row in zip(layers, rows, strict=True)
        },
        scores={name: arrays[f"score/{name}"] for name in SCORES},
        gold=arrays["gold"],
        same_start=arrays["same_start"],
        same_end=arrays["same_end"],
    )


def pack_sentences(sentences: Sequence[GoldSentence]) -> list[dict[str, Any]]:
    """Plain JSON."""
    return [
        {**asdict(one), "tree": pack_tree(one.tree), "labels": [[*span, label] for span, label in one.labels.items()]}
        for one in sentences
    ]


def restore_sentences(packed: Sequence[Mapping[str, Any]]) -> tuple[GoldSentence, ...]:
    """The sentences that `pack_sentences` took apart."""
    return tuple(
        GoldSentence(
            words=tuple(one["words"]),
            tree=restore_tree(one["tree"]),
            labels={(start, end): label for start, end, label in one["labels"]},
            construction=one["construction"],
        )
        for one in packed
    )


def restore_measured(cells: Mapping[str, Cell]) -> Measured:
    """All conditions, from the cells of `trees`."""
    untrained = [cell for name, cell in cells.items() if name.startswith("trees/untrained") and cell.arrays]
    return Measured(
        sentences=restore_sentences(cells["trees/model"].about["sentences"]),
        model=restore_condition(cells["trees/model"]),
        shuffled=restore_condition(cells["trees/shuffled"]),
        untrained=tuple(map(restore_condition, untrained)),
    )


def pack_tree(tree: Tree, depth: int = 0) -> list[int]:
    """Between each two neighbouring words, how many splits lie above the one that parts them."""
    if isinstance(tree, int):
        return []
    return [*pack_tree(tree[0], depth + 1), depth, *pack_tree(tree[1], depth + 1)]


def restore_tree(depths: Sequence[int], first: int = 0) -> Tree:
    """The tree over the words from `first` on, with these depths of splits between them."""
    if not depths:
        return first
    cut = depths.index(min(depths))
    return restore_tree(depths[:cut], first), restore_tree(depths[cut + 1 :], first + cut + 1)
