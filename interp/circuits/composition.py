"""How much of what one head writes does another head read, through its queries, keys or values?

With row vectors x and factors [d_model, d_head], a head reads values through W_V and writes through W_O, W_OV = W_V W_O,
and compares a query x with a key y by x W_QK y^T, W_QK = W_Q W_K^T (x W is TransformerLens's convention; the paper's
matrices act on columns, so its W_OV is the transpose of this one). Elhage et al. 2021, A Mathematical Framework for
Transformer Circuits (https://transformer-circuits.pub/2021/framework), "composition scores" of a writer 1 and a reader 2:

    Q:  ||W_OV,1 W_QK,2||_F    / (||W_OV,1||_F ||W_QK,2||_F)      the writer feeds the reader's queries
    K:  ||W_QK,2 W_OV,1^T||_F  / (||W_QK,2||_F ||W_OV,1||_F)      its keys
    V:  ||W_OV,1 W_OV,2||_F    / (||W_OV,1||_F ||W_OV,2||_F)      its values

Each of the three is W = outer_2^T inner_2 inner_1^T outer_1: the inner factors of both heads face each other across the
residual stream. So with QR of the outer factors, outer^T = Q R,

    ||W||_F = ||R_2 (inner_2 inner_1^T) R_1^T||_F

which takes d_head x d_head matrices alone, from one matrix product for all pairs of heads of two layers. Where query
heads share keys and values, the shared side is multiplied once. Products run in the factors' precision, at least
float32; their squares are added up in float64.

>>> import interp, torch
>>> from dataclasses import replace
>>> from interp.circuits.factors import read_factors
>>> model = interp.build(n_layers=2, d_model=8, n_heads=1, d_head=4, d_vocab=5, n_ctx=4, attn_only=True)
>>> low, high = torch.eye(8)[None, :, :4], torch.eye(8)[None, :, 4:]
>>> writer = replace(read_factors(model, 0), W_V=low, W_O=high.mT)  # moves directions 0..3 to 4..7
>>> reader = replace(read_factors(model, 1), W_Q=low, W_K=high, W_V=low)  # its keys look at 4..7
>>> [round(composition_scores(writer, reader, kind=kind).item(), 3) for kind in ("Q", "K", "V")]
[0.0, 0.5, 0.0]
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.factors import Distance, LayerFactors, rotate_keys
from interp.errors import InputError

Kind = Literal["Q", "K", "V"]

_PANEL = 2**21
"""Entries of a panel of pairwise products: what fits into a processor's cache, and bounds the memory."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Summary:
    """What is needed of a circuit besides its factors: small, and costly enough to be kept."""

    triangle: Float[Tensor, "outer_head rank d_head"]
    """R of the QR decomposition of outer^T."""
    column_sums: Float[Tensor, "head d_model"]
    """1^T outer^T inner, the sum over the outer side."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Circuit:
    """The matrices outer^T inner of a layer's heads, the inner factor on the side of the other head of a pair.

    One of the factors may exist once per key-value head; query head h then uses entry h // (n_heads // n_kv).
    """

    outer: Float[Tensor, "outer_head d_head d_model"]
    inner: Float[Tensor, "inner_head d_head d_model"]
    summary: Summary

    @property
    def n_heads(self) -> int:
        return max(len(self.outer), len(self.inner))

    @property
    def n_groups(self) -> int:
        """Heads of the factor that exists less often."""
        return min(len(self.outer), len(self.inner))


def reading_circuit(reader: LayerFactors, *, kind: Kind = "K", distance: Distance = "none") -> Circuit:
    """W_QK with its keys inside for K, with its queries inside for Q, and W_OV with its values inside for V.

    `distance` puts a rotation into the keys of a rotary model, see `rotate_keys`. Raises `InputError` for an unknown kind,
    and for a distance where there is none: a model without rotary positions, or the values.
    """
    if kind not in get_args(Kind):
        raise InputError(f"kind={kind!r} isn't known; give 'Q', 'K' or 'V', for what the reader reads with.")
    if kind == "V":
        if distance != "none":
            raise InputError(
                f"distance={distance!r} was given with kind='V', but values have no positions: leave it out."
            )
        return _make_circuit(reader.W_O, reader.W_V.mT)
    queries, keys = reader.W_Q.mT, rotate_keys(reader, distance).mT
    return _make_circuit(queries, keys) if kind == "K" else _make_circuit(keys, queries)


def writing_circuit(writer: LayerFactors, *, summary: Summary | None = None) -> Circuit:
    """W_OV with its output inside; `summary` is that of an earlier circuit of the same layer."""
    return _make_circuit(writer.W_V.mT, writer.W_O, summary)


@torch.no_grad()
def composition_scores(
    writer: LayerFactors, reader: LayerFactors, *, kind: Kind = "K", distance: Distance = "none"
) -> Float[Tensor, "reader_head writer_head"]:
    """The composition score, between 0 and 1, of every pair of heads of two layers; 0 where a head is all zero.

    Random heads have about 1 / sqrt(d_model). Costs half of `diagonal_scores`. Raises `InputError` as
    `reading_circuit` does, and for layers of different models.
    """
    reading, writing = reading_circuit(reader, kind=kind, distance=distance), writing_circuit(writer)
    return normalise(multiply(reading, writing, wanted="norms"), measure_norms(reading), measure_norms(writing))


@dataclass(frozen=True, kw_only=True, eq=False)
class Products:
    """What is needed of W = outer_2^T inner_2 inner_1^T outer_1 for every pair of heads, in float64."""

    squares: Float[Tensor, "reader_head writer_head"]
    """||W||_F^2."""
    traces: Float[Tensor, "reader_head writer_head"]
    """tr W; zeros where only norms were wanted."""
    sums: Float[Tensor, "reader_head writer_head"]
    """1^T W 1, the sum of all entries."""


@torch.no_grad()
def measure_norms(circuit: Circuit) -> Float[Tensor, "head"]:
    """||outer^T inner||_F of each head in float64."""
    groups = (circuit.n_groups, -1)
    core = share(circuit.summary.triangle.unflatten(0, groups), circuit.inner.unflatten(0, groups))
    return core.flatten(0, 1).square_().sum(-1).sum(-1, dtype=torch.float64).sqrt()


def normalise(
    products: Products, reading: Float[Tensor, "reader_head"], writing: Float[Tensor, "writer_head"]
) -> Float[Tensor, "reader_head writer_head"]:
    """||W||_F over the norms of both circuits; 0 where one of them is 0."""
    scale = reading[:, None] * writing
    return torch.where(scale > 0, products.squares.sqrt() / torch.where(scale > 0, scale, 1.0), 0.0)


@torch.no_grad()
def multiply(reading: Circuit, writing: Circuit, *, wanted: Literal["norms", "all"] = "all") -> Products:
    """Norm, trace and sum of the product of every pair, in panels of a few key-value heads of the reader.

    tr W = sum of (inner_2 inner_1^T) * (outer_2 outer_1^T), entry by entry: two matrix products for all pairs.
    Raises `InputError` where the two layers differ in width.
    """
    if reading.inner.shape[-1] != writing.inner.shape[-1]:
        raise InputError(
            f"The reader has d_model={reading.inner.shape[-1]} and the writer {writing.inner.shape[-1]}; "
            "give two layers of one model."
        )
    per_group = reading.n_heads // reading.n_groups * reading.inner.shape[1] * writing.inner[..., 0].numel()
    step = max(1, _PANEL // per_group)
    squares, traces = [], []
    for start in range(0, reading.n_groups, step):
        outer, inner, triangle = (
            factor.unflatten(0, (reading.n_groups, -1))[start : start + step]  # [group, head of it, d_head, ...]
            for factor in (reading.outer, reading.inner, reading.summary.triangle)
        )
        facing = _all_products(inner, writing.inner)  # [group, head of it, d_head, writer, d_head]
        squares.append(_sum_squares(triangle, facing, writing.summary.triangle))
        if wanted == "all":
            traces.append(_sum_traces(facing, _all_products(outer, writing.outer)))
    squared = torch.cat(squares)
    return Products(
        squares=squared,
        traces=torch.cat(traces) if traces else torch.zeros_like(squared),
        sums=reading.summary.column_sums.double() @ writing.summary.column_sums.double().T,
    )


def _all_products(rows: Tensor, columns: Tensor) -> Tensor:
    """[group, head, row, d_model] x [writer, column, d_model] -> [group, head, row, writer, column], as one product."""
    product = rows.flatten(0, 2) @ columns.flatten(0, 1).T
    return product.view(*rows.shape[:3], *columns.shape[:2])


def _sum_squares(triangle: Tensor, facing: Tensor, writer_triangle: Tensor) -> Tensor:
    """||R_2 facing R_1^T||^2 of every pair, [reader head, writer head]."""
    n_writers = facing.shape[3]
    left = share(triangle, facing.flatten(3))  # [group, head of it, row, writer * column]
    left = left.reshape(-1, n_writers, facing.shape[4]).transpose(0, 1)  # [writer, all rows, column]
    right = writer_triangle.repeat_interleave(n_writers // len(writer_triangle), dim=0)
    core = torch.bmm(left, right.mT)
    rows = core.square_().sum(-1).view(n_writers, -1, triangle.shape[2])
    return rows.sum(-1, dtype=torch.float64).T


def _sum_traces(facing: Tensor, across: Tensor) -> Tensor:
    """The entries of facing times those of across, summed for every pair, [reader head, writer head]."""
    n_shared = across.shape[3]  # key-value heads of the writer
    rows = (facing.unflatten(3, (n_shared, -1)) * across[..., None, :]).sum(-1)  # [group, head, row, shared, of it]
    return rows.sum(2, dtype=torch.float64).flatten(2).flatten(0, 1)


def share(left: Float[Tensor, "group a row k"], right: Float[Tensor, "group b k column"]) -> Tensor:
    """left @ right, [group, head, row, column], where one of a and b may be 1: the shared factor isn't repeated."""
    if right.shape[1] > 1:
        return left @ right
    return (left.flatten(1, 2) @ right[:, 0]).unflatten(1, left.shape[1:3])


@torch.no_grad()
def _make_circuit(outer: Tensor, inner: Tensor, summary: Summary | None = None) -> Circuit:
    outer, inner = _prepare(outer), _prepare(inner)
    return Circuit(outer=outer, inner=inner, summary=summary or _summarise(outer, inner))


def _prepare(factor: Tensor) -> Tensor:
    return factor.detach().to(torch.promote_types(factor.dtype, torch.float32)).contiguous()


def _summarise(outer: Tensor, inner: Tensor) -> Summary:
    groups = (min(len(outer), len(inner)), -1)
    totals = outer.sum(-1, dtype=torch.float64).to(outer.dtype)[:, None]  # [outer head, 1, d_head]
    return Summary(
        triangle=torch.linalg.qr(outer.mT, mode="r").R,
        column_sums=share(totals.unflatten(0, groups), inner.unflatten(0, groups)).flatten(0, 1)[:, 0],
    )
