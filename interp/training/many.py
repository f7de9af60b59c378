"""Train many small models, each as `train` would, in one batched computation where that is faster.

A small model on an accelerator leaves it idle: its kernels are done before the next is launched. Models of one shape
that stand at the same step therefore go through one forward and one backward pass (`Stack`). Each keeps its own task,
seed, initialisation, learning rate, decay and clipping, its own optimizer, history and folder. Losses are those of
separate runs up to the order of sums. Where batches differ in length from model to model, as those of one length each
do, all are padded at each step to the longest.

On a CPU the products of the usual batch already fill a core, and one model's activations fit its cache where those of
many do not. So "auto" stacks there only while a batch has few positions.

>>> from interp.models.build import build
>>> from tasks.copying import Copying
>>> task = Copying(d_vocab=8, n_ctx=24, min_length=6, max_length=7, ood_length=8)
>>> shape = {"n_layers": 1, "d_model": 8, "n_heads": 1, "d_vocab": 8, "n_ctx": 24, "attn_only": True, "device": "cpu"}
>>> models = [build(**shape, gamma=gamma, seed=0) for gamma in (0.4, 0.8)]
>>> config = TrainConfig(steps=4, batch_size=2, eval_every=2, eval_sequences=2)
>>> runs = train_many(models, [task, task], [config, config])
>>> [run.engine for run in runs], [run.model is model for run, model in zip(runs, models)]
(['stacked', 'stacked'], [True, True])
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.models.batching import is_out_of_memory
from interp.training.config import TrainConfig
from interp.training.evaluate import is_last_only
from interp.training.forward import is_fast
from interp.training.result import Engine, TrainRun
from interp.training.stacked import Stack, have_one_shape
from interp.training.trainee import Observer, Trainee
from tasks.task import Batch, Task

_CPU_POSITIONS = 400
"""Positions in a model's batch up to which a CPU gains from stacking. With two layers of width 64 it takes half of the time
at 36 positions, 0.63 of it at 72, 0.77 at 288 and 0.93 at 504 (`tests/benchmarks/bench_training.py many`); with six layers
and every position trained, 1.06 at 480 (`seeds`)."""

_CPU_PADDING = 1.1
"""How many times the positions of its own batches a model may pass in a stack: where lengths differ from model to model,
all are padded to the longest."""


class _Full(Exception):
    """There is no memory for the stack; no model was changed."""


def train_many(
    models: Sequence[HookedTransformer],
    tasks: Sequence[Task],
    configs: Sequence[TrainConfig],
    *,
    folders: Sequence[str | Path] | None = None,
    observers: Sequence[Observer | None] | None = None,
    engine: Literal["auto", "stacked", "separate"] = "auto",
    progress: Literal["auto", "off"] = "auto",
) -> list[TrainRun]:
    """Train `models[i]` in place on `tasks[i]` by `configs[i]`, kept in `folders[i]`, watched by `observers[i]`; one run
    each, in order.

    `engine="auto"` stacks on an accelerator, and on a CPU where batches are small. Models that cannot be stacked with
    others are trained one after another whatever `engine` says; `TrainRun.engine` says which it was. A stacked run's
    `seconds` are those of the whole stack. Folders are the same as `train`'s and each resumes from where it stands.
    InputError for lists that do not match; DivergedError, from the first model that diverges, ends the call.
    """
    wanted: dict[str, Sequence[Any]] = {
        "tasks": tasks,
        "configs": configs,
        **({} if folders is None else {"folders": folders}),
        **({} if observers is None else {"observers": observers}),
    }
    for name, given in wanted.items():
        if len(given) != len(models):
            raise InputError(f"there are {len(models)} models and {len(given)} {name}: give one for each model")
    if len({id(model) for model in models}) < len(models):
        raise InputError("the same model object is given twice: build one for each run")
    if folders is not None and len({Path(folder).resolve() for folder in folders}) < len(models):
        raise InputError("the same folder is given twice: give one for each run")
    if engine not in ("auto", "stacked", "separate"):
        raise InputError(f"engine={engine!r} is unknown: give 'auto', 'stacked' or 'separate'")
    nothing = [None] * len(models)
    trainees = [
        Trainee(model=model, task=task, config=config, folder=folder, observe=observe)
        for model, task, config, folder, observe in zip(
            models, tasks, configs, folders or nothing, observers or nothing, strict=True
        )
    ]
    with torch.enable_grad():
        for trainee in trainees:
            trainee.begin()
        bar = tqdm(
            total=sum(trainee.config.steps for trainee in trainees),
            initial=sum(trainee.progress.step for trainee in trainees),
            desc=f"train {len(trainees)} models",
            unit="step",
            disable=True if progress == "off" else None,
        )
        with bar:
            engines: dict[int, Engine] = {}
            for group in _group(trainees, engine):
                engines |= _train_group(group, bar)
    return [trainee.end(engines[id(trainee)]) for trainee in trainees]


def _group(trainees: Sequence[Trainee], engine: str) -> list[list[Trainee]]:
    """Trainees that can go through one computation."""
    if engine == "separate":
        return [[trainee] for trainee in trainees]
    groups: list[list[Trainee]] = []
    for trainee in trainees:
        for group in groups:
            if _go_together(group[0], trainee) and (engine == "stacked" or _pays([*group, trainee])):
                group.append(trainee)
                break
        else:
            groups.append([trainee])
    return groups


def _go_together(one: Trainee, other: Trainee) -> bool:
    return (
        not one.finished
        and one.progress.step == other.progress.step
        and all(
            getattr(one.config, name) == getattr(other.config, name) for name in ("steps", "batch_size", "autocast")
        )
        and is_fast(one.forward)
        and is_fast(other.forward)
        and have_one_shape(one.parameters, other.parameters)
    )


def _pays(trainees: Sequence[Trainee]) -> bool:
    """Whether a stack of these is faster than one after the other, judged by the next batches."""
    if trainees[0].device.type != "cpu":
        return True
    widths = torch.tensor([trainee.widths for trainee in trainees])  # [model, step]
    longest = widths.amax(0).double().mean()
    few = float(longest) * trainees[0].config.batch_size <= _CPU_POSITIONS
    return few and float(longest / widths.double().mean()) <= _CPU_PADDING


def _train_group(trainees: Sequence[Trainee], bar: Any) -> dict[int, Engine]:
    """Train all of them to the end; says by which engine, by the trainee's id."""
    if len(trainees) == 1:
        trainee = trainees[0]
        while not trainee.finished:
            trainee.advance(trainee.backward())
            bar.update()
        return {id(trainee): "separate"}
    stack = Stack([trainee.parameters for trainee in trainees])
    try:
        for trainee in trainees:
            trainee.read_again()
        while not trainees[0].finished:
            losses = _backward(stack, trainees)
            for trainee, loss in zip(trainees, losses, strict=True):
                trainee.advance(loss)
            bar.update(len(trainees))
        return {id(trainee): "stacked" for trainee in trainees}
    except _Full:
        for trainee in trainees:
            trainee.notes += (f"out of memory with {len(trainees)} models at once, went on with half of them",)
    finally:
        stack.separate()
        for trainee in trainees:
            trainee.read_again()
    half = len(trainees) // 2
    return _train_group(trainees[:half], bar) | _train_group(trainees[half:], bar)


def _backward(stack: Stack, trainees: Sequence[Trainee]) -> Float[Tensor, "model"]:
    """Each model's loss on its own batch, with its gradient: the sum of the losses has all of them."""
    batches = pad([trainee.sample() for trainee in trainees])
    device, config = trainees[0].device, trainees[0].config
    last_only = all(is_last_only(batch) for batch in batches)
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.autocast == "bfloat16"):
            logits = stack.run(torch.stack([batch.tokens for batch in batches]).to(device), last_only=last_only)
        losses = mean_losses(logits, batches)
        stack.backward(losses.sum())
    except (MemoryError, RuntimeError) as error:
        raise (_Full() if is_out_of_memory(error) else error) from None
    return losses.detach()


def pad(batches: Sequence[Batch]) -> list[Batch]:
    """The batches as wide as the widest: behind their last position stands token 0, which is not trained.

    No earlier position of a causal model sees it, so logits and losses are those of the batches as they were.
    """
    width = max(batch.tokens.shape[1] for batch in batches)

    def widen(values: Tensor) -> Tensor:
        return F.pad(values, (0, width - values.shape[1]))

    return [
        Batch(
            tokens=widen(batch.tokens),
            targets=widen(batch.targets),
            trained=widen(batch.trained),
            scored=widen(batch.scored),
        )
        for batch in batches
    ]


def mean_losses(logits: Float[Tensor, "model batch end d_vocab"], batches: Sequence[Batch]) -> Float[Tensor, "model"]:
    """`mean_loss` of each model."""
    length = logits.shape[2]
    trained = torch.stack([batch.trained[:, -length:] for batch in batches]).to(logits.device)
    targets = torch.stack([batch.targets[:, -length:] for batch in batches]).to(logits.device)
    losses = F.cross_entropy(
        logits.flatten(0, 2).float(), targets.masked_fill(~trained, -100).flatten(), ignore_index=-100, reduction="none"
    )
    return losses.view(len(batches), -1).sum(1) / trained.flatten(1).sum(1)
