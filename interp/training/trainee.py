"""A model in training: its task and optimizer, where it stands, and what is due at each step.

`train` leads one of these step by step, `train_many` several at once; batches, updates, evaluations and checkpoints are
the same in both. Reading a loss waits for an accelerator, so losses are read, and checked to be finite, in groups.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.errors import DivergedError, InputError
from interp.models.batching import is_out_of_memory
from interp.models.provenance import get_provenance, hash_weights
from interp.training.checkpointing import Progress, RunFolder, describe_run
from interp.training.config import TrainConfig
from interp.training.evaluate import backward, cut, evaluate, trained_width
from interp.training.flat import FlatParameters
from interp.training.forward import Forward, choose_forward, is_fast
from interp.training.optimise import make_optimizer, update
from interp.training.result import Engine, TrainRun, find_main_scores
from interp.training.schedule import learning_rate_at
from interp.training.stacked import Stack
from tasks.seeding import derive_seed
from tasks.task import Batch, Task

logger = logging.getLogger(__name__)

Observer = Callable[[HookedTransformer, int], Mapping[str, float]]

_STEPS_BETWEEN_CHECKS = 20
_BATCHES_AHEAD = 8
"""From so many batches it is told how their lengths differ."""


@dataclass(kw_only=True)
class Trainee:
    """One run; InputError for a model that the task does not fit or a folder that holds another run."""

    model: HookedTransformer
    task: Task
    config: TrainConfig
    folder: str | Path | None = None
    observe: Observer | None = None
    progress: Progress = field(default_factory=Progress)
    waiting: list[Tensor] = field(default_factory=list)
    """Losses of the last updates, not yet read."""
    notes: tuple[str, ...] = ()
    """What happened on the way and belongs to the provenance."""

    def __post_init__(self) -> None:
        _check_fit(self.model, self.task)
        self.kept = (
            RunFolder(self.folder, describe_run(self.model, self.task, self.config))
            if self.folder is not None
            else None
        )
        self.parameters = FlatParameters(self.model)
        self.optimizer = make_optimizer(self.parameters, self.config)
        self.device = self.parameters.vector.device
        self.causal = self.model.cfg.attention_dir == "causal"
        self.rows = self.config.batch_size
        self.origin = get_provenance(self.model)
        self.forward: Forward = choose_forward(
            self.parameters, self._longest(self._sample(0).tokens[:4]).to(self.device)
        )
        seed = derive_seed(self.config.seed, "evaluate")
        self.evaluations = {
            split: self.task.sample(self.config.eval_sequences, split=split, seed=seed)
            for split in self.task.splits[1:]
        }
        self.started = time.perf_counter()

    @property
    def finished(self) -> bool:
        """Whether all updates are made."""
        return self.progress.step == self.config.steps

    def begin(self) -> None:
        """Go to where the run in the folder stands, or evaluate and keep the model as it is."""
        restored = self.kept.restore(self.parameters, self.optimizer) if self.kept else None
        self.model.train()
        if restored is None:
            self.started = time.perf_counter()
            self._evaluate()
            self._keep()
            return
        self.progress = restored
        self.started = time.perf_counter() - restored.seconds
        logger.info("The run in %s goes on from step %d.", self.folder, restored.step)

    def sample(self, ahead: int = 0) -> Batch:
        """The batch of the next update, or of one further ahead, without positions that teach nothing."""
        batch = self._sample(self.progress.step + ahead)
        return cut(batch, trained_width(batch)) if self.causal else batch

    @cached_property
    def widths(self) -> list[int]:
        """The positions of the next batches."""
        left = self.config.steps - self.progress.step
        return [self.sample(ahead).tokens.shape[1] for ahead in range(min(left, _BATCHES_AHEAD))]

    def read_again(self) -> None:
        """Find the parameters where they were moved to."""
        if is_fast(self.forward):
            self.forward = Stack([self.parameters]).run

    def backward(self) -> Float[Tensor, ""]:
        """The loss, with its gradient; where memory runs out, in parts of half as many sequences from then on."""
        batch = self.sample()
        while True:
            self.parameters.zero_grad()
            try:
                return backward(self.forward, batch, device=self.device, rows=self.rows, autocast=self.config.autocast)
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error) or self.rows == 1:
                    raise
            before, self.rows = self.rows, self.rows // 2
            self.notes += (f"out of memory with {before} sequences at once, went on with {self.rows}",)
            logger.warning(self.notes[-1])

    def advance(self, loss: Float[Tensor, ""]) -> None:
        """Make the update whose gradients the parameters hold, and whatever is due after it."""
        update(self.optimizer, self.config, step=self.progress.step)
        self.progress.step += 1
        self.waiting.append(loss)
        if len(self.waiting) >= _STEPS_BETWEEN_CHECKS:
            self._collect()
        if self.finished or self.progress.step % self.config.eval_every == 0:
            self._evaluate()
        if self.finished or self.progress.step % self.config.checkpoint_every == 0:
            self.progress.seconds = time.perf_counter() - self.started
            self._keep()

    def end(self, engine: Engine) -> TrainRun:
        """The finished run, its model in eval mode."""
        self._mark(self.model)
        self.parameters.release()
        self.model.eval()
        return TrainRun(
            model=self.model,
            history=pd.DataFrame(self.progress.rows),
            config=self.config,
            folder=Path(self.folder) if self.folder else None,
            engine=engine,
        )

    def headline(self) -> dict[str, str]:
        """The last evaluation, for a progress bar."""
        row = self.progress.rows[-1]
        return {name: f"{row[name]:.3f}" for name in ("loss", *find_main_scores(row).values())}

    def _sample(self, step: int) -> Batch:
        seed = derive_seed(self.config.seed, "train", step)
        return self.task.sample(self.config.batch_size, split=self.task.splits[0], seed=seed)

    def _longest(self, tokens: Int[Tensor, "batch pos"]) -> Int[Tensor, "batch n_ctx"]:
        """These sequences, again and again up to the length of the task's longest one."""
        return tokens.repeat(1, -(-self.task.n_ctx // tokens.shape[1]))[:, : self.task.n_ctx]

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

    def _evaluate(self) -> None:
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
            scores = evaluate(
                self.forward, self.task, batch, device=self.device, rows=2 * self.rows, causal=self.causal
            )
            row |= {f"{split}_{name}": value for name, value in scores.items()}
        if self.observe is not None:
            with torch.no_grad():
                row |= {name: float(value) for name, value in self.observe(self.model, self.progress.step).items()}
        row["seconds"] = time.perf_counter() - self.started
        self.progress.rows.append(row)
        self.model.train()

    def _keep(self) -> None:
        self._collect()
        if not all(bool(parameter.isfinite().all()) for parameter in self.model.parameters()):
            self._diverge(f"the weights are no longer finite at step {self.progress.step}")
        if self.kept is not None:
            self._mark(self.model)
            self.kept.write(self.parameters, self.optimizer, self.progress, last=self.finished)

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


def _check_fit(model: object, task: Task) -> None:
    if not isinstance(model, HookedTransformer):
        raise InputError(f"a {type(model).__name__} cannot be trained here, only a HookedTransformer can")
    if task.d_vocab > model.cfg.d_vocab:
        raise InputError(f"the task {task.name!r} has {task.d_vocab} tokens, the model only {model.cfg.d_vocab}")
    if task.n_ctx > model.cfg.n_ctx:
        raise InputError(f"the task {task.name!r} has {task.n_ctx} positions, the model only {model.cfg.n_ctx}")
