"""Many models at once are what each would have become alone."""

import dataclasses

import pandas as pd
import pytest
import torch

from interp.errors import InputError
from interp.models.build import build
from interp.models.checkpoint import load_checkpoint
from interp.models.provenance import hash_weights
from interp.training import many
from interp.training.config import TrainConfig
from interp.training.flat import FlatParameters
from interp.training.loop import train
from interp.training.many import train_many
from interp.training.stacked import Stack, have_one_shape
from tasks.copying import Copying
from tasks.grammar import QuestionFormation
from tasks.seeding import derive_seed
from tests.training.last_position import LastPosition

SHAPE = {"n_layers": 2, "d_model": 12, "n_heads": 2, "d_vocab": 12, "n_ctx": 20, "device": "cpu"}
TASK = LastPosition(d_vocab=12, n_ctx=7)
CONFIG = TrainConfig(
    steps=50, batch_size=8, learning_rate=3e-3, eps=1e-6, eval_every=10, eval_sequences=8, checkpoint_every=20
)
CONFIGS = [
    CONFIG,
    dataclasses.replace(CONFIG, seed=1, learning_rate=1e-2, schedule="cosine", warmup_steps=5, clip_norm=0.5),
    dataclasses.replace(
        CONFIG, seed=2, weight_decay=0.01, decay="outside_learning_rate", decayed="matrices", decay_window=(10, 30)
    ),
]


def _build(index, **config):
    return build(**{**SHAPE, "act_fn": "gelu", **config}, gamma=(0.4, 0.5, 0.8)[index], seed=index)


@pytest.mark.parametrize(
    "config",
    [
        {"act_fn": "gelu"},
        {"attn_only": True, "positional_embedding_type": "rotary"},
        {"act_fn": "silu", "gated_mlp": True, "normalization_type": "RMS", "final_rms": True},
        {"act_fn": "relu", "normalization_type": None, "d_head": 5},
        {"act_fn": "relu", "normalization_type": "LNPre", "dtype": torch.float64},
        {"act_fn": "relu", "norm_placement": "post", "positions": "sinusoidal", "embedding_scale": "sqrt_d_model"},
        {"attn_only": True, "norm_placement": "post", "normalization_type": "RMS"},
    ],
)
def test_the_stack_gives_each_models_logits_and_gradients(config):
    models = [_build(index, **config) for index in range(3)]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (parameter for model in models for parameter in model.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    tokens = torch.randint(12, (3, 4, 9), generator=generator)
    whole = [model(row) for model, row in zip(models, tokens, strict=True)]
    for last_only in (False, True):
        wanted = [logits[:, -1:] if last_only else logits for logits in whole]
        gradients = [
            torch.autograd.grad(logits.logsumexp(-1).sum(), list(model.parameters()), retain_graph=True)
            for model, logits in zip(models, wanted, strict=True)
        ]
        parameters = [FlatParameters(model) for model in models]
        stack = Stack(parameters)
        found = stack.run(tokens, last_only=last_only)
        torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-5, atol=2e-5)
        stack.backward(found.logsumexp(-1).sum())
        for model, expected in zip(models, gradients, strict=True):
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-4)
        stack.separate()
        assert [model.W_E.untyped_storage().nbytes() for model in models] == [parameters[0].vector.nbytes] * 3
        for own in parameters:
            own.release()


@pytest.mark.parametrize("task", [TASK, Copying(d_vocab=12, n_ctx=20, min_length=6, max_length=7, ood_length=8)])
def test_losses_and_scores_are_those_of_separate_runs(task):
    together = train_many([_build(index) for index in range(3)], [task] * 3, CONFIGS)
    assert [run.engine for run in together] == ["stacked"] * 3
    for index, run in enumerate(together):
        alone = train(_build(index), task, CONFIGS[index])
        assert (alone.engine, run.config, run.model.training) == ("separate", alone.config, False)
        frames = (frame.history.drop(columns="seconds") for frame in (run, alone))
        pd.testing.assert_frame_equal(*frames, rtol=1e-5, atol=1e-5)
        assert run.model.provenance.step == 50
        assert run.model.provenance.weights_sha256 == hash_weights(run.model)
        assert run.model.W_Q._base is None


LINES = QuestionFormation(train=500, validation=60, generalisation=60, batches="one_length")
LINES_SHAPE = {"n_layers": 1, "d_vocab": LINES.d_vocab, "n_ctx": LINES.n_ctx, "act_fn": "relu"}


@pytest.mark.parametrize(
    "architecture", [{}, {"norm_placement": "post", "positions": "sinusoidal", "embedding_scale": "sqrt_d_model"}]
)
def test_batches_of_other_lengths_are_padded_and_losses_stay_those_of_separate_runs(architecture):
    shape = LINES_SHAPE | architecture
    configs = [dataclasses.replace(CONFIG, steps=24, seed=seed, clip_norm=1.0, eval_every=24) for seed in range(3)]
    drawn = [
        {LINES.sample(8, split="train", seed=derive_seed(seed, "train", step)).tokens.shape[1] for seed in range(3)}
        for step in range(24)
    ]
    assert sum(len(lengths) > 1 for lengths in drawn) > 16
    together = train_many([_build(index, **shape) for index in range(3)], [LINES] * 3, configs, engine="stacked")
    assert [run.engine for run in together] == ["stacked"] * 3
    for index, run in enumerate(together):
        alone = train(_build(index, **shape), LINES, configs[index])
        frames = (frame.history.drop(columns="seconds") for frame in (run, alone))
        pd.testing.assert_frame_equal(*frames, rtol=1e-5, atol=1e-5)


def test_a_cpu_stacks_lines_of_one_length_only_where_all_models_draw_the_same():
    config = dataclasses.replace(CONFIG, steps=8, eval_every=8, eval_sequences=2)
    for seeds, wanted in (((0, 0), "stacked"), ((0, 1), "separate")):
        models = [_build(index, **LINES_SHAPE) for index in range(2)]
        runs = train_many(models, [LINES] * 2, [dataclasses.replace(config, seed=seed) for seed in seeds])
        assert [run.engine for run in runs] == [wanted] * 2


def test_a_stack_that_was_killed_goes_on_exactly(tmp_path):
    class Killed(BaseException):
        pass

    class Dying(LastPosition):
        def sample(self, n, *, split, seed):
            if split == "train" and drawn.append(seed) is None and len(drawn) == 100:
                raise Killed
            return super().sample(n, split=split, seed=seed)

    drawn = []
    folders, others = ([tmp_path / f"{kind}{index}" for index in range(3)] for kind in "ab")
    whole = train_many([_build(index) for index in range(3)], [TASK] * 3, CONFIGS, folders=others)
    with pytest.raises(Killed):
        train_many([_build(index) for index in range(3)], [Dying(d_vocab=12, n_ctx=7)] * 3, CONFIGS, folders=folders)
    again = train_many([_build(index) for index in range(3)], [TASK] * 3, CONFIGS, folders=folders)
    assert [hash_weights(run.model) for run in again] == [hash_weights(run.model) for run in whole]
    kept = load_checkpoint(folders[1] / "model", device="cpu")
    assert hash_weights(kept) == hash_weights(again[1].model)
    finished = train(_build(1), TASK, CONFIGS[1], folder=folders[1])
    assert hash_weights(finished.model) == hash_weights(kept)


def test_other_shapes_and_steps_are_trained_beside_the_stack():
    models = [_build(0), _build(1), _build(2, attn_only=True), _build(0)]
    configs = [dataclasses.replace(CONFIG, steps=3)] * 3 + [dataclasses.replace(CONFIG, steps=2)]
    runs = train_many(models, [TASK] * 4, configs)
    assert [run.engine for run in runs] == ["stacked", "stacked", "separate", "separate"]
    assert [run.history["step"].iloc[-1] for run in runs] == [3, 3, 3, 2]
    fixed = _build(1)
    fixed.embed.requires_grad_(False)
    assert have_one_shape(FlatParameters(_build(0)), FlatParameters(_build(1)))
    for other in (fixed, _build(1, act_fn="relu"), _build(1, norm_placement="post"), _build(1, positions="sinusoidal")):
        assert not have_one_shape(FlatParameters(_build(0)), FlatParameters(other))
    alone = train_many(models[:2], [TASK] * 2, configs[:2], engine="separate")
    assert [run.engine for run in alone] == ["separate", "separate"]


def test_a_large_batch_on_a_cpu_is_not_stacked_unless_asked_for(monkeypatch):
    monkeypatch.setattr(many, "_CPU_POSITIONS", 8 * 7 - 1)
    config = dataclasses.replace(CONFIG, steps=1)
    for engine, wanted in (("auto", "separate"), ("stacked", "stacked")):
        runs = train_many([_build(0), _build(1)], [TASK] * 2, [config] * 2, engine=engine)
        assert [run.engine for run in runs] == [wanted] * 2


def test_where_memory_runs_out_the_stack_is_halved(monkeypatch):
    run = Stack.run

    def small(self, tokens, *, last_only=False):
        if tokens.dim() == 3 and len(tokens) > 2:
            raise torch.OutOfMemoryError("no room")
        return run(self, tokens, last_only=last_only)

    monkeypatch.setattr(Stack, "run", small)
    runs = train_many([_build(index) for index in range(3)], [TASK] * 3, CONFIGS)
    assert [run.engine for run in runs] == ["separate", "stacked", "stacked"]
    assert "out of memory with 3 models at once, went on with half of them" in runs[2].model.provenance.notes
    alone = train(_build(2), TASK, CONFIGS[2])
    assert runs[2].history["id_loss"].tolist() == pytest.approx(alone.history["id_loss"].tolist(), rel=1e-5)


def test_lists_that_do_not_match_are_said(tmp_path):
    models = [_build(0), _build(1)]
    with pytest.raises(InputError, match="there are 2 models and 1 tasks: give one for each model"):
        train_many(models, [TASK], [CONFIG] * 2)
    with pytest.raises(InputError, match="the same model object is given twice: build one for each run"):
        train_many([models[0]] * 2, [TASK] * 2, [CONFIG] * 2)
    with pytest.raises(InputError, match="the same folder is given twice: give one for each run"):
        train_many(models, [TASK] * 2, [CONFIG] * 2, folders=[tmp_path / "a", tmp_path / "b" / ".." / "a"])
