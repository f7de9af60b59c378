"""How likely a model finds each choice of a multiple-choice item, and how often it finds the right one likeliest.

With t_1 ... t_m the tokens of a choice behind prompt x,

    sum        L = sum_i log p(t_i | x, t_1 ... t_{i-1})
    per token  L / m

Choices are compared `per_token`; the `sum` (as published by Song, Xu & Zhong, arXiv 2408.09503) favours short ones. By the
third measure, `generated`, the answer is what greedy decoding writes: each of its tokens is the likeliest of all. A tie
is not right. A task is `informative` where the 95% interval of the accuracy per token lies above chance.

>>> import interp
>>> from tasks.prompts.rules import ChoiceItem
>>> model = interp.build(n_layers=1, d_model=8, n_heads=1, d_vocab=5, n_ctx=8, seed=0)
>>> item = ChoiceItem(tokens=(1, 2, 3), choices=((4,), (0, 1)), answer=0, text="", choice_texts=("", ""))
>>> scores = score_choices(model, [item])
>>> scores.log_probability.shape, scores.n_tokens.tolist(), scores.chance
((1, 2), [[1, 2]], 0.5)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from interp.errors import InputError
from interp.models.provenance import Provenance, get_provenance
from interp.prompts.runs import ChoiceRuns
from interp.statistics import bootstrap_interval
from tasks.prompts.rules import ChoiceItem

By = Literal["per_token", "sum", "generated"]
"""Which choice counts as the model's: the likeliest by mean or by summed log-probability, or what greedy decoding writes."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ChoiceScores:
    """What a model makes of multiple-choice items, item by item."""

    log_probability: Float[np.ndarray, "item choice"]
    """Of all tokens of the choice together, in nats."""
    n_tokens: Int[np.ndarray, "item choice"]
    """Tokens of each choice."""
    likeliest: Bool[np.ndarray, "item choice"]
    """Whether each token of the choice is the likeliest of all: greedy decoding writes this choice."""
    answers: Int[np.ndarray, "item"]
    """The right choice."""
    seed: int
    """Seed of the intervals."""
    provenance: Provenance
    """The model that was asked."""

    @property
    def chance(self) -> float:
        """How often a guess among the choices is right."""
        return 1 / self.n_tokens.shape[1]

    @property
    def informative(self) -> bool:
        """The 95% interval of the accuracy per token lies above chance."""
        return bool(self.accuracy()[1] > self.chance)

    def right(self, by: By = "per_token") -> Bool[np.ndarray, "item"]:
        """Whether the right choice is the model's."""
        return find_right(self.log_probability, self.likeliest, self.n_tokens, self.answers, by=by)

    def accuracy(self, by: By = "per_token") -> tuple[float, float, float]:
        """(value, low, high) with the 95% bootstrap interval over items."""
        right = self.right(by).astype(np.float64)
        low, high = bootstrap_interval(right, seed=self.seed)
        return float(right.mean()), float(low), float(high)

    def to_frame(self) -> pd.DataFrame:
        """One row a choice: item, choice, answer, n_tokens, log_probability, per_token, likeliest."""
        n_items, n_choices = self.n_tokens.shape
        item, choice = np.divmod(np.arange(n_items * n_choices), n_choices)
        total, n_tokens = self.log_probability.ravel(), self.n_tokens.ravel()
        columns: dict[str, Any] = {
            "item": item,
            "choice": choice,
            "answer": choice == self.answers[item],
            "n_tokens": n_tokens,
            "log_probability": total,
            "per_token": total / n_tokens,
            "likeliest": self.likeliest.ravel(),
        }
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        value, low, high = self.accuracy()
        verdict = "" if self.informative else ", not above it"
        return (
            f"ChoiceScores({self.provenance.model}: accuracy {value:.2f} [{low:.2f}, {high:.2f}] per token, "
            f"{self.accuracy('sum')[0]:.2f} by the sum, {self.accuracy('generated')[0]:.2f} generated; "
            f"chance {self.chance:.2f}{verdict}; n={len(self.answers)} items)"
        )


def score_choices(model: Any, items: Sequence[ChoiceItem], *, seed: int = 0) -> ChoiceScores:
    """Score every choice of every item by a HookedTransformer or TransformerBridge.

    The items have equally many choices, and are cut with the model's own tokenizer. Raises `InputError` for no item,
    different numbers of choices, and items longer than the model's context or with ids that it doesn't have.
    """
    log_probability, likeliest = ChoiceRuns(model, items).run()
    return ChoiceScores(
        log_probability=log_probability,
        likeliest=likeliest,
        n_tokens=count_tokens(items),
        answers=np.array([item.answer for item in items]),
        seed=seed,
        provenance=get_provenance(model),
    )


def count_tokens(items: Sequence[ChoiceItem]) -> Int[np.ndarray, "item choice"]:
    """How many tokens each choice has."""
    return np.array([[len(choice) for choice in item.choices] for item in items])


def find_right(
    log_probability: Float[np.ndarray, "*condition item choice"],
    likeliest: Bool[np.ndarray, "*condition item choice"],
    n_tokens: Int[np.ndarray, "item choice"],
    answers: Int[np.ndarray, "item"],
    *,
    by: By,
) -> Bool[np.ndarray, "*condition item"]:
    """Whether the answer is strictly likelier than every other choice, or is generated."""
    if by not in get_args(By):
        raise InputError(f"by={by!r} isn't known; use one of {', '.join(get_args(By))}.")
    items = np.arange(len(answers))
    if by == "generated":
        return likeliest[..., items, answers]
    values = log_probability / n_tokens if by == "per_token" else log_probability.copy()
    answer = values[..., items, answers]
    values[..., items, answers] = -np.inf
    return answer > values.max(axis=-1)
