"""The composite task: every row recomputed in plain Python from its tokens alone, splits, balance, designs, errors."""

import json
from collections import Counter
from dataclasses import asdict

import pytest
import torch

from tasks.anchor.composite import Composite
from tasks.anchor.designs import altered_pair, dropped_pairs, noise_groups
from tasks.anchor.functions import AnchorFunction
from tasks.anchor.permutation import permutation_anchors
from tasks.task import Task, TaskError

SHIFT = {1: 5, 2: 1, 3: -2, 4: -8}


def _read(row):
    """Key, first anchor, second anchor and key position of a row, from its tokens: anchors are what is below 20."""
    first, second = (i for i, token in enumerate(row) if token < 20)
    assert second == first + 1
    return row[first - 1], row[first], row[second], first - 1


def _items(batch):
    return [_read(row) for row in batch.tokens.tolist()]


@pytest.mark.parametrize("split", ["train", "id", "held_out", "altered"])
def test_every_row_is_as_described(split):
    batch = altered_pair().sample(400, split=split, seed=1)
    for row, tokens in enumerate(batch.tokens.tolist()):
        key, a, b, position = _read(tokens)
        assert len(tokens) == 9
        assert all(20 <= token <= 99 for i, token in enumerate(tokens) if i not in (position + 1, position + 2))
        expected = key + SHIFT[a] + SHIFT[b] + (4 if (a, b) == (3, 4) else 0)
        assert batch.targets[row, -1] == expected
        assert batch.trained[row].tolist() == batch.scored[row].tolist() == [False] * 8 + [True]
        assert {"held_out": (a, b) == (4, 3), "altered": (a, b) == (3, 4)}.get(split, (a, b) != (4, 3))
        assert (key % 9 == position) == (split == "id")
        roles = {name: role[row].tolist() for name, role in batch.roles.items() if name != "noise"}
        assert roles == {"key": [position], "anchor_1": [position + 1], "anchor_2": [position + 2], "last": [8]}
        noise = [i for i in range(8) if i not in (position, position + 1, position + 2)]
        assert batch.roles["noise"][row].nonzero().flatten().tolist() == noise


def test_the_published_example():
    task = Composite()
    assert task.target(23, (1, 2)) == 29
    example = torch.tensor([[23, 1, 2, 43, 46, 74, 54, 44, 72]])
    assert _read(example[0].tolist()) == (23, 1, 2, 0)
    batch = next(
        batch for seed in range(9_999) if _items(batch := task.sample_pairs(1, pairs=[(1, 2)], seed=seed))[0][0] == 23
    )
    assert batch.targets[0, -1] == 29


@pytest.mark.parametrize("modulus", [7, 8, 9])
@pytest.mark.parametrize("positions", [(), (0,), (3,), (6,)])
@pytest.mark.parametrize("n_sequences", [None, 20_000])
def test_no_test_key_at_its_position_is_ever_trained(modulus, positions, n_sequences):
    task = dropped_pairs(modulus=modulus, key_positions=positions, n_sequences=n_sequences)
    train = {(item[0], item[3]) for item in _items(task.sample(8_000, split="train", seed=2))}
    test = {(item[0], item[3]) for item in _items(task.sample(2_000, split="id", seed=3))}
    expected = {(key, p) for key in range(20, 100) for p in positions or range(7) if key % modulus == p}
    assert test == expected
    assert train == {(key, p) for key in range(20, 100) for p in positions or range(7)} - expected


def test_held_out_pairs_can_be_asked_with_test_keys():
    task = dropped_pairs(held_out_keys="test")
    assert all(key % 9 == position for key, *_, position in _items(task.sample(200, split="held_out", seed=0)))
    train_keys = dropped_pairs().sample(200, split="held_out", seed=0)
    assert all(key % 9 != position for key, *_, position in _items(train_keys))


def test_pairs_are_drawn_by_their_weights():
    weights = {(3, 4): 0.3, (1, 1): 0.0, (2, 2): 2.0}
    expected = {(a, b): weights.get((a, b), 1.0) for a in SHIFT for b in SHIFT if (a, b) != (4, 3)}
    total = sum(expected.values())
    for n_sequences in (None, 3_000):
        task = Composite(altered={(3, 4): -6}, held_out=[(4, 3)], weights=weights, n_sequences=n_sequences)
        counts = Counter((a, b) for _, a, b, _ in _items(task.sample(20_000, split="train", seed=5)))
        for pair, weight in expected.items():
            p = weight / total
            assert abs(counts[pair] / 20_000 - p) < 5 * (p * (1 - p) / 20_000) ** 0.5 + 1 / 3_000
        assert counts[4, 3] == counts[1, 1] == 0
        assert task.trained_pairs == {pair: w / total for pair, w in expected.items() if w > 0}


def test_a_fixed_set_holds_equal_amounts_and_nothing_else():
    task = altered_pair(n_sequences=1_500)
    batches = [task.sample(1_000, split="train", seed=seed) for seed in range(20)]
    rows = {tuple(row) for batch in batches for row in batch.tokens.tolist()}
    assert 1_490 <= len(rows) <= 1_500  # 20,000 draws miss each of 1,500 with a chance of e^-13
    counts = Counter(_read(row)[1:3] for row in rows)
    assert len(counts) == 15
    assert all(95 <= count <= 100 for count in counts.values())
    other = altered_pair(n_sequences=1_500, data_seed=1).sample(1_000, split="train", seed=0)
    assert not rows & {tuple(row) for row in other.tokens.tolist()}


def test_one_seed_one_batch():
    task = altered_pair(n_sequences=500)
    for split in task.splits:
        batch, again, other = (task.sample(50, split=split, seed=seed) for seed in (7, 7, 8))
        assert torch.equal(batch.tokens, again.tokens)
        assert torch.equal(batch.targets, again.targets)
        assert not torch.equal(batch.tokens, other.tokens)
    state = torch.get_rng_state()
    task.sample(5, split="train", seed=0)
    assert torch.equal(state, torch.get_rng_state())


def test_the_noise_groups_have_the_published_wrong_targets():
    published = {(1, 2): 4, (1, 3): 1, (1, 4): -5, (2, 3): 5, (2, 4): -9, (3, 4): -6}
    for n_groups in range(7):
        task = noise_groups(n_groups)
        wrong = dict(list(published.items())[:n_groups])
        assert task.splits == (("train", "id", "altered") if n_groups else ("train", "id"))
        assert len(task.trained_pairs) == 16
        for (a, b), shift in task.shifts.items():
            expected = wrong.get((a, b), wrong.get((b, a), SHIFT[a] + SHIFT[b]))
            assert shift == expected == task.target(50, (a, b)) - 50


def test_the_designs_have_the_published_pairs():
    task = altered_pair()
    assert (len(task.trained_pairs), task.held_out, dict(task.altered)) == (15, ((4, 3),), {(3, 4): -6})
    assert task.target(50, (4, 3)) == task.target(50, (3, 4), rule="reasoning") == 40
    assert task.target(50, (4, 3), rule="symmetric") == task.target(50, (3, 4)) == 44
    task = dropped_pairs()
    assert (len(task.trained_pairs), task.held_out, task.altered) == (14, ((3, 4), (4, 3)), ())
    assert (dropped_pairs(n_sequences=3_000).name) == "composite, (3, 4) and (4, 3) held out, 3000 sequences"


@pytest.mark.parametrize(("offset", "places"), [(2, range(2, 9)), (-3, range(5)), (4, range(4, 9))])
def test_the_key_can_stand_behind_the_pair_or_farther_away(offset, places):
    batch = Composite(key_offset=offset).sample(500, split="train", seed=0)
    seen = set()
    for row, tokens in enumerate(batch.tokens.tolist()):
        first, second = (i for i, token in enumerate(tokens) if token < 20)
        seen.add(first + offset)
        assert batch.roles["key"][row].item() == first + offset
        assert batch.targets[row, -1] == tokens[first + offset] + SHIFT[tokens[first]] + SHIFT[tokens[second]]
    assert seen == set(places)


def test_three_anchors_and_maps_that_do_not_commute():
    maps = {1: lambda x: x // 2, 2: lambda x: x + 3}
    for order in ("left_to_right", "right_to_left"):
        function = AnchorFunction.from_maps(maps, values=range(109), order=order)
        batch = Composite(function=function, group_size=3).sample(200, split="id", seed=0)
        assert "anchor_3" in batch.roles
        for tokens, target in zip(batch.tokens.tolist(), batch.targets[:, -1].tolist(), strict=True):
            first = next(i for i, token in enumerate(tokens) if token < 20)
            value = tokens[first - 1]
            group = tokens[first : first + 3]
            for anchor in group if order == "left_to_right" else group[::-1]:
                value = maps[anchor](value)
            assert value == target


def test_a_swapped_batch_differs_in_the_order_of_the_anchors_only():
    task = altered_pair()
    batch = task.sample_pairs(100, pairs=[(3, 4), (1, 2), (4, 4)], keys="test", seed=0)
    swapped = task.swap(batch)
    for before, after in zip(_items(batch), _items(swapped), strict=True):
        key, a, b, position = before
        assert after == (key, b, a, position)
    assert (batch.tokens != swapped.tokens)[:, :7].any()
    assert torch.equal(batch.tokens.sort().values, swapped.tokens.sort().values)
    assert [t for t in swapped.targets[:3, -1].tolist()] == [
        key + {(3, 4): -10, (1, 2): 6, (4, 4): -16}[a, b] for key, a, b, _ in _items(batch)[:3]
    ]
    assert torch.equal(task.swap(swapped).tokens, batch.tokens)
    again = task.sample_pairs(100, pairs=[(4, 3), (2, 1), (4, 4)], keys="test", seed=0)
    assert torch.equal(again.tokens, swapped.tokens)  # one seed, one set of keys and noise


def test_the_last_token_is_noise_where_it_is_asked_for():
    task = altered_pair()
    assert task.key_positions == tuple(range(7))
    assert task.with_last_free().key_positions == tuple(range(6))
    batch = task.with_last_free().sample(500, split="id", seed=0)
    assert (batch.roles["anchor_2"] < batch.roles["last"]).all()
    assert Composite(key_offset=2).with_last_free().key_positions == tuple(range(2, 8))
    with pytest.raises(TaskError, match=r"key positions \(6,\) all put an item last"):
        Composite(key_positions=(6,)).with_last_free()


def test_scores_say_which_rule_was_followed():
    task = altered_pair()
    batch = task.sample(40, split="held_out", seed=0)
    key = torch.tensor([item[0] for item in _items(batch)])
    logits = torch.zeros(40, 9, 120)
    answers = torch.cat([key[:10] - 10, key[10:30] - 6, key[30:] - 7])
    logits[torch.arange(40), -1, answers] = 1.0
    scores = task.score(logits, batch)
    assert {name: values.sum().item() for name, values in scores.items()} == {
        "accuracy": 10,
        "reasoning": 10,
        "symmetric": 20,
        "other": 10,
    }
    assert task.score(logits[:, -1:], batch)["symmetric"].sum() == 20  # logits of the last position alone will do


def test_a_perfect_model_is_right_on_every_split_and_never_follows_another_rule():
    for task in (altered_pair(), dropped_pairs(), noise_groups(2), permutation_anchors()):
        for split in task.splits:
            batch = task.sample(300, split=split, seed=4)
            perfect = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
            scores = {name: values.mean().item() for name, values in task.score(perfect, batch).items()}
            assert scores["accuracy"] == 1
            assert scores.get("other", 0) == 0
            if split == "altered" and task.held_out:
                assert scores["reasoning"] == scores["symmetric"] == 0  # both say x - 10 there, the data x - 6
    assert set(dropped_pairs().score(torch.zeros(1, 1, 120), dropped_pairs().sample(1, split="id", seed=0))) == {
        "accuracy",
        "reasoning",
        "other",
    }


def test_a_task_can_be_recorded_and_compared():
    task = altered_pair(weight=0.3, n_sequences=300)
    assert isinstance(task, Task)
    assert json.loads(json.dumps(asdict(task)))["altered"] == [[[3, 4], -6]]
    assert hash(task) == hash(altered_pair(weight=0.3, n_sequences=300))
    assert task == Composite(altered={(3, 4): -6}, held_out=[(4, 3)], weights={(3, 4): 0.3}, n_sequences=300)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"held_out": [(4, 3)], "weights": {(4, 3): 0.5}}, r"\(4, 3\) is held out and also given the weight 0.5"),
        ({"held_out": [(3, 4)], "altered": {(3, 4): -6}}, r"\(3, 4\) is held out and also altered"),
        ({"altered": {(3, 4): -6}, "weights": {(3, 4): 0.0}}, r"\(3, 4\) is altered and has the weight 0"),
        ({"first_key": 3}, "keys from 3 to 99 overlap the anchors 3, 4: give keys and anchors"),
        ({"first_key": 50, "last_key": 40}, "there is no key from 50 to 40"),
        ({"d_vocab": 99}, "token 99 is outside d_vocab=99: give a d_vocab of at least 100"),
        ({"d_vocab": 105}, r"the target 105 of key 95 with \(1, 1\) is outside d_vocab=105"),
        ({"altered": {(3, 4): -21}}, r"the target -1 of key 20 with \(3, 4\) is outside d_vocab=120"),
        ({"n_ctx": 2}, "n_ctx=2 is too short for a key and 2 anchors with key_offset=-1: give at least 3"),
        ({"n_ctx": 3, "key_offset": -2}, "n_ctx=3 is too short .* give at least 4"),
        ({"n_ctx": 4, "key_offset": 4}, "n_ctx=4 is too short .* give at least 5"),
        ({"key_positions": [7]}, "a key at position 7 leaves no room for its 2 anchors in n_ctx=9: .* from 0 to 6"),
        ({"key_offset": 1}, "key_offset=1 puts the key on one of the 2 anchors: give a negative one, or at least 2"),
        ({"group_size": 0}, "group_size=0 leaves no anchor"),
        ({"modulus": 1}, "modulus=1 leaves no key to train on: give at least 2, or None"),
        ({"modulus": 200}, "modulus=200 leaves position 0 without a test key from 20 to 99"),
        ({"held_out": [(4, 5)]}, r"held_out names \(4, 5\), which is no pair of the anchors"),
        ({"weights": {(1,): 2.0}}, r"weights names \(1,\), which is no pair of the anchors"),
        ({"weights": {(1, 1): -1.0}}, r"the weight -1.0 of \(1, 1\) is no share of the data"),
        ({"weights": dict.fromkeys([(a, b) for a in SHIFT for b in SHIFT], 0.0)}, "no pair is left to train on"),
        ({"n_sequences": 0}, "n_sequences=0 leaves no sequence"),
        ({"held_out_keys": "test", "modulus": None}, "held_out_keys='test' needs keys that are kept for the test"),
    ],
)
def test_a_task_that_cannot_be_is_said(settings, text):
    with pytest.raises(TaskError, match=text):
        Composite(**settings)


def test_a_question_that_cannot_be_answered_is_said():
    task = dropped_pairs()
    with pytest.raises(TaskError, match="has no split 'altered': give one of train, id, held_out"):
        task.sample(2, split="altered", seed=0)
    with pytest.raises(TaskError, match="a batch of 0 sequences"):
        task.sample(0, split="id", seed=0)
    with pytest.raises(TaskError, match=r"pairs=\[\(5, 5\)\] names no pairs of the anchors: give some of task.pairs"):
        task.sample_pairs(2, pairs=[(5, 5)], seed=0)
    with pytest.raises(TaskError, match="there are 6 noise groups"):
        noise_groups(7)
    with pytest.raises(TaskError, match=r"\(4, 4\) is the same in the other order"):
        altered_pair((4, 4))
