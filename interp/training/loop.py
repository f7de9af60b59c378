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

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from torch import Tensor
from tqdm import tqdm
from transformer_lens import HookedTransformer

from interp.errors import DivergedError, InputError
from interp.models.batching import is_out_of_memory
from interp.models.provenance import get_provenance, hash_weights
from interp.training.checkpointing import Progress, RunFolder, describe_run
from interp.training.config import TrainConfig
from interp.training.evaluate import backward, evaluate
from interp.training.forward import Forward, choose_forward
from interp.training.result import TrainRun
from interp.training.schedule import learning_rate_at
from tasks.seeding import derive_seed
from tasks.task import Batch, Task

logger = logging.getLogger(__name__)

Observer = Callable[[HookedTransformer, int], Mapping[str, float]]

_STEPS_BETWEEN_CHECKS = 20
"""Reading a loss waits for an accelerator, so losses are read, and checked to be finite, in groups."""


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
    numbers join the history. The progress bar shows on a terminal only.
    """
    config = config or TrainConfig()
    _check_fit(model, task)
    kept = RunFolder(folder, describe_run(model, task, config)) if folder is not None else None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("no parameter of this model requires a gradient: call model.requires_grad_(True) first")
    optimizer = torch.optim.AdamW(
        trained,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )
    run = _Run(model=model, task=task, config=config, optimizer=optimizer, kept=kept, observe=observe)
    with torch.enable_grad():
        run.go(quiet=progress == "off")
    model.eval()
    return TrainRun(
        model=model, history=pd.DataFrame(run.progress.rows), config=config, folder=Path(folder) if folder else None
    )


@dataclass(kw_only=True)
class _Run:
    """The state of one call of `train`."""

    model: HookedTransformer
    task: Task
    config: TrainConfig
    optimizer: torch.optim.Optimizer
    kept: RunFolder | None
    observe: Observer | None
    progress: Progress = field(default_factory=Progress)
    waiting: list[Tensor] = field(default_factory=list)
    """Losses of the last updates, not yet read."""
    notes: tuple[str, ...] = ()
    """What happened on the way and belongs to the provenance."""

    def __post_init__(self) -> None:
        self.device = next(self.model.parameters()).device
        self.rows = self.config.batch_size
        self.origin = get_provenance(self.model)
        self.forward: Forward = choose_forward(self.model, self._sample(0).tokens[:4].to(self.device))
        seed = derive_seed(self.config.seed, "evaluate")
        self.evaluations = {
            split: self.task.sample(self.config.eval_sequences, split=split, seed=seed)
            for split in self.task.splits[1:]
        }

    def go(self, *, quiet: bool) -> None:
        restored = self.kept.restore(self.model, self.optimizer) if self.kept else None
        if restored is not None:
            self.progress = restored
            logger.info("The run in %s goes on from step %d.", self.kept.path if self.kept else "", restored.step)
        started = time.perf_counter() - self.progress.seconds
        bar = tqdm(
            total=self.config.steps,
            initial=self.progress.step,
            desc=f"train on {self.task.name}",
            unit="step",
            disable=True if quiet else None,
        )
        self.model.train()
        with bar:
            if restored is None:
                self._evaluate(started)
                self._keep()
            while self.progress.step < self.config.steps:
                self._update()
                step = self.progress.step
                ending = step == self.config.steps
                if ending or step % self.config.eval_every == 0:
                    self._evaluate(started)
                    bar.set_postfix(_headline(self.progress.rows[-1]))
                if ending or step % self.config.checkpoint_every == 0:
                    self.progress.seconds = time.perf_counter() - started
                    self._keep()
                bar.update()
        self._mark(self.model)

    def _sample(self, step: int) -> Batch:
        seed = derive_seed(self.config.seed, "train", step)
        return self.task.sample(self.config.batch_size, split=self.task.splits[0], seed=seed)

    def _update(self) -> None:
        batch = self._sample(self.progress.step)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate_at(self.progress.step, self.config)
        loss = self._backward(batch)
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.optimizer.param_groups[0]["params"], self.config.clip_norm)
        self.optimizer.step()
        self.progress.step += 1
        self.waiting.append(loss)
        if len(self.waiting) >= _STEPS_BETWEEN_CHECKS:
            self._collect()

    def _backward(self, batch: Batch) -> Tensor:
        """The loss, with its gradient; where memory runs out, in parts of half as many sequences from then on."""
        while True:
            self.optimizer.zero_grad()
            try:
                return backward(self.forward, batch, device=self.device, rows=self.rows)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or self.rows == 1:
                    raise
            before, self.rows = self.rows, self.rows // 2
            self.notes += (f"out of memory with {before} sequences at once, went on with {self.rows}",)
            logger.warning(self.notes[-1])

    def _collect(self) -> None:
        """Read the losses of the last updates and stop at the first that is not finite."""
        if not self.waiting:
            return
        losses = torch.stack(self.waiting).tolist()
        self.waiting.clear()
        for index, loss in enumerate(losses):
            if not math.isfinite(loss):
                self._diverge(f"the loss is {loss} at step {self.progress.step - len(losses) + index}")
        self.progress.losses += losses

    def _evaluate(self, started: float) -> None:
        self._collect()
        self.model.eval()
        losses = self.progress.losses
        row: dict[str, float | int] = {
            "step": self.progress.step,
            "loss": sum(losses) / len(losses) if losses else math.nan,
            "learning_rate": learning_rate_at(max(0, self.progress.step - 1), self.config),
        }
        self.progress.losses = []
        for split, batch in self.evaluations.items():
            # An update holds its activations for the backward pass, so twice its sequences fit here.
            rows = 2 * self.rows
            scores = evaluate(self.forward, self.task, batch, device=self.device, rows=rows)
            row |= {f"{split}_{name}": value for name, value in scores.items()}
        if self.observe is not None:
            with torch.no_grad():
                row |= {name: float(value) for name, value in self.observe(self.model, self.progress.step).items()}
        row["seconds"] = time.perf_counter() - started
        self.progress.rows.append(row)
        self.model.train()

    def _keep(self) -> None:
        self._collect()
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            self._diverge(f"the weights are no longer finite at step {self.progress.step}")
        if self.kept is not None:
            self._mark(self.model)
            self.kept.write(self.model, self.optimizer, self.progress, last=self.progress.step == self.config.steps)

    def _mark(self, model: HookedTransformer) -> None:
        """Provenance of the weights as they are now."""
        note = f"trained on {self.task.name}, seed {self.config.seed}"
        model.provenance = replace(  # type: ignore[assignment]
            self.origin,
            step=self.progress.step,
            weights_sha256=hash_weights(model),
            notes=(*self.origin.notes, note, *self.notes),
        )

    def _diverge(self, what: str) -> None:
        last = self.kept.last_checkpoint() if self.kept else None
        where = f"the last good checkpoint is {last}" if last else "no checkpoint was kept, since no folder was given"
        raise DivergedError(f"Training stopped: {what}; {where}. Try a lower learning rate or clip_norm.")


def _headline(row: Mapping[str, float | int]) -> dict[str, str]:
    return {name: f"{value:.3f}" for name, value in row.items() if name == "loss" or name.endswith("_error")}


def _check_fit(model: object, task: Task) -> None:
    if not isinstance(model, HookedTransformer):
        raise InputError(f"a {type(model).__name__} cannot be trained here, only a HookedTransformer can")
    if task.d_vocab > model.cfg.d_vocab:
        raise InputError(f"the task {task.name!r} has {task.d_vocab} tokens, the model only {model.cfg.d_vocab}")
    if task.n_ctx > model.cfg.n_ctx:
        raise InputError(f"the task {task.name!r} has {task.n_ctx} positions, the model only {model.cfg.n_ctx}")
