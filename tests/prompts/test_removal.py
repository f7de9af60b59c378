"""Heads removed in order: statistics from known numbers, a machine of three heads, agreement with hooks."""

import numpy as np
import pytest

import interp
from interp.errors import InputError
from interp.models.provenance import get_provenance
from interp.prompts.choices import ChoiceScores
from interp.prompts.removal import remove_ranked_heads
from interp.prompts.removal_result import RankedRemoval, RemovalStep
from tasks.prompts import IOIChoices
from tests.analyses.receiver import build_receiver_machine
from tests.prompts.test_choices import make_items, score_by_loop

CARRIERS = [(0, 0), (1, 0), (2, 0)]


@pytest.fixture(scope="module")
def machine():
    return build_receiver_machine()


def as_likelihoods(right):
    """Log-probabilities of two choices, the first of them right where `right` says so."""
    right = np.asarray(right, dtype=float)
    return np.stack([right - 2, np.full(right.shape, -1.5)], axis=-1)


def make_step(whole, *, right, control, rows):
    return RemovalStep(
        whole=whole,
        heads=((0, 0),),
        log_probability=as_likelihoods(right),
        likeliest=np.zeros((4, 2), dtype=bool),
        control_heads=tuple(((0, 1 + draw),) for draw in range(len(rows))),
        control_items=np.array(rows),
        control_log_probability=as_likelihoods(control),
        control_likeliest=np.zeros((*np.shape(rows), 2), dtype=bool),
    )


@pytest.fixture
def whole(machine):
    return ChoiceScores(
        log_probability=as_likelihoods([1, 1, 1, 0]),
        n_tokens=np.ones((4, 2), dtype=int),
        likeliest=np.zeros((4, 2), dtype=bool),
        answers=np.zeros(4, dtype=int),
        seed=0,
        provenance=get_provenance(machine),
    )


def test_statistics_from_known_numbers(whole):
    step = make_step(
        whole, right=[0, 0, 1, 0], control=[[1, 1], [1, 0], [0, 1], [0, 1]], rows=[[0, 1], [2, 3], [0, 1], [2, 3]]
    )
    assert step.right().tolist() == [False, False, True, False]
    assert step.accuracy()[0] == 0.25
    # Items 0 to 3 are right in 1/2, 2/2, 1/2, 1/2 of their draws.
    assert step.beyond_control().tolist() == [0.5, 1.0, -0.5, 0.5]
    assert step.control_accuracy()[0] == 0.625
    assert step.lost_beyond_control()[0] == pytest.approx(0.375)
    # The draws' own items were right before in 2, 1, 2, 1 of 2.
    assert step.control_losses().tolist() == [0, 0, 0.5, 0]
    # On these items the chosen heads lose 2, 0, 2, 0 of 2, so two draws of four lose as much.
    assert step.p_value() == pytest.approx(3 / 5)
    assert not step.depends
    result = RankedRemoval(whole=whole, steps=(step,), seed=0)
    frame = result.to_frame()
    assert frame["accuracy"].tolist() == [0.75, 0.25, 0.625]
    assert frame["n_heads"].tolist() == [0, 1, 1]
    panel = result.to_panel(title="t")
    assert panel["draws"][0].tolist() == [0.75, 0.75, 0.25, 0.75]
    assert panel["counts"].tolist() == [0, 1]
    assert "from 0.75 to 0.25, random heads of the same layers to 0.62; lost beyond them 0.38" in repr(result)
    assert result.figure().alt.startswith("accuracy as heads are removed")


def test_enough_draws_that_lose_nothing_confirm_a_loss(whole):
    kept = make_step(whole, right=[0, 0, 0, 0], control=[[1, 1, 1, 0]] * 19, rows=[[0, 1, 2, 3]] * 19)
    assert (kept.p_value(), kept.lost_beyond_control()[0]) == (0.05, 0.75)
    assert kept.depends
    few = make_step(whole, right=[0, 0, 0, 0], control=[[1, 1, 1, 0]] * 18, rows=[[0, 1, 2, 3]] * 18)
    assert not few.depends


def test_the_machine_loses_the_answer_with_its_heads_and_with_no_others(machine):
    items = IOIChoices(machine.tokenizer).sample(10, seed=0)
    result = remove_ranked_heads(machine, items, CARRIERS, counts=[1, 3], n_draws=20, seed=0)
    assert result.whole.accuracy() == (1, 1, 1)
    one, three = result.steps
    assert one.heads == ((0, 0),)
    assert three.accuracy() == one.accuracy() == (0, 0, 0)
    assert three.control_accuracy() == (1, 1, 1)
    assert (three.n_draws, one.n_draws) == (20, 3)  # one layer has three other heads
    assert three.p_value() == pytest.approx(1 / 21)
    assert three.depends
    assert not one.depends
    assert any("only 3 different sets" in note for note in one.notes)
    for step in result.steps:
        for draw in step.control_heads:
            assert not set(draw) & set(step.heads)
            assert sorted(layer for layer, _ in draw) == sorted(layer for layer, _ in step.heads)


def test_every_item_is_scored_under_draws_and_each_draw_as_by_hooks(both):
    items = make_items(n=6)
    for model in both:
        result = remove_ranked_heads(
            model, items, [(1, 2), (1, 0), (0, 1)], counts=[2, 3], n_draws=5, n_shares=3, seed=1
        )
        for step in result.steps:
            assert step.control_items.shape == (5, 2)
            assert set(step.control_items.ravel()) == set(range(6))
            with interp.ablate_heads(model, step.heads):
                np.testing.assert_allclose(step.log_probability, score_by_loop(model, items)[0], atol=2e-5)
            for draw, rows in enumerate(step.control_items):
                with interp.ablate_heads(model, step.control_heads[draw]):
                    totals, likeliest = score_by_loop(model, [items[row] for row in rows])
                np.testing.assert_allclose(step.control_log_probability[draw], totals, atol=2e-5)
                assert (step.control_likeliest[draw] == likeliest).all()


def test_layers_that_lend_heads_are_named_with_how_often(machine):
    items = IOIChoices(machine.tokenizer).sample(2, seed=0)
    heads = [(2, 0), (2, 1), (2, 2)]  # which leaves one of this layer
    step = remove_ranked_heads(machine, items, heads, counts=[3], n_draws=1).steps[0]
    assert step.notes == ("layer 2 has too few other heads, so its control borrows a head of layer 1, 2 times",)
    assert sorted(layer for layer, _ in step.control_heads[0]) == [1, 1, 2]


def test_shares_divide_the_items(machine):
    items = IOIChoices(machine.tokenizer).sample(7, seed=0)
    result = remove_ranked_heads(machine, items, CARRIERS, counts=[3], n_draws=2)
    assert result.steps[0].control_items.shape == (2, 7)  # 7 is prime, so every draw has all


def test_what_cannot_be_removed_is_refused(machine):
    items = IOIChoices(machine.tokenizer).sample(2, seed=0)
    for counts in ([], [0, 1], [2, 1], [4], [1, 1]):
        with pytest.raises(InputError, match=r"was given with 3 heads; give ascending numbers from 1 to 3"):
            remove_ranked_heads(machine, items, CARRIERS, counts=counts)
    with pytest.raises(InputError, match="n_draws=0 and n_shares=5 were given; both are at least 1"):
        remove_ranked_heads(machine, items, CARRIERS, counts=[1], n_draws=0)
    with pytest.raises(InputError, match=r"Head 9.0 doesn't exist"):
        remove_ranked_heads(machine, items, [(9, 0)], counts=[1])
