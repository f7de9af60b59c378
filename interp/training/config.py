"""What determines a training run, besides the model it starts from and the task.

Steps, not epochs: an epoch of N sequences is N // batch_size steps. AdamW "from 1e-5 up to 25 times that, then by a
cosine back to it" is `learning_rate=25e-5, initial_share=1 / 25, final_share=1 / 25`.

>>> TrainConfig(steps=100, warmup_steps=200)
Traceback (most recent call last):
interp.errors.InputError: warmup_steps=200 is above steps=100: give at most as many warm-up steps as steps
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from interp.errors import InputError

Schedule = Literal["constant", "cosine"]
Decay = Literal["times_learning_rate", "outside_learning_rate"]
Decayed = Literal["all", "matrices", "matrices_without_embeddings"]
Autocast = Literal["none", "bfloat16"]

_CHOICES = {"schedule": Schedule, "decay": Decay, "decayed": Decayed, "autocast": Autocast}

_AT_LEAST = {
    "steps": 1,
    "batch_size": 1,
    "warmup_steps": 0,
    "eval_every": 1,
    "eval_sequences": 1,
    "checkpoint_every": 1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """AdamW and its schedule; the defaults are those of Song et al. (arXiv 2408.09503) for the copying task."""

    steps: int = 5000
    """Number of updates; each has a fresh batch."""
    batch_size: int = 50
    """Sequences in a batch."""
    learning_rate: float = 1e-3
    """The rate after warm-up."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's two averaging rates."""
    eps: float = 1e-9
    """AdamW's term in the denominator."""
    weight_decay: float = 5e-4
    """The decay lambda of an update; `decay` says how it enters."""
    decay: Decay = "times_learning_rate"
    """`times_learning_rate`: weights times (1 - rate * lambda), as AdamW. `outside_learning_rate`: times (1 - lambda)."""
    decayed: Decayed = "all"
    """Which parameters decay: all (biases and norm gains too), weight matrices, or those except W_E and W_pos."""
    decay_window: tuple[int, int] | None = None
    """(a, b): decay acts in the updates a <= t < b alone, counted from 0. None is all updates."""
    warmup_steps: int = 0
    """Updates over which the rate rises linearly to `learning_rate`."""
    initial_share: float = 0.0
    """The share of `learning_rate` from which warm-up rises."""
    schedule: Schedule = "constant"
    """What the rate does after warm-up: stay, or fall along half a cosine."""
    final_share: float = 0.0
    """The share of `learning_rate` at which the cosine ends."""
    clip_norm: float | None = None
    """Gradients are scaled down to this norm over all parameters; None leaves them."""
    autocast: Autocast = "none"
    """`bfloat16` computes the products of the training pass in bfloat16; weights, updates and evaluations stay as is."""
    eval_every: int = 100
    """Steps between evaluations. 1,000 sequences every 100 steps of 50 are a fifteenth of the training's work."""
    eval_sequences: int = 500
    """Sequences of each split in an evaluation, the same ones every time."""
    checkpoint_every: int = 1000
    """Steps between checkpoints, where the run has a folder."""
    seed: int = 0
    """The batch at step t is a function of this seed and of t alone."""

    def __post_init__(self) -> None:
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, not {value!r}")
        for name in ("learning_rate", "eps", "weight_decay", "initial_share", "final_share"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
                raise InputError(f"{name} must be a finite number of at least 0, not {value!r}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas must be two numbers from 0 up to, not including, 1, not {self.betas!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                wanted = " or ".join(map(repr, get_args(choices)))
                raise InputError(f"{name}={getattr(self, name)!r} is unknown: give {wanted}")
        if self.decay == "outside_learning_rate" and self.weight_decay > 1:
            raise InputError(
                f"weight_decay={self.weight_decay} outside the learning rate would turn weights round: give at most 1"
            )
        if self.decay_window is not None:
            _check_window(self.decay_window, self.steps)
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InputError(f"clip_norm must be above 0, or None for no clipping, not {self.clip_norm!r}")
        if self.warmup_steps > self.steps:
            raise InputError(
                f"warmup_steps={self.warmup_steps} is above steps={self.steps}: "
                "give at most as many warm-up steps as steps"
            )


def _check_window(window: tuple[int, int], steps: int) -> None:
    whole = len(window) == 2 and all(isinstance(step, int) and not isinstance(step, bool) for step in window)
    if not whole or not 0 <= window[0] < window[1]:
        raise InputError(f"decay_window must be two whole numbers (a, b) with 0 <= a < b, or None, not {window!r}")
    if window[0] >= steps:
        raise InputError(f"decay_window={window!r} begins after the last of {steps} steps: give an earlier one or None")
