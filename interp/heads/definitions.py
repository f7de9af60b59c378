"""What each head score measures: index arithmetic on attention patterns over repeated random tokens.

A sequence is `copies` copies of one segment of S random tokens, behind an optional first token (BOS). A[i, j] is the
attention of query i to key j; o is the position of the segment's first token (1 with a BOS, else 0).

- previous token: A[i, i-1], for i from 2. (Position 1 has only one earlier key, position 0 none.)
- duplicate token: A[i, i-S], for i in the later copies: the same token, one copy earlier.
- induction: A[i, i-S+1], for i in the later copies: the token after it.

each by

- `raw`: the attention itself. Maximum 1.
- `sink_removed` (Song, Xu & Zhong, arXiv 2408.09503, `prep.py`): A[i, j] / Σ_{j'≥1} (A[i, j'] + 1e-6). Position 0, on
  which attention rests when a head has nothing to do, is taken out and the rest renormalised. Maximum 1 - 1e-6 (T - 1);
  a head with 99% of its attention on position 0 and 1% on the target scores about 1: read it beside `raw`.
- `prefix_matching` (Olsson et al. 2022, arXiv 2209.11895): the sum over *all* earlier copies, which equals `raw` with
  two copies. Maximum 1. Not defined for the previous token, which has one place.

The published windows are kept except for one row: with a BOS the reference begins a row early, at the last token of the
first copy, so that its maximum is S/(S+1). Here every counted row has its target, so a perfect head scores 1.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

Kind = Literal["induction", "previous_token", "duplicate_token", "copying"]
Definition = Literal["raw", "sink_removed", "prefix_matching", "value_share"]

DEFINITIONS: dict[str, tuple[str, ...]] = {
    "induction": ("raw", "sink_removed", "prefix_matching"),
    "previous_token": ("raw", "sink_removed"),
    "duplicate_token": ("raw", "sink_removed", "prefix_matching"),
    "copying": ("value_share",),
}
"""The definitions of each kind; the first one is what a kind means when no definition is named."""

_SINK_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True, slots=True)
class Geometry:
    """Where the copies lie in a sequence."""

    offset: int
    """Position of the first token of the first copy: 1 behind a BOS, else 0."""
    segment: int
    """Tokens in one copy."""
    copies: int
    """Number of copies."""

    @property
    def n_positions(self) -> int:
        return self.offset + self.segment * self.copies

    @property
    def later_copies(self) -> Int[Tensor, "query"]:
        """Positions of every copy but the first."""
        return torch.arange(self.offset + self.segment, self.n_positions)


def score_pattern(
    pattern: Float[Tensor, "batch head_index query_pos key_pos"], geometry: Geometry
) -> dict[str, Float[Tensor, "batch head_index"]]:
    """Every attention score of one layer, keyed "kind/definition", averaged over the positions that count."""
    later = geometry.later_copies.to(pattern.device)
    every = torch.arange(2, geometry.n_positions, device=pattern.device)
    n_keys = pattern.shape[-1] - 1
    without_sink = pattern[..., 1:].sum(-1) + n_keys * _SINK_EPSILON  # [batch head query]
    targets = {
        "induction": (later, later - geometry.segment + 1),
        "previous_token": (every, every - 1),
        "duplicate_token": (later, later - geometry.segment),
    }
    scores = {}
    for kind, (queries, keys) in targets.items():
        attention = pattern[:, :, queries, keys]  # [batch head query]
        scores[f"{kind}/raw"] = attention.mean(-1)
        counted = keys >= 1  # a target on position 0 is the sink itself
        renormalised = attention / without_sink[:, :, queries]
        scores[f"{kind}/sink_removed"] = (renormalised * counted).sum(-1) / counted.sum()
        if "prefix_matching" in DEFINITIONS[kind]:
            scores[f"{kind}/prefix_matching"] = _all_copies(pattern, queries, keys, geometry).mean(-1)
    return scores


def _all_copies(
    pattern: Float[Tensor, "batch head_index query_pos key_pos"],
    queries: Int[Tensor, "query"],
    keys: Int[Tensor, "query"],
    geometry: Geometry,
) -> Float[Tensor, "batch head_index query"]:
    """Attention to `keys`, which lie one copy back, and to the same place of every copy before."""
    total = torch.zeros_like(pattern[:, :, queries, 0])
    for copies_back in range(1, geometry.copies):
        exists = queries - copies_back * geometry.segment >= geometry.offset
        earlier = keys - (copies_back - 1) * geometry.segment
        total += pattern[:, :, queries, earlier.clamp(min=0)] * exists
    return total


def score_values(
    values: Float[Tensor, "batch pos head_index d_head"],
    output_weights: Float[Tensor, "head_index d_head d_model"],
    directions: Float[Tensor, "batch d_model pos"],
) -> Float[Tensor, "batch head_index"]:
    """The copying score `value_share`: does what the head reads at a token raise that token's own logit?

    After Olsson et al. 2022 (copying score), with attention factored out. `values` are the head's values at the tokens
    of one segment, `directions` the unembedding columns of those tokens behind the final norm's gain (in a post-norm
    model, the gains of all norms that what the head writes passes). The logits
    v_j W_O W_U over the segment's tokens are centred and rectified; the token's own share s of what remains is rescaled
    to (s - 1/S) / (1 - 1/S): 1 where only the token itself is raised, 0 at chance, at worst -1/(S - 1).
    """
    written = torch.einsum("bphd,hdm->bhpm", values, output_weights)  # [batch head source d_model]
    logits = torch.einsum("bhpm,bmt->bhpt", written, directions)  # [batch head source token]
    raised = (logits - logits.mean(-1, keepdim=True)).relu()
    total = raised.sum(-1)
    own = raised.diagonal(dim1=-2, dim2=-1)
    chance = 1 / logits.shape[-1]
    share = torch.where(total > 0, own / total.clamp(min=torch.finfo(total.dtype).tiny), chance)
    return ((share - chance) / (1 - chance)).mean(-1)
