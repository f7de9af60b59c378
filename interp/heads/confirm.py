"""Does copying depend on these heads? Take them out and compare with random heads of the same layers.

On fresh sequences (other ones than the heads were chosen on) the model predicts the second copy of a random segment.
Its loss (nats) and accuracy are taken over the S - 1 positions of the second copy whose next token is known from the
first. Removing the heads gives an effect; removing as many other heads *of the same layers*, drawn anew `n_draws` times,
gives the control. Reported are the paired bootstrap interval over sequences of (chosen - mean control) and the one-sided
permutation p-value (1 + #{controls at least as large}) / (1 + n_draws). After Song, Xu & Zhong (arXiv 2408.09503),
whose random heads are drawn over all layers, among them layer 0, whose loss breaks everything.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=4, d_vocab=40, n_ctx=64, attn_only=True)
>>> scores = interp.score_heads(model, n_sequences=8, segment=10)
>>> interp.confirm_heads(model, scores, n_heads=2, n_draws=3).n_draws
3
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformer_lens import HookedTransformer

from interp.errors import InputError
from interp.heads.control import draw_control_heads
from interp.heads.definitions import Definition, Kind
from interp.heads.scores import HeadScores
from interp.interventions.ablate import AblationMode, Head, ablate_heads
from interp.models.batching import choose_batch_size, for_each_batch, split_evenly
from interp.models.forward import logits_at, run_until
from interp.models.provenance import Provenance, get_provenance
from interp.models.tokens import hash_tokens, usable_vocabulary
from interp.statistics import bootstrap_interval, permutation_p_value
from tasks.copying import repeated_tokens
from tasks.seeding import derive_generator, derive_seed

if TYPE_CHECKING:
    from interp.figures.style import Picture


SIGNIFICANT = 0.05


@dataclass(frozen=True, kw_only=True, eq=False)
class HeadConfirmation:
    """Loss (nats) and accuracy on the second copy: whole model, chosen heads removed, random heads removed."""

    heads: tuple[Head, ...]
    """The heads that were removed."""
    mode: AblationMode
    """How heads were removed."""
    loss: Float[np.ndarray, "sequence"]
    """Loss of the whole model."""
    accuracy: Float[np.ndarray, "sequence"]
    """Accuracy of the whole model."""
    ablated_loss: Float[np.ndarray, "sequence"]
    """Loss without the chosen heads."""
    ablated_accuracy: Float[np.ndarray, "sequence"]
    """Accuracy without the chosen heads."""
    control_heads: tuple[tuple[Head, ...], ...]
    """The random heads of each draw."""
    control_loss: Float[np.ndarray, "draw sequence"]
    """Loss without the random heads."""
    control_accuracy: Float[np.ndarray, "draw sequence"]
    """Accuracy without the random heads."""
    seed: int
    """Seed of the sequences and of the draws."""
    data_sha256: str
    """Hash of the token ids that were read."""
    provenance: Provenance
    """The model that was measured."""
    notes: tuple[str, ...] = ()
    """Layers without enough other heads, halved batches."""

    @property
    def n_draws(self) -> int:
        return len(self.control_heads)

    @property
    def loss_effect(self) -> float:
        """Rise of the loss when the chosen heads are removed, in nats."""
        return float((self.ablated_loss - self.loss).mean())

    @property
    def control_effects(self) -> Float[np.ndarray, "draw"]:
        """Rise of the loss in each control draw, in nats."""
        return (self.control_loss - self.loss).mean(axis=1)

    @property
    def difference(self) -> tuple[float, float, float]:
        """(value, low, high) of the chosen heads' rise in loss beyond the mean control's, in nats."""
        paired = self.ablated_loss - self.control_loss.mean(axis=0)  # [sequence]
        low, high = bootstrap_interval(paired, seed=self.seed)
        return float(paired.mean()), float(low), float(high)

    @property
    def p_value(self) -> float:
        """Share of draws, the chosen heads among them, that raise the loss as much: at best 1 / (1 + n_draws)."""
        return permutation_p_value(self.loss_effect, self.control_effects)

    @property
    def confirmed(self) -> bool:
        """The interval of the difference lies above 0 and p is at most 0.05, which takes at least 19 draws."""
        return bool(self.difference[1] > 0 and self.p_value <= SIGNIFICANT)

    def to_frame(self) -> pd.DataFrame:
        """One row a condition: loss and accuracy with intervals (over sequences; over draws for the mean control)."""
        rows = [
            ("whole model", -1, self.loss, self.accuracy),
            ("chosen heads removed", -1, self.ablated_loss, self.ablated_accuracy),
            ("random heads removed, mean", -1, self.control_loss.mean(1), self.control_accuracy.mean(1)),
        ]
        draws = zip(self.control_loss, self.control_accuracy, strict=True)
        rows += [("random heads removed", i, loss, accuracy) for i, (loss, accuracy) in enumerate(draws)]
        return pd.DataFrame([self._row(*row) for row in rows])

    def figure(self) -> "Picture":
        """Loss and accuracy of the whole model, without the chosen heads, and without each draw of random heads."""
        from interp.figures.ablation import Effect, ablation

        conditions = (
            ("loss on the second copy", "nats per token", self.loss, self.ablated_loss, self.control_loss.mean(1)),
            ("accuracy on the second copy", "", self.accuracy, self.ablated_accuracy, self.control_accuracy.mean(1)),
        )
        effects = [
            Effect(
                name=name,
                unit=unit,
                untouched=float(whole.mean()),
                removed=float(removed.mean()),
                removed_interval=self._interval(removed),
                random=draws,
                random_interval=self._interval(draws),
                limits=None if unit else (0.0, 1.0),
            )
            for name, unit, whole, removed, draws in conditions
        ]
        chosen = f"{len(self.heads)} strongest heads" if len(self.heads) > 1 else "strongest head"
        others = "random heads removed" if self.n_draws > 1 else "other choice removed"
        return ablation(effects, removed_label=f"{chosen} removed", random_label=others)

    def _interval(self, values: Float[np.ndarray, "sample"]) -> tuple[float, float] | None:
        low, high = bootstrap_interval(values, seed=self.seed)
        return None if np.isnan(low) else (float(low), float(high))

    def _row(self, condition: str, draw: int, loss: np.ndarray, accuracy: np.ndarray) -> dict[str, Any]:
        loss_low, loss_high = bootstrap_interval(loss, seed=self.seed)
        accuracy_low, accuracy_high = bootstrap_interval(accuracy, seed=self.seed)
        return {
            "condition": condition,
            "draw": draw,
            "loss": float(loss.mean()),
            "loss_low": float(loss_low),
            "loss_high": float(loss_high),
            "accuracy": float(accuracy.mean()),
            "accuracy_low": float(accuracy_low),
            "accuracy_high": float(accuracy_high),
            "n": len(loss),
        }

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        value, low, high = self.difference
        removed, draws = _count(len(self.heads), "head"), _count(self.n_draws, "draw")
        return (
            f"HeadConfirmation({self.provenance.model}: removing {removed} ({self.mode}) moves the loss on the second copy "
            f"from {self.loss.mean():.2f} to {self.ablated_loss.mean():.2f} nats, random heads of the same layers to "
            f"{self.control_loss.mean():.2f}; difference {value:.2f} [{low:.2f}, {high:.2f}], p = {self.p_value:.3f}; "
            f"n={len(self.loss)} sequences, {draws})"
        )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def confirm_heads(
    model: Any,
    scores: HeadScores,
    *,
    n_heads: int = 10,
    kind: Kind = "induction",
    definition: Definition | None = None,
    heads: Sequence[Head] | None = None,
    mode: AblationMode = "zero",
    n_draws: int = 20,
    n_sequences: int = 50,
    seed: int = 0,
) -> HeadConfirmation:
    """Remove the `n_heads` strongest heads of `scores` (or the given `heads`) and compare with random ones.

    Segment length and first token are those of `scores`. Random heads are never among the chosen ones; where a layer has
    too few others they come from the nearest layer that has, which `notes` says. A model with fewer distinct sets of
    random heads than `n_draws` gives as many draws as there are sets. Raises `InputError` where no control is possible.
    """
    chosen = tuple(heads) if heads is not None else tuple(scores.top(kind, n_heads, definition=definition))
    if not chosen or n_draws < 1:
        raise InputError(f"Give at least one head and one draw: {len(chosen)} heads and n_draws={n_draws} were given.")
    if mode == "resample" and n_sequences < 2:
        raise InputError("mode='resample' takes a head's output on other sequences; give n_sequences of at least 2.")
    controls, notes = draw_control_heads(model, chosen, n_draws=n_draws, seed=seed)
    geometry = scores.geometry
    tokens = repeated_tokens(
        n=n_sequences,
        segment=geometry.segment,
        copies=2,
        vocabulary=usable_vocabulary(model),
        bos=scores.bos,
        generator=derive_generator(seed, "confirm_heads"),
    )
    position = torch.arange(tokens.shape[1])
    second = geometry.offset + geometry.segment
    predicting = ((position >= second) & (position < tokens.shape[1] - 1)).expand(tokens.shape)
    measure = _Suffix(
        model, tokens, predicting, lowest=min(layer for head_set in (chosen, *controls) for layer, _ in head_set)
    )
    loss, accuracy = measure((), mode=mode, seed=seed)
    ablated_loss, ablated_accuracy = measure(chosen, mode=mode, seed=seed)
    drawn = [measure(control, mode=mode, seed=derive_seed(seed, "draw", i)) for i, control in enumerate(controls)]
    return HeadConfirmation(
        heads=chosen,
        mode=mode,
        loss=loss,
        accuracy=accuracy,
        ablated_loss=ablated_loss,
        ablated_accuracy=ablated_accuracy,
        control_heads=tuple(controls),
        control_loss=np.stack([losses for losses, _ in drawn]),
        control_accuracy=np.stack([accuracies for _, accuracies in drawn]),
        seed=seed,
        data_sha256=hash_tokens(tokens),
        provenance=get_provenance(model),
        notes=(*notes, *measure.notes),
    )


class _Suffix:
    """Loss and accuracy at the scored positions, recomputed from the lowest layer that any removal touches."""

    def __init__(
        self, model: Any, tokens: Int[Tensor, "sequence pos"], scored: Bool[Tensor, "sequence pos"], *, lowest: int
    ) -> None:
        self.model, self.tokens, self.scored, self.lowest = model, tokens, scored, lowest
        self.batch_size = split_evenly(len(tokens), at_most=min(choose_batch_size(model, tokens.shape[1]), 16))
        self.residual: dict[int, Tensor] = {}
        self.notes: list[str] = []

    def __call__(self, heads: Sequence[Head], *, mode: AblationMode, seed: int) -> tuple[np.ndarray, np.ndarray]:
        loss = np.zeros(len(self.tokens))
        accuracy = np.zeros(len(self.tokens))

        def run(rows: slice) -> None:
            loss[rows], accuracy[rows] = self._score(rows)

        with ablate_heads(self.model, heads, mode=mode, seed=seed):
            notes = for_each_batch(len(self.tokens), run, batch_size=self.batch_size)
        self.notes += [note for note in notes if note not in self.notes]
        return loss, accuracy

    @torch.inference_mode()
    def _score(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        device = self.model.cfg.device
        tokens, scored = self.tokens[rows].to(device), self.scored[rows].to(device)
        skips = isinstance(self.model, HookedTransformer)  # a bridge would recompute the earlier layers all the same
        start = (self.lowest, self._before(rows, tokens)) if skips else None
        logits = logits_at(self.model, tokens, scored, start=start).float()
        targets = tokens.roll(-1, dims=1)[scored]
        log_probability = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
        right = (logits.argmax(-1) == targets).float()
        return tuple((values.view(len(tokens), -1).mean(1).cpu().numpy()) for values in (-log_probability, right))  # type: ignore[return-value]

    def _before(self, rows: slice, tokens: Tensor) -> Tensor:
        """The residual stream before the lowest removed layer: the same for every removal, so computed once."""
        if rows.start not in self.residual or len(self.residual[rows.start]) != len(tokens):
            self.residual[rows.start] = run_until(self.model, tokens, f"blocks.{self.lowest}.hook_resid_pre")
        return self.residual[rows.start]
