"""Does a reader look for the very direction that a writer was given? The diagonal score of Song, Xu & Zhong.

For K-composition W = W_QK W_OV^T (d_model x d_model): x W y^T is the match of a query x with a key that holds what the
writer moved from y. A previous-token head and an induction head that match token with token have W close to a multiple of
the identity on the tokens' directions, so (Song, Xu & Zhong 2024, arXiv:2408.09503)

    Z = (mean of the diagonal of W - mean of W) / std of W          over all d_model^2 entries, population std

The paper writes W = W_QK W_OV with W_OV = W_O W_V^T for column vectors, which is the transpose of the W_OV of row vectors
used here, hence W_QK W_OV^T: queries come first and the writer's input last. Transposing W as a whole changes nothing.
For Q- and V-composition W is that of `interp.circuits.composition`.

With the mean of W at 0, as it is where a LayerNorm is folded in, Z = tr W / ||W||_F, so |Z| <= sqrt(rank) <= sqrt(d_head):
Z / sqrt(d_head) lies between -1 and 1 and compares models of any size (a mean far from 0 adds at most one to the rank).
A pair that moves d_head directions unchanged to where it reads them has Z = sqrt(d_head). Heads in random position
have mean 0 and sd 1 / sqrt(d_model), but real heads share directions and spread 4 to 40 times as far; `score_pairs` has a
null from a model's own heads.

W is never formed: trace, norm and sum come from d_head x d_head products, 4 d_model d_head^2 multiply-adds a pair
instead of 2 d_model^2 d_head + d_model^3.

>>> import interp
>>> from dataclasses import replace
>>> from interp.circuits.factors import read_factors
>>> model = interp.build(n_layers=2, d_model=9, n_heads=1, d_head=4, d_vocab=5, n_ctx=4, attn_only=True)
>>> centred = torch.linalg.qr(torch.eye(9)[:, :8] - 1 / 9).Q[None]  # 8 directions orthogonal to (1, ..., 1)
>>> low, high = centred[..., :4], centred[..., 4:]
>>> writer = replace(read_factors(model, 0), W_V=low, W_O=high.mT)
>>> reader = replace(read_factors(model, 1), W_Q=low, W_K=high)
>>> round(diagonal_scores(writer, reader).item(), 5)  # sqrt(d_head)
2.0
"""

import torch
from jaxtyping import Float
from torch import Tensor

from interp.circuits.composition import Kind, Products, multiply, reading_circuit, writing_circuit
from interp.circuits.factors import Distance, LayerFactors


@torch.no_grad()
def diagonal_scores(
    writer: LayerFactors, reader: LayerFactors, *, kind: Kind = "K", distance: Distance = "none"
) -> Float[Tensor, "reader_head writer_head"]:
    """Z of every pair of heads of two layers, in float64; 0 where W is constant, as for a head that is all zero.

    Divide by sqrt(d_head) for the score between -1 and 1. `distance` puts a rotation into the reader's keys. Raises
    `InputError` for an unknown kind, a distance without rotary positions, and layers of different models.
    """
    reading, writing = reading_circuit(reader, kind=kind, distance=distance), writing_circuit(writer)
    return standardise(multiply(reading, writing), d_model=reading.inner.shape[-1], dtype=reading.inner.dtype)


def standardise(products: Products, *, d_model: int, dtype: torch.dtype) -> Float[Tensor, "reader_head writer_head"]:
    """Z from norm, trace and sum; a variance that `dtype` can't tell from 0 counts as 0."""
    mean, square = products.sums / d_model**2, products.squares / d_model**2
    variance = square - mean**2
    varies = variance > 16 * torch.finfo(dtype).eps * square
    return torch.where(varies, (products.traces / d_model - mean) / torch.where(varies, variance, 1.0).sqrt(), 0.0)
