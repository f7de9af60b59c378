"""How much of the gold trees is found: bracket F1, beside what trees that know nothing of the words find.

    F1 = brackets in both / brackets in one,         bracket = the (start, end) of a node of two words or more

over all sentences at once. Both trees are binary, so they have equally many brackets, and precision, recall and F1 are one
number. The root is in every tree: F1 with it flatters, and it is given without it too. The PARSEVAL measures: Black et al.
1991, https://aclanthology.org/H91-1060; Murty et al. 2023 (https://arxiv.org/abs/2305.18741) count the root.

Left- and right-branching trees and two kinds of random tree stand beside it. What random trees find on average is exact,
a sum of the probabilities of the gold spans (`interp.trees.scores.span_probabilities`). English branches to the right, so
the right-branching tree is the one to beat.

>>> compare_brackets([((0, 1), (2, 3))], [(0, (1, (2, 3)))]).to_frame().query("group == 'without root'").found.round(2).tolist()
[0.5, 0.0, 1.0, 0.42, 0.4]
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from interp.errors import InputError
from interp.trees.project import check_trees
from interp.trees.scores import span_probabilities
from tasks.seeding import derive_seed
from tasks.trees import Law, Tree, count_leaves, left_branching, list_spans, right_branching

Span = tuple[int, int]
Parser = Literal["projected", "left", "right", "uniform_split", "catalan"]
_NAMES: Mapping[str, str] = {
    "left": "left-branching",
    "right": "right-branching",
    "uniform_split": "random by splits",
    "catalan": "random of all",
}
_WITH, _WITHOUT = "with root", "without root"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BracketScores:
    """Gold brackets that each parser finds, sentence by sentence."""

    parsers: tuple[Parser, ...]
    """The trees under test, then left- and right-branching ones, then random ones."""
    groups: tuple[str, ...]
    """All brackets "with root" and "without root", then each constituent type of labelled gold trees, roots aside."""
    hits: Float[np.ndarray, "group parser sentence"]
    """Gold brackets that are found; for random trees on average."""
    totals: Float[np.ndarray, "group sentence"]
    """Gold brackets."""

    @property
    def f1(self) -> float:
        """With the root, as published."""
        return self._share(_WITH)

    @property
    def f1_without_root(self) -> float:
        """NaN where no sentence has more than two words."""
        return self._share(_WITHOUT)

    def to_frame(self, *, level: float = 0.95, n_resamples: int = 2000, seed: int = 0) -> pd.DataFrame:
        """For each group and parser the share of the gold brackets found, which for all brackets is F1.

        `low` and `high` are ends of a bootstrap interval over sentences, with the same resampled sentences for all rows;
        they are NaN for one sentence.
        """
        low, high = self._bootstrap(level, n_resamples, seed)
        with np.errstate(invalid="ignore"):
            found = self.hits.sum(axis=2) / self.totals.sum(axis=1)[:, None]
        rows = [
            (group, parser, found[g, p], low[g, p], high[g, p], int(self.totals[g].sum()), self.totals.shape[1])
            for g, group in enumerate(self.groups)
            for p, parser in enumerate(self.parsers)
        ]
        return pd.DataFrame(rows, columns=["group", "parser", "found", "low", "high", "n_brackets", "n_sentences"])

    def _share(self, group: str) -> float:
        row = self.groups.index(group)
        total = self.totals[row].sum()
        return float(self.hits[row, 0].sum() / total) if total else float("nan")

    def _bootstrap(
        self, level: float, n_resamples: int, seed: int
    ) -> tuple[Float[np.ndarray, "group parser"], Float[np.ndarray, "group parser"]]:
        """A ratio of sums, so whole sentences are drawn; a draw without a bracket of the group says nothing of it."""
        n = self.totals.shape[1]
        if n == 1:
            unknown = np.full(self.hits.shape[:2], np.nan)
            return unknown, unknown
        generator = np.random.default_rng(derive_seed(seed, "bootstrap"))
        counts = generator.multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(
            np.float64
        )  # [resample, sentence]
        hits, totals = self.hits @ counts.T, self.totals @ counts.T
        shares = np.divide(hits, totals[:, None], out=np.full_like(hits, np.nan), where=totals[:, None] > 0)
        tails = [(1 - level) / 2, (1 + level) / 2]
        ends = np.full((2, *self.hits.shape[:2]), np.nan)
        for group in np.flatnonzero(self.totals.sum(axis=1)):
            ends[:, group] = np.nanquantile(shares[group], tails, axis=1)
        return ends[0], ends[1]

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        table = self.to_frame().set_index(["group", "parser"])
        own = [f"{row.found:.3f} [{row.low:.3f}, {row.high:.3f}]" for row in _pick(table, "projected")]
        others = [f"{_NAMES[parser]} {_pick(table, parser)[1].found:.3f}" for parser in self.parsers[1:]]
        return (
            f"BracketScores(F1 {own[0]} with the root, {own[1]} without; without it {', '.join(others)}; "
            f"n={self.totals.shape[1]} sentences)"
        )


def compare_brackets(
    trees: Sequence[Tree], gold: Sequence[Tree], *, labels: Sequence[Mapping[Span, str]] | None = None
) -> BracketScores:
    """The brackets of `gold` that are in `trees`, and in trees that know nothing of the words.

    `labels` gives for each sentence the constituent types of gold spans (start, end), such as {(0, 2): "NP"}; spans
    without one count only among all. Raises `InputError` for no sentence, trees of different words, and a label on what
    isn't a gold bracket.
    """
    if len(gold) == 0:
        raise InputError("compare_brackets was given no gold tree; give one for each sentence.")
    lengths = [count_leaves(tree) for tree in gold]
    check_trees(gold, lengths)
    check_trees(trees, lengths)
    spans = [list_spans(tree) for tree in gold]
    grouped = [_group_spans(own, n) for own, n in zip(spans, lengths, strict=True)]
    if labels is not None:
        _check_labels(labels, spans)
        for groups, named, n in zip(grouped, labels, lengths, strict=True):
            for span, label in named.items():
                if span != (0, n):
                    groups.setdefault(label, []).append(span)
    names = (_WITH, _WITHOUT, *sorted({name for groups in grouped for name in groups} - {_WITH, _WITHOUT}))
    parsers: tuple[Parser, ...] = get_args(Parser)
    hits, totals = np.zeros((len(names), len(parsers), len(gold))), np.zeros((len(names), len(gold)))
    for row, (tree, n, groups) in enumerate(zip(trees, lengths, grouped, strict=True)):
        chances = _list_chances(tree, n)
        for name, own in groups.items():
            group = names.index(name)
            totals[group, row] = len(own)
            hits[group, :, row] = [_sum_chances(table, own) for table in chances]
    return BracketScores(parsers=parsers, groups=names, hits=hits, totals=totals)


def _group_spans(spans: Sequence[Span], n_words: int) -> dict[str, list[Span]]:
    return {_WITH: list(spans), _WITHOUT: [span for span in spans if span != (0, n_words)]}


def _list_chances(tree: Tree, n_words: int) -> list[set[Span] | Float[np.ndarray, "start end"]]:
    """For each parser its brackets, or the probability of each."""
    fixed = [set(list_spans(own)) for own in (tree, left_branching(n_words), right_branching(n_words))]
    return [*fixed, *(span_probabilities(n_words, law) for law in get_args(Law))]


def _sum_chances(table: set[Span] | Float[np.ndarray, "start end"], spans: Iterable[Span]) -> float:
    return float(sum((span in table) if isinstance(table, set) else table[span] for span in spans))


def _check_labels(labels: Sequence[Mapping[Span, str]], spans: Sequence[Sequence[Span]]) -> None:
    if len(labels) != len(spans):
        raise InputError(f"{len(labels)} sets of labels were given for {len(spans)} gold trees; give one for each.")
    for row, (named, own) in enumerate(zip(labels, spans, strict=True)):
        strange = next((span for span in named if span not in own), None)
        if strange is not None:
            raise InputError(
                f"The label {named[strange]!r} of sentence {row} is on {strange}, which is no bracket of its gold tree; "
                f"label some of {own}."
            )
        reserved = next((label for label in named.values() if label in (_WITH, _WITHOUT)), None)
        if reserved is not None:
            raise InputError(f"The label {reserved!r} of sentence {row} is the name of a group; use another.")


def _pick(table: pd.DataFrame, parser: str) -> list:
    return [table.loc[(group, parser)] for group in (_WITH, _WITHOUT)]
