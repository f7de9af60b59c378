import numpy as np
import pytest
import torch

from interp.errors import InputError
from interp.trees.project import project_greedy
from interp.trees.scores import score_trees, span_probabilities
from tasks.trees import count_trees, left_branching, list_spans, right_branching
from tests.trees.test_project import random_charts

LAWS = ["uniform_split", "catalan"]


def list_weighted_trees(start, end, law):
    """Every tree with its probability, by the definition of the law."""
    if end - start == 1:
        return [(start, 1.0)]
    weighted = [
        ((left, right), p * q / (end - start - 1))
        for cut in range(start + 1, end)
        for left, p in list_weighted_trees(start, cut, law)
        for right, q in list_weighted_trees(cut, end, law)
    ]
    return weighted if law == "uniform_split" else [(tree, 1 / len(weighted)) for tree, _ in weighted]


def list_nodes(tree):
    """(start, end) of every node, words included."""

    def walk(node):
        if isinstance(node, int):
            return [(node, node + 1)]
        left, right = walk(node[0]), walk(node[1])
        return [(left[0][0], right[0][1]), *left, *right]

    return walk(tree)


def sum_scores(chart, tree):
    n_words = chart.shape[0]
    return sum(float(chart[span]) for span in list_nodes(tree) if span != (0, n_words))


def sum_gains(chart, tree, choose):
    """Over the nodes of two words or more, what the parts score less what `choose` makes of all possible parts."""
    if isinstance(tree, int):
        return 0.0
    start, end = list_nodes(tree)[0]
    cut = list_nodes(tree[0])[0][1]
    sums = {k: float(chart[start, k] + chart[k, end]) for k in range(start + 1, end)}
    return (
        sums[cut] - choose(list(sums.values())) + sum_gains(chart, tree[0], choose) + sum_gains(chart, tree[1], choose)
    )


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n_words", range(1, 9))
def test_span_probabilities_equal_the_enumeration_of_all_trees(n_words, law):
    expected, weights = np.zeros((n_words, n_words + 1)), []
    for tree, p in list_weighted_trees(0, n_words, law):
        weights.append(p)
        for span in list_nodes(tree):
            expected[span] += p
    assert len(weights) == count_trees(n_words)
    assert sum(weights) == pytest.approx(1)
    np.testing.assert_allclose(span_probabilities(n_words, law), expected, atol=1e-12)


@pytest.mark.parametrize("law", LAWS)
def test_a_long_sentence_has_probabilities_that_sum_to_the_number_of_nodes(law):
    table = span_probabilities(200, law)
    assert table.sum() == pytest.approx(2 * 200 - 1)
    assert table[0, 200] == 1.0
    np.testing.assert_allclose(table[np.arange(200), np.arange(1, 201)], 1.0)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("n_words", range(1, 9))
def test_equation_2_equals_the_enumeration_of_all_trees(n_words, law):
    charts = random_charts(2, n_words, seed=n_words)
    trees = [left_branching(n_words), *project_greedy(charts[1:])]
    mean = [sum(p * sum_scores(chart, tree) for tree, p in list_weighted_trees(0, n_words, law)) for chart in charts]
    expected = [sum_scores(chart, tree) - base for chart, tree, base in zip(charts, trees, mean, strict=True)]
    np.testing.assert_allclose(score_trees(charts, trees, score=law), expected, atol=1e-6)


@pytest.mark.parametrize("law", LAWS)
def test_equation_2_in_distances_is_the_same(law):
    charts = random_charts(3, 8)
    trees = project_greedy(charts)
    np.testing.assert_allclose(score_trees(charts, trees, score=law), score_trees(charts - 1, trees, score=law))


def test_the_closed_form_is_the_definition():
    charts = random_charts(12, 9)
    trees = project_greedy(charts)
    expected = [sum_gains(chart, tree, np.mean) for chart, tree in zip(charts, trees, strict=True)]
    found = score_trees(charts, trees, score="closed")
    np.testing.assert_allclose(found, expected, atol=1e-6)
    best = [sum_gains(chart, tree, max) for chart, tree in zip(charts, trees, strict=True)]
    np.testing.assert_allclose(best, 0, atol=1e-6)  # a greedy tree takes the best split of every node
    assert (found > 0).all()


def test_the_sampled_score_is_one_of_its_draws_and_the_closed_form_is_its_mean():
    charts = random_charts(1, 4)
    trees = [(0, ((1, 2), 3))]
    c = charts[0].double()
    possible = [
        float(c[0, 1] + c[1, 4] - c[0, k] - c[k, 4] + c[1, 3] + c[3, 4] - c[1, j] - c[j, 4])
        for k in (1, 2, 3)
        for j in (2, 3)
    ]
    draws = np.array([score_trees(charts, trees, score="sampled", seed=seed)[0] for seed in range(600)])
    near = np.abs(draws[:, None] - possible).argmin(axis=1)
    np.testing.assert_allclose(draws, np.array(possible)[near], atol=1e-9)
    assert set(near) == set(range(6))
    spread = draws.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - score_trees(charts, trees, score="closed")[0]) < 4 * spread


def test_the_sampled_score_depends_on_seed_and_place_and_not_on_the_batch():
    charts = random_charts(6, 9)
    trees = project_greedy(charts)
    together = score_trees(charts, trees, score="sampled", places=[10, 11, 12, 13, 14, 15])
    alone = [score_trees(charts[i : i + 1], [trees[i]], score="sampled", places=[10 + i])[0] for i in range(6)]
    np.testing.assert_allclose(together, alone)
    assert not np.allclose(together, score_trees(charts, trees, score="sampled", seed=1, places=range(10, 16)))
    same = charts[:1].expand(6, -1, -1)
    assert len(set(score_trees(same, trees[:1] * 6, score="sampled").round(9))) > 1


def test_a_greedy_tree_is_above_chance_in_a_random_chart_and_a_fixed_tree_is_not():
    """Why no score is compared with 0: the tree was chosen in the chart in which it is scored."""
    charts = random_charts(400, 12)
    chosen, fixed = project_greedy(charts), [right_branching(12)] * 400
    for score in (*LAWS, "closed", "sampled"):
        assert score_trees(charts, chosen, score=score).mean() > 1.5
        values = score_trees(charts, fixed, score=score)
        assert abs(values.mean()) < 4 * values.std() / 20


def test_per_span_divides_by_the_number_of_nodes():
    charts = random_charts(3, 6)
    trees = project_greedy(charts)
    nodes = {len(list_spans(tree)) for tree in trees}
    assert nodes == {5}
    each = score_trees(charts, trees, score="closed", per="span")
    np.testing.assert_allclose(each * 5, score_trees(charts, trees, score="closed"))
    assert score_trees(random_charts(1, 1), [0], score="closed", per="span").tolist() == [0.0]


@pytest.mark.parametrize("score", [*LAWS, "closed", "sampled"])
def test_two_words_have_one_tree_so_nothing_can_be_gained(score):
    assert score_trees(random_charts(3, 2), [(0, 1)] * 3, score=score) == pytest.approx(np.zeros(3))


def test_a_gold_tree_can_be_scored_and_the_chart_stays_as_it_is():
    tree = ((0, 1), (2, (3, 4)))
    chart = torch.zeros(1, 5, 6)
    for span in list_spans(tree):
        chart[(0, *span)] = 1.0
    kept = chart.clone()
    assert score_trees(chart, [tree], score="closed")[0] > score_trees(chart, [left_branching(5)], score="closed")[0]
    expected = 3 - sum(span_probabilities(5, "catalan")[span] for span in [(0, 2), (2, 5), (3, 5)])
    assert score_trees(chart, [tree], score="catalan").tolist() == pytest.approx([expected])
    assert torch.equal(chart, kept)


def test_it_says_what_it_cannot_score():
    charts = random_charts(2, 4)
    with pytest.raises(InputError, match="1 trees were given for 2 charts; give each chart its tree"):
        score_trees(charts, [left_branching(4)], score="closed")
    with pytest.raises(InputError, match=r"Tree 1 doesn't fit its sentence: .*\[0, 1, 2\].*4 words"):
        score_trees(charts, [left_branching(4), left_branching(3)], score="closed")
    with pytest.raises(InputError, match="3 places were given for 2 charts"):
        score_trees(charts, [left_branching(4)] * 2, score="sampled", places=[0, 1, 2])
    with pytest.raises(InputError, match="n_words=0 and law='catalan'; it needs a word or more"):
        span_probabilities(0, "catalan")
