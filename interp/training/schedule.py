"""The learning rate of each update: linear warm-up, then constant or half a cosine.

    warm-up   rate (i + (1 - i) (t + 1) / (warmup_steps + 1))             t < warmup_steps, i = initial_share
    cosine    rate (f + (1 - f) (1 + cos(pi u)) / 2),  u from 0 to 1 over the steps that are left, f = final_share

>>> from interp.training.config import TrainConfig
>>> config = TrainConfig(steps=11, learning_rate=1.0, warmup_steps=0, schedule="cosine")
>>> [round(learning_rate_at(step, config), 3) for step in (0, 5, 10)]
[1.0, 0.5, 0.0]
"""

import math

from interp.training.config import TrainConfig


def learning_rate_at(step: int, config: TrainConfig) -> float:
    """The rate of the update that leads from `step` to `step + 1`."""
    if step < config.warmup_steps:
        risen = (step + 1) / (config.warmup_steps + 1)
        return config.learning_rate * (config.initial_share + (1 - config.initial_share) * risen)
    if config.schedule == "constant":
        return config.learning_rate
    passed = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
    return config.learning_rate * (config.final_share + (1 - config.final_share) * (1 + math.cos(math.pi * passed)) / 2)
