"""Training: the numbers of a bare loop, batches by step, and errors that say what to do."""

import copy
import dataclasses

import pytest
import torch

from interp.errors import DivergedError, InputError
from interp.models.build import build
from interp.models.checkpoint import load_checkpoint
from interp.models.provenance import hash_weights
from interp.training import trainee
from interp.training.config import TrainConfig
from interp.training.evaluate import backward
from interp.training.flat import FlatParameters
from interp.training.forward import choose_forward
from interp.training.loop import train
from tasks.copying import Copying
from tasks.seeding import derive_seed
from tests.training.last_position import LastPosition
from tests.untyped import as_without_type_checks

TASK = Copying(d_vocab=12, n_ctx=20, min_length=6, max_length=7, ood_length=8)
CONFIG = TrainConfig(steps=6, batch_size=4, learning_rate=1e-2, eval_every=3, eval_sequences=5, checkpoint_every=2)


def _build(**config):
    shape = {"n_layers": 2, "d_model": 12, "n_heads": 2, "d_vocab": 12, "n_ctx": 20, "attn_only": True}
    return build(**{**shape, "device": "cpu", **config})


def _train_bare(model, config, task=TASK):
    """The same training, written as one writes it: the model's own forward pass, trained positions picked out."""
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
    )
    losses = []
    for step in range(config.steps):
        batch = task.sample(config.batch_size, split="train", seed=derive_seed(config.seed, "train", step))
        logits = model(batch.tokens)[batch.trained]
        loss = torch.nn.functional.cross_entropy(logits, batch.targets[batch.trained])
        optimizer.zero_grad()
        loss.backward()
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("clip_norm", [None, 0.05])
@pytest.mark.parametrize("config", [{}, {"n_key_value_heads": 1}], ids=["fast pass", "own pass"])
def test_the_weights_are_those_of_a_bare_loop(config, clip_norm):
    # With a small eps AdamW blows up the rounding of gradients that are zero in theory, such as those of key biases.
    settings = dataclasses.replace(CONFIG, clip_norm=clip_norm, eps=1e-4)
    run, bare = train(_build(**config), TASK, settings), _build(**config)
    losses = _train_bare(bare, settings)
    for (name, found), expected in zip(run.model.named_parameters(), bare.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5, msg=name)
    assert run.history["loss"].tolist()[1:] == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:]) / 3], rel=1e-5)
    start = _build(**config)
    assert not torch.allclose(run.model.W_Q, start.W_Q, atol=1e-3)


class _Shifted:
    """The task with other targets wherever nothing is trained."""

    name, d_vocab, n_ctx, splits = TASK.name, TASK.d_vocab, TASK.n_ctx, TASK.splits
    score = TASK.score

    def __init__(self, shift):
        self.shift = shift

    def sample(self, n, *, split, seed):
        batch = TASK.sample(n, split=split, seed=seed)
        targets = torch.where(batch.scored, batch.targets, (batch.targets + self.shift) % 12)
        return dataclasses.replace(batch, targets=targets, trained=batch.scored)


@pytest.mark.parametrize("config", [{}, {"n_key_value_heads": 1}], ids=["fast pass", "own pass"])
def test_where_only_the_last_position_is_trained_nothing_but_time_changes(config):
    task = LastPosition(d_vocab=12, n_ctx=8)
    model = _build(**config, attn_only=False, act_fn="gelu")
    plain = copy.deepcopy(model)
    batch = task.sample(16, split="train", seed=0)
    parameters = FlatParameters(model)
    forward = choose_forward(parameters, batch.tokens)
    parameters.zero_grad()
    asked = []

    def watch(tokens, *, last_only=False):
        asked.append(last_only)
        return forward(tokens, last_only=last_only)

    loss = backward(watch, batch, device=torch.device("cpu"), rows=16)
    expected = torch.nn.functional.cross_entropy(plain(batch.tokens)[:, -1], batch.targets[:, -1])
    expected.backward()
    assert asked == [True]
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    for one, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)


def test_autocast_computes_products_in_half_precision_and_keeps_the_weights():
    settings = dataclasses.replace(CONFIG, steps=20, eval_every=20, learning_rate=3e-3)
    half = train(_build(), TASK, dataclasses.replace(settings, autocast="bfloat16"))
    whole = train(_build(), TASK, settings)
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.float32}
    assert half.history["loss"].iloc[-1] == pytest.approx(whole.history["loss"].iloc[-1], rel=0.02)
    assert half.history["loss"].iloc[-1] != whole.history["loss"].iloc[-1]


def test_only_trained_positions_are_trained_on():
    one, other = train(_build(), _Shifted(0), CONFIG), train(_build(), _Shifted(5), CONFIG)
    everywhere = train(_build(), TASK, CONFIG)
    assert hash_weights(one.model) == hash_weights(other.model) != hash_weights(everywhere.model)


def test_evaluating_more_often_changes_nothing():
    often = train(_build(), TASK, dataclasses.replace(CONFIG, eval_every=1))
    seldom = train(_build(), TASK, dataclasses.replace(CONFIG, eval_every=100))
    assert hash_weights(often.model) == hash_weights(seldom.model)
    assert often.history["step"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert seldom.history["step"].tolist() == [0, 6]
    last = {frame["ood_error"].iloc[-1] for frame in (often.history, seldom.history)}
    assert len(last) == 1


def test_the_history_holds_what_the_model_scores():
    model = _build()
    run = train(model, TASK, CONFIG, observe=lambda model, step: {"norm": float(model.W_Q.norm()), "twice": 2.0 * step})
    assert run.model is model
    assert not model.training
    assert run.history.columns.tolist() == [
        "step",
        "loss",
        "learning_rate",
        *(f"{split}_{name}" for split in ("id", "ood") for name in ("loss", "error", "published_error")),
        "norm",
        "twice",
        "seconds",
    ]
    batch = TASK.sample(5, split="ood", seed=derive_seed(0, "evaluate"))
    with torch.no_grad():
        logits = model(batch.tokens)
    last = run.history.iloc[-1]
    assert last["ood_error"] == pytest.approx(TASK.score(logits, batch)["error"].mean().item())
    expected = torch.nn.functional.cross_entropy(logits[batch.trained], batch.targets[batch.trained]).item()
    assert last["ood_loss"] == pytest.approx(expected, rel=1e-5)
    assert last["norm"] == pytest.approx(model.W_Q.norm().item())
    assert run.history["twice"].tolist() == [0, 6, 12]
    assert run.figure().alt.startswith("error against training step: id from")
    assert "6 steps" in repr(run)
    assert "ood_error" in repr(run)


def test_training_ignores_the_global_state_and_leaves_it():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = train(_build(), TASK, CONFIG)
    assert torch.equal(state, torch.get_rng_state())
    torch.manual_seed(2)
    with torch.no_grad():
        second = train(_build(), TASK, CONFIG)
        assert not torch.is_grad_enabled()
    assert hash_weights(first.model) == hash_weights(second.model)
    assert hash_weights(first.model) != hash_weights(train(_build(), TASK, dataclasses.replace(CONFIG, seed=1)).model)


def test_provenance_follows_the_weights():
    model = train(_build(), TASK, CONFIG).model
    assert model.provenance.step == 6
    assert model.provenance.weights_sha256 == hash_weights(model)
    assert model.provenance.notes[-1] == "trained on copying, seed 0"
    assert model.provenance.source == "built"


def test_out_of_memory_goes_on_in_parts_with_the_same_gradient(monkeypatch):
    whole = _build()
    train(whole, TASK, dataclasses.replace(CONFIG, eps=1e-4))
    choose = trainee.choose_forward

    def choose_small(model, tokens):
        forward = choose(model, tokens)

        def small(tokens, *, last_only=False):
            if torch.is_grad_enabled() and len(tokens) > 3:
                raise torch.OutOfMemoryError("no room")
            return forward(tokens, last_only=last_only)

        return small

    monkeypatch.setattr(trainee, "choose_forward", choose_small)
    parts = _build()
    train(parts, TASK, dataclasses.replace(CONFIG, eps=1e-4))
    for ours, theirs in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert parts.provenance.notes[-1] == "out of memory with 4 sequences at once, went on with 2"


def test_frozen_parameters_stay():
    model = _build()
    model.embed.requires_grad_(False)
    before = model.W_E.clone()
    train(model, TASK, CONFIG)
    assert torch.equal(model.W_E, before)
    with pytest.raises(InputError, match="no parameter of this model requires a gradient"):
        train(_build().requires_grad_(False), TASK, CONFIG)


def test_divergence_names_the_step_and_keeps_the_last_good_checkpoint(tmp_path):
    class Breaking(_Shifted):
        def sample(self, n, *, split, seed):
            if seed == derive_seed(0, "train", 4):
                with torch.no_grad():
                    model.embed.W_E.fill_(torch.inf)
            return super().sample(n, split=split, seed=seed)

    model = _build()
    with pytest.raises(DivergedError, match=r"the loss is nan at step 4; the last good checkpoint is .*step_00000004"):
        train(model, Breaking(0), CONFIG, folder=tmp_path / "run")
    kept = load_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000004", device="cpu")
    assert all(parameter.isfinite().all() for parameter in kept.parameters())
    assert kept.provenance.step == 4
    assert not (tmp_path / "run" / "model").exists()


def test_weights_that_burst_in_the_last_update_are_not_kept(tmp_path):
    settings = dataclasses.replace(CONFIG, learning_rate=1e39, weight_decay=0.0, steps=2)
    with pytest.raises(DivergedError, match=r"no longer finite at step|the loss is (nan|inf) at step"):
        train(_build(), TASK, settings, folder=tmp_path / "run")
    kept = load_checkpoint(tmp_path / "run" / "checkpoints" / "step_00000000", device="cpu")
    assert hash_weights(kept) == hash_weights(_build())
    with pytest.raises(DivergedError, match="no checkpoint was kept, since no folder was given"):
        train(_build(), TASK, settings)


def test_a_task_that_does_not_fit_is_said():
    with pytest.raises(InputError, match="the task 'copying' has 12 tokens, the model only 11"):
        train(_build(d_vocab=11), TASK, CONFIG)
    with pytest.raises(InputError, match="the task 'copying' has 20 positions, the model only 19"):
        train(_build(n_ctx=19), TASK, CONFIG)
    with as_without_type_checks(), pytest.raises(InputError, match="a Linear cannot be trained here"):
        train(torch.nn.Linear(2, 2), TASK, CONFIG)
