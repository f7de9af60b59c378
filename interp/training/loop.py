"""Train a HookedTransformer on a task: AdamW, fresh batches, evaluation on the splits that are not trained on.

The batch of step t depends on (seed, t) alone. With a folder, a run that was killed and is called again goes on from
its last checkpoint and ends, on a CPU, with exactly the weights of a run that was never disturbed.

>>> from interp.models.build import build
>>> from tasks.copying import Copying
>>> task = Copying(d_vocab=8, n_ctx=24, min_length=6, max_length=7, ood_length=8)
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=8, n_ctx=24, attn_only=True, device="cpu")
>>> run = train(model, task, TrainConfig(steps=4, batch_size=2, eval_every=2, eval_sequences=2))
>>> list(run.history["step"]), run.model is model
([0, 2, 4], True)
"""

from pathlib import Path
from typing import Literal

import torch
from tqdm import tqdm
from transformer_lens import HookedTransformer

from interp.training.config import TrainConfig
from interp.training.result import TrainRun
from interp.training.trainee import Observer, Trainee
from tasks.task import Task


def train(
    model: HookedTransformer,
    task: Task,
    config: TrainConfig | None = None,
    *,
    folder: str | Path | None = None,
    observe: Observer | None = None,
    progress: Literal["auto", "off"] = "auto",
) -> TrainRun:
    """Train `model` in place on the first split of `task` and evaluate it on the others.

    `folder` keeps checkpoints and makes the run resumable. `observe(model, step)` is called at each evaluation and its
    numbers join the history. The progress bar shows on a terminal only. InputError for a model that the task does not
    fit or a folder that holds another run, DivergedError for a loss or a weight that is not finite.
    """
    trainee = Trainee(model=model, task=task, config=config or TrainConfig(), folder=folder, observe=observe)
    with torch.enable_grad():
        trainee.begin()
        bar = tqdm(
            total=trainee.config.steps,
            initial=trainee.progress.step,
            desc=f"train on {task.name}",
            unit="step",
            disable=True if progress == "off" else None,
        )
        with bar:
            while not trainee.finished:
                trainee.advance(trainee.backward())
                if trainee.progress.step % trainee.config.eval_every == 0:
                    bar.set_postfix(trainee.headline(), refresh=False)
                bar.update()
    return trainee.end("separate")
