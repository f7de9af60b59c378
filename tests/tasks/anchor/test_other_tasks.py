"""Permutation anchors, the two-task mix and the nine families: rows recomputed in plain Python from their tokens."""

from itertools import product

import pytest
import torch

from tasks.anchor.families import FAMILIES, classification, synonym
from tasks.anchor.lookup import ReadingComprehension, Recitation, WorkingMemory
from tasks.anchor.one_anchor import MultiAnchor, StatisticalOutput
from tasks.anchor.permutation import permutation_anchors
from tasks.anchor.two_tasks import TwoTasks
from tasks.task import Task, TaskError

SHIFT = {1: 5, 2: 1, 3: -2, 4: -8, 9: -2}


def test_permutation_anchors_have_the_published_amounts():
    task = permutation_anchors(seed=3)
    assert (task.d_vocab, task.n_ctx, task.splits) == (24, 3, ("train", "held_out"))
    assert (task.count_items("train"), task.count_items("held_out")) == (720, 304)
    maps = dict(zip(task.function.anchors, task.function.maps, strict=True))
    assert sorted(maps) == list(range(16, 24))
    assert all(sorted(table) == list(range(16)) for table in maps.values())
    seen = {}
    for split in task.splits:
        batch = task.sample(9_000, split=split, seed=0)
        seen[split] = {tuple(row) for row in batch.tokens.tolist()}
        for (key, a, b), target in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
            assert target == maps[b][maps[a][key]]
    assert (len(seen["train"]), len(seen["held_out"])) == (720, 304)  # 9,000 draws miss one with a chance below 1%
    assert seen["train"] | seen["held_out"] == set(product(range(16), range(16, 24), range(16, 24)))
    assert permutation_anchors(seed=4).function != task.function


def test_permutation_anchors_that_cannot_be_are_said():
    with pytest.raises(TaskError, match="n_held_out=64 pairs of 64: give from 1 to 63"):
        permutation_anchors(n_held_out=64)
    with pytest.raises(TaskError, match="n_keys=1 and n_anchors=8 are too few"):
        permutation_anchors(n_keys=1)


@pytest.mark.parametrize("n_sequences", [None, 5_000])
def test_two_tasks_add_or_remember(n_sequences):
    task = TwoTasks(n_sequences=n_sequences)
    labels, memory_rows = {}, 0
    for split in task.splits:
        batch = task.sample(4_000, split=split, seed=0)
        for row, target in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
            first, second = (i for i, token in enumerate(row) if token <= 20)
            key, a, b = row[first - 1], row[first], row[second]
            assert second == first + 1
            assert all(21 <= token <= 120 for token in row if token not in (a, b))
            assert ((a, b) in {(11, 13), (13, 11)}) == (split == "held_out")
            if a > 10:
                assert b > 10
                assert target == key + a + b
                assert split != "memory"
            else:
                assert b <= 10
                assert split in ("train", "memory")
                assert labels.setdefault((key, a, b), target) == target  # one label for each (key, pair), everywhere
                memory_rows += split == "train"
    assert abs(memory_rows - 2_000) < 5 * 1_000**0.5 + 70
    counts = torch.bincount(torch.tensor(list(labels.values())), minlength=121)[21:]
    assert counts.sum() > 4_000
    assert (counts > 0).all()  # labels are keys, all of them
    assert not torch.equal(
        TwoTasks(data_seed=1).sample(200, split="memory", seed=0).targets,
        TwoTasks().sample(200, split="memory", seed=0).targets,
    )


def test_two_tasks_name_their_positions():
    batch = TwoTasks().sample(50, split="train", seed=1)
    for row, tokens in enumerate(batch.tokens.tolist()):
        first = next(i for i, token in enumerate(tokens) if token <= 20)
        roles = {name: role[row].tolist() for name, role in batch.roles.items() if name != "noise"}
        assert roles == {"key": [first - 1], "anchor_1": [first], "anchor_2": [first + 1], "last": [8]}
        noise = set(range(8)) - {first - 1, first, first + 1}
        assert set(batch.roles["noise"][row].nonzero().flatten().tolist()) == noise


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"held_out": [(1, 2)]}, r"held_out names \(1, 2\), which is no pair of the anchors"),
        ({"first_key": 20}, "keys from 20 to 120 overlap the anchors 20"),
        ({"d_vocab": 160}, r"the target 160 of key 120 with \(20, 20\) is outside d_vocab=160"),
        ({"n_ctx": 2}, "n_ctx=2 is too short for a key and 2 anchors"),
        ({"memory_share": 1.5}, "memory_share=1.5 is no share"),
        ({"n_sequences": 0}, "n_sequences=0 leaves no sequence"),
        ({"n_anchors": 0}, "n_anchors=0 leaves no anchor"),
    ],
)
def test_two_tasks_that_cannot_be_are_said(settings, text):
    with pytest.raises(TaskError, match=text):
        TwoTasks(**settings)


def _answer(name, row):
    """Answer, and the keys with their positions that the split is made by, from the tokens of a row alone."""
    where = next(i for i, token in enumerate(row) if token in SHIFT or (name == "multi-anchor" and token <= 10))
    if name == "identity":
        return {row[where + 1]}, [where + 1]
    if name == "classification":
        return {10 + (row[where + 1] - 20) // 20}, [where + 1]
    if name in ("composition", "synonym"):
        return {row[where + 2] + SHIFT[row[where]] + SHIFT[row[where + 1]]}, [where + 2]
    if name == "multi-anchor":
        return {row[where + 1] + row[where]}, [where + 1]
    if name == "statistical output":
        return {row[where + 1], row[where + 1] + 1}, [where + 1]
    if name == "recitation":
        a, three, b = row[where - 1 : where + 2]
        assert three == 3
        assert row[-1] in (a, b)
        return {b if row[-1] == a else a}, [where - 1, where + 1]
    if name == "reading comprehension":
        assert where == 7
        asked = [i for i, token in enumerate(row[:7]) if token == row[8]]
        assert len(asked) == 1
        return {row[asked[0] + 1]}, [asked[0] + 1]
    assert name == "working memory"
    anchors = [i for i, token in enumerate(row[:-1]) if token in SHIFT]
    assert len(anchors) == 2
    assert row[anchors[0]] != row[anchors[1]]
    asked = next(i for i in anchors if row[i] == row[-1])
    return {row[asked + 1] + SHIFT[row[asked]]}, [asked + 1]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_answers_as_it_says(name):
    task = FAMILIES[name]()
    assert isinstance(task, Task)
    assert task.d_vocab == 201
    assert task.n_ctx == (20 if name == "working memory" else 9)
    seen = {}
    for split in ("train", "id"):
        batch = task.sample(1_500, split=split, seed=0)
        seen[split] = set()
        for row, (tokens, target) in enumerate(zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True)):
            answers, keys = _answer(name, tokens)
            assert target in answers
            assert all((tokens[i] % 8 == i % 8) == (split == "id") for i in keys)
            seen[split] |= {(tokens[i], i) for i in keys}
            assert batch.roles["key"][row].item() in keys
            assert 1 <= tokens[batch.roles["anchor_1"][row].item()] <= 10
            named = {int(role[row, 0]) for kind, role in batch.roles.items() if kind != "noise"}
            assert set(batch.roles["noise"][row].nonzero().flatten().tolist()) == set(range(task.n_ctx)) - named
        assert batch.scored.sum() == 1_500
        assert batch.scored[:, -1].all()
        again = task.sample(1_500, split=split, seed=0)
        assert torch.equal(batch.tokens, again.tokens)
        assert torch.equal(batch.targets, again.targets)
        if name != "statistical output":
            perfect = torch.nn.functional.one_hot(batch.targets, 201).float()
            assert task.score(perfect, batch)["accuracy"].mean() == 1
    assert not seen["train"] & seen["id"]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_can_have_a_fixed_training_set(name):
    def draw(**settings):
        task = FAMILIES[name](n_sequences=50, **settings)
        return {tuple(row) for seed in range(5) for row in task.sample(200, split="train", seed=seed).tokens.tolist()}

    assert len(draw()) == 50
    assert not draw() & draw(data_seed=1)


def test_the_synonym_is_rare_and_two_of_its_pairs_are_never_trained():
    task = synonym(weight=0.1)
    pairs = task.trained_pairs
    assert set(task.pairs) - set(pairs) == {(4, 9), (9, 4)}
    assert all(pairs[pair] == pytest.approx((0.1 if 9 in pair else 1.0) / 16.7) for pair in pairs)
    assert task.shifts[4, 9] == task.shifts[4, 3] == -10


def test_an_anchor_never_meets_its_own_interval_before_it_is_asked_to():
    task = MultiAnchor()
    for split in task.splits:
        batch = task.sample(3_000, split=split, seed=0)
        for row in batch.tokens.tolist():
            where = next(i for i, token in enumerate(row) if token <= 10)
            own = range(20 + 8 * (row[where] - 1), 20 + 8 * row[where])
            assert (row[where + 1] in own) == (split == "masked")


def test_the_statistics_of_statistical_output():
    task = StatisticalOutput()
    batch = task.sample(20_000, split="train", seed=0)
    key = batch.tokens.gather(1, batch.roles["key"])[:, 0]
    share = (batch.targets[:, -1] == key).float().mean().item()
    assert abs(share - 0.8) < 5 * (0.16 / 20_000) ** 0.5
    logits = torch.full((20_000, 1, 201), -100.0)
    logits.scatter_(2, key[:, None, None], torch.tensor(0.8).log().item())
    logits.scatter_(2, key[:, None, None] + 1, torch.tensor(0.2).log().item())
    scores = {name: values.mean().item() for name, values in task.score(logits, batch).items()}
    assert scores == pytest.approx({"accuracy": share, "key_probability": 0.8, "next_probability": 0.2}, abs=1e-4)


def test_recitation_has_a_direction():
    for direction in ("forward", "backward"):
        task = Recitation(direction=direction)
        assert task.splits == ("train", "id")
        both = Recitation()
        for batch in (task.sample(200, split="id", seed=0), both.sample(200, split=direction, seed=0)):
            asked, answer = ("first", "second") if direction == "forward" else ("second", "first")
            assert torch.equal(batch.tokens[:, -1:], batch.tokens.gather(1, batch.roles[asked]))
            assert torch.equal(batch.targets[:, -1:], batch.tokens.gather(1, batch.roles[answer]))
            assert torch.equal(batch.roles["key"], batch.roles[answer])


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Recitation(n_sequences=0), "n_sequences=0 leaves no sequence"),
        (lambda: Recitation(n_ctx=3), "n_ctx=3 is too short for recitation: give at least 4"),
        (
            lambda: ReadingComprehension(last_key=25),
            "a passage of 7 different tokens needs as many keys|without a test key",
        ),
        (lambda: WorkingMemory(first_key=4), "keys from 4 to 99 overlap the anchors 4"),
        (lambda: WorkingMemory(d_vocab=102), r"the target 102 of key 97 with \(1,\) is outside d_vocab=102"),
        (lambda: MultiAnchor(n_anchors=1), "n_anchors=1 is out of range"),
        (lambda: MultiAnchor(d_vocab=105), r"the target 109 of key 99 with \(10,\) is outside d_vocab=105"),
        (lambda: StatisticalOutput(probability=1.2), "probability=1.2 is none: give a number from 0 to 1"),
        (lambda: StatisticalOutput(modulus=1), "modulus=1 leaves no key to train on"),
        (lambda: classification(n_classes=1), "n_classes=1 is out of range: give from 2 to 80"),
        (lambda: classification(first_class=18), "the class tokens 18 to 21 meet the anchor 3 or the keys"),
        (
            lambda: Recitation().sample(2, split="test", seed=0),
            "recitation has no split 'test': give one of train, id, f",
        ),
    ],
)
def test_a_family_that_cannot_be_is_said(make, text):
    with pytest.raises(TaskError, match=text):
        make()
