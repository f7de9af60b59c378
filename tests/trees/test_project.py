import random

import pytest
import torch

from interp.errors import InputError
from interp.trees.project import TIE, exclude_prefixes, mark_spans, project_cky, project_greedy
from tasks.trees import draw_tree, left_branching, list_spans, right_branching

N_WORDS = 7


def list_trees(start, end):
    """Every binary tree over these words."""
    if end - start == 1:
        return [start]
    return [
        (left, right)
        for cut in range(start + 1, end)
        for left in list_trees(start, cut)
        for right in list_trees(cut, end)
    ]


def random_charts(n_sentences, n_words, seed=0):
    return torch.rand(n_sentences, n_words, n_words + 1, generator=torch.Generator().manual_seed(seed))


def causal_charts(n_sentences, n_words, seed=0):
    """What a causal model gives: every prefix scores 1, and nothing more."""
    charts = random_charts(n_sentences, n_words, seed) * 0.2 + 0.79
    charts[:, 0] = 1.0
    return charts


def sum_scores(chart, tree):
    """Words and root aside, which every tree has."""
    return sum(float(chart[span]) for span in list_spans(tree) if span != (0, len(chart)))


def split_greedily(chart, start, end):
    if end - start == 1:
        return start
    sums = [float(chart[start, cut]) + float(chart[cut, end]) for cut in range(start + 1, end)]
    cut = start + 1 + max(range(len(sums)), key=sums.__getitem__)
    return split_greedily(chart, start, cut), split_greedily(chart, cut, end)


@pytest.mark.parametrize("project", [project_greedy, project_cky])
@pytest.mark.parametrize("n_words", [1, 2, 3, 12])
def test_a_chart_that_marks_a_tree_gives_that_tree(project, n_words):
    generator = random.Random(0)
    trees = [draw_tree(n_words, generator) for _ in range(8)] + [left_branching(n_words), right_branching(n_words)]
    charts = 0.3 + 0.6 * mark_spans(trees, n_words).float()
    assert project(charts) == trees


def test_greedy_is_the_recursion_from_the_top():
    charts = random_charts(20, 9)
    assert project_greedy(charts) == [split_greedily(chart, 0, 9) for chart in charts]


def test_cky_is_the_best_of_all_trees():
    charts = random_charts(10, N_WORDS)
    trees = list_trees(0, N_WORDS)
    assert len(trees) == 132
    for chart, found in zip(charts, project_cky(charts), strict=True):
        assert found == max(trees, key=lambda tree, chart=chart: sum_scores(chart, tree))


def test_greedy_can_miss_the_best_tree():
    chart = torch.zeros(1, 4, 5)
    chart[0, 1, 4], chart[0, 0, 2], chart[0, 2, 4] = 0.9, 0.4, 0.4
    chart[0, 0, 1] = 0.0
    chart[0, 1, 3] = -1.0
    assert project_greedy(chart) == [(0, (1, (2, 3)))]
    chart[0, 2, 4] = -0.6
    assert project_greedy(chart) == [(0, (1, (2, 3)))]
    assert project_cky(chart) == [(((0, 1), 2), 3)]
    assert sum_scores(chart[0], (((0, 1), 2), 3)) > sum_scores(chart[0], (0, (1, (2, 3))))


@pytest.mark.parametrize("project", [project_greedy, project_cky])
def test_of_equal_splits_the_leftmost_wins_whatever_the_rounding(project):
    charts = torch.full((50, 8, 9), 0.7)
    noise = (random_charts(50, 8) - 0.5) * TIE / 40
    assert project(charts) == project(charts + noise) == [right_branching(8)] * 50


@pytest.mark.parametrize("project", [project_greedy, project_cky])
def test_a_sentence_has_the_same_tree_in_every_batch(project):
    charts = random_charts(9, 10)
    assert project(charts) == [project(chart[None])[0] for chart in charts]


@pytest.mark.parametrize("project", [project_greedy, project_cky])
def test_what_is_no_span_and_the_root_are_not_read(project):
    charts = random_charts(4, 6)
    holes = charts.masked_fill(~torch.ones(6, 7).triu(1).bool(), float("nan"))
    holes[:, 0, 6] = float("nan")
    kept = holes.clone()
    assert project(holes) == project(charts)
    assert torch.equal(holes, kept) or torch.equal(holes.isnan(), kept.isnan())


def test_on_a_causal_chart_cky_is_left_branching_and_greedy_is_not():
    charts = causal_charts(50, 10)
    assert project_cky(charts) == [left_branching(10)] * 50
    assert left_branching(10) not in project_greedy(charts)


def test_dropping_the_prefixes_is_no_way_out_but_excluding_them_is():
    charts = causal_charts(200, 10)
    dropped = charts.clone()
    dropped[:, 0, 2:] = 0.0
    assert {tree[0] for tree in project_cky(dropped)} == {0}  # no tree has a prefix of two words or more
    firsts = [tree[0] for tree in project_cky(exclude_prefixes(charts))]
    alone = sum(first == 0 for first in firsts) / len(firsts)
    assert 0.1 < alone < 0.9
    assert left_branching(10) not in project_cky(exclude_prefixes(charts))


def test_an_excluded_prefix_scores_what_other_spans_of_its_length_do_on_average():
    chart = torch.zeros(1, 4, 5)
    chart[0, 1, 3], chart[0, 2, 4], chart[0, 1, 4], chart[0, 0, 1] = 0.2, 0.6, 0.5, 0.9
    chart[0, 0, 2:] = 1.0
    excluded = exclude_prefixes(chart)
    assert excluded[0, 0].tolist() == pytest.approx([0.0, 0.9, 0.4, 0.5, 0.0])
    assert torch.equal(excluded[:, 1:].float(), chart[:, 1:])
    assert chart[0, 0, 2] == 1.0
    planted = causal_charts(1, 8)
    for span in list_spans(tree := ((0, (1, 2)), ((3, 4), (5, (6, 7))))):
        planted[(0, *span)] += 0.5 * (span[0] > 0)
    assert project_cky(exclude_prefixes(planted)) == [tree]


@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 5, 4), (3, 0, 1)])
def test_it_says_which_shape_charts_have(shape):
    with pytest.raises(InputError, match=r"charts of sentences of n words are \[sentence, n, n \+ 1\]"):
        project_greedy(torch.zeros(shape))


def test_it_names_the_span_without_a_score():
    charts = random_charts(3, 4)
    charts[2, 1, 3] = float("nan")
    with pytest.raises(InputError, match=r"score of the words 1 to 2 of chart 2 is nan; every span needs a finite"):
        project_cky(charts)


def test_it_names_the_tree_that_does_not_fit():
    with pytest.raises(InputError, match=r"Tree 1 doesn't fit its sentence: .*leaves are \[0, 1\].*3 words"):
        mark_spans([(0, (1, 2)), (0, 1)], 3)
