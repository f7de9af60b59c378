"""Scores of choices against a plain loop: one pass a choice, log-softmax over everything, summed by hand."""

import numpy as np
import pytest
import torch

import interp
import interp.prompts.runs
from interp.errors import InputError
from interp.interventions.patch_engine import can_skip
from interp.models.provenance import get_provenance
from interp.prompts.choices import ChoiceScores, find_right, score_choices
from interp.prompts.runs import ChoiceRuns, silence_heads
from tasks.prompts.rules import ChoiceItem
from tests.conftest import make_tiny
from tests.hand_built import build_copying_machine
from tests.untyped import as_without_type_checks


def make_items(*, n=7, n_choices=3, d_vocab=97, seed=0, longest=3):
    """Prompts of 3 to 5 tokens and choices of 1 to `longest`, all of random tokens."""
    draw = torch.Generator().manual_seed(seed)

    def ids(count):
        return tuple(torch.randint(d_vocab, (count,), generator=draw).tolist())

    items = []
    for row in range(n):
        start = torch.randperm(d_vocab, generator=draw)[:n_choices].tolist()
        choices = tuple((first, *ids((row + i) % longest)) for i, first in enumerate(start))
        items.append(
            ChoiceItem(
                tokens=ids(3 + row % 3), choices=choices, answer=row % n_choices, text="", choice_texts=("",) * 3
            )
        )
    return items


@torch.no_grad()
def score_by_loop(model, items):
    """(log-probability [item, choice], whether each token is the likeliest [item, choice])."""
    totals, likeliest = np.zeros((len(items), 3)), np.zeros((len(items), 3), dtype=bool)
    for row, item in enumerate(items):
        for i, choice in enumerate(item.choices):
            logits = model(torch.tensor([[*item.tokens, *choice]]))[0].float()
            there = logits[len(item.tokens) - 1 : -1].log_softmax(-1)
            totals[row, i] = sum(float(there[t, token]) for t, token in enumerate(choice))
            likeliest[row, i] = all(int(there[t].argmax()) == token for t, token in enumerate(choice))
    return totals, likeliest


FAMILIES = ("gpt2", "gpt_neo", "gpt_neox", "llama", "mistral_window", "qwen3", "gemma2")


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_equal_one_pass_a_choice(family):
    model = interp.load(make_tiny(family), device="cpu")
    items = make_items()
    scores = score_choices(model, items)
    totals, likeliest = score_by_loop(model, items)
    np.testing.assert_allclose(scores.log_probability, totals, atol=2e-5)
    assert (scores.likeliest == likeliest).all()
    assert scores.n_tokens.tolist() == [[len(choice) for choice in item.choices] for item in items]


@pytest.mark.parametrize("lowest", [0, 1])
def test_heads_that_are_removed_write_nothing(both, lowest):
    heads = [(1, 0), (1, 4)] if lowest else [(0, 2), (1, 5)]
    items = make_items(seed=1)
    for model in both:
        with interp.ablate_heads(model, heads):
            totals, likeliest = score_by_loop(model, items)
        runs = ChoiceRuns(model, items, lowest=lowest)
        assert runs.skips == can_skip(model)
        found = runs.run(heads)
        np.testing.assert_allclose(found[0], totals, atol=2e-5)
        assert (found[1] == likeliest).all()
        whole = runs.run()
        assert np.abs(whole[0] - found[0]).max() > 1e-3
        np.testing.assert_allclose(whole[0], score_by_loop(model, items)[0], atol=2e-5)


def test_weights_are_put_back_bit_for_bit_also_after_an_error(both):
    model = both[0]
    before = [block.attn.W_O.clone() for block in model.blocks]
    with silence_heads(model, [(0, 1), (1, 2)]):
        assert (model.blocks[0].attn.W_O[1] == 0).all()
        assert torch.equal(model.blocks[0].attn.W_O[2], before[0][2])
    assert torch.equal(model.blocks[0].attn.W_O, before[0])
    with pytest.raises(ZeroDivisionError), silence_heads(model, [(0, 1), (1, 2)]):
        _ = 1 / 0
    assert all(torch.equal(block.attn.W_O, weights) for block, weights in zip(model.blocks, before, strict=True))


def test_choices_of_one_token_need_one_run_a_prompt(both, monkeypatch):
    items = make_items(longest=1)
    for model in both:
        scores = score_choices(model, items)
        totals, likeliest = score_by_loop(model, items)
        np.testing.assert_allclose(scores.log_probability, totals, atol=2e-5)
        assert (scores.likeliest == likeliest).all()
    rows = []
    real = interp.prompts.runs.logits_at
    monkeypatch.setattr("interp.prompts.runs.logits_at", lambda *given: rows.append(len(given[1])) or real(*given))
    score_choices(both[1], items)
    assert sum(rows) == len(items)


def test_hooks_of_the_caller_act(both):
    items = make_items(n=3)
    for model in both:
        plain = score_choices(model, items)
        with interp.ablate_heads(model, [(0, 0), (1, 3)]):
            hooked, totals = score_choices(model, items), score_by_loop(model, items)[0]
        np.testing.assert_allclose(hooked.log_probability, totals, atol=2e-5)
        assert np.abs(plain.log_probability - totals).max() > 1e-3


def test_a_model_that_copies_is_right_and_generates_the_answer():
    """Head 1.0 raises the token that followed the last one by 200, so its log-probability is 0."""
    model = build_copying_machine()
    items = [
        ChoiceItem(
            tokens=(1, 2, 3, 4, 1, 2), choices=((4, 1), (3, 4), (9, 9)), answer=1, text="", choice_texts=("",) * 3
        ),
        ChoiceItem(tokens=(5, 6, 7, 5), choices=((7,), (8,), (6,)), answer=2, text="", choice_texts=("",) * 3),
    ]
    scores = score_choices(model, items)
    assert scores.log_probability[[0, 1], [1, 2]] == pytest.approx(0, abs=1e-6)
    assert (np.delete(scores.log_probability, 1, axis=1)[0] < -100).all()
    for by in ("per_token", "sum", "generated"):
        assert scores.accuracy(by) == (1, 1, 1)
    assert scores.informative
    without = score_choices_without(model, items, [(1, 0)])
    assert not find_right(*without, scores.n_tokens, scores.answers, by="per_token").any()  # nothing is likelier: ties


def score_choices_without(model, items, heads):
    return ChoiceRuns(model, items).run(heads)


def test_right_by_mean_by_sum_and_by_generation():
    """The mean prefers a long choice of -1 each, the sum a short one of -1.5; a tie is nobody's."""
    scores = ChoiceScores(
        log_probability=np.array([[-3.0, -1.5], [-3.0, -1.5], [-2.0, -2.0], [-4.0, -1.0]]),
        n_tokens=np.array([[3, 1], [3, 1], [1, 1], [4, 1]]),
        likeliest=np.array([[False, True], [False, True], [True, False], [False, False]]),
        answers=np.array([0, 1, 0, 0]),
        seed=0,
        provenance=get_provenance(build_copying_machine()),
    )
    assert scores.right("per_token").tolist() == [True, False, False, False]
    assert scores.right("sum").tolist() == [False, True, False, False]
    assert scores.right("generated").tolist() == [False, True, True, False]
    assert scores.accuracy()[0] == 0.25
    assert scores.chance == 0.5
    assert not scores.informative
    frame = scores.to_frame()
    assert frame["per_token"].tolist()[:2] == [-1, -1.5]
    assert frame[frame["answer"]]["choice"].tolist() == [0, 1, 0, 0]
    assert "accuracy 0.25 [0.00, 0.75] per token, 0.25 by the sum, 0.50 generated" in repr(scores)
    assert "chance 0.50, not above it; n=4 items" in repr(scores)
    with as_without_type_checks(), pytest.raises(InputError, match="by='mean' isn't known; use one of per_token, sum"):
        scores.right("mean")


def test_items_that_cannot_be_scored_are_refused():
    model = build_copying_machine(d_vocab=30, n_ctx=8)

    def item(tokens, *choices):
        return ChoiceItem(tokens=tokens, choices=choices, answer=0, text="", choice_texts=("",) * len(choices))

    short = item((1, 2), (3,), (4,))
    for items, message in (
        ([], "There are no items to score; give at least one"),
        ([short, item((1,), (2,), (3,), (4,))], "Items have 2 to 3 choices; score items of one number"),
        ([item((1,) * 8, (2, 3), (4,))], "An item takes 9 tokens, but this model reads at most n_ctx=8"),
        ([item((1,), (2,), (30,))], "An item has token id 30, but this model's ids go from 0 to 29"),
    ):
        with pytest.raises(InputError, match=message):
            score_choices(model, items)
    assert score_choices(model, [item((1,) * 8, (2,), (4,))]).log_probability.shape == (1, 2)
    with pytest.raises(InputError, match=r"Head 7.0 doesn't exist"):
        ChoiceRuns(model, [short]).run([(7, 0)])
    with pytest.raises(InputError, match=r"Head 0\.1 lies below layer 1, from which on these runs begin"):
        ChoiceRuns(model, [short], lowest=1).run([(1, 0), (0, 1)])
