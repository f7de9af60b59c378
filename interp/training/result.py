"""What `interp.train` returns: the model, and how it came to be what it is.

>>> from interp.models.build import build
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=4, attn_only=True, device="cpu")
>>> history = pd.DataFrame({"step": [0, 10], "ood_error": [1.0, 0.25], "seconds": [0.0, 2.0]})
>>> TrainRun(model=model, history=history, config=TrainConfig(steps=10), folder=None)
TrainRun(10 steps, 2 s; ood_error 0.25)
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pandas as pd
from matplotlib.figure import Figure
from transformer_lens import HookedTransformer

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

    def figure(self) -> Figure:
        """The error of each split against the training step."""
        from interp.figures.curves import Curve, learning_curves

        steps = self.history["step"].to_numpy()
        columns = [name for name in self.history.columns if str(name).endswith("_error") and "published" not in name]
        return learning_curves(
            [
                Curve(
                    label=name.removesuffix("_error"), steps=steps, values=self.history[name].to_numpy(), series=index
                )
                for index, name in enumerate(columns[:3])
            ]
        )

    def __repr__(self) -> str:
        last = ", ".join(f"{name} {value:.4g}" for name, value in self.history.iloc[-1].items() if "error" in str(name))
        return f"TrainRun({self.config.steps} steps, {self.history['seconds'].iloc[-1]:.0f} s; {last or 'no score'})"
