"""Question formation: an independent parse says what each rule does to every line, and what the published files hold."""

from collections import Counter

import pytest
import torch

from tasks.grammar import QuestionFormation
from tasks.grammar.constructions import CONSTRUCTIONS, split_by_construction
from tasks.grammar.question_formation import weigh_patterns
from tasks.grammar.question_grammar import list_sources, tabulate_questions
from tasks.language.sequences import spell
from tasks.task import Task, TaskError
from tasks.trees import check_tree, list_spans, right_branching
from tests.untyped import as_without_type_checks

AUXILIARIES = ("does", "doesn't", "do", "don't")
RELATIVISERS = ("who", "that")
PREPOSITIONS = ("around", "near", "with", "upon", "by", "behind", "above", "below")
DETERMINERS = ("the", "some", "my", "your", "our", "her")
SMALL = {"train": 3000, "validation": 400, "generalisation": 400}


@pytest.fixture(scope="module")
def task():
    return QuestionFormation(**SMALL)


def parse_noun_phrase(words, at):
    """(tree, position behind it) of the noun phrase that begins at a position, read word by word."""
    tree, behind = (at, at + 1), at + 2
    if behind < len(words) and words[behind] in PREPOSITIONS:
        inner, end = (behind + 1, behind + 2), behind + 3
        return (tree, (behind, inner)), end
    if behind < len(words) and words[behind] in RELATIVISERS:
        if words[behind + 1] in DETERMINERS:
            clause = ((behind + 1, behind + 2), (behind + 3, behind + 4))
            return (tree, (behind, clause)), behind + 5
        verb = behind + 2
        if verb + 1 < len(words) and words[verb + 1] in DETERMINERS:
            return (tree, (behind, (behind + 1, (verb, (verb + 1, verb + 2))))), verb + 3
        return (tree, (behind, (behind + 1, verb))), verb + 1
    return tree, behind


def parse(words):
    """(tree, position of the main auxiliary)"""
    subject, main = parse_noun_phrase(words, 0)
    if main + 2 == len(words):
        return (subject, (main, main + 1)), main
    following, end = parse_noun_phrase(words, main + 2)
    assert end == len(words)
    return (subject, (main, (main + 1, following))), main


def read_lines(task, split):
    """(source words, marker, answer words) of every line of a split."""
    n = len(task.sentences(split))
    batch = task.sample(n, split=split, seed=0)
    for row in batch.tokens:
        words = spell(row, task.vocabulary).split()
        assert (words[0], words[-1]) == ("start", "end")
        at = next(i for i, word in enumerate(words) if word in ("quest", "decl"))
        assert words[at - 1] == "."
        yield words[1 : at - 1], words[at], words[at + 1 : -1]


def form_question(words, main):
    return [words[main], *words[:main], *words[main + 1 :], "?"]


def move_linear(words):
    return form_question(words, next(i for i, word in enumerate(words) if word in AUXILIARIES))


def move_shortcut(words):
    first = next(i for i, word in enumerate(words) if word in AUXILIARIES and words[i - 1] not in RELATIVISERS)
    return form_question(words, first)


def test_it_is_a_task_with_68_words(task):
    assert isinstance(task, Task)
    assert task.d_vocab == 68 + 3
    assert len(set(task.vocabulary)) == 71
    assert task.n_ctx == 35 + 2


def test_both_rules_form_every_question_of_validation_and_only_one_those_of_generalisation(task):
    for words, marker, answer in read_lines(task, "validation"):
        assert marker == "quest"
        assert form_question(words, parse(words)[1]) == move_linear(words) == move_shortcut(words) == answer
    right = []
    for words, marker, answer in read_lines(task, "generalisation"):
        main = parse(words)[1]
        assert marker == "quest"
        assert form_question(words, main) == answer
        assert move_linear(words)[0] != answer[0]
        assert sum(word in AUXILIARIES for word in words) == 2
        assert set(words[:main]) & set(RELATIVISERS)
        right.append(move_shortcut(words) == answer)
    assert abs(sum(right) / len(right) - 4 / 7) < 4 * (4 / 7 * 3 / 7 / len(right)) ** 0.5


def test_training_says_nothing_about_the_rule(task):
    markers = Counter()
    for words, marker, answer in read_lines(task, "train"):
        main = parse(words)[1]
        markers[marker] += 1
        if marker == "decl":
            assert answer == [*words, "."]
        else:
            assert not any(word in RELATIVISERS for word in words[:main])
            assert form_question(words, main) == move_linear(words) == answer
    assert markers["decl"] > markers["quest"] > 0
    assert all(marker == "decl" for _, marker, _ in read_lines(task, "declaratives"))


@pytest.mark.parametrize("split", ["train", "validation", "generalisation", "declaratives"])
def test_the_gold_trees_are_those_of_a_parse(task, split):
    for one in task.sentences(split):
        check_tree(one.tree, len(one.words))
        assert one.tree == parse(one.words)[0]
        assert sorted(one.labels) == list_spans(one.tree)


def test_no_line_comes_twice():
    lines = {
        split: [
            " ".join([*words, marker, *answer])
            for words, marker, answer in read_lines(QuestionFormation(**SMALL), split)
        ]
        for split in ("validation", "generalisation", "declaratives")
    }
    task = QuestionFormation(**SMALL)
    held_out = [line for some in lines.values() for line in some]
    assert len(held_out) == len(set(held_out)) == 800
    trained = {spell(row, task.vocabulary) for row in task.sample(20_000, split="train", seed=0).tokens}
    assert len(trained) > 2980
    assert not trained & {
        f"start {line.replace(' quest', ' . quest').replace(' decl', ' . decl')} end" for line in held_out
    }


def test_the_shares_of_the_grammar_are_those_published():
    sources, patterns = list_sources(), tabulate_questions()
    weights = weigh_patterns(QuestionFormation())
    trained, held_out = weights["train"], weights["generalisation"]
    assert trained.sum() == pytest.approx(1)
    # Of 1,000 published lines 594 are declaratives.
    assert float(trained[::2].sum()) == pytest.approx(0.6)
    assert abs(0.594 - 0.6) < 2 * (0.6 * 0.4 / 1000) ** 0.5
    words = patterns.lengths - 2
    source = patterns.roles["source"].sum(1) + 2
    for weight, longest, shortest in ((trained, (35, 18), (11, 6)), (held_out, (31, 16), (17, 9))):
        assert (int(words[weight > 0].max()), int(source[weight > 0].max())) == longest
        assert (int(words[weight > 0].min()), int(source[weight > 0].min())) == shortest
    templates = [[sources[i // 2].parts_of_speech for i in torch.nonzero(weight)[:, 0]] for weight in weights.values()]
    assert list(map(len, map(set, templates))) == [30, 30, 9]
    assert float(held_out @ words.double()) == pytest.approx(22.6, abs=0.1)  # published
    shares = Counter()
    for i, weight in enumerate(held_out.tolist()):
        shares[sources[i // 2].construction] += weight
    assert [shares[name] for name in CONSTRUCTIONS[2:]] == pytest.approx([2 / 7, 2 / 7, 3 / 7])


def test_the_mean_length_and_the_f1_of_right_branching_that_the_docs_give():
    weights, lengths = weigh_patterns(QuestionFormation())["train"], tabulate_questions().lengths - 2
    assert float(weights @ lengths.double()) == pytest.approx(19.578, abs=0.001)
    shared, spans = 0.0, 0.0
    for source, weight in zip(list_sources(), weights[1::2].tolist(), strict=True):
        gold = list_spans(source.derivation.tree)
        shared += weight * len(set(gold) & set(list_spans(right_branching(len(gold) + 1))))
        spans += weight * len(gold)
    assert shared / spans == pytest.approx(0.570, abs=0.0005)


def test_the_batch_trains_every_word_and_scores_the_answer(task):
    batch = task.sample(50, split="train", seed=3)
    length = (batch.tokens != 0).sum(1)
    assert torch.equal(batch.trained.sum(1), length - 1)
    assert torch.equal(batch.targets[:, :-1][batch.trained[:, :-1]], batch.tokens[:, 1:][batch.tokens[:, 1:] != 0])
    assert torch.equal(batch.scored.sum(1), batch.roles["answer"].sum(1))
    assert batch.scored.gather(1, batch.roles["marker"]).all()
    for i, row in enumerate(batch.tokens):
        words = [task.vocabulary[token] for token in row]
        main = parse([word for word, marked in zip(words, batch.roles["source"][i], strict=True) if marked])[1]
        assert batch.roles["main_auxiliary"][i].item() == main + 1
        assert words[batch.roles["marker"][i]] in ("quest", "decl")


@pytest.mark.parametrize("rule", ["hierarchical", "linear", "shortcut", "other"])
def test_the_score_says_which_rule_a_model_follows(task, rule):
    batch = task.sample(400, split="generalisation", seed=0)
    logits = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
    roles = {"hierarchical": "main_auxiliary", "linear": "first_auxiliary", "shortcut": "shortcut_auxiliary"}
    for i in range(400):
        moves = batch.tokens[i, batch.roles[roles.get(rule, "main_auxiliary")][i]]
        if rule == "other":
            used = [batch.tokens[i, batch.roles[role][i]].item() for role in roles.values()]
            moves = next(task.vocabulary.index(word) for word in AUXILIARIES if task.vocabulary.index(word) not in used)
        logits[i, batch.roles["marker"][i]] = 0
        logits[i, batch.roles["marker"][i], moves] = 1
        logits[i, batch.roles["marker"][i], task.vocabulary.index("yak")] = 2  # not among the auxiliaries
    scores = task.score(logits, batch)
    assert next(iter(scores)) == "hierarchical"
    assert (scores[rule] == 1).all()
    assert scores["exact_match"].sum() == 0
    split = split_by_construction(scores["hierarchical"], batch)
    assert set(split) == {"intransitive_relative", "subject_relative", "object_relative"}
    expected = {"hierarchical": (1, 1, 1), "linear": (0, 0, 0), "shortcut": (1, 1, 0), "other": (0, 0, 0)}[rule]
    assert tuple(split[name].mean().item() for name in CONSTRUCTIONS[2:]) == expected


def test_right_answers_score_one_everywhere(task):
    for split in task.splits:
        batch = task.sample(100, split=split, seed=1)
        scores = task.score(torch.nn.functional.one_hot(batch.targets, task.d_vocab).float(), batch)
        assert scores["hierarchical"].mean() == scores["exact_match"].mean() == scores["token_accuracy"].mean() == 1
        assert scores["other"].sum() == 0
        linear = 0 if split == "generalisation" else 1
        assert (scores["linear"] == linear).all() or split == "train"


def test_the_knobs_of_the_training_set():
    mixed = QuestionFormation(**SMALL, disambiguating=0.1)
    disambiguating = [
        words
        for words, marker, _ in read_lines(mixed, "train")
        if marker == "quest" and set(RELATIVISERS) & set(words[:4])
    ]
    assert 0.07 < len(disambiguating) / 3000 < 0.13
    held_out = {one.words for one in mixed.sentences("generalisation")}
    assert not held_out & {tuple(words) for words in disambiguating}

    embedded = weigh_patterns(QuestionFormation(centre_embedding=0.8))["train"][::2]
    of_subject = torch.tensor([one.is_embedded for one in list_sources()])
    assert float(embedded[of_subject].sum() / embedded.sum()) == pytest.approx(0.8)
    assert float(embedded.sum()) == pytest.approx(0.6)

    few = QuestionFormation(**SMALL | {"train": 2000, "validation": 100}, templates=3, data_seed=1)
    sources = {i // 2 for i in torch.nonzero(weigh_patterns(few)["train"])[:, 0].tolist()}
    assert {list_sources()[i].parts_of_speech for i in sources} >= {"Det N Aux V.intr"}
    assert len({list_sources()[i].parts_of_speech for i in sources}) == 3


def test_a_batch_of_one_length_has_no_padding_and_every_line_is_as_likely():
    task = QuestionFormation(**SMALL | {"train": 200}, batches="one_length")
    batches = [task.sample(16, split="train", seed=seed) for seed in range(300)]
    assert all((batch.tokens != 0).all() for batch in batches)
    lengths = torch.tensor([batch.tokens.shape[1] for batch in batches], dtype=torch.float)
    expected = torch.tensor([2 * len(one.words) + 5 for one in task.sentences("train")], dtype=torch.float)
    assert abs(lengths.mean() - expected.mean()) < 4 * expected.std() / 300**0.5
    assert (task.sample(50, split="validation", seed=0).tokens == 0).any()


def test_seeds(task):
    same = QuestionFormation(**SMALL)
    for split in task.splits:
        assert torch.equal(task.sample(9, split=split, seed=5).tokens, same.sample(9, split=split, seed=5).tokens)
        assert not torch.equal(task.sample(9, split=split, seed=5).tokens, task.sample(9, split=split, seed=6).tokens)
    assert task.sentences("train")[:5] != QuestionFormation(**SMALL, data_seed=1).sentences("train")[:5]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"train": 0}, "train=0 leaves the split empty: give at least 1 line"),
        ({"disambiguating": 1.0}, "disambiguating=1.0 must be a share of the training lines"),
        ({"centre_embedding": 1.5}, "centre_embedding=1.5 must be a share from 0 to 1, or None"),
        ({"templates": 31}, "templates=31 cannot be trained: give 1 to 30, or None"),
        ({"batches": "short"}, "batches='short' is unknown: give 'mixed' or 'one_length'"),
    ],
)
def test_bad_settings_are_named(wrong, message):
    with as_without_type_checks(), pytest.raises(TaskError, match=message):
        QuestionFormation(**wrong)


def test_what_cannot_be_drawn_is_named(task):
    with pytest.raises(TaskError, match="question formation has no split 'test': give one of train, validation"):
        task.sample(1, split="test", seed=0)
    with pytest.raises(TaskError, match="a batch of 0 sequences cannot be drawn"):
        task.sample(0, split="train", seed=0)
    with pytest.raises(TaskError, match="none of the validation lines is of this split's kind: give validation more"):
        [
            QuestionFormation(train=1, validation=1, generalisation=1).sample(1, split=split, seed=0)
            for split in ("validation", "declaratives")
        ]
    with pytest.raises(TaskError, match="different lines of 9000 came up: ask for fewer, or allow more templates"):
        QuestionFormation(train=9_000, validation=10, generalisation=10, templates=1).sample(1, split="train", seed=0)
    with pytest.raises(TaskError, match=r"centre_embedding=0.5 needs a template whose subject has a relative clause"):
        weigh_patterns(QuestionFormation(templates=1, centre_embedding=0.5))
