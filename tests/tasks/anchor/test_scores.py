"""What a model answers instead, on answers that are made up."""

import pytest
import torch

from tasks.anchor.designs import altered_pair, dropped_pairs
from tasks.anchor.permutation import permutation_anchors
from tasks.anchor.scores import commutativity, deviation_histogram
from tasks.task import TaskError


def _answer(batch, shift):
    """Logits of a model that answers key + shift, row by row."""
    key = batch.tokens.gather(1, batch.roles["key"])
    return torch.zeros(len(key), 1, 120).scatter(2, (key + shift)[:, None], 1.0)


def test_the_histogram_counts_and_names_what_was_copied():
    task = altered_pair()
    batch = task.sample(100, split="held_out", seed=0)
    shift = torch.tensor([-7] * 50 + [-16] * 25 + [-10] * 12 + [-6] * 8 + [13] * 5)[:, None]
    result = deviation_histogram(_answer(batch, shift), batch, task.shifts)
    assert result.n == 100
    assert result.to_frame().to_dict("list") == {
        "deviation": [-7, -16, -10, -6, 13],
        "count": [50, 25, 12, 8, 5],
        "share": [0.5, 0.25, 0.12, 0.08, 0.05],
        "name": ["copies (2, 4)/(4, 2)", "copies (4, 4)", "answers (4, 3)", "copies (3, 4)", ""],
    }
    assert "    -7  0.500  copies (2, 4)/(4, 2)" in repr(result)
    assert "(4, 4)" in result._repr_html_()


def test_a_long_histogram_says_how_much_it_leaves_out():
    batch = altered_pair().sample(20, split="held_out", seed=0)
    result = deviation_histogram(_answer(batch, torch.arange(20)[:, None] - 20), batch, altered_pair().shifts)
    assert repr(result).endswith("and 10 others")


def test_a_pair_that_was_asked_is_not_copied():
    task = dropped_pairs()
    batch = task.sample_pairs(30, pairs=[(1, 2)], seed=0)
    result = deviation_histogram(_answer(batch, 6), batch, task.shifts)
    assert result.names == ("answers (1, 2), copies (2, 1)",)


def test_commutativity_is_one_for_a_symmetric_rule_and_none_for_a_rule_of_order():
    task = altered_pair()
    batch = task.sample_pairs(60, pairs=[(3, 4)], seed=0)
    swapped = task.swap(batch)
    assert commutativity(_answer(batch, -6), _answer(swapped, -6)).mean() == 1
    half = torch.tensor([-6, -10] * 30)[:, None]
    assert commutativity(_answer(batch, half), _answer(swapped, -10)).tolist() == [0.0, 1.0] * 30
    with pytest.raises(TaskError, match="60 sequences cannot be compared with 30 swapped ones"):
        commutativity(_answer(batch, -6), _answer(swapped, -6)[:30])


def test_a_task_without_shifts_has_no_deviations_to_name():
    task = permutation_anchors()
    assert task.shifts == {}
    batch = task.sample(4, split="held_out", seed=0)
    with pytest.raises(TaskError, match="no pair of this task is a shift"):
        deviation_histogram(torch.zeros(4, 1, 24), batch, task.shifts)
