"""What `interp.train` returns: the model, and how it came to be what it is.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
>>> history = pd.DataFrame({"step": [0, 10], "ood_loss": [1.6, 0.7], "ood_error": [1.0, 0.25], "seconds": [0.0, 2.0]})
>>> TrainRun(model=model, history=history, config=TrainConfig(steps=10), folder=None)
TrainRun(10 steps, 2 s; ood_error 0.25)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Literal

import pandas as pd
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.figures.style import Picture
from interp.training.config import TrainConfig

Engine = Literal["separate", "stacked"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainRun:
    """A finished run."""

    model: HookedTransformer
    """The object that was given to `train`, trained."""
    history: pd.DataFrame
    """One row an evaluation: `step` (updates made), `loss` (mean training loss since the row before, NaN in the first),
    `learning_rate` (of the last update), for each split `<split>_loss` and `<split>_<score>`, what `observe` returned,
    `seconds`."""
    config: TrainConfig
    """The configuration."""
    folder: Path | None
    """Where the run is kept."""
    engine: Engine = "separate"
    """Whether the model was trained by itself or in one computation with others (`train_many`)."""

    def to_frame(self) -> pd.DataFrame:
        """The history."""
        return self.history

    def figure(self) -> Picture:
        """The main score of the first three splits against the training step; InputError where the task has none."""
        from interp.figures.curves import Curve, learning_curves

        shown = dict(list(find_main_scores(self.history).items())[:3])
        if not shown:
            raise InputError(
                f"this run's history has no score, only {', '.join(map(str, self.history))}: "
                "train on a task with a second split, on which it is scored"
            )
        names = dict.fromkeys(column.removeprefix(f"{split}_").replace("_", " ") for split, column in shown.items())
        steps = self.history["step"].to_numpy()
        curves = [
            Curve(label=split.replace("_", " "), steps=steps, values=self.history[column].to_numpy(), series=series)
            for series, (split, column) in enumerate(shown.items())
        ]
        values = self.history[list(shown.values())].to_numpy()
        limits = (min(0.0, float(values.min())), max(1.0, float(values.max())))
        return learning_curves(curves, label=", ".join(names), limits=limits)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        last = self.history.iloc[-1]
        scores = ", ".join(f"{column} {last[column]:.4g}" for column in find_main_scores(self.history).values())
        return f"TrainRun({self.config.steps} steps, {last['seconds']:.0f} s; {scores or 'no score'})"


def find_main_scores(columns: Iterable[object]) -> dict[str, str]:
    """The column to show of each split in a history: the first score of the task, which stands behind the split's loss.

    >>> find_main_scores(["step", "loss", "id_loss", "id_accuracy", "id_other", "ood_loss", "ood_accuracy", "ood_other"])
    {'id': 'id_accuracy', 'ood': 'ood_accuracy'}
    """
    return {
        loss.removesuffix("_loss"): score
        for loss, score in pairwise(map(str, columns))
        if loss.endswith("_loss") and score.startswith(loss.removesuffix("loss"))
    }
