"""The common bridge: the subspace of the residual stream in which a set of induction heads look for their keys.

The logit of query x and key y in head h is x W_QK[h] y^T with W_QK[h] = W_Q[h] W_K[h]^T [d_model, d_model], the query's
side first. With M the stack of the W_QK of all heads, one below the other, the bridge of rank r is the span of the top r
right singular vectors of M: those directions of the key's side that the heads together respond to most (Song, Xu & Zhong,
arXiv 2408.09503, "common bridge representation hypothesis").

No d_model x d_model matrix is made. With W_Q[h] = Q_h R_h, M and the stack of R_h W_K[h]^T have the same right singular
vectors, and so has the stack with one block for each key-value head that any of the heads uses: its rank is at most
d_head x distinct key-value heads, which is the cap of the bridge's rank. Everything is in float64.

>>> import interp
>>> model = interp.build(n_layers=2, d_model=16, n_heads=4, d_vocab=20, n_ctx=8, attn_only=True)
>>> find_bridge(model, [(1, 0), (1, 2)], rank=3)
Bridge(built: rank 3 of at most 8 (as given), which holds 76% of the energy of W_QK of 2 heads in layer 1)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.factors import Distance, Fold, LayerFactors, read_factors, rotate_keys
from interp.errors import InputError
from interp.interventions.select import Head, group_heads
from interp.models.provenance import Provenance, get_provenance

RankChoice = Literal["given", "energy", "cap"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Bridge:
    """An orthonormal basis of the common bridge, and the spectrum that it was cut from."""

    basis: Float[Tensor, "d_model rank"]
    """Orthonormal columns in float64 on the CPU, the strongest direction first; the first r of them are the bridge of rank r."""
    singular_values: Float[Tensor, "singular"]
    """All non-zero singular values of the stacked W_QK, largest first."""
    heads: tuple[Head, ...]
    """The heads whose W_QK were stacked."""
    key_value_heads: tuple[Head, ...]
    """The distinct (layer, key-value head) among them."""
    chosen_by: RankChoice
    """Whether the rank was given, chosen by energy, or the largest possible."""
    distance: Distance
    """Distance from query to key that the rotary positions were set to, `mean` over distances, or `none`."""
    fold: Fold
    """Whether the norm's gain and centring are part of W_Q and W_K."""
    provenance: Provenance
    """The model."""

    @property
    def rank(self) -> int:
        return self.basis.shape[1]

    @property
    def d_model(self) -> int:
        return self.basis.shape[0]

    @property
    def cap(self) -> int:
        """The largest rank there is: d_head x distinct key-value heads, less where the stack has fewer dimensions."""
        return len(self.singular_values)

    @property
    def energy(self) -> float:
        """Share of the squared singular values that the bridge holds."""
        squares = self.singular_values.square()
        return float(squares[: self.rank].sum() / squares.sum())

    def truncate(self, rank: int) -> "Bridge":
        """The bridge of a smaller rank."""
        if not 1 <= rank <= self.rank:
            raise InputError(
                f"A bridge of rank {self.rank} was asked for its first {rank} directions; it has 1 to {self.rank}."
            )
        return replace(self, basis=self.basis[:, :rank], chosen_by="given")

    def __repr__(self) -> str:
        how = {"given": "as given", "energy": "chosen by energy", "cap": "the cap"}[self.chosen_by]
        layers = sorted({layer for layer, _ in self.heads})
        where = f"layer {layers[0]}" if len(layers) == 1 else f"layers {', '.join(map(str, layers))}"
        heads = "1 head" if len(self.heads) == 1 else f"{len(self.heads)} heads"
        return (
            f"Bridge({self.provenance.model}: rank {self.rank} of at most {self.cap} ({how}), which holds "
            f"{self.energy:.0%} of the energy of W_QK of {heads} in {where})"
        )


def find_bridge(
    model: Any,
    induction_heads: Sequence[Head],
    *,
    rank: int | Literal["energy", "cap"] = "energy",
    energy: float = 0.9,
    distance: Distance = "none",
    fold: Fold = "norms",
) -> Bridge:
    """The common bridge of these heads: `rank` directions, as many as hold the share `energy`, or all there are.

    With `fold="norms"` the bridge lies in the residual stream itself, where other heads write; with `"none"` (as
    published) behind the gain of the norm that the heads read through. Rotary positions: see `rotate_keys`; a distance
    turns the keys' weights, which changes the order of the directions but not the span of all of them.

    Raises `InputError` for no head, a head that doesn't exist, a rank above the cap, an energy outside (0, 1], an
    encoder, and a distance asked of a model without rotary positions.
    """
    heads = check_heads(model, induction_heads)
    factors = {layer: read_factors(model, layer, fold=fold) for layer in sorted({layer for layer, _ in heads})}
    whole = fit_bridge(factors, heads, distance=distance, fold=fold, provenance=get_provenance(model))
    if rank == "cap":
        return whole
    if rank == "energy":
        if not 0 < energy <= 1:
            raise InputError(
                f"energy={energy} is no share of the squared singular values; give a number above 0, at most 1."
            )
        shares = whole.singular_values.square().cumsum(0) / whole.singular_values.square().sum()
        enough = int((shares < energy - 1e-12).sum()) + 1
        return replace(whole, basis=whole.basis[:, : min(enough, whole.cap)], chosen_by="energy")
    check_rank(rank, whole)
    return whole.truncate(rank)


def check_heads(model: Any, heads: Sequence[Head]) -> tuple[Head, ...]:
    """The heads in ascending order; raises `InputError` for none, and for one that doesn't exist."""
    if not heads:
        raise InputError(
            "No head was given; give at least one (layer, head) pair, such as those of `scores.top('induction', 10)`."
        )
    return tuple((layer, head) for layer, its_heads in group_heads(model, heads).items() for head in its_heads)


def check_rank(rank: int, whole: Bridge) -> None:
    """InputError for a rank that the heads don't have."""
    if rank < 1:
        raise InputError(f"rank={rank} is no rank of a bridge; give at least 1, 'energy' or 'cap'.")
    if rank > whole.cap:
        n = len(whole.key_value_heads)
        raise InputError(
            f"rank={rank} is above the cap: the stacked W_QK of these {len(whole.heads)} heads, with {n} distinct key-value "
            f"{'head' if n == 1 else 'heads'}, has rank {whole.cap}; give at most {whole.cap}, or 'cap'."
        )


def fit_bridge(
    factors: Mapping[int, LayerFactors],
    heads: Sequence[Head],
    *,
    distance: Distance,
    fold: Fold,
    provenance: Provenance,
) -> Bridge:
    """The bridge of the largest rank, from the factors of the heads' layers."""
    stack, key_value_heads = stack_heads(factors, heads, distance=distance)
    orthogonal, triangle = torch.linalg.qr(stack.T)  # [d_model, core], [core, row]
    left, strengths, _ = torch.linalg.svd(triangle, full_matrices=False)
    rounding = max(stack.shape) ** 0.5 * torch.finfo(torch.float32).eps  # of the factors, which are float32
    kept = int((strengths > rounding * strengths[0]).sum())
    if kept == 0:
        raise InputError("The W_QK of these heads are zero, so they have no bridge; give heads that read something.")
    return Bridge(
        basis=orthogonal @ left[:, :kept],
        singular_values=strengths[:kept],
        heads=tuple(heads),
        key_value_heads=key_value_heads,
        chosen_by="cap",
        distance=distance,
        fold=fold,
        provenance=provenance,
    )


def stack_heads(
    factors: Mapping[int, LayerFactors], heads: Sequence[Head], *, distance: Distance
) -> tuple[Float[Tensor, "row d_model"], tuple[Head, ...]]:
    """A matrix with the singular values and right singular vectors of the stacked W_QK, and its key-value heads.

    It has d_head rows for each key-value head.
    """
    sharing: dict[Head, list[int]] = {}
    for layer, head in heads:
        sharing.setdefault((layer, head // factors[layer].group), []).append(head)
    blocks = []
    for (layer, shared), query_heads in sharing.items():
        keys = rotate_keys(factors[layer], distance)[shared].detach().cpu().double()
        triangles = [
            torch.linalg.qr(factors[layer].W_Q[head].detach().cpu().double(), mode="r").R for head in query_heads
        ]
        blocks.append(torch.linalg.qr(torch.cat(triangles), mode="r").R @ keys.T)
    return torch.cat(blocks), tuple(sharing)
