"""What padding costs: nothing is computed behind the last position that counts, and no number changes."""

import dataclasses

import pytest
import torch

from interp.models.build import build
from interp.training.config import TrainConfig
from interp.training.evaluate import cut, evaluate, trained_width
from interp.training.loop import train
from interp.training.trainee import Trainee
from tasks.grammar import QuestionFormation
from tests.training.last_position import LastPosition

TASK = QuestionFormation(train=500, validation=60, generalisation=60)
SHAPE = {"n_layers": 1, "d_model": 8, "n_heads": 2, "act_fn": "relu", "n_ctx": TASK.n_ctx, "device": "cpu"}


def _evaluate(batch, *, causal, rows, task=TASK):
    model = build(**SHAPE, d_vocab=task.d_vocab)
    widths = []

    def forward(tokens, *, last_only=False):
        widths.append(tokens.shape)
        return model(tokens)

    scores = evaluate(forward, task, batch, device=torch.device("cpu"), rows=rows, causal=causal)
    return scores, widths, model(batch.tokens)


@pytest.mark.parametrize("split", ["validation", "generalisation"])
@pytest.mark.parametrize("rows", [7, 60])
@torch.no_grad()
def test_an_evaluation_in_order_of_length_gives_the_numbers_of_the_whole_split(split, rows):
    batch = TASK.sample(60, split=split, seed=0)
    found, widths, logits = _evaluate(batch, causal=True, rows=rows)
    expected = {name: values.mean().item() for name, values in TASK.score(logits, batch).items()}
    expected["loss"] = torch.nn.functional.cross_entropy(logits[batch.trained], batch.targets[batch.trained]).item()
    assert found == pytest.approx(expected, rel=1e-5)
    assert [shape[0] for shape in widths] == [rows] * (60 // rows) + [60 % rows] * (60 % rows > 0)
    assert widths == sorted(widths, key=lambda shape: shape[1])
    if rows == 7:
        assert sum(shape.numel() for shape in widths) < 0.9 * batch.tokens.numel()
    uncut, widths, _ = _evaluate(batch, causal=False, rows=rows)
    assert uncut == pytest.approx(expected, rel=1e-5)
    assert {shape[1] for shape in widths} == {batch.tokens.shape[1]}


def test_what_counts_at_the_last_position_keeps_every_position():
    task = LastPosition(d_vocab=6, n_ctx=9)
    batch = task.sample(5, split="id", seed=0)
    _, widths, _ = _evaluate(batch, causal=True, rows=5, task=task)
    assert widths == [(5, 9)]


def test_a_training_batch_ends_with_its_longest_line_and_a_bidirectional_model_sees_all_of_it():
    config = TrainConfig(steps=4, batch_size=3, eval_sequences=5)
    causal, both = (
        Trainee(model=build(**SHAPE, d_vocab=TASK.d_vocab, **more), task=TASK, config=config)
        for more in ({}, {"attention_dir": "bidirectional"})
    )
    whole, short = both.sample(), causal.sample()
    width = trained_width(whole)
    assert width == whole.trained.sum(1).max() < whole.tokens.shape[1] == TASK.n_ctx
    assert torch.equal(short.tokens, whole.tokens[:, :width])
    assert set(short.roles) == set(whole.roles)
    assert cut(whole, whole.tokens.shape[1]) is whole
    assert [causal.sample(ahead).tokens.shape[1] for ahead in range(4)] == causal.widths


def test_padding_changes_no_loss():
    class Wider(QuestionFormation):
        def sample(self, n, *, split, seed):
            batch = TASK.sample(n, split=split, seed=seed)
            more = {name: torch.nn.functional.pad(getattr(batch, name), (0, 3)) for name in ("tokens", "targets")}
            more |= {name: torch.nn.functional.pad(getattr(batch, name), (0, 3)) for name in ("trained", "scored")}
            roles = {
                name: torch.nn.functional.pad(role, (0, 3)) if role.dtype == torch.bool else role
                for name, role in batch.roles.items()
            }
            return dataclasses.replace(batch, **more, roles=roles)

    config = TrainConfig(steps=10, batch_size=4, eval_every=5, eval_sequences=20)
    shape = {**SHAPE, "n_ctx": TASK.n_ctx + 3, "d_vocab": TASK.d_vocab}
    one, other = (train(build(**shape), task, config).history for task in (TASK, Wider(train=500)))
    assert one.drop(columns="seconds").equals(other.drop(columns="seconds"))
