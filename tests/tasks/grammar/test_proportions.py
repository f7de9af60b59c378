"""What was counted in the published files comes out of `proportions="published_files"`, each within its sampling error."""

from collections.abc import Callable

import pytest
import torch

from tasks.grammar import QuestionFormation, TenseInflection, list_derivations, question_formation, tense_inflection
from tasks.grammar.proportions import PUBLISHED_QUESTIONS, name_kind, rebalance
from tasks.grammar.question_grammar import list_sources, tabulate_questions
from tasks.grammar.tense_inflection import GRAMMAR, tabulate_inflections
from tasks.task import TaskError
from tasks.trees import left_branching, list_spans, right_branching
from tests.untyped import as_without_type_checks

QUESTIONS = question_formation.weigh_patterns(QuestionFormation(proportions="published_files"))
TENSES = tense_inflection.weigh_patterns(TenseInflection(proportions="published_files"))


def check(values, weights, published, n, *, per=None, noise=None):
    """The ratio of means of values and `per` is the published one, of `n` lines, up to two standard errors.

    `noise` is the variance of each value, where the published ones were drawn.
    """
    per = [1.0] * len(values) if per is None else per
    noise = [0.0] * len(values) if noise is None else noise
    values, per, noise, weights = (torch.tensor(some, dtype=torch.float64) for some in (values, per, noise, weights))
    weights = weights / weights.sum()
    ratio = (weights @ values / (weights @ per)).item()
    spread = (((values - ratio * per) ** 2 + noise) @ weights).sqrt().item() / (weights @ per).item()
    assert abs(ratio - published) < 2 * spread / n**0.5 + 0.0005, (ratio, published, spread / n**0.5)


def count_shared(trees, branching: Callable):
    return [len({*list_spans(tree)} & {*list_spans(branching(len(list_spans(tree)) + 1))}) for tree in trees]


def find_chances(tree):
    """For each gold span how often a tree with uniform splits has it: always the root, 1 / m at an edge, 2 / (m (m + 1))."""
    n = len(list_spans(tree)) + 1
    return [
        1.0 if end - start == n else 1 / m if start == 0 or end == n else 2 / (m * (m + 1))
        for start, end in list_spans(tree)
        for m in [end - start]
    ]


def check_random(trees, weights, published, n):
    """The published trees were drawn once for each sentence."""
    chances = list(map(find_chances, trees))
    noise = [sum(chance * (1 - chance) for chance in each) for each in chances]
    check(list(map(sum, chances)), weights, published, n, per=list(map(len, chances)), noise=noise)


def test_questions():
    trained = QUESTIONS["train"].tolist()
    patterns, sources = tabulate_questions(), list_sources()
    check((patterns.lengths - 2).tolist(), trained, 22.4, 1000)
    check((patterns.roles["source"].sum(1) + 2).tolist(), trained, 11.7, 1000)
    check([1.0, 0.0] * len(sources), trained, 0.594, 1000)
    asked = trained[1::2]
    trees = [one.derivation.tree for one in sources]
    spans = [len(list_spans(tree)) for tree in trees]
    check([n + 1 for n in spans], asked, 9.2, 406)
    check(count_shared(trees, right_branching), asked, 0.663, 406, per=spans)
    check(count_shared(trees, left_branching), asked, 0.286, 406, per=spans)
    check_random(trees, asked, 0.401, 406)
    last = [one.derivation.categories[one.auxiliaries[-1]] == one.derivation.categories[one.main] for one in sources]
    check(list(map(float, last)), asked, 0.734, 406)
    held_out = QUESTIONS["generalisation"].tolist()
    check((patterns.lengths - 2).tolist(), held_out, 22.6, 10_000)
    not_object = [float(one.construction != "object_relative") for one in sources for _ in range(2)]
    check(not_object, held_out, 0.612, 10_000)


def test_tenses():
    trained = TENSES["train"].tolist()
    patterns = tabulate_inflections()
    check((patterns.lengths - 2).tolist(), trained, 20, 1000)
    check([1.0, 0.0] * (len(trained) // 2), trained, 0.558, 1000)
    trees = [one.tree for one in list_derivations(GRAMMAR) for _ in range(2)]
    spans = [len(list_spans(tree)) for tree in trees]
    check([n + 1 for n in spans], trained, 8.5, 1000)
    check(count_shared(trees, right_branching), trained, 0.505, 1000, per=spans)
    check(count_shared(trees, right_branching), trained, 0.5015, 10_000, per=spans)
    check(count_shared(trees, left_branching), trained, 0.355, 1000, per=spans)
    check_random(trees, trained, 0.405, 1000)


@pytest.mark.parametrize(
    ("weights", "patterns", "shortest", "longest"),
    [(QUESTIONS, tabulate_questions(), 6, 18), (TENSES, tabulate_inflections(), 7, 15)],
)
def test_the_shortest_and_longest_source_are_those_published(weights, patterns, shortest, longest):
    source = (patterns.roles["source"].sum(1) + 2)[weights["train"] > 0]
    assert (int(source.min()), int(source.max())) == (shortest, longest)


def test_the_rules_are_decided_by_the_same_lines():
    for task, weights, weigh in (
        (QuestionFormation(), QUESTIONS, question_formation.weigh_patterns),
        (TenseInflection(), TENSES, tense_inflection.weigh_patterns),
    ):
        plain = weigh(task)
        assert torch.equal(weights["generalisation"] > 0, plain["generalisation"] > 0)
        assert not ((weights["train"] > 0) & (plain["train"] == 0)).any()
        assert torch.equal(weights["validation"], weights["train"])
        assert not torch.allclose(weights["train"], plain["train"])
        assert weights["train"].sum() == pytest.approx(1)


def test_lines_are_drawn_so():
    """Equal lines are dropped after drawing, which hardly changes these proportions: few lines are short."""
    task = QuestionFormation(train=20_000, proportions="published_files")
    lengths = torch.tensor([2 * len(one.words) + 3.0 for one in task.sentences("train")])
    assert lengths.mean() == pytest.approx(22.4, abs=0.15)


def test_within_a_cell_derivations_keep_their_proportions():
    sources = list_sources()
    before = torch.tensor([float(one.derivation.probability) for one in sources], dtype=torch.float64)
    kinds = [name_kind(one.construction, has_object=one.has_object) for one in sources]
    after = rebalance(before, kinds, PUBLISHED_QUESTIONS)
    assert after.sum() == pytest.approx(1)
    here = torch.tensor([kind == ("relative_clause", True) for kind in kinds])
    assert after[here].sum().item() == pytest.approx(108 / 405)
    assert torch.allclose(after[here] / after[here].sum(), before[here] / before[here].sum())


@pytest.mark.parametrize("kind", [QuestionFormation, TenseInflection])
def test_unknown_proportions_are_named(kind):
    with as_without_type_checks(), pytest.raises(TaskError, match="'mine' is unknown: give 'grammar' or 'published_f"):
        kind(proportions="mine")
