"""What a model answers on a composite task: does it reason, use a symmetry, or remember?

From the accuracy on what was trained on, on trained pairs with keys kept for the test, and from whom it follows on the
pairs that were never trained (Zhang et al. 2024, arXiv 2405.05409; 2025, arXiv 2501.08537):

| behaviour | trained sequences | unseen keys | held-out pairs |
|---|---|---|---|
| `reasoning` | fitted | right | the composition of the two anchors' maps |
| `symmetric` | fitted | right | what was trained for the anchors in the other order |
| `memorising` | fitted | wrong | |
| `none` | | | anything else, such as a model that follows one rule half of the time |

>>> from interp.models.build import build
>>> from tasks.anchor.designs import altered_pair
>>> model = build(n_layers=1, d_model=8, n_heads=1, d_vocab=120, n_ctx=9, attn_only=True)
>>> measure_behaviour(model, altered_pair(), n=50).label
'none'
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from interp.models.batching import choose_batch_size, for_each_batch
from interp.models.forward import logits_at
from interp.solutions.circuits import check_fits
from interp.solutions.thresholds import Thresholds
from interp.statistics import bootstrap_interval
from tasks.anchor.composite import Composite
from tasks.anchor.scores import DeviationHistogram, commutativity, deviation_histogram
from tasks.task import Batch

if TYPE_CHECKING:
    from interp.figures.style import Picture

BehaviourLabel = Literal["reasoning", "symmetric", "memorising", "none"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Behaviour:
    """Who a model follows, sequence by sequence."""

    scores: Mapping[str, Float[np.ndarray, "sequence"]]
    """0 or 1 of each sequence. `train`, `id`, `altered`: the answer is the data's, on that split. On held-out pairs:
    `reasoning`, `symmetric` where it can be told from it, `other`, and `commutes`, the same answer in both orders."""
    deviations: DeviationHistogram
    """Prediction - key on held-out pairs, with the other pairs whose answer it is."""
    thresholds: Thresholds = field(default_factory=Thresholds)
    """What the label rests on."""
    seed: int = 0
    """Seed of the sequences and of the bootstrap."""

    @property
    def means(self) -> dict[str, float]:
        """Share of sequences, score by score."""
        return {name: float(values.mean()) for name, values in self.scores.items()}

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """(low, high), 95% bootstrap over sequences."""
        bounds = {name: bootstrap_interval(values, seed=self.seed) for name, values in self.scores.items()}
        return {name: (float(low), float(high)) for name, (low, high) in bounds.items()}

    @property
    def label(self) -> BehaviourLabel:
        """The behaviour by the means."""
        return choose_label(self.means, self.thresholds)

    @property
    def settled(self) -> bool:
        """Whether the label stays the same anywhere within the scores' intervals."""
        names = [name for name in ("train", "id", "reasoning", "symmetric") if name in self.scores]
        corners = product(*(self.intervals[name] for name in names))
        return {choose_label(dict(zip(names, corner, strict=True)), self.thresholds) for corner in corners} == {
            self.label
        }

    def to_frame(self) -> pd.DataFrame:
        """One row a score: `score`, `value`, `low`, `high`, `n`."""
        rows = [(name, self.means[name], *self.intervals[name], len(values)) for name, values in self.scores.items()]
        return pd.DataFrame(rows, columns=["score", "value", "low", "high", "n"])

    def figure(self) -> "Picture":
        """What is answered on held-out pairs instead: the commonest prediction - key, each with its meaning."""
        from interp.figures.solutions import deviations_picture

        return deviations_picture(self.deviations, title=f"Behaviour: {self.label}", seed=self.seed)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        told = ", ".join(f"{name} {mean:.2f}" for name, mean in self.means.items())
        unsettled = "" if self.settled else ", unsettled"
        return f"Behaviour({self.label}{unsettled}: {told}; n={len(self.scores['train'])} sequences a score)"


@torch.no_grad()
def measure_behaviour(
    model: Any, task: Composite, *, n: int = 1000, thresholds: Thresholds | None = None, seed: int = 0
) -> Behaviour:
    """Score `n` sequences of every split of `task`, and of its held-out pairs with their anchors swapped.

    Raises `InputError` for a task without held-out pairs or without keys that are kept for the test, where the solutions
    answer alike, and for a model too small for the task.
    """
    check_fits(model, task)
    missing = {"id", "held_out"} - set(task.splits)
    if missing:
        raise InputError(
            f"The task {task.name!r} has no {' and no '.join(sorted(missing))} split, on which the solutions differ; "
            "give a design such as altered_pair or dropped_pairs, with a modulus."
        )
    batches = {split: task.sample(n, split=split, seed=seed) for split in task.splits}
    logits = {split: last_logits(model, batch) for split, batch in batches.items()}
    scored = {split: task.score(logits[split], batch) for split, batch in batches.items()}
    held_out = scored.pop("held_out")
    held_out["commutes"] = commutativity(logits["held_out"], last_logits(model, task.swap(batches["held_out"])))
    scores = {split: values["accuracy"] for split, values in scored.items()}
    scores |= {name: values for name, values in held_out.items() if name != "accuracy"}
    return Behaviour(
        scores={name: values.double().cpu().numpy() for name, values in scores.items()},
        deviations=deviation_histogram(logits["held_out"], batches["held_out"], task.shifts),
        thresholds=thresholds or Thresholds(),
        seed=seed,
    )


def last_logits(model: Any, batch: Batch) -> Float[Tensor, "batch 1 d_vocab"]:
    """Logits at the scored position, the only one, on the CPU."""
    found: dict[int, Tensor] = {}
    device = model.cfg.device

    def run(rows: slice) -> None:
        found[rows.start] = logits_at(model, batch.tokens[rows].to(device), batch.scored[rows].to(device)).cpu()

    for_each_batch(len(batch.tokens), run, batch_size=choose_batch_size(model, batch.tokens.shape[1]))
    return torch.cat([found[start] for start in sorted(found)])[:, None]


def choose_label(means: Mapping[str, float], thresholds: Thresholds) -> BehaviourLabel:
    """The behaviour by the shares `train`, `id`, `reasoning` and, where it can be told from it, `symmetric`."""
    if means["train"] < thresholds.fitted:
        return "none"
    if means["id"] <= thresholds.remembers:
        return "memorising"
    if means["id"] < thresholds.generalises:
        return "none"
    reasoning, symmetric = means["reasoning"], means.get("symmetric", 0.0)
    if reasoning >= thresholds.reasons and symmetric <= thresholds.spares:
        return "reasoning"
    if symmetric >= thresholds.mirrors and reasoning <= thresholds.spares:
        return "symmetric"
    return "none"
