"""What a recipe is: everything that determines a training run, under a name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from interp.training.config import TrainConfig
from interp.training.trainee import Observer
from tasks.task import Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Everything that determines a training run."""

    name: str
    """The name a user types."""
    summary: str
    """One line for a list of recipes."""
    model: Mapping[str, Any]
    """The arguments of `interp.build`."""
    task: Task
    """What the model is trained on."""
    config: TrainConfig
    """How it is trained."""
    observe: Observer | None = None
    """What is watched besides, for the history."""
