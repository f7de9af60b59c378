"""Addition: sums read back from the tokens, three splits that share no pair, and what a score means."""

import pytest
import torch

from tasks.language import Addition, spell
from tasks.language.held_out import draw_until, is_held_out
from tasks.task import Task, TaskError
from tests.untyped import as_without_type_checks


def read(task, row):
    """(a, b, a + b) from the words of a row."""
    question, total = spell(row, task.vocabulary).split(" = ")
    a, b = (int(number.replace(" ", "")) for number in question.split(" + "))
    digits = total.split()
    return a, b, int("".join(digits if task.output_order.startswith("most") else reversed(digits)))


def read_operands(task, n, split, seed=0):
    """a and b [n] from the digits."""
    tokens, d = task.sample(n, split=split, seed=seed).tokens - 1, task.digits
    powers = 10 ** torch.arange(d - 1, -1, -1)
    return tokens[:, :d] @ powers, tokens[:, d + 1 : 2 * d + 1] @ powers


def read_pairs(task, n, split, seed=0):
    """The different pairs, as a set."""
    a, b = read_operands(task, n, split, seed)
    return set(zip(a.tolist(), b.tolist(), strict=True))


@pytest.mark.parametrize("order", ["most_significant_first", "least_significant_first"])
@pytest.mark.parametrize("split", ["train", "id", "block"])
def test_every_row_is_a_right_sum(order, split):
    task = Addition(output_order=order)
    assert isinstance(task, Task)
    batch = task.sample(400, split=split, seed=1)
    assert batch.tokens.shape == (400, task.n_ctx) == (400, 12)
    for row in batch.tokens:
        a, b, total = read(task, row)
        assert total == a + b
        assert (400 <= a <= 600 and 400 <= b <= 600) == (split == "block")
    assert batch.trained.nonzero()[:, 1].unique().tolist() == [7, 8, 9, 10]
    assert batch.trained.sum(1).unique().tolist() == [4]
    assert torch.equal(batch.targets[:, 7:11], batch.tokens[:, 8:])


def test_the_splits_share_no_pair_and_leave_none_out():
    task = Addition(digits=2, held_out=(40, 60), id_share=0.2)
    pairs = {split: read_pairs(task, n, split) for split, n in (("train", 150_000), ("id", 40_000), ("block", 10_000))}
    assert pairs["block"] == {(a, b) for a in range(40, 61) for b in range(40, 61)}
    assert not pairs["train"] & pairs["id"]
    assert not pairs["block"] & (pairs["train"] | pairs["id"])
    assert sum(map(len, pairs.values())) == 10_000
    assert len(pairs["id"]) / (10_000 - 21**2) == pytest.approx(0.2, abs=0.02)


def test_the_block_is_never_trained_at_the_published_size():
    a, b = read_operands(Addition(), 100_000, "train", seed=3)
    assert not ((a >= 400) & (a <= 600) & (b >= 400) & (b <= 600)).any()
    assert ((a >= 400) & (a <= 600)).any()  # either alone may lie in it
    assert (a.min(), a.max(), b.min(), b.max()) == (0, 999, 0, 999)


def test_which_pairs_are_kept_depends_on_the_data_seed():
    one, other = (read_pairs(Addition(digits=2, held_out=(40, 60), data_seed=seed), 5_000, "id") for seed in (0, 1))
    assert 0.02 < len(one & other) / len(one) < 0.25


def test_roles_name_digits_by_their_place():
    for order in ("most_significant_first", "least_significant_first"):
        task = Addition(output_order=order)
        batch = task.sample(30, split="train", seed=2)
        value = {
            role: sum((batch.tokens.gather(1, at)[:, i] - 1) * 10 ** (at.shape[1] - 1 - i) for i in range(at.shape[1]))
            for role, at in batch.roles.items()
            if role in ("a", "b", "sum")
        }
        assert torch.equal(value["a"] + value["b"], value["sum"])
        signs = [
            {task.vocabulary[t] for t in batch.tokens.gather(1, batch.roles[r])[:, 0].tolist()}
            for r in ("plus", "equals")
        ]
        assert signs == [{"+"}, {"="}]


def test_right_sums_score_one_and_a_wrong_digit_none():
    task = Addition()
    batch = task.sample(40, split="block", seed=0)
    logits = torch.nn.functional.one_hot(batch.targets, task.d_vocab).float()
    assert task.score(logits, batch)["exact_match"].tolist() == [1.0] * 40
    logits[:10, 9] = torch.eye(task.d_vocab)[0]
    scores = task.score(logits, batch)
    assert scores["exact_match"].tolist() == [0.0] * 10 + [1.0] * 30
    assert scores["token_accuracy"].tolist() == [0.75] * 10 + [1.0] * 30


def test_the_same_seed_gives_the_same_batch():
    one, same, other = (Addition().sample(20, split="id", seed=seed).tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_the_hash_keeps_its_share_whatever_the_column():
    rows = torch.cartesian_prod(torch.arange(200), torch.arange(200))
    kept = is_held_out(rows, share=0.3, seed=5).view(200, 200).float()
    spread = (0.3 * 0.7 / 200) ** 0.5
    assert kept.mean().item() == pytest.approx(0.3, abs=5 * spread / 200**0.5)
    for lines in (kept.mean(0), kept.mean(1)):
        assert ((lines - 0.3).abs() < 5 * spread).all()
        assert 0.7 < (lines.std() / spread).item() < 1.3


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Addition(digits=0), r"digits=0 cannot be drawn: give 1 to 9"),
        (lambda: Addition(digits=2), r"held_out=\(400, 600\) is no block of operands with 2 digits"),
        (lambda: Addition(held_out=(0, 999)), r"that leaves some to train on"),
        (
            lambda: Addition(output_order="reversed"),
            r"output_order='reversed' is unknown: give 'most_significant_first' or",
        ),
        (lambda: Addition(id_share=1.0), r"id_share=1.0 must be a share between 0 and 1, such as 0.1"),
        (lambda: Addition().sample(3, split="ood", seed=0), r"has no split 'ood': give one of train, id, block"),
        (lambda: Addition().sample(-1, split="id", seed=0), r"a batch of -1 sequences cannot be drawn"),
        (
            lambda: draw_until(5, lambda m: torch.zeros(m, 2).long(), lambda rows: rows[:, 0] > 0, share=1.0),
            r"only 0 of 5 questions were found in 200 draws",
        ),
    ],
)
def test_bad_input_is_said_in_a_sentence(call, says):
    with as_without_type_checks(), pytest.raises(TaskError, match=says):
        call()
