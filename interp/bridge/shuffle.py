"""Are the heads interchangeable? Give each head the keys and queries of another one of the set, and see whether copying survives.

If the heads compose through one common subspace, each must be able to take another one's place. `QK` moves W_Q, W_K and their
biases among the induction heads, `OV` moves W_V, W_O and b_V among the previous-token heads, by a random permutation without
fixed points (Song, Xu & Zhong, arXiv 2408.09503, shuffle experiment, which allows fixed points). In the control each place gets
a head from outside the set, of the same layer as the head that the permutation would have put there.

>>> import interp
>>> model = interp.build(n_layers=3, d_model=16, n_heads=4, d_vocab=40, n_ctx=32, attn_only=True)
>>> shuffle_heads(model, [(1, 0), (2, 3)], side="QK", n_repetitions=2, n_sequences=4, segment=8).permutations
(((2, 3), (1, 0)),)
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.bridge.copies import draw_copies
from interp.bridge.edit import Side, require_editable, swap_weights
from interp.bridge.find import check_heads
from interp.bridge.move import move_heads
from interp.bridge.score import Scorer
from interp.circuits.factors import Fold
from interp.errors import InputError
from interp.heads.control import draw_control_heads
from interp.interventions.select import Head
from interp.models.provenance import Provenance, get_provenance
from interp.models.tokens import Bos, resolve_bos
from interp.statistics import bootstrap_interval, permutation_p_value
from tasks.seeding import derive_generator

if TYPE_CHECKING:
    from interp.figures.style import Picture


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeadShuffle:
    """Errors of copying: whole model, heads shuffled among themselves, other heads in their places."""

    side: Side
    """Which weights moved."""
    heads: tuple[Head, ...]
    """The places."""
    permutations: tuple[tuple[Head, ...], ...]
    """For each repetition the head whose weights each place got."""
    control_heads: tuple[tuple[Head, ...], ...]
    """For each draw of the control the other head whose weights each place got."""
    error: Float[np.ndarray, "sequence"]
    """Of the untouched model."""
    shuffled_error: Float[np.ndarray, "repetition sequence"]
    """With the heads shuffled."""
    control_error: Float[np.ndarray, "draw sequence"]
    """With other heads in their places."""
    probability: Float[np.ndarray, "sequence"]
    """Probability of the right token, untouched."""
    shuffled_probability: Float[np.ndarray, "repetition sequence"]
    """With the heads shuffled."""
    control_probability: Float[np.ndarray, "draw sequence"]
    """With other heads in their places."""
    seed: int
    """Seed of sequences, permutations and draws."""
    provenance: Provenance
    """The model."""
    notes: tuple[str, ...] = ()
    """Layers without enough other heads; fewer permutations than were asked for."""

    @property
    def difference(self) -> tuple[float, float, float]:
        """(value, low, high): how much more error other heads cause than a shuffle, paired over sequences."""
        paired = self.control_error.mean(axis=0) - self.shuffled_error.mean(axis=0)
        low, high = bootstrap_interval(paired, seed=self.seed)
        return float(paired.mean()), float(low), float(high)

    @property
    def p_value(self) -> float:
        """Share of control draws, the mean shuffle among them, with as little error."""
        return permutation_p_value(-float(self.shuffled_error.mean()), -self.control_error.mean(axis=1))

    def to_frame(self) -> pd.DataFrame:
        """One row a condition: error and probability with intervals over sequences, mean and every draw."""
        shuffled = zip(self.shuffled_error, self.shuffled_probability, strict=True)
        others = zip(self.control_error, self.control_probability, strict=True)
        rows = [("untouched", -1, self.error, self.probability)]
        rows += [("shuffled", i, error, probability) for i, (error, probability) in enumerate(shuffled)]
        rows += [("other heads", i, error, probability) for i, (error, probability) in enumerate(others)]
        frame = []
        for condition, draw, error, probability in rows:
            row: dict[str, Any] = {"condition": condition, "draw": draw}
            for name, values in (("error", error), ("probability", probability)):
                low, high = bootstrap_interval(values, seed=self.seed)
                row |= {name: float(values.mean()), f"{name}_low": float(low), f"{name}_high": float(high)}
            frame.append({**row, "n": len(error)})
        return pd.DataFrame(frame)

    def figure(self) -> "Picture":
        """Error and probability of the untouched model, shuffled, and with each draw of other heads."""
        from interp.figures.ablation import Effect, ablation

        conditions = (
            ("error of copying", self.error, self.shuffled_error, self.control_error),
            ("probability of the right token", self.probability, self.shuffled_probability, self.control_probability),
        )
        effects = []
        for name, whole, shuffled, control in conditions:
            low, high = bootstrap_interval(shuffled.mean(axis=0), seed=self.seed)
            effects.append(
                Effect(
                    name=name,
                    untouched=float(whole.mean()),
                    removed=float(shuffled.mean()),
                    removed_interval=(float(low), float(high)),
                    random=control.mean(axis=1),
                    limits=(0.0, 1.0),
                )
            )
        return ablation(effects, removed_label="shuffled among themselves", random_label="others in their places")

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.figure()._repr_html_()}"

    def __repr__(self) -> str:
        value, low, high = self.difference
        what = "queries and keys" if self.side == "QK" else "values and outputs"
        return (
            f"HeadShuffle({self.provenance.model}: shuffling the {what} of {len(self.heads)} heads moves the error of "
            f"copying from {self.error.mean():.2f} to {self.shuffled_error.mean():.2f} ({len(self.permutations)} "
            f"permutations), other heads of the same layers in their places to {self.control_error.mean():.2f} "
            f"({len(self.control_heads)} draws); difference {value:.2f} [{low:.2f}, {high:.2f}], p = {self.p_value:.3f}; "
            f"n={len(self.error)} sequences)"
        )


def shuffle_heads(
    model: Any,
    heads: Sequence[Head],
    *,
    side: Side,
    n_repetitions: int = 20,
    n_sequences: int = 16,
    segment: int = 25,
    bos: Bos = "auto",
    fold: Fold = "norms",
    seed: int = 0,
) -> HeadShuffle:
    """Shuffle `heads` among themselves and put others in their places, `n_repetitions` times each, on the same sequences.

    A set of two heads has one permutation without fixed points, so it is run once. Raises `InputError` for fewer than two
    heads, a head that doesn't exist, a model with too few other heads, and one whose weights can't be exchanged.
    """
    places = check_heads(model, heads)
    if len(places) < 2:
        raise InputError(f"{len(places)} head was given, but heads are shuffled among themselves; give at least two.")
    if n_repetitions < 1:
        raise InputError(f"n_repetitions={n_repetitions} was given; give at least 1.")
    require_editable(model, places, side=side, shared_keys="copied")
    first = resolve_bos(model, bos)
    tokens, scored = draw_copies(model, n_sequences=n_sequences, segment=segment, bos=first, seed=seed)
    permutations, notes = _draw_permutations(places, n_repetitions, seed)
    drawn, borrowed = draw_control_heads(model, places, n_draws=n_repetitions, seed=seed)
    controls = [_arrange(others, permutations[i % len(permutations)]) for i, others in enumerate(drawn)]
    scorer = Scorer(model, tokens, scored, lowest=min(layer for layer, _ in places))
    untouched = scorer.measure()
    errors, probabilities = [], []
    for sources in (*permutations, *controls):
        with swap_weights(model, move_heads(model, places, sources, side=side, fold=fold)):
            scores = scorer.measure()
        errors.append(scores.error)
        probabilities.append(scores.probability)
    n = len(permutations)
    return HeadShuffle(
        side=side,
        heads=places,
        permutations=tuple(permutations),
        control_heads=tuple(controls),
        error=untouched.error,
        shuffled_error=np.stack(errors[:n]),
        control_error=np.stack(errors[n:]),
        probability=untouched.probability,
        shuffled_probability=np.stack(probabilities[:n]),
        control_probability=np.stack(probabilities[n:]),
        seed=seed,
        provenance=get_provenance(model),
        notes=(*notes, *borrowed, *scorer.notes),
    )


def _draw_permutations(
    places: Sequence[Head], n_repetitions: int, seed: int
) -> tuple[list[tuple[Head, ...]], tuple[str, ...]]:
    """Distinct permutations without fixed points, as many as there are and were asked for."""
    n = len(places)
    n_different = round(math.factorial(n) / math.e)
    generator = derive_generator(seed, "shuffled heads")
    found: dict[tuple[int, ...], None] = {}
    while len(found) < min(n_repetitions, n_different):
        order = torch.randperm(n, generator=generator).tolist()
        if all(place != i for i, place in enumerate(order)):
            found[tuple(order)] = None
    notes: tuple[str, ...] = ()
    if n_different < n_repetitions:
        notes = (
            f"only {n_different} {'permutation' if n_different == 1 else 'permutations'} without fixed points exist",
        )
    return [tuple(places[i] for i in order) for order in found], notes


def _arrange(others: Sequence[Head], wanted: Sequence[Head]) -> tuple[Head, ...]:
    """The other heads in such an order that each comes from the layer of the wanted one, as far as they do."""
    left = list(others)
    arranged: list[Head] = []
    for layer, _ in wanted:
        head = min(left, key=lambda one: (abs(one[0] - layer), one))
        left.remove(head)
        arranged.append(head)
    return tuple(arranged)
