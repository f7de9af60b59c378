"""Tense inflection: an independent reading of every line says what each rule writes, and what the published files hold."""

from collections import Counter
from math import sqrt

import pytest
import torch

from tasks.grammar import TenseInflection, list_derivations, split_by_construction
from tasks.grammar.lexicon import INTRANSITIVE, NOUNS, RELATIVISERS, TRANSITIVE
from tasks.grammar.tense_inflection import GRAMMAR, tabulate_inflections, weigh_patterns
from tasks.language.sequences import spell
from tasks.task import Task, TaskError
from tasks.trees import check_tree, list_spans, right_branching
from tests.untyped import as_without_type_checks

SMALL = {"train": 3000, "validation": 400, "generalisation": 400}
VERBS = {
    past: {"sg": singular, "pl": plural}
    for verbs in (INTRANSITIVE, TRANSITIVE)
    for past, singular, plural in zip(verbs["past"], verbs["sg"], verbs["pl"], strict=True)
}
NUMBER = {noun: number for number, nouns in NOUNS.items() for noun in nouns}


@pytest.fixture(scope="module")
def task():
    return TenseInflection(**SMALL)


def find_main_verb(words):
    """The second verb where the third word is a relativiser, otherwise the first."""
    verbs = [at for at, word in enumerate(words) if word in VERBS]
    return verbs[words[2] in RELATIVISERS]


def put_into_present(words, *, rule):
    """Every verb agrees with its own subject; the main one with the sentence's, or with the noun in front of it."""
    main = find_main_verb(words)
    present = []
    for at, word in enumerate(words):
        if word not in VERBS:
            present.append(word)
            continue
        nearest = next(other for other in reversed(words[:at]) if other in NUMBER)
        subject = words[1] if at == main else nearest
        present.append(VERBS[word][NUMBER[nearest if at == main and rule == "linear" else subject]])
    return [*present, "."]


def read_lines(task, split, n=None):
    batch = task.sample(n or len(task.sentences(split)), split=split, seed=0)
    for row in batch.tokens:
        words = spell(row, task.vocabulary).split()
        assert (words[0], words[-1]) == ("start", "end")
        at = next(i for i, word in enumerate(words) if word in ("PAST", "PRESENT"))
        yield words[1 : at - 1], words[at], words[at + 1 : -1]


def test_it_is_a_task_with_98_words(task):
    assert isinstance(task, Task)
    assert task.d_vocab == len(set(task.vocabulary)) == 98 + 3
    assert task.n_ctx == 29 + 2


def test_both_rules_are_right_on_validation_and_one_on_generalisation(task):
    for words, marker, answer in read_lines(task, "validation"):
        assert marker == "PRESENT"
        assert put_into_present(words, rule="hierarchical") == put_into_present(words, rule="linear") == answer
    for words, marker, answer in read_lines(task, "generalisation"):
        assert marker == "PRESENT"
        assert put_into_present(words, rule="hierarchical") == answer
        wrong = put_into_present(words, rule="linear")
        assert [at for at in range(len(words)) if wrong[at] != answer[at]] == [find_main_verb(words)]


def test_training_says_nothing_about_the_rule(task):
    markers = Counter()
    for words, marker, answer in read_lines(task, "train"):
        markers[marker] += 1
        if marker == "PAST":
            assert answer == [*words, "."]
        else:
            assert put_into_present(words, rule="hierarchical") == put_into_present(words, rule="linear") == answer
    assert markers["PAST"] > markers["PRESENT"] > 0
    assert all(marker == "PAST" for _, marker, _ in read_lines(task, "past"))


@pytest.mark.parametrize("split", ["train", "generalisation"])
def test_the_gold_trees(task, split):
    for one in task.sentences(split):
        check_tree(one.tree, len(one.words))
        assert sorted(one.labels) == list_spans(one.tree)
        assert one.labels[0, find_main_verb(one.words)] == "NP"
        at = find_main_verb(one.words)
        assert at + 1 == len(one.words) or one.labels[at, len(one.words)] == "VP"


def test_a_gold_tree_by_hand():
    derivation = next(
        one
        for one in list_derivations(GRAMMAR)
        if one.categories
        == ("Det", "N.sg", "Rel", "Det", "N.pl", "V.tr.pl", "V.tr.sg", "Det", "N.sg", "P", "Det", "N.sg")
    )
    assert derivation.tree == (((0, 1), (2, ((3, 4), 5))), (6, ((7, 8), (9, (10, 11)))))
    # Half the sentences are singular; then 1/3 * 1/6, the transitive verb 1/2, its object 1/2 * 1/3 * 1/2.
    assert derivation.probability * 2 * 18 * 2 * 12 == 1


def test_the_shares_of_the_grammar_are_those_published():
    weights, patterns = weigh_patterns(TenseInflection()), tabulate_inflections()
    trained, held_out = weights["train"], weights["generalisation"]
    past = float(trained[::2].sum())
    assert past == pytest.approx(18 / 31)
    assert abs(past - 0.558) < 2 * sqrt(past * (1 - past) / 1000)  # of 1,000 published lines
    prepositional = patterns.roles["prepositional_phrase"].any(1)
    share = float(held_out[prepositional].sum())
    assert share == pytest.approx(0.6)
    assert abs(share - 0.6045) < 2 * sqrt(0.24 / 10_000)
    assert int(patterns.lengths[trained > 0].max()) - 2 == 29
    assert int(patterns.roles["source"][trained > 0].sum(1).max()) + 2 == 15


def test_the_mean_length_and_the_f1_of_right_branching_that_the_docs_give():
    weights, lengths = weigh_patterns(TenseInflection())["train"], tabulate_inflections().lengths - 2
    assert float(weights @ lengths.double()) == pytest.approx(16.918, abs=0.001)
    shared, spans = 0.0, 0.0
    for one, weight in zip(list_derivations(GRAMMAR), (weights[::2] + weights[1::2]).tolist(), strict=True):
        gold = list_spans(one.tree)
        shared += weight * len(set(gold) & set(list_spans(right_branching(len(gold) + 1))))
        spans += weight * len(gold)
    assert shared / spans == pytest.approx(0.4475, abs=0.0005)


@pytest.mark.parametrize("rule", ["hierarchical", "linear", "other"])
def test_the_score_says_which_rule_a_model_follows(task, rule):
    batch = task.sample(400, split="generalisation", seed=0)
    logits = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
    for i, (words, _, _) in enumerate(read_lines(task, "generalisation", 400)):
        main = find_main_verb(words)
        verb = words[main] if rule == "other" else put_into_present(words, rule=rule)[main]
        if rule == "other" and verb == "read":
            verb = "slept"
        at = batch.roles["main_verb_answer"][i] - 1
        logits[i, at] = torch.nn.functional.one_hot(torch.tensor(task.vocabulary.index(verb)), task.d_vocab).float()
    scores = task.score(logits, batch)
    assert next(iter(scores)) == "hierarchical"
    assert {name: scores[name].mean().item() for name in ("hierarchical", "linear", "other")} == {
        name: float(name == rule) for name in ("hierarchical", "linear", "other")
    }
    assert (scores["exact_match"] == float(rule == "hierarchical")).all()
    split = split_by_construction(scores[rule], batch)
    assert set(split) == {"prepositional_phrase", "subject_relative", "object_relative"}


@pytest.mark.parametrize("split", ["train", "validation", "past"])
def test_right_answers_score_one_by_both_rules(task, split):
    batch = task.sample(200, split=split, seed=1)
    scores = task.score(torch.nn.functional.one_hot(batch.targets, task.d_vocab).float(), batch)
    assert scores["hierarchical"].mean() == scores["linear"].mean() == scores["exact_match"].mean() == 1


def test_the_roles(task):
    batch = task.sample(100, split="generalisation", seed=0)
    for row, (words, _, _) in enumerate(read_lines(task, "generalisation", 100)):
        main = find_main_verb(words)
        assert batch.roles["subject"][row].item() == 2
        assert batch.roles["main_verb"][row].item() == 1 + main
        assert batch.roles["recent_noun"][row].item() == 1 + max(at for at in range(main) if words[at] in NUMBER)
    assert batch.scored.gather(1, batch.roles["main_verb_answer"] - 1).all()


def test_splits_are_disjoint_and_can_be_mixed():
    task = TenseInflection(**SMALL, disambiguating=0.2, batches="one_length")
    held_out = {spell(row, task.vocabulary) for row in task.sample(400, split="generalisation", seed=0).tokens}
    trained = [task.sample(64, split="train", seed=seed) for seed in range(40)]
    rows = {spell(row, task.vocabulary) for batch in trained for row in batch.tokens}
    assert len(held_out) == 400
    assert not rows & held_out
    assert all((batch.tokens != 0).all() for batch in trained)
    lines = [
        words
        for words, marker, _ in read_lines(TenseInflection(**SMALL, disambiguating=0.2), "train")
        if marker == "PRESENT"
    ]
    apart = [
        words
        for words in lines
        if put_into_present(words, rule="linear") != put_into_present(words, rule="hierarchical")
    ]
    assert 0.15 < len(apart) / 3000 < 0.25


def test_the_knobs_of_later_work():
    derivations = list_derivations(GRAMMAR)
    embedded = torch.tensor(["Rel" in one.categories[:3] for one in derivations])
    past = weigh_patterns(TenseInflection(centre_embedding=0.7))["train"][::2]
    assert float(past[embedded].sum() / past.sum()) == pytest.approx(0.7)
    plain = weigh_patterns(TenseInflection())["train"]
    assert float(past.sum()) == pytest.approx(float(plain[::2].sum()))

    task = TenseInflection(**SMALL | {"train": 1000, "validation": 100}, templates=4, data_seed=2)
    seen = {
        tuple("V" if word in VERBS else "N" if word in NUMBER else word in RELATIVISERS for word in one.words)
        for one in task.sentences("train")
    }
    assert len(seen) <= 4
    assert (False, "N", "V") in seen
    assert len({tuple(one.words) for one in task.sentences("generalisation")}) > 300  # all templates


def test_mistakes_are_named(task):
    with pytest.raises(TaskError, match="tense inflection has no split 'test': give one of train, validation, gen"):
        task.sample(1, split="test", seed=0)
    with pytest.raises(TaskError, match="generalisation=0 leaves the split empty"):
        TenseInflection(generalisation=0)
    with as_without_type_checks(), pytest.raises(TaskError, match="batches='short' is unknown: give 'mixed' or"):
        TenseInflection(batches="short")
    with pytest.raises(TaskError, match="templates=31 cannot be trained: give 1 to 30, or None"):
        TenseInflection(templates=31)
    with pytest.raises(TaskError, match=r"centre_embedding=-0.1 must be a share from 0 to 1, or None"):
        TenseInflection(centre_embedding=-0.1)
    with pytest.raises(
        TaskError, match="templates=1 leaves the plainest sentences alone, of which the published files"
    ):
        weigh_patterns(TenseInflection(templates=1, proportions="published_files"))


def write_answers(task, batch, change):
    """The right answers with their ends, each changed by a function of its words, the source's and the main verb's place."""
    written = torch.zeros(len(batch.tokens), 25, dtype=torch.long)
    for i, row in enumerate(batch.tokens):
        words = spell(row, task.vocabulary).split()
        at = next(place for place, word in enumerate(words) if word in ("PAST", "PRESENT"))
        source = words[1 : at - 1]
        answer = [*change(words[at + 1 : -1], source, find_main_verb(source)), "end"]
        written[i, : len(answer)] = torch.tensor([task.vocabulary.index(word) for word in answer])
    return written


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda words, source, main: words, (1, 0, 0, 1, 1, 1)),
        # Another noun of the same part of speech: the published accuracy lets it pass.
        (lambda words, source, main: ["the", *words[1:]], (1, 0, 0, 1, 1, None)),
        (lambda words, source, main: put_into_present(source, rule="linear"), (0, 1, 0, 0, 1, 0)),
        (lambda words, source, main: words[:-1], (0, 0, 1, 0, 0, 0)),
        (lambda words, source, main: [*words, "."], (0, 0, 1, 0, 0, 0)),
        (lambda words, source, main: [*words[:main], *source[main:], "."], (0, 0, 1, None, 1, 0)),
        (lambda words, source, main: ["yak"] * 24, (0, 0, 1, 0, 0, 0)),
    ],
)
def test_what_was_written_is_scored_as_published(task, change, expected):
    batch = task.sample(200, split="generalisation", seed=0)
    scores = task.score_written(write_answers(task, batch, change), batch)
    names = ["hierarchical", "linear", "other", "right_number", "parts_of_speech", "exact_match"]
    assert list(scores) == names
    for name, value in zip(names, expected, strict=True):
        read = ~(batch.tokens == task.vocabulary.index("read")).any(1)  # `read` is its own past
        assert value is None or (scores[name][read] == value).all(), name


def test_a_wrong_verb_of_the_right_number_is_told_apart(task):
    batch = task.sample(100, split="validation", seed=0)

    def swap(words, source, main):
        number = NUMBER[source[1]]
        verb = "sleeps" if number == "sg" else "sleep"
        return [*words[:main], verb, *words[main + 1 :]]

    scores = task.score_written(write_answers(task, batch, swap), batch)
    assert scores["right_number"].mean() == scores["parts_of_speech"].mean() == 1
    assert scores["hierarchical"].mean() < 0.2


def test_writing_and_scoring_a_model_end_to_end(task):
    """A model that isn't trained writes nothing right; the scores are those of its own words."""
    import interp
    from interp.models.decode import decode_greedily

    model = interp.build(
        n_layers=1, d_model=8, n_heads=1, d_vocab=task.d_vocab, n_ctx=task.n_ctx, attn_only=True, device="cpu"
    )
    batch = task.sample(20, split="generalisation", seed=0)
    first, end = batch.roles["marker"][:, 0] + 1, task.vocabulary.index("end")
    written = decode_greedily(model, batch.tokens, first=first, end=end)
    scores = task.score_written(written, batch)
    assert scores["hierarchical"].mean() == 0
    assert scores["other"].mean() == 1
