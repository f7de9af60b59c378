"""The subspaces that a sweep compares: the bridge, fitted in two ways, and four controls for it.

    own                   fitted on all induction heads, among them the ones whose keys are edited
    cross_fitted          for each edited layer fitted on the induction heads of the *other* layers: that a head loses the
                          directions it reads most strongly itself can't explain what follows
    random                a random (Haar) subspace of the same rank
    equal_energy_weights  random, of as many dimensions as hold the same share of the edited weights' squared norm
    equal_energy_stack    random, of as many dimensions as hold the same share of the stacked W_QK's squared norm
    other_heads           the bridge of as many heads of the same layers that aren't among the induction heads

Random subspaces are nested: that of rank r is the first r columns of one random orthonormal basis for each draw.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.bridge.edit import Side, read_weights
from interp.bridge.find import Bridge, fit_bridge, stack_heads
from interp.circuits.factors import Distance, Fold, read_factors
from interp.heads.control import draw_control_heads
from interp.interventions.select import Head
from interp.models.provenance import get_provenance
from tasks.seeding import derive_seed

Fit = Literal["cross_fitted", "own", "random", "equal_energy_weights", "equal_energy_stack", "other_heads"]
Control = Literal["random", "equal_energy_weights", "equal_energy_stack", "other_heads"]
CONTROLS: tuple[Control, ...] = ("random", "equal_energy_weights", "equal_energy_stack", "other_heads")

Bases = Mapping[int, Float[Tensor, "d_model _rank"]]
"""An orthonormal basis for each edited layer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Energy:
    """Share of a squared Frobenius norm that lies in a subspace."""

    weights: float
    """Of the edited weights, all layers together."""
    stack: float
    """Of the stacked W_QK of the induction heads."""


class Subspaces:
    """All subspaces of one sweep; nothing here runs the model, but for the probes of `read_factors`."""

    def __init__(
        self,
        model: Any,
        induction_heads: Sequence[Head],
        edited_heads: Sequence[Head],
        *,
        side: Side,
        distance: Distance,
        fold: Fold,
        n_draws: int,
        seed: int,
    ) -> None:
        self.d_model: int = model.cfg.d_model
        self.heads = tuple(induction_heads)
        self.layers = sorted({layer for layer, _ in edited_heads})
        self.seed = seed
        self.control_heads, self.notes = draw_control_heads(model, self.heads, n_draws=n_draws, seed=seed)
        read = {layer for heads in (self.heads, *self.control_heads) for layer, _ in heads}
        factors = {layer: read_factors(model, layer, fold=fold) for layer in sorted(read)}
        provenance = get_provenance(model)

        @cache
        def fit(heads: tuple[Head, ...]) -> Bridge:
            return fit_bridge(factors, heads, distance=distance, fold=fold, provenance=provenance)

        self._fit = fit
        self.own = fit(self.heads)
        self.weights = read_weights(model, edited_heads, side=side, fold=fold)
        self.stack, _ = stack_heads(factors, self.heads, distance=distance)
        others = [self._elsewhere(self.heads, layer) for layer in self.layers]
        self.can_cross_fit = all(others)
        self.is_cross_fitted = all(heads == self.heads for heads in others)

    @property
    def headline(self) -> Fit:
        """The fit that the controls are matched to: cross-fitted wherever heads of another layer exist."""
        return "cross_fitted" if self.can_cross_fit else "own"

    @property
    def cap(self) -> int:
        """The largest rank that every fit of the induction heads has."""
        if not self.can_cross_fit:
            return self.own.cap
        return min(self.own.cap, *(self._fit(self._elsewhere(self.heads, layer)).cap for layer in self.layers))

    def find(self, fit: Fit, rank: int, draw: int = 0) -> Bases:
        """The basis for each edited layer; `draw` counts the draws of a control from 0."""
        if fit == "own":
            return {layer: self.own.basis[:, :rank] for layer in self.layers}
        if fit in ("cross_fitted", "other_heads"):
            heads = self.heads if fit == "cross_fitted" else self.control_heads[draw]
            fitted_on = {layer: self._elsewhere(heads, layer) if self.can_cross_fit else heads for layer in self.layers}
            return {layer: self._fit(fitted_on[layer] or heads).basis[:, :rank] for layer in self.layers}
        if fit == "random":
            basis = self._draw(draw, rank)
        elif fit == "equal_energy_weights":
            target = self.measure_energy(self.find(self.headline, rank)).weights
            basis = self._match(torch.cat(list(self.weights.values()), dim=1), target, draw)
        else:
            target = self.measure_energy(self.find("own", rank)).stack
            basis = self._match(self.stack.T, target, draw)
        return {layer: basis for layer in self.layers}

    def measure_energy(self, bases: Bases) -> Energy:
        """What these bases hold; of the stack the mean over edited layers, where these have bases of their own."""
        inside = sum(float((bases[layer].T @ held).square().sum()) for layer, held in self.weights.items())
        total = sum(float(held.square().sum()) for held in self.weights.values())
        read = sum(float((self.stack @ basis).square().sum()) for basis in bases.values()) / len(bases)
        return Energy(weights=inside / total, stack=read / float(self.stack.square().sum()))

    def _elsewhere(self, heads: tuple[Head, ...], layer: int) -> tuple[Head, ...]:
        return tuple(head for head in heads if head[0] != layer)

    def _match(self, held: Float[Tensor, "d_model column"], target: float, draw: int) -> Float[Tensor, "d_model rank"]:
        """So many directions of the draw's random basis that their share of `held` is nearest to `target`."""
        n_columns = min(self.d_model, int(1.2 * target * self.d_model) + 32)
        while True:
            basis = self._draw(draw, n_columns)
            shares = (basis.T @ held).square().sum(1).cumsum(0) / held.square().sum()
            if shares[-1] >= target or n_columns == self.d_model:
                return basis[:, : int((shares - target).abs().argmin()) + 1]
            n_columns = min(self.d_model, 2 * n_columns)

    def _draw(self, draw: int, n_columns: int) -> Float[Tensor, "d_model column"]:
        """The first directions of a random orthonormal basis, by QR of a Gaussian matrix drawn column by column."""
        # NumPy's stream begins alike whatever its length; PyTorch's numbers depend on how many are drawn.
        generator = np.random.default_rng(derive_seed(self.seed, "random subspace", draw))
        return torch.linalg.qr(torch.from_numpy(generator.standard_normal((n_columns, self.d_model))).T).Q
