"""Accuracy without the strongest heads of a ranking, beside random heads of the same layers: what `remove_ranked_heads`
found.

With r_i whether item i is right without the chosen heads and R_i the mean over the draws that it was scored under,

    lost beyond control = mean over i of (R_i - r_i)

with a bootstrap interval over items, and p = (1 + draws that lose as much) / (1 + draws) (Phipson & Smyth 2010), where a draw
is compared with what the chosen heads lose on the draw's own items.
"""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp.interventions.select import Head
from interp.prompts.choices import By, ChoiceScores, find_right
from interp.statistics import bootstrap_interval, permutation_p_value

if TYPE_CHECKING:
    from interp.figures.style import Picture

SIGNIFICANT = 0.05


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RemovalStep:
    """What is left without the first heads of the ranking, and without random ones."""

    whole: ChoiceScores
    """The model with all its heads."""
    heads: tuple[Head, ...]
    """The heads that were removed."""
    log_probability: Float[np.ndarray, "item choice"]
    """Of all tokens of a choice without them, in nats."""
    likeliest: Bool[np.ndarray, "item choice"]
    """Whether greedy decoding without them writes this choice."""
    control_heads: tuple[tuple[Head, ...], ...]
    """The random heads of each draw."""
    control_items: Int[np.ndarray, "draw share"]
    """The items that each draw was scored on."""
    control_log_probability: Float[np.ndarray, "draw share choice"]
    """`log_probability` without the random heads."""
    control_likeliest: Bool[np.ndarray, "draw share choice"]
    """`likeliest` without the random heads."""
    notes: tuple[str, ...] = ()
    """Layers without enough other heads, and too few different sets of them."""

    @property
    def n_heads(self) -> int:
        return len(self.heads)

    @property
    def n_draws(self) -> int:
        return len(self.control_heads)

    def right(self, by: By = "per_token") -> Bool[np.ndarray, "item"]:
        """Whether each item is right without the heads."""
        return find_right(self.log_probability, self.likeliest, self.whole.n_tokens, self.whole.answers, by=by)

    def control_right(self, by: By = "per_token") -> Bool[np.ndarray, "draw share"]:
        """Whether each item of a draw is right without its random heads."""
        found = [
            find_right(total, likeliest, self.whole.n_tokens[rows], self.whole.answers[rows], by=by)
            for rows, total, likeliest in zip(
                self.control_items, self.control_log_probability, self.control_likeliest, strict=True
            )
        ]
        return np.array(found)

    def accuracy(self, by: By = "per_token") -> tuple[float, float, float]:
        """(value, low, high) without the heads."""
        return self._estimate(self.right(by).astype(np.float64))

    def control_accuracy(self, by: By = "per_token") -> tuple[float, float, float]:
        """(value, low, high) without random heads: of each item the mean over its draws."""
        return self._estimate(self._control_mean(by))

    def control_losses(self, by: By = "per_token") -> Float[np.ndarray, "draw"]:
        """The share of its own items that each draw turns from right to wrong, less what it turns from wrong to right."""
        before = self.whole.right(by)[self.control_items]
        return (before.astype(np.float64) - self.control_right(by)).mean(axis=1)

    def beyond_control(self, by: By = "per_token") -> Float[np.ndarray, "item"]:
        """What the chosen heads cost beyond random ones, item by item; its mean is a share of the items."""
        return self._control_mean(by) - self.right(by)

    def lost_beyond_control(self, by: By = "per_token") -> tuple[float, float, float]:
        """(value, low, high) of `beyond_control`."""
        return self._estimate(self.beyond_control(by))

    def p_value(self, by: By = "per_token") -> float:
        """Share of draws that lose as much as the chosen heads do on the draw's items: at best 1 / (1 + n_draws)."""
        lost = self.whole.right(by).astype(np.float64) - self.right(by)  # [item]
        return permutation_p_value(0.0, self.control_losses(by) - lost[self.control_items].mean(axis=1))

    @property
    def depends(self) -> bool:
        """The interval of what is lost beyond control lies above 0 and p is at most 0.05, which takes 19 draws."""
        return bool(self.lost_beyond_control()[1] > 0 and self.p_value() <= SIGNIFICANT)

    def _control_mean(self, by: By) -> Float[np.ndarray, "item"]:
        total, count = np.zeros(len(self.whole.answers)), np.zeros(len(self.whole.answers))
        np.add.at(total, self.control_items, self.control_right(by))
        np.add.at(count, self.control_items, 1)
        return total / count

    def _estimate(self, values: Float[np.ndarray, "item"]) -> tuple[float, float, float]:
        low, high = bootstrap_interval(values, seed=self.whole.seed)
        return float(values.mean()), float(low), float(high)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class RankedRemoval:
    """Accuracy as more and more heads of a ranking are removed."""

    whole: ChoiceScores
    """The model with all its heads."""
    steps: tuple[RemovalStep, ...]
    """By number of heads."""
    seed: int
    """Seed of the draws and intervals."""

    def to_frame(self) -> pd.DataFrame:
        """One row a condition: n_heads, condition, accuracies with intervals, lost beyond control, p, n."""
        value, low, high = self.whole.accuracy()
        rows: list[dict[str, Any]] = [
            {"n_heads": 0, "condition": "whole model", "accuracy": value, "low": low, "high": high,
             **{by: self.whole.accuracy(by)[0] for by in ("sum", "generated")}}
        ]  # fmt: skip
        for step in self.steps:
            lost = dict(zip(("lost", "lost_low", "lost_high"), step.lost_beyond_control(), strict=True))
            for condition, estimate in (
                ("chosen heads removed", step.accuracy),
                ("random heads removed", step.control_accuracy),
            ):
                value, low, high = estimate()
                rows.append(
                    {"n_heads": step.n_heads, "condition": condition, "accuracy": value, "low": low, "high": high,
                     **{by: estimate(by)[0] for by in ("sum", "generated")},
                     **({**lost, "p": step.p_value()} if condition.startswith("chosen") else {})}
                )  # fmt: skip
        return pd.DataFrame(rows).assign(n=len(self.whole.answers))

    def figure(self, *, title: str = "") -> "Picture":
        """Accuracy against heads removed, with the band of the control's draws and chance."""
        from interp.figures.removal import RemovalPanel, removal_panels

        return removal_panels([RemovalPanel(**self.to_panel(title=title))], label="accuracy")

    def to_panel(self, *, title: str) -> dict[str, Any]:
        """The fields of a `RemovalPanel`: a draw's accuracy is the whole model's less what the draw loses."""
        whole = self.whole.accuracy()[0]
        values, low, high = np.array([self.whole.accuracy(), *(step.accuracy() for step in self.steps)]).T
        return {
            "title": title,
            "counts": np.array([0, *(step.n_heads for step in self.steps)]),
            "values": values,
            "low": low,
            "high": high,
            "draws": tuple(whole - step.control_losses() for step in self.steps),
            "control": np.array([step.control_accuracy()[0] for step in self.steps]),
            "chance": self.whole.chance,
        }

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        whole, last = self.whole.accuracy()[0], self.steps[-1]
        lost, low, high = last.lost_beyond_control()
        return (
            f"RankedRemoval({self.whole.provenance.model}: removing the {last.n_heads} first heads moves the accuracy from "
            f"{whole:.2f} to {last.accuracy()[0]:.2f}, random heads of the same layers to {last.control_accuracy()[0]:.2f}; "
            f"lost beyond them {lost:.2f} [{low:.2f}, {high:.2f}], p = {last.p_value():.3f}; chance {self.whole.chance:.2f}; "
            f"n={len(self.whole.answers)} items, {last.n_draws} draws)"
        )
