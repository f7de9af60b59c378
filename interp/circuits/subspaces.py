"""Do two heads meet in the same few directions? The subspace match of Song, Xu & Zhong (2024, arXiv:2408.09503).

With U_r the r strongest directions that a head writes to (right singular vectors of W_OV = W_V W_O) and V_r the r strongest
ones that another head's keys look at (right singular vectors of W_QK = W_Q W_K^T; for Q- and V-composition those of its
queries or values), both d_model x r and orthonormal,

    largest:  sigma_max(V_r^T U_r)                             cosine of the smallest angle between the two subspaces
    rms:      ||V_r^T U_r||_F / sqrt(r)                        root mean square of all r cosines

Random subspaces have rms sqrt(r / d_model); `interp.circuits.nulls` has the null of both. The match knows nothing of what
becomes of the directions outside of the meeting place: the diagonal score asks for that.

For each head once: QR of both factors, then singular vectors of the d_head x d_head core R_outer R_inner^T, in float64. No
Gram matrix is decomposed where small singular values count, which would square the condition number. Directions that a
head doesn't use (singular value 0 within rounding) match nothing. The result is the same every time; signs of singular
vectors and their order within a tie do not matter, but a subspace is only as certain as the gap after its r-th value.

>>> import torch
>>> same = torch.eye(6)[None, :, :2]  # one head, directions 0 and 1
>>> turned = torch.eye(6)[None, :, 1:3]  # directions 1 and 2
>>> match_bases(same, turned, score="largest").item(), round(match_bases(same, turned, score="rms").item(), 4)
(1.0, 0.7071)
"""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.composition import Circuit, Kind, reading_circuit, writing_circuit
from interp.circuits.factors import Distance, LayerFactors
from interp.errors import InputError

Match = Literal["largest", "rms"]


@torch.no_grad()
def match_subspaces(
    writer: LayerFactors,
    reader: LayerFactors,
    *,
    rank: int = 10,
    score: Match = "largest",
    kind: Kind = "K",
    distance: Distance = "none",
) -> Float[Tensor, "reader_head writer_head"]:
    """The match of every pair of heads of two layers, between 0 and 1.

    Raises `InputError` for a rank outside of 1 to d_head, an unknown score, and as `reading_circuit` does.
    """
    reading, writing = reading_circuit(reader, kind=kind, distance=distance), writing_circuit(writer)
    return match_bases(top_directions(reading, rank=rank), top_directions(writing, rank=rank), score=score)


@torch.no_grad()
def top_directions(circuit: Circuit, *, rank: int) -> Float[Tensor, "head d_model rank"]:
    """Orthonormal basis of each head's `rank` strongest directions on the inner side; unused ones are 0."""
    largest = min(circuit.inner.shape[1:])
    if not 1 <= rank <= largest:
        raise InputError(
            f"rank={rank} was given, but a head has 1 to {largest} directions (d_head): give a rank among them."
        )
    bases = []
    groups = (circuit.n_groups, -1)
    pairs = zip(circuit.summary.triangle.unflatten(0, groups), circuit.inner.unflatten(0, groups), strict=True)
    for triangle, inner in pairs:  # by key-value head, so that float64 copies stay small
        basis, inner_triangle = torch.linalg.qr(inner.double().mT)
        _, values, vectors = torch.linalg.svd(triangle.double() @ inner_triangle.mT, full_matrices=False)
        least = values[:, :1] * max(inner.shape[1:]) * torch.finfo(circuit.inner.dtype).eps
        used = (values > least)[:, None, :rank]  # [head of the group, 1, rank]
        bases.append((basis @ (vectors.mT[..., :rank] * used)).to(circuit.inner.dtype))
    return torch.cat(bases)


@torch.no_grad()
def match_bases(
    reading: Float[Tensor, "reader_head d_model rank"],
    writing: Float[Tensor, "writer_head d_model rank"],
    *,
    score: Match = "largest",
) -> Float[Tensor, "reader_head writer_head"]:
    """The match of every pair of orthonormal bases; one matrix product for all of them."""
    if score not in get_args(Match):
        raise InputError(f"score={score!r} isn't known; give 'largest' or 'rms'.")
    rank = reading.shape[-1]
    cosines = torch.einsum("idr,jds->ijrs", reading, writing).double()
    if score == "rms":
        return (cosines.square().sum((-2, -1)) / rank).sqrt()
    # Squares lose nothing of the largest singular value, and their matrix is symmetric, which is several times as fast.
    return torch.linalg.eigvalsh(cosines @ cosines.mT)[..., -1].clamp_min(0).sqrt()
