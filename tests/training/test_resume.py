"""A run that was killed goes on from its last checkpoint and ends with exactly the weights of an undisturbed one."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from interp.errors import InputError
from interp.models.build import build
from interp.models.checkpoint import load_checkpoint
from interp.models.provenance import hash_weights
from interp.training.config import TrainConfig
from interp.training.loop import train
from tasks.copying import Copying

TASK = Copying(d_vocab=12, n_ctx=20, min_length=6, max_length=7, ood_length=8)
CONFIG = TrainConfig(
    steps=13,
    batch_size=4,
    learning_rate=1e-2,
    warmup_steps=3,
    schedule="cosine",
    final_share=0.1,
    eval_every=3,
    eval_sequences=5,
    checkpoint_every=4,
)


def _build(seed=0, **config):
    shape = {"n_layers": 2, "d_model": 12, "n_heads": 2, "d_vocab": 12, "n_ctx": 20, "attn_only": True}
    return build(**shape, seed=seed, device="cpu", **config)


class Killed(BaseException):
    """Stands for a signal: nothing in the library may catch it."""


def _kill_at(step):
    def observe(model, at):
        if at == step:
            raise Killed
        return {}

    return observe


def _files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    return train(_build(), TASK, CONFIG, folder=folder)


@pytest.mark.parametrize("step", [0, 3, 6, 9, 13])
def test_a_killed_run_ends_as_an_undisturbed_one(step, undisturbed, tmp_path):
    with pytest.raises(Killed):
        train(_build(), TASK, CONFIG, folder=tmp_path / "run", observe=_kill_at(step))
    run = train(_build(), TASK, CONFIG, folder=tmp_path / "run")
    assert hash_weights(run.model) == hash_weights(undisturbed.model)
    pd.testing.assert_frame_equal(run.history.drop(columns="seconds"), undisturbed.history.drop(columns="seconds"))
    assert _files(tmp_path / "run") == _files(undisturbed.folder)
    assert run.model.provenance == undisturbed.model.provenance


@pytest.mark.parametrize("decay", ["times_learning_rate", "outside_learning_rate"])
def test_a_run_with_decay_on_some_parameters_in_a_window_resumes(decay, tmp_path):
    config = dataclasses.replace(
        CONFIG,
        weight_decay=0.1,
        decay=decay,
        decayed="matrices_without_embeddings",
        decay_window=(3, 11),
        clip_norm=1.0,
    )
    whole = train(_build(), TASK, config)
    with pytest.raises(Killed):
        train(_build(), TASK, config, folder=tmp_path / "run", observe=_kill_at(9))
    run = train(_build(), TASK, config, folder=tmp_path / "run")
    assert hash_weights(run.model) == hash_weights(whole.model)
    assert hash_weights(train(_build(), TASK, CONFIG).model) != hash_weights(whole.model)


@pytest.mark.parametrize("fixed", [[], ["embed", "blocks.0.attn", "blocks.1.ln1"]])
def test_a_run_with_parameters_that_are_not_trained_resumes(fixed, tmp_path):
    def build_fixed():
        model = _build(norm_placement="post", positions="sinusoidal", embedding_scale="sqrt_d_model")
        for name in fixed:
            model.get_submodule(name).requires_grad_(False)
        return model

    config = dataclasses.replace(CONFIG, clip_norm=0.1, weight_decay=0.1)
    whole = train(build_fixed(), TASK, config)
    with pytest.raises(Killed):
        train(build_fixed(), TASK, config, folder=tmp_path / "run", observe=_kill_at(9))
    run = train(build_fixed(), TASK, config, folder=tmp_path / "run")
    assert hash_weights(run.model) == hash_weights(whole.model)
    for (name, before), after in zip(build_fixed().named_parameters(), run.model.parameters(), strict=True):
        trained = not any(name.startswith(f"{part}.") for part in fixed)
        assert (after.requires_grad, torch.equal(after, before)) == (trained, not trained)
    assert torch.equal(run.model.W_pos, build_fixed().W_pos)
    other = _build(norm_placement="post", positions="sinusoidal")
    with pytest.raises(InputError, match=r"its model.shape is .*embeddings times sqrt\(d_model\)"):
        train(other, TASK, config, folder=tmp_path / "run")


def test_a_run_of_an_earlier_version_goes_on(undisturbed, tmp_path):
    with pytest.raises(Killed):
        train(_build(), TASK, CONFIG, folder=tmp_path / "run", observe=_kill_at(9))
    description = tmp_path / "run" / "run.json"
    written = json.loads(description.read_text())
    for added in ("decay", "decayed", "decay_window", "initial_share", "autocast"):
        del written["config"][added]
    description.write_text(json.dumps(written))
    other = dataclasses.replace(CONFIG, decayed="matrices")
    with pytest.raises(InputError, match=r"its config.decayed is 'all' and not 'matrices'"):
        train(_build(), TASK, other, folder=tmp_path / "run")
    assert hash_weights(train(_build(), TASK, CONFIG, folder=tmp_path / "run").model) == hash_weights(undisturbed.model)


@pytest.mark.parametrize("broken", ["checkpoints", "history.parquet", "state.safetensors", "model"])
def test_a_kill_between_any_two_files_is_survived(broken, undisturbed, tmp_path, monkeypatch):
    real, renames = os.rename, os.replace

    def stop(source, target):
        if broken in Path(target).parts[-2:] and Path(target).name != "step_00000000":
            raise Killed
        (renames if Path(source).is_file() else real)(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", stop)
        patch.setattr(os, "replace", stop)
        with pytest.raises(Killed):
            train(_build(), TASK, CONFIG, folder=tmp_path / "run")
    run = train(_build(), TASK, CONFIG, folder=tmp_path / "run")
    assert hash_weights(run.model) == hash_weights(undisturbed.model)
    assert _files(tmp_path / "run") == _files(undisturbed.folder)


def test_leftovers_of_a_kill_are_swept(undisturbed, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        train(_build(), TASK, CONFIG, folder=folder, observe=_kill_at(9))
    (folder / ".0123.partial").write_bytes(b"half")
    (folder / "checkpoints" / ".step_00000008.0123").mkdir()
    (folder / "checkpoints" / ".step_00000008.0123" / "model.safetensors").write_bytes(b"half")
    train(_build(), TASK, CONFIG, folder=folder)
    assert _files(folder) == _files(undisturbed.folder)


def test_a_finished_run_is_not_run_again(undisturbed, tmp_path, monkeypatch):
    train(_build(), TASK, CONFIG, folder=tmp_path / "run")
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: pytest.fail("an update was made"))
    run = train(_build(), TASK, CONFIG, folder=tmp_path / "run")
    assert hash_weights(run.model) == hash_weights(undisturbed.model)
    assert run.history["step"].tolist() == [0, 3, 6, 9, 12, 13]


def test_the_models_along_the_way_can_be_loaded(undisturbed):
    steps = [0, 4, 8, 12, 13]
    assert sorted(os.listdir(undisturbed.folder / "checkpoints")) == [f"step_{step:08d}" for step in steps]
    models = [load_checkpoint(undisturbed.folder / "checkpoints" / f"step_{step:08d}", device="cpu") for step in steps]
    assert [model.provenance.step for model in models] == steps
    assert hash_weights(models[0]) == hash_weights(_build())
    assert hash_weights(models[-1]) == hash_weights(load_checkpoint(undisturbed.folder / "model", device="cpu"))
    assert len({hash_weights(model) for model in models}) == 5
    saved = pd.read_parquet(undisturbed.folder / "history.parquet")
    pd.testing.assert_frame_equal(saved, undisturbed.history)


@pytest.mark.parametrize(
    ("model", "task", "config", "text"),
    [
        (_build, TASK, dataclasses.replace(CONFIG, seed=1), "its config.seed is 0 and not 1"),
        (
            _build,
            TASK,
            dataclasses.replace(CONFIG, betas=(0.9, 0.99)),
            r"its config.betas is \[0.9, 0.98\] and not \[0.9, 0.99\]",
        ),
        (_build, dataclasses.replace(TASK, burn_in=3), CONFIG, "its task.settings.burn_in is 4 and not 3"),
        (
            _build,
            dataclasses.replace(TASK, pool_size=3),
            CONFIG,
            r"its task.name is 'copying' and not 'copying \(pool of 3",
        ),
        (lambda: _build(seed=1), TASK, CONFIG, "its model.weights_sha256 is"),
    ],
)
def test_another_run_in_the_folder_is_refused(model, task, config, text, undisturbed):
    before = _files(undisturbed.folder)
    with pytest.raises(InputError, match=f"holds another run: {text}.*give another folder"):
        train(model(), task, config, folder=undisturbed.folder)
    assert _files(undisturbed.folder) == before


def test_a_task_of_the_users_own_is_compared_by_what_it_draws(tmp_path):
    class Own:
        name, d_vocab, n_ctx, splits, score = TASK.name, TASK.d_vocab, TASK.n_ctx, TASK.splits, TASK.score

        def __init__(self, shift):
            self.shift = shift

        def sample(self, n, *, split, seed):
            batch = TASK.sample(n, split=split, seed=seed)
            return dataclasses.replace(batch, targets=(batch.targets + self.shift) % 12)

    config = dataclasses.replace(CONFIG, steps=3)
    train(_build(), Own(0), config, folder=tmp_path / "run")
    train(_build(), Own(0), config, folder=tmp_path / "run")
    with pytest.raises(InputError, match=r"holds another run: its task.sequences_sha256 is"):
        train(_build(), Own(1), config, folder=tmp_path / "run")


def test_a_folder_that_cannot_be_used_is_said(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty and holds no training run: give a new or an empty folder"):
        train(_build(), TASK, CONFIG, folder=tmp_path / "work")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"the run folder .*file cannot be written"):
        train(_build(), TASK, CONFIG, folder=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_damaged_state_is_said(tmp_path):
    with pytest.raises(Killed):
        train(_build(), TASK, CONFIG, folder=tmp_path / "run", observe=_kill_at(9))
    state = tmp_path / "run" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-50])
    with pytest.raises(InputError, match=r"state.safetensors is damaged .*delete the folder to begin the run again"):
        train(_build(), TASK, CONFIG, folder=tmp_path / "run")


@pytest.mark.slow
def test_a_process_killed_by_the_system_resumes(tmp_path):
    """The real thing: SIGKILL in the middle of another process, and the weights are the same in the end."""
    script = (
        "import sys\n"
        "from tests.training.test_resume import CONFIG, TASK, _build, dataclasses, train\n"
        "train(_build(), TASK, dataclasses.replace(CONFIG, steps=400, checkpoint_every=20), folder=sys.argv[1])\n"
    )
    config = dataclasses.replace(CONFIG, steps=400, checkpoint_every=20)
    killed = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "killed")], cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 120
    while not (tmp_path / "killed" / "checkpoints" / "step_00000040").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model").exists()
    one, other = (train(_build(), TASK, config, folder=tmp_path / name).model for name in ("killed", "whole"))
    assert hash_weights(one) == hash_weights(other)
    assert _files(tmp_path / "killed") == _files(tmp_path / "whole")
