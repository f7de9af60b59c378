"""The sampler: exact probabilities against those counted, gold trees against a parse by hand, and bad grammars."""

from collections import Counter
from fractions import Fraction

import pytest

from tasks.grammar import draw_sentences, list_derivations, read_grammar
from tasks.task import TaskError
from tasks.trees import check_tree, list_spans

TEXT = """
S       : NP VP
NP      : NP.base | 3 * NP.base PP
NP.base : Det N
PP      : P NP.base
VP      : V | V NP.base
"""
LEXICON = {"Det": ("the", "a"), "N": ("yak", "newt", "quail"), "P": ("near",), "V": ("sleeps", "sees")}


def test_the_derivations_by_hand():
    derivations = list_derivations(read_grammar(TEXT))
    assert {(one.probability, " ".join(one.categories), one.tree) for one in derivations} == {
        (Fraction(1, 8), "Det N V", ((0, 1), 2)),
        (Fraction(1, 8), "Det N V Det N", ((0, 1), (2, (3, 4)))),
        (Fraction(3, 8), "Det N P Det N V", (((0, 1), (2, (3, 4))), 5)),
        (Fraction(3, 8), "Det N P Det N V Det N", (((0, 1), (2, (3, 4))), (5, (6, 7)))),
    }
    last = max(derivations, key=lambda one: len(one.categories))
    assert last.labels == {
        (0, 8): "S",
        (0, 5): "NP",
        (0, 2): "NP",
        (2, 5): "PP",
        (3, 5): "NP",
        (5, 8): "VP",
        (6, 8): "NP",
    }


def test_sentences_come_up_as_often_as_their_derivations():
    grammar, n = read_grammar(TEXT), 4000
    sentences = draw_sentences(grammar, LEXICON, n=n, seed=0)
    lengths = Counter(len(one.words) for one in sentences)
    for one in list_derivations(grammar):
        share = float(one.probability)
        assert abs(lengths[len(one.categories)] / n - share) < 4 * (share * (1 - share) / n) ** 0.5
    nouns = Counter(one.words[1] for one in sentences)
    assert all(abs(nouns[noun] / n - 1 / 3) < 0.03 for noun in LEXICON["N"])
    for one in sentences[:50]:
        check_tree(one.tree, len(one.words))
        assert sorted(one.labels) == list_spans(one.tree)


def test_the_seed_decides_the_sentences():
    grammar = read_grammar(TEXT)
    first, again, other = (draw_sentences(grammar, LEXICON, n=20, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_bad_grammars_are_named():
    with pytest.raises(TaskError, match="'S NP VP' is no rule: write each left side once, as 'left : weight"):
        read_grammar("S NP VP")
    with pytest.raises(TaskError, match="'S : A B C' is no rule"):
        read_grammar("S : A B C")
    with pytest.raises(TaskError, match="'S : minus \\* A' is no rule"):
        read_grammar("S : minus * A")
    with pytest.raises(TaskError, match="'S : 0 \\* A' is no rule"):
        read_grammar("S : 0 * A")
    with pytest.raises(TaskError, match="the grammar is empty"):
        read_grammar("\n")
    with pytest.raises(TaskError, match="NP leads back to itself: give a grammar without recursion"):
        list_derivations(read_grammar("S : NP V\nNP : Det N | NP PP"))
    with pytest.raises(TaskError, match="the lexicon has no words for N, V: give each category its words"):
        draw_sentences(read_grammar("S : N V"), {"P": ("near",)}, n=1, seed=0)
