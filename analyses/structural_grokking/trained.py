"""The models of a lab that are done, and what their curves say."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analyses.labs.trained import Trained
from analyses.structural_grokking.keep import UNTRAINED
from analyses.structural_grokking.outcome import N_LAST, Curve, Outcome, describe_curve
from tasks.trees import Tree


@dataclass(frozen=True, kw_only=True)
class TrainedGrammar(Trained):
    """A model that was trained on a grammar task."""

    @property
    def depth(self) -> int:
        """Its number of layers."""
        return int(self.cell.setting.model["n_layers"])

    @property
    def task(self) -> str:
        """Its task's name."""
        return self.cell.setting.task.name

    @cached_property
    def curve(self) -> Curve:
        """Its accuracies over training."""
        history = self.history
        shares = ("linear", "shortcut", "other")
        return Curve(
            steps=history["step"],
            seconds=history["seconds"],
            validation=history["validation_hierarchical"],
            generalisation=history["generalisation_hierarchical"],
            object_relative=history["object_relative"],
            shares={name: history[f"generalisation_{name}"] for name in shares if f"generalisation_{name}" in history},
        )

    @cached_property
    def outcome(self) -> Outcome:
        """What they say."""
        return describe_curve(self.curve, n_last=min(N_LAST, len(self.curve.steps)))

    def follow(self, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """(steps, values) of a measure, where it was measured."""
        values = self.history[measure]
        there = np.isfinite(values)
        return self.history["step"][there], values[there]

    def value(self, metric: str, *, control: str | None = None) -> float:
        """A number of the trained model, or its control; NaN where there is none."""
        frame = self.record.frame
        same = frame["metric"].eq(metric) & (
            frame["control"].isna() if control is None else frame["control"].eq(control)
        )
        return float(frame.loc[same, "value"].iloc[0]) if same.any() else float("nan")

    def untrained(self, metric: str) -> float:
        """The number of the model before training."""
        return self.value(metric, control=UNTRAINED)

    @property
    def trees(self) -> list[dict[str, Any]]:
        """Some sentences with their gold tree and those before and after training."""
        return [
            {"words": one["words"], **{name: read_tree(one[name]) for name in ("gold", "before", "after")}}
            for one in self.record.about["trees"]
        ]


def read_tree(nested: Any) -> Tree:
    """A tree from JSON, which knows lists alone."""
    return nested if isinstance(nested, int) else (read_tree(nested[0]), read_tree(nested[1]))
