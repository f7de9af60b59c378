"""What a run says of itself: for every task of the library, the score that a reader looks for."""

import pandas as pd
import pytest

from interp.errors import InputError
from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.result import TrainRun, find_main_scores
from interp.training.trainee import Trainee
from tasks.anchor import Composite, Recitation, StatisticalOutput, TwoTasks, dropped_pairs, permutation_anchors
from tasks.copying import Copying
from tasks.language import Addition, Ontology, Scan

COPYING = Copying(d_vocab=12, n_ctx=20, min_length=6, max_length=7, ood_length=8)
CONFIG = TrainConfig(steps=2, batch_size=2, eval_every=1, eval_sequences=4)


def _build(task):
    return build(n_layers=1, d_model=4, n_heads=1, d_vocab=task.d_vocab, n_ctx=task.n_ctx, attn_only=True, device="cpu")


def _run(task):
    trainee = Trainee(model=_build(task), task=task, config=CONFIG)
    trainee.begin()
    while not trainee.finished:
        trainee.advance(trainee.backward())
    return trainee.headline(), trainee.end("separate")


def _make(history):
    frame = pd.DataFrame({"step": [0, 2], "loss": [float("nan"), 1.0], **history, "seconds": [0.0, 1.0]})
    return TrainRun(model=_build(COPYING), history=frame, config=CONFIG, folder=None)


@pytest.mark.parametrize(
    ("task", "main"),
    [
        (COPYING, {"id": "error", "ood": "error"}),
        (Composite(), {"id": "accuracy"}),
        (dropped_pairs(), {"id": "accuracy", "held_out": "accuracy"}),
        (Composite(altered={(3, 4): -6}), {"id": "accuracy", "altered": "accuracy"}),
        (permutation_anchors(), {"held_out": "accuracy"}),
        (TwoTasks(), {"memory": "accuracy", "reasoning": "accuracy", "held_out": "accuracy"}),
        (Recitation(), {"id": "accuracy", "forward": "accuracy", "backward": "accuracy"}),
        (StatisticalOutput(), {"id": "accuracy"}),
        (Scan(split="add_jump"), {"ood": "exact_match"}),
        (Addition(digits=2, held_out=(40, 60)), {"id": "exact_match", "block": "exact_match"}),
        (Ontology(), {"id": "exact_match", "ood": "exact_match"}),
    ],
    ids=lambda case: getattr(case, "name", None),
)
def test_every_task_shows_its_main_score_on_each_split(task, main):
    headline, run = _run(task)
    columns = [f"{split}_{score}" for split, score in main.items()]
    assert find_main_scores(run.history) == dict(zip(main, columns, strict=True))
    last = run.history.iloc[-1]
    assert headline == {name: f"{last[name]:.3f}" for name in ("loss", *columns)}
    assert repr(run).endswith("; " + ", ".join(f"{column} {last[column]:.4g}" for column in columns) + ")")
    (score,) = set(main.values())
    alt = run.figure().alt
    assert alt.startswith(f"{score.replace('_', ' ')} against training step: ")
    for split, column in zip(main, columns, strict=True):
        assert f"{split.replace('_', ' ')} from {run.history[column][0]:.2f} to {last[column]:.2f}" in alt


def test_a_score_beyond_one_stays_in_the_panel():
    run = _make({"id_loss": [1.0, 0.5], "id_logit_difference": [-0.5, 3.0]})
    (axes,) = run.figure().axes
    assert axes.get_ylim() == (-0.5, 3.0)
    assert axes.get_ylabel() == "logit difference"
    assert _make({"id_loss": [1.0, 0.5], "id_error": [0.9, 0.2]}).figure().axes[0].get_ylim() == (0.0, 1.0)


def test_what_is_observed_is_no_score():
    assert find_main_scores(["step", "loss", "learning_rate", "id_loss", "ood_loss", "norm", "seconds"]) == {}
    run = _make({"id_loss": [1.0, 0.5]})
    assert repr(run) == "TrainRun(2 steps, 1 s; no score)"
    with pytest.raises(InputError, match=r"has no score, only step, loss, id_loss, seconds: train on a"):
        run.figure()
