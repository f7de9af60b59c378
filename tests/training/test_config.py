"""The configuration refuses what cannot be run; the schedule is what its formula says."""

import math

import pytest

from interp.errors import InputError
from interp.training.config import TrainConfig
from interp.training.schedule import learning_rate_at
from tests.untyped import as_without_type_checks


def test_warm_up_rises_to_the_rate_and_stays():
    config = TrainConfig(steps=20, learning_rate=2.0, warmup_steps=4)
    assert [learning_rate_at(step, config) for step in range(6)] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])
    assert learning_rate_at(19, config) == 2.0


def test_warm_up_rises_from_its_share():
    config = TrainConfig(steps=20, learning_rate=25e-5, warmup_steps=4, initial_share=1 / 25)
    rates = [learning_rate_at(step, config) for step in range(5)]
    assert rates == pytest.approx([1e-5 + 24e-5 * step / 5 for step in range(1, 6)])


def test_the_cosine_falls_from_the_rate_to_its_share():
    config = TrainConfig(steps=15, learning_rate=2.0, warmup_steps=4, schedule="cosine", final_share=0.25)
    assert learning_rate_at(4, config) == pytest.approx(2.0)
    assert learning_rate_at(9, config) == pytest.approx(2.0 * (0.25 + 0.75 * 0.5))
    assert learning_rate_at(14, config) == pytest.approx(0.5)
    rates = [learning_rate_at(step, config) for step in range(4, 15)]
    assert rates == sorted(rates, reverse=True)


def test_a_cosine_of_one_step_is_the_rate():
    assert learning_rate_at(0, TrainConfig(steps=1, learning_rate=2.0, schedule="cosine")) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, not 0"),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number of at least 0, not -1"),
        ({"learning_rate": math.inf}, "learning_rate must be a finite number of at least 0, not inf"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0, not -0.1"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers from 0 up to, not including, 1, not \(0.9, 1.0\)"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0, or None for no clipping, not 0.0"),
        ({"weight_decay": "strong"}, "weight_decay must be a finite number of at least 0, not 'strong'"),
        ({"initial_share": -1.0}, "initial_share must be a finite number of at least 0, not -1.0"),
        ({"schedule": "linear"}, "schedule='linear' is unknown: give 'constant' or 'cosine'"),
        ({"decay": "inside"}, "decay='inside' is unknown: give 'times_learning_rate' or 'outside_learning_rate'"),
        ({"decayed": "some"}, "decayed='some' is unknown: give 'all' or 'matrices' or 'matrices_without_embeddings'"),
        ({"autocast": "float16"}, "autocast='float16' is unknown: give 'none' or 'bfloat16'"),
        (
            {"decay": "outside_learning_rate", "weight_decay": 1.5},
            "weight_decay=1.5 outside the learning rate would turn weights round: give at most 1",
        ),
        ({"decay_window": (5, 5)}, r"decay_window must be two whole numbers \(a, b\) with 0 <= a < b, or None"),
        ({"decay_window": (0.5, 5)}, "decay_window must be two whole numbers"),
        ({"decay_window": (5, 9), "steps": 5}, r"decay_window=\(5, 9\) begins after the last of 5 steps"),
        ({"steps": 5, "warmup_steps": 6}, "warmup_steps=6 is above steps=5"),
    ],
)
def test_what_cannot_be_run_is_said(settings, text):
    with as_without_type_checks(), pytest.raises(InputError, match=text):
        TrainConfig(**settings)
