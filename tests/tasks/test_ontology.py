"""Ontologies: every answer recomputed from the words alone, and nothing but the rules tells it."""

from dataclasses import replace

import pytest
import torch

from tasks.language import Ontology, spell
from tasks.language.ontology_text import CONCEPTS, INDIVIDUALS, PROPERTIES, Questions, write
from tasks.task import Task, TaskError
from tests.untyped import as_without_type_checks


def reason(text):
    """(answer as "true" or "false", chain as text, kinds on the way, property) by following rules from the words."""
    question = text.split(" : ")[0]
    context, asked = question.split(" ? ")
    *rules, (name, _, kind) = (sentence.split() for sentence in context.removesuffix(" .").split(" . "))
    leads = {subject: rest for every, subject, is_, *rest in rules if (every, is_) == ("every", "is")}
    assert len(leads) == len(rules)  # no kind begins two rules
    kinds, chain = [kind], [f"{name} is {kind}"]
    while kinds[-1] in leads:
        step = leads[kinds[-1]]
        chain.append(" ".join([name, "is", *step]))
        kinds.append(step[-1])
    assert asked.split()[:2] == [name, "is"]
    true = asked.split()[2:] == leads[kinds[-2]]
    assert asked.split()[-1] == kinds[-1]
    return "true" if true else "false", " . ".join(chain) + " .", tuple(kinds[:-1]), kinds[-1]


def read_questions(task, n, split, seed=0):
    batch = task.sample(n, split=split, seed=seed)
    return batch, [spell(row, task.vocabulary) for row in batch.tokens]


@pytest.mark.parametrize("branches", [2, 4])
@pytest.mark.parametrize(("split", "hops"), [("train", {1, 2, 3}), ("id", {1, 2, 3}), ("ood", {4, 5})])
def test_every_answer_follows_from_the_rules(split, hops, branches):
    task = Ontology(branches=branches)
    assert isinstance(task, Task)
    batch, texts = read_questions(task, 200, split)
    seen, longest = set(), 0
    for row, text in enumerate(texts):
        answer, chain, kinds, _ = reason(text)
        assert text.split(" : ")[1] == f"{chain} {answer}"
        words = text.split()
        separator, length = words.index(":"), len(words)
        assert batch.roles["separator"][row].item() == separator
        assert batch.roles["answer"][row].item() == length - 1
        assert batch.trained[row].nonzero().flatten().tolist() == list(range(separator, length - 1))
        assert text.count("every") == branches * len(kinds)
        seen.add(len(kinds))
        longest = max(longest, length)
    assert seen == hops
    assert longest == batch.tokens.shape[1] <= task.n_ctx
    assert batch.targets.gather(1, batch.roles["answer"] - 1).unique(return_counts=True)[1].tolist() == [100, 100]


def test_a_language_of_few_kinds_has_no_others():
    task = Ontology(hops=2, ood_hops=4, kinds=8)
    tokens = torch.cat([task.sample(300, split=split, seed=0).tokens.flatten() for split in task.splits])
    words = {task.vocabulary[token] for token in tokens.unique().tolist()}
    assert words & set(CONCEPTS) == set(CONCEPTS[:8])


def test_roles_hold_what_they_say():
    batch, texts = read_questions(Ontology(), 100, "ood")
    task = Ontology()
    for row, text in enumerate(texts):
        words = {
            role: spell(batch.tokens[row][mask[row]], task.vocabulary)
            for role, mask in batch.roles.items()
            if mask.dtype == torch.bool
        }
        _, chain, kinds, _ = reason(text)
        own = {rule.split()[1] for rule in words["own_rules"].removesuffix(" .").split(" . ")}
        assert own == set(kinds)
        assert not own & set(words["other_rules"].split())
        assert words["chain"] == chain
        assert words["fact"].split()[1:] == ["is", kinds[0], "."]
        assert text == f"{text.split(' ? ')[0]} {words['question']} : {chain} {text.split()[-1]}"


def test_an_answer_without_a_chain():
    task = Ontology(targets="answer")
    batch, texts = read_questions(task, 100, "train")
    assert all(text.split(" : ")[1] == reason(text)[0] for text in texts)
    assert batch.trained.sum(1).unique().tolist() == [1]
    assert torch.equal(batch.roles["answer"], batch.roles["separator"] + 1)
    assert not batch.roles["chain"].any()
    assert task.n_ctx < Ontology().n_ctx


def test_individual_property_and_chain_never_stand_together_in_training_and_test():
    task = Ontology(hops=2, ood_hops=3, id_share=0.3)
    parts = {}
    for split in ("train", "id"):
        _, texts = read_questions(task, 4_000, split)
        parts[split] = {(text.split(" ? ")[1].split()[0], *reason(text)[2:]) for text in texts}
    assert not parts["train"] & parts["id"]
    short = {split: {part for part in found if len(part[1]) == 1} for split, found in parts.items()}
    every = len(INDIVIDUALS) * len(PROPERTIES) * len(CONCEPTS)
    assert len(short["train"] | short["id"]) > 0.9 * every  # the two leave nothing out
    assert len(short["id"]) / every == pytest.approx(0.3, abs=0.06)


def test_exchanging_two_ends_keeps_the_words_and_turns_the_answer():
    g = torch.Generator().manual_seed(0)
    n, branches, hops = 60, 4, 3
    ends = torch.tensor([True, False, True, False])[torch.rand((n, branches), generator=g).argsort(1)]
    asked = torch.rand(n, generator=g) < 0.5
    questions = Questions(
        individual=torch.randint(len(INDIVIDUALS), (n,), generator=g),
        about=torch.randint(len(PROPERTIES), (n,), generator=g),
        hops=torch.randint(1, hops + 1, (n,), generator=g),
        concepts=torch.rand((n, len(CONCEPTS)), generator=g).topk(branches * hops).indices.view(n, branches, hops),
        ends_not=ends,
        asked_not=asked,
        true=asked == ends[:, 0],
    )
    other_end = torch.where(ends[:, :1], ~ends, ends).float().argmax(1)  # a branch with the other end
    rows = torch.arange(n)
    exchanged = ends.clone()
    exchanged[:, 0], exchanged[rows, other_end] = ends[rows, other_end], ends[:, 0]
    turned = replace(questions, ends_not=exchanged, true=~questions.true)
    task = Ontology(branches=4, ood_hops=4)
    for before, after in zip(
        *(write(q, targets="answer", generator=torch.Generator().manual_seed(1)).tokens for q in (questions, turned)),
        strict=True,
    ):
        one, other = spell(before, task.vocabulary), spell(after, task.vocabulary)
        assert sorted(one.split(" : ")[0].split()) == sorted(other.split(" : ")[0].split())
        assert {reason(one)[0], reason(other)[0]} == {"true", "false"}
        assert all(text.split()[-1] == reason(text)[0] for text in (one, other))


@pytest.mark.parametrize("branches", [2, 4])
def test_a_bag_of_words_is_at_chance(branches):
    task = Ontology(targets="answer", branches=branches)
    n = 6_000
    batch = task.sample(n, split="train", seed=0)
    true = (torch.arange(n) % 2 == 0).double() * 2 - 1
    asked = batch.tokens.masked_fill(torch.arange(batch.tokens.shape[1]) > batch.roles["separator"], 0)
    bag = torch.zeros(n, task.d_vocab, dtype=torch.double).scatter_add_(1, asked, torch.ones_like(asked).double())
    mixed = torch.cat([bag, bag[:, :, None].mul(bag[:, None, 3:4]).flatten(1)], dim=1)  # also with the count of "not"
    half = n // 2
    weights = torch.linalg.lstsq(
        mixed[:half].T @ mixed[:half] + 1e-3 * torch.eye(mixed.shape[1]), mixed[:half].T @ true[:half]
    )
    accuracy = (mixed[half:] @ weights.solution * true[half:] > 0).double().mean().item()
    assert accuracy == pytest.approx(0.5, abs=4 * 0.5 / half**0.5)


def test_right_answers_score_one_and_each_mistake_counts_where_it_is():
    task = Ontology()
    batch = task.sample(30, split="ood", seed=0)
    right = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
    assert {name: set(values.tolist()) for name, values in task.score(right, batch).items()} == {
        "answer": {1.0}, "exact_match": {1.0}, "token_accuracy": {1.0},
    }  # fmt: skip
    row = torch.arange(10)
    right[row, batch.roles["separator"][:10, 0]] = 0.0  # the first word of the chain
    right[row + 10, batch.roles["answer"][10:20, 0] - 1] = 0.0
    scores = task.score(right, batch)
    assert scores["answer"].tolist() == [1.0] * 10 + [0.0] * 10 + [1.0] * 10
    assert scores["exact_match"].tolist() == [0.0] * 20 + [1.0] * 10


def test_the_same_seed_gives_the_same_batch():
    one, same, other = (Ontology().sample(20, split="id", seed=seed).tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Ontology(hops=0), r"hops=0 and ood_hops=5 leave a split without questions: give 1 <= hops < ood_hops"),
        (lambda: Ontology(hops=5), r"hops=5 and ood_hops=5 leave a split"),
        (lambda: Ontology(branches=3), r"branches=3 would let the count of 'not' tell the answer: give an even number"),
        (lambda: Ontology(branches=6), r"6 branches of 5 rules need 30 kinds, but there are 24"),
        (lambda: Ontology(kinds=8), r"2 branches of 5 rules need 10 kinds, but there are 8: give fewer branches"),
        (lambda: Ontology(kinds=25), r"kinds=25 is more than there are words for: give at most 24"),
        (lambda: Ontology(targets="steps"), r"targets='steps' is unknown: give 'chain' or 'answer'"),
        (lambda: Ontology(id_share=0.0), r"id_share=0.0 must be a share between 0 and 1"),
        (lambda: Ontology().sample(3, split="test", seed=0), r"has no split 'test': give one of train, id, ood"),
        (lambda: Ontology().sample(0, split="ood", seed=0), r"a batch of 0 sequences cannot be drawn"),
    ],
)
def test_bad_input_is_said_in_a_sentence(call, says):
    with as_without_type_checks(), pytest.raises(TaskError, match=says):
        call()
