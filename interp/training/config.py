"""What determines a training run, besides the model it starts from and the task.

>>> TrainConfig(steps=100, warmup_steps=200)
Traceback (most recent call last):
interp.errors.InputError: warmup_steps=200 is above steps=100: give at most as many warm-up steps as steps
"""

import math
from dataclasses import dataclass
from typing import Literal

from interp.errors import InputError

Schedule = Literal["constant", "cosine"]

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
    """AdamW's decoupled decay, on every parameter, biases and norm gains among them."""
    warmup_steps: int = 0
    """Updates over which the rate rises linearly to `learning_rate`."""
    schedule: Schedule = "constant"
    """What the rate does after warm-up: stay, or fall along half a cosine."""
    final_share: float = 0.0
    """The share of `learning_rate` at which the cosine ends."""
    clip_norm: float | None = None
    """Gradients are scaled down to this norm over all parameters; None leaves them."""
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
        for name in ("learning_rate", "eps", "weight_decay", "final_share"):
            value = getattr(self, name)
            if not math.isfinite(value) or value < 0:
                raise InputError(f"{name} must be a finite number of at least 0, not {value!r}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas must be two numbers from 0 up to, not including, 1, not {self.betas!r}")
        if self.schedule not in ("constant", "cosine"):
            raise InputError(f"schedule={self.schedule!r} is unknown: give 'constant' or 'cosine'")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise InputError(f"clip_norm must be above 0, or None for no clipping, not {self.clip_norm!r}")
        if self.warmup_steps > self.steps:
            raise InputError(
                f"warmup_steps={self.warmup_steps} is above steps={self.steps}: "
                "give at most as many warm-up steps as steps"
            )
