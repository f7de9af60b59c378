"""The copying task: what it draws, checked row by row, and a perfect copier that scores exactly 0."""

import itertools

import pytest
import torch

from tasks.copying import Copying, repeated_tokens
from tasks.task import Task, TaskError

TASK = Copying()


def _copy_perfectly(batch, d_vocab=64):
    """Logits of a model that always repeats what followed the same place of the first copy."""
    distance = batch.roles["copy_start"] - batch.roles["source_start"]
    source = torch.arange(batch.tokens.shape[1]) - distance + 1
    guess = batch.tokens.gather(1, source.clamp(min=0))
    return torch.nn.functional.one_hot(guess, d_vocab).float()


@pytest.mark.parametrize("split", ["train", "id", "ood"])
def test_a_perfect_copier_scores_exactly_zero(split):
    batch = TASK.sample(300, split=split, seed=1)
    assert torch.equal(TASK.score(_copy_perfectly(batch), batch)["error"], torch.zeros(300))


@pytest.mark.parametrize(("split", "by_position", "by_sequence"), [("id", 0.0870, 0.0943), ("ood", 0.0469, 0.0469)])
def test_the_published_error_of_a_perfect_copier(split, by_position, by_sequence):
    batch = TASK.sample(4_000, split=split, seed=2)
    logits = _copy_perfectly(batch)
    last = batch.roles["copy_start"] + batch.roles["segment_length"] - 1
    logits[torch.arange(4_000), last.squeeze(1)] = torch.eye(64)[0]  # there, guess the commonest token
    scores = TASK.score(logits, batch)
    counted = (batch.roles["segment_length"] - 4).squeeze(1)
    assert scores["error"].sum() == 0
    assert scores["published_error"].mean().item() == pytest.approx(by_sequence, abs=0.002)
    pooled = (scores["published_error"] * counted).sum() / counted.sum()
    assert pooled.item() == pytest.approx(by_position, abs=0.002)


@pytest.mark.parametrize("split", ["train", "id", "ood"])
def test_every_row_is_as_described(split):
    batch = TASK.sample(200, split=split, seed=3)
    lengths = set()
    for row in range(200):
        tokens = batch.tokens[row].tolist()
        first, second, length = (
            batch.roles[name][row].item() for name in ("source_start", "copy_start", "segment_length")
        )
        lengths.add(length)
        assert tokens[first : first + length] == tokens[second : second + length]
        assert first >= 0
        assert second >= first + length + 1
        assert second + length <= 63
        assert batch.targets[row, :-1].tolist() == tokens[1:]
        assert batch.trained[row].nonzero().flatten().tolist() == list(range(63))
        assert batch.scored[row].nonzero().flatten().tolist() == list(range(second + 4, second + length - 1))
        for name, start in (("first_copy", first), ("second_copy", second)):
            assert batch.roles[name][row].nonzero().flatten().tolist() == list(range(start, start + length))
    assert lengths == ({25} if split == "ood" else set(range(10, 20)))


def test_tokens_follow_their_distribution():
    expected = {
        "zipf": 1 / (torch.arange(1, 65) + 2.7),
        "two_level": torch.tensor([1 / 8] * 4 + [1 / 120] * 60),
        "uniform": torch.ones(64),
    }
    for distribution, weights in expected.items():
        task = Copying(distribution=distribution)
        for split in ("id", "ood"):
            p = torch.ones(64) / 64 if split == "ood" else weights / weights.sum()
            tokens = task.sample(2000, split=split, seed=4).tokens[:, ::7]
            share = torch.bincount(tokens.flatten(), minlength=64) / tokens.numel()
            # 5 standard errors, widened since the two copies of a segment hold the same draws
            assert ((share - p).abs() < 5 * (2 * p / tokens.numel()).sqrt()).all(), (distribution, split)
    assert (expected["zipf"] / expected["zipf"].sum())[0].item() == pytest.approx(0.0889, abs=1e-4)


def test_every_pair_of_gaps_is_equally_likely():
    task = Copying(n_ctx=24, min_length=9, max_length=9, ood_length=9)  # r = 6, 15 pairs
    batch = task.sample(15_000, split="ood", seed=5)
    gaps = torch.cat([batch.roles["source_start"], batch.roles["copy_start"] - 9], dim=1).tolist()
    counts = {pair: 0 for pair in itertools.combinations(range(6), 2)}
    for pair in gaps:
        counts[tuple(pair)] += 1
    assert all(abs(count - 1000) < 160 for count in counts.values()), counts


def test_a_pool_holds_the_segments_of_training_but_not_of_ood():
    task = Copying(pool_size=5)
    segments = {}
    for split in ("train", "id", "ood"):
        batch = task.sample(400, split=split, seed=6)
        masked = zip(batch.tokens, batch.roles["first_copy"], strict=True)
        segments[split] = {tuple(tokens[mask].tolist()) for tokens, mask in masked}
    assert len(segments["train"]) == 5
    assert segments["id"] == segments["train"]
    assert len(segments["ood"]) == 400
    other = Copying(pool_size=5, pool_seed=1).sample(400, split="train", seed=6)
    assert tuple(other.tokens[0][other.roles["first_copy"][0]].tolist()) not in segments["train"]


def test_a_batch_is_a_function_of_split_and_seed():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, again = TASK.sample(4, split="id", seed=7), TASK.sample(4, split="id", seed=7)
    assert torch.equal(first.tokens, again.tokens)
    assert not torch.equal(first.tokens, TASK.sample(4, split="id", seed=8).tokens)
    assert not torch.equal(first.tokens, TASK.sample(4, split="train", seed=7).tokens)
    assert torch.equal(state, torch.get_rng_state())
    assert isinstance(TASK, Task)


def test_the_score_counts_what_a_loop_counts():
    batch = TASK.sample(30, split="id", seed=9)
    logits = torch.randn(30, 64, 64, generator=torch.Generator().manual_seed(0))
    logits += 3 * _copy_perfectly(batch)
    scores = TASK.score(logits, batch)
    for row in range(30):
        second, length = batch.roles["copy_start"][row].item(), batch.roles["segment_length"][row].item()
        wrong = [
            logits[row, t].argmax().item() != batch.tokens[row, t + 1].item()
            for t in range(second + 4, second + length)
        ]
        assert scores["published_error"][row].item() == pytest.approx(sum(wrong) / len(wrong))
        assert scores["error"][row].item() == pytest.approx(sum(wrong[:-1]) / len(wrong[:-1]))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"d_vocab": 4}, "d_vocab=4 is too small for copying: give at least 5 tokens"),
        ({"n_ctx": 51}, "do not fit in n_ctx=51: give n_ctx of at least 52"),
        ({"min_length": 20}, "min_length=20 is above max_length=19"),
        ({"min_length": 5}, "a segment of 5 tokens has no scored position"),
        ({"pool_size": 0}, "pool_size=0 leaves no segment"),
        ({"burn_in": -1}, "burn_in=-1 must not be negative"),
    ],
)
def test_a_task_that_cannot_be_is_said(settings, text):
    with pytest.raises(TaskError, match=text):
        Copying(**settings)


def test_a_sample_that_cannot_be_drawn_is_said():
    with pytest.raises(TaskError, match="has no split 'test': give one of train, id, ood"):
        TASK.sample(2, split="test", seed=0)
    with pytest.raises(TaskError, match="a batch of 0 sequences"):
        TASK.sample(0, split="id", seed=0)


def _repeat(**changes):
    settings = {"n": 6, "segment": 5, "copies": 3, "vocabulary": torch.arange(100, 140), "bos": None}
    return repeated_tokens(**{**settings, **changes}, generator=torch.Generator().manual_seed(0))


def test_repeated_tokens_repeat():
    tokens = _repeat()
    assert tokens.shape == (6, 15)
    assert torch.equal(tokens[:, :5], tokens[:, 5:10])
    assert torch.equal(tokens[:, :5], tokens[:, 10:])
    assert ((tokens >= 100) & (tokens < 140)).all()
    assert len({tuple(row) for row in tokens.tolist()}) == 6


def test_a_bos_stands_in_front_and_nowhere_else():
    tokens = _repeat(bos=100, n=200)
    assert tokens.shape == (200, 16)
    assert (tokens[:, 0] == 100).all()
    assert (tokens[:, 1:] != 100).all()


def test_the_control_holds_nothing_to_copy():
    tokens = _repeat(sequences="unrepeated", n=50)
    assert tokens.shape == (50, 15)
    assert all(len(set(row)) == 15 for row in tokens.tolist())


def test_repeated_tokens_that_cannot_be_drawn_are_said():
    with pytest.raises(TaskError, match="must each be at least 1"):
        _repeat(n=0)
    with pytest.raises(TaskError, match="a segment of 5 distinct tokens needs as many ids"):
        _repeat(vocabulary=torch.arange(4))
