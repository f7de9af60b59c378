"""`interp train`: train a model by a recipe, with the few knobs that a command line should have."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from analyses.recipes import RECIPES
from interp.errors import InputError
from interp.models.build import build
from interp.training.loop import TrainRun, train


def train_recipe(
    name: str,
    *,
    out: Path | None = None,
    steps: int | None = None,
    gamma: float | None = None,
    weight_decay: float | None = None,
    seed: int = 0,
    device: str | None = None,
    progress: Literal["auto", "off"] = "auto",
) -> TrainRun:
    """Build and train the recipe's model in `out` (`runs/NAME` when None), going on with a run that was stopped there."""
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise InputError(f"There is no recipe {name!r}; there are {', '.join(RECIPES)}.{hint}")
    recipe = RECIPES[name](seed=seed)
    steps = recipe.config.steps if steps is None else steps
    config = replace(
        recipe.config,
        steps=steps,
        warmup_steps=min(recipe.config.warmup_steps, steps),
        weight_decay=recipe.config.weight_decay if weight_decay is None else weight_decay,
    )
    model = build(**{**recipe.model, **({} if gamma is None else {"gamma": gamma})}, device=device)
    folder = out or Path("runs") / name
    with _one_thread():
        return train(model, recipe.task, config, folder=folder, observe=recipe.observe, progress=progress)


@contextmanager
def _one_thread() -> Iterator[None]:
    """A step of so small a model has little to share out: waiting threads cost most on a busy machine, and with one
    thread the weights are the same on every number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
