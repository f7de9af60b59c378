"""Where the bridge lies in the embedding's spectrum.

The right singular vectors u_1, u_2, ... of W_E [d_vocab, d_model] are directions of the residual stream, by how much the
tokens differ along them. The share of u_i in the bridge V is ||V^T u_i||^2; the shares sum to the rank, and each is rank /
d_model by chance. Three bands: `top` is u_1, `medium` the directions after it that hold most of what is left of the energy,
`bottom` the rest. In the model of Song, Xu & Zhong (arXiv 2408.09503) with one large singular value, about 35 medium ones and
small others, the bridge avoids the medium part, which holds the tokens' identities, and lies in the top and the bottom one.

>>> import interp
>>> from interp.bridge.find import find_bridge
>>> model = interp.build(n_layers=1, d_model=16, n_heads=2, d_vocab=40, n_ctx=8, attn_only=True)
>>> compare_with_embedding(model, find_bridge(model, [(0, 0)], rank=4)).to_frame().band.tolist()
['top', 'medium', 'bottom']
"""

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from interp.bridge.find import Bridge
from interp.bridge.overlap import draw_overlaps
from interp.errors import InputError
from interp.statistics import permutation_p_value


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class EmbeddingOverlap:
    """How much of the bridge lies in each band of the embedding's spectrum."""

    shares: Float[np.ndarray, "direction"]
    """||V^T u_i||^2 of each right singular vector of W_E, strongest first; they sum to the rank where W_E has full rank."""
    singular_values: Float[np.ndarray, "direction"]
    """Of W_E, largest first."""
    bands: dict[str, slice]
    """The directions of `top`, `medium` and `bottom`."""
    rank: int
    """Of the bridge."""
    d_model: int
    """Dimensions of the residual stream."""
    null_draws: dict[str, Float[np.ndarray, "draw"]]
    """Overlap of each band with random subspaces of the bridge's rank."""

    def overlap(self, band: str) -> float:
        """Mean squared cosine between the bridge and a band."""
        span = self.shares[self.bands[band]]
        return float(span.sum() / min(self.rank, len(span)))

    def null(self, band: str) -> float:
        """Its expectation for a random subspace."""
        return max(self.rank, len(self.shares[self.bands[band]])) / self.d_model

    def to_frame(self) -> pd.DataFrame:
        """One row a band: directions, `overlap`, `null` with the central 95% of draws, and p-values for less and for more."""
        rows = []
        for band, span in self.bands.items():
            draws, overlap = self.null_draws[band], self.overlap(band)
            low, high = np.quantile(draws, [0.025, 0.975])
            rows.append(
                {
                    "band": band,
                    "first": span.start + 1,
                    "last": span.stop,
                    "overlap": overlap,
                    "null": self.null(band),
                    "null_low": low,
                    "null_high": high,
                    "p_less": permutation_p_value(-overlap, -draws),
                    "p_more": permutation_p_value(overlap, draws),
                    "n_draws": len(draws),
                }
            )
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return f"<p><code>{escape(repr(self))}</code></p>{self.to_frame().to_html(index=False)}"

    def __repr__(self) -> str:
        parts = []
        for band, span in self.bands.items():
            where = (
                f"direction {span.stop}"
                if span.stop - span.start == 1
                else f"directions {span.start + 1} to {span.stop}"
            )
            parts.append(f"{band} ({where}) {self.overlap(band):.2f}, by chance {self.null(band):.2f}")
        return f"EmbeddingOverlap(bridge of rank {self.rank} with the embedding's {'; '.join(parts)})"


def compare_with_embedding(
    model: Any, bridge: Bridge, *, medium_energy: float = 0.9, n_draws: int = 200, seed: int = 0
) -> EmbeddingOverlap:
    """Overlap of the bridge with the top, medium and bottom of W_E's spectrum.

    `medium_energy` is the share of the squared singular values after the first that the medium part holds. Raises
    `InputError` for a bridge of another width, or one in the coordinates behind a norm's gain (`fold="none"`).
    """
    d_model = model.cfg.d_model
    if bridge.d_model != d_model:
        raise InputError(
            f"The bridge lies in {bridge.d_model} dimensions, but this model's embedding has {d_model}; give the model that it "
            "was found in."
        )
    if bridge.fold == "none" and model.cfg.normalization_type is not None:
        raise InputError(
            "The bridge was found with fold='none', behind the norm's gain, where no token is embedded; find it with "
            "fold='norms'."
        )
    if not 0 < medium_energy < 1:
        raise InputError(f"medium_energy={medium_energy} is no share of the energy; give a number between 0 and 1.")
    triangle = torch.linalg.qr(model.W_E.detach().cpu().double(), mode="r").R
    _, strengths, directions = torch.linalg.svd(triangle, full_matrices=False)  # directions: [direction, d_model]
    shares = (directions @ bridge.basis).square().sum(1)
    after = strengths[1:].square().cumsum(0)
    medium = 1 + int((after < medium_energy * after[-1]).sum()) + 1 if len(after) else 1
    medium = min(medium, len(strengths) - 1) if len(strengths) > 2 else len(strengths)
    edges = {"top": slice(0, 1), "medium": slice(1, medium), "bottom": slice(medium, len(strengths))}
    bands = {name: span for name, span in edges.items() if span.stop > span.start}
    return EmbeddingOverlap(
        shares=shares.numpy(),
        singular_values=strengths.numpy(),
        bands=bands,
        rank=bridge.rank,
        d_model=d_model,
        null_draws={
            name: draw_overlaps(d_model, (bridge.rank, span.stop - span.start), n_draws=n_draws, seed=seed)
            for name, span in bands.items()
        },
    )
