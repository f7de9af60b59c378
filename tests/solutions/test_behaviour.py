import numpy as np
import pytest

import interp
from interp.errors import InputError
from interp.solutions.behaviour import choose_label, measure_behaviour
from interp.solutions.thresholds import Thresholds
from tasks.anchor import PAPER_FUNCTION, Composite, altered_pair, dropped_pairs, noise_groups
from tests.solutions.machines import Table

ALTERED = altered_pair()


def compose(key, pair, position, row):
    return ALTERED.target(key, pair)


def mirror(key, pair, position, row):
    return ALTERED.target(key, pair, rule="symmetric" if pair == (4, 3) else "data")


def remember(key, pair, position, row):
    return key if key % 9 == position else ALTERED.target(key, pair)


def say_zero(key, pair, position, row):
    return 0


@pytest.mark.parametrize(
    ("answer", "label", "followed"),
    [
        (compose, "reasoning", {"id": 1, "altered": 1, "reasoning": 1, "symmetric": 0, "other": 0, "commutes": 0}),
        (mirror, "symmetric", {"id": 1, "altered": 1, "reasoning": 0, "symmetric": 1, "other": 0, "commutes": 1}),
        (remember, "memorising", {"train": 1, "id": 0, "altered": 1}),
        (say_zero, "none", {"train": 0, "id": 0, "reasoning": 0, "symmetric": 0, "other": 1, "commutes": 1}),
    ],
)
def test_a_table_that_follows_one_rule_is_named_by_it(answer, label, followed):
    behaviour = measure_behaviour(Table(answer), ALTERED, n=60)
    assert behaviour.label == label
    assert behaviour.settled
    for name, share in followed.items():
        assert behaviour.means[name] == share, name


def test_symmetry_cannot_be_told_from_composition_where_both_orders_are_dropped():
    behaviour = measure_behaviour(Table(lambda key, pair, *_: PAPER_FUNCTION(key, pair)), dropped_pairs(), n=60)
    assert behaviour.label == "reasoning"
    assert set(behaviour.scores) == {"train", "id", "reasoning", "other", "commutes"}
    assert behaviour.means["commutes"] == 1


def test_a_table_that_follows_one_rule_half_of_the_time_is_none_and_what_it_copies_is_named():
    def half(key, pair, position, row):
        return key - 7 if pair == (4, 3) and row % 2 else ALTERED.target(key, pair)

    behaviour = measure_behaviour(Table(half), ALTERED, n=100)
    assert behaviour.label == "none"
    assert behaviour.means["reasoning"] == 0.5
    frame = behaviour.deviations.to_frame()
    assert sorted(frame["name"]) == ["answers (4, 3)", "copies (2, 4)/(4, 2)"]


@pytest.mark.parametrize(
    ("means", "label"),
    [
        ({"train": 0.94, "id": 0.0, "reasoning": 0.0}, "none"),
        ({"train": 0.95, "id": 0.5, "reasoning": 1.0}, "memorising"),
        ({"train": 1.0, "id": 0.51, "reasoning": 1.0}, "none"),
        ({"train": 1.0, "id": 0.9, "reasoning": 0.85, "symmetric": 0.15}, "reasoning"),
        ({"train": 1.0, "id": 0.9, "reasoning": 0.85, "symmetric": 0.16}, "none"),
        ({"train": 1.0, "id": 0.9, "reasoning": 0.15, "symmetric": 0.6}, "symmetric"),
        ({"train": 1.0, "id": 0.9, "reasoning": 0.16, "symmetric": 0.6}, "none"),
        ({"train": 1.0, "id": 1.0, "reasoning": 0.84}, "none"),
    ],
)
def test_a_label_changes_at_its_threshold(means, label):
    assert choose_label(means, Thresholds()) == label


def test_a_label_whose_interval_crosses_a_threshold_is_unsettled():
    def mostly(key, pair, position, row):
        return key if pair == (4, 3) and row % 8 == 0 else ALTERED.target(key, pair)

    close, far = measure_behaviour(Table(mostly), ALTERED, n=80), measure_behaviour(Table(compose), ALTERED, n=80)
    assert close.means["reasoning"] == 0.875
    low, high = close.intervals["reasoning"]
    assert low < 0.85 < high
    assert (close.label, close.settled, far.settled) == ("reasoning", False, True)
    assert "unsettled" in repr(close)
    assert "unsettled" not in repr(far)
    strict = measure_behaviour(Table(mostly), ALTERED, n=80, thresholds=Thresholds(reasons=0.95))
    assert strict.label == "none"


def test_the_table_has_a_row_a_score_with_its_interval():
    behaviour = measure_behaviour(Table(compose), ALTERED, n=40)
    frame = behaviour.to_frame().set_index("score")
    assert frame.columns.tolist() == ["value", "low", "high", "n"]
    assert frame.loc["reasoning"].tolist() == [1.0, 1.0, 1.0, 40]
    assert np.isfinite(frame.to_numpy()).all()


def test_a_real_model_gives_what_its_logits_say():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True, device="cpu")
    behaviour = measure_behaviour(model, ALTERED, n=30, seed=3)
    batch = ALTERED.sample(30, split="altered", seed=3)
    right = model(batch.tokens)[:, -1].argmax(-1) == batch.targets[:, -1]
    assert behaviour.scores["altered"].tolist() == right.double().tolist()


@pytest.mark.parametrize(
    ("task", "missing"), [(noise_groups(1), "no held_out"), (dropped_pairs(modulus=None), "no id"), (Composite(), "no held_out")]
)  # fmt: skip
def test_a_task_on_which_the_solutions_answer_alike_is_refused(task, missing):
    with pytest.raises(InputError, match=f"has {missing} split, on which the solutions differ; give a design such as"):
        measure_behaviour(Table(compose), task, n=10)


def test_a_model_that_is_too_small_is_refused():
    model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=30, n_ctx=9, attn_only=True, device="cpu")
    with pytest.raises(InputError, match="has 120 tokens and sequences of 9, but the model has d_vocab=30 and n_ctx=9"):
        measure_behaviour(model, ALTERED, n=10)


def test_a_threshold_that_is_no_share_is_refused():
    with pytest.raises(InputError, match=r"reasons=8\.5 is no share of sequences; give a number from 0 to 1"):
        Thresholds(reasons=8.5)
