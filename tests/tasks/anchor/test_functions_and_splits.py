"""The anchor function at values worked out by hand, and which keys are kept for the test."""

import pytest
import torch

from tasks.anchor.functions import PAPER_FUNCTION, AnchorFunction
from tasks.anchor.splits import KeyTable, allow_keys, is_test_key, published_amounts
from tasks.task import TaskError

# The table of sums of arXiv 2405.05409, written down and not computed.
SUMS = {"11": 10, "12": 6, "13": 3, "14": -3, "22": 2, "23": -1, "24": -7, "33": -4, "34": -10, "44": -16}


def test_the_published_example_and_the_published_sums():
    assert PAPER_FUNCTION(23, (1, 2)) == 29
    for pair in PAPER_FUNCTION.pairs():
        assert PAPER_FUNCTION(50, pair) - 50 == SUMS["".join(map(str, sorted(pair)))]
    assert len(PAPER_FUNCTION.pairs()) == 16


def test_any_map_any_number_of_anchors_and_either_order():
    maps = {1: 5, 2: lambda x: 2 * x, 3: [7, 6, 5, 4, 3, 2, 1, 0]}
    forward = AnchorFunction.from_maps(maps, values=range(8))
    backward = AnchorFunction.from_maps(maps, values=range(8), order="right_to_left")
    assert forward(1, ()) == 1
    assert forward(1, (2,)) == backward(1, (2,)) == 2
    assert forward(1, (1, 2)) == 12  # (1 + 5) * 2
    assert backward(1, (1, 2)) == 7  # 1 * 2 + 5
    assert forward(1, (2, 3, 1)) == 10  # 1 -> 2 -> 5 -> 10
    assert backward(1, (1, 3, 2)) == 10
    assert len(forward.pairs(3)) == 27


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AnchorFunction(anchors=(1, 2), maps=(5,)), "2 anchors have 1 maps"),
        (lambda: AnchorFunction(anchors=(1, 1), maps=(5, 6)), r"the anchors \(1, 1\) must be different token ids"),
        (lambda: AnchorFunction.from_maps({1: abs}), "the map of anchor 1 is a callable: give values=range"),
        (lambda: AnchorFunction.from_maps({1: abs}, values=range(2, 5)), "must count from 0"),
        (lambda: PAPER_FUNCTION(23, (1, 5)), "5 is no anchor: the anchors are 1, 2, 3, 4"),
        (
            lambda: AnchorFunction.from_maps({1: [0, 1]})(2, (1,)),
            "the map of anchor 1 has no entry for 2: it covers 0 to 1",
        ),
    ],
)
def test_a_function_that_cannot_be_is_said(make, text):
    with pytest.raises(TaskError, match=text):
        make()


@pytest.mark.parametrize("modulus", [7, 8, 9])
def test_the_two_parts_share_no_key_at_any_position_and_leave_none_out(modulus):
    keys, positions = range(20, 100), range(7)
    train, test = (allow_keys(keys, positions, modulus=modulus, part=part) for part in ("train", "test"))
    for position in positions:
        for key in keys:
            published = key % modulus == position  # the rule as the papers write it
            assert test[position, key - 20] == published == (not train[position, key - 20])
    assert test.any(1).all()


def test_the_rule_holds_beyond_the_modulus():
    assert is_test_key(torch.tensor([24, 25]), torch.tensor([8, 8]), modulus=8).tolist() == [True, False]


def test_a_table_draws_each_allowed_key_equally_often():
    allowed = torch.tensor([[True, False, True, True], [False, True, False, False]])
    table = KeyTable.from_mask(allowed, range(10, 14))
    rows = torch.tensor([0, 1]).repeat(6_000)
    keys = table.draw(rows, torch.Generator().manual_seed(0))
    counts = torch.bincount(keys[rows == 0], minlength=14)
    assert counts[10] + counts[12] + counts[13] == 6_000
    assert (counts[[10, 12, 13]] - 2_000).abs().max() < 5 * 6_000**0.5 / 2
    assert (keys[rows == 1] == 11).all()


def test_the_published_amounts():
    train, test = published_amounts(900_000)
    assert (train, test, 15 * train) == (50_625, 5_625, 759_375)
    train, test = published_amounts(200_000)
    assert (train, test, 14 * train) == (11_250, 1_250, 157_500)
