"""How many directions a matrix uses, from its singular values s_1 >= s_2 >= ... >= 0.

- `stable_rank`: sum_i s_i^2 / s_1^2 = ||W||_F^2 / ||W||_2^2 (Rudelson & Vershynin 2007, J. ACM 54(4); the measure of
  Zhang et al. 2025, arXiv:2501.08537).
- `effective_rank`: exp H(p) with p_i = s_i / sum s and H the entropy in nats (Roy & Vetterli 2007, EUSIPCO).
- `participation_ratio`: (sum_i s_i)^2 / sum_i s_i^2 (arXiv:2605.04396, there the index of condensation).

Each lies between 1 and the number of rows or columns, whichever is smaller: 1 for rank one, that number where all
singular values are equal. A zero matrix uses no direction and has 0. Everything is computed in float64 from the
singular values, over any leading batch axes.

>>> matrix = torch.diag(torch.tensor([2.0, 1.0, 1.0, 0.0]))
>>> stable_rank(matrix), participation_ratio(matrix)
(tensor(1.5000, dtype=torch.float64), tensor(2.6667, dtype=torch.float64))
>>> effective_rank(torch.eye(3)).round(decimals=6)
tensor(3., dtype=torch.float64)
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from interp.errors import InputError
from tasks.seeding import derive_seed


def singular_values(matrix: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch singular"]:
    """Singular values in float64, largest first. Raises `InputError` for an empty matrix or one that isn't finite."""
    if matrix.dim() < 2 or 0 in matrix.shape[-2:]:
        raise InputError(
            f"A spectrum was asked of a tensor of shape {tuple(matrix.shape)}; give [..., row, column], neither of them 0."
        )
    if not matrix.isfinite().all():
        raise InputError("A spectrum was asked of a matrix with a NaN or an infinity; only a finite matrix has one.")
    return torch.linalg.svdvals(matrix.detach().cpu().double())  # not every accelerator has float64


def stable_rank(matrix: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch"]:
    """||W||_F^2 / ||W||_2^2; 0 for a zero matrix."""
    return _stable_rank(singular_values(matrix))


def effective_rank(matrix: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch"]:
    """The exponential of the entropy of the normalised singular values; 0 for a zero matrix."""
    return _effective_rank(singular_values(matrix))


def participation_ratio(matrix: Float[Tensor, "*batch row column"]) -> Float[Tensor, "*batch"]:
    """(sum s)^2 / sum s^2; 0 for a zero matrix."""
    return _participation_ratio(singular_values(matrix))


def random_ranks(shape: tuple[int, int], *, n_draws: int, seed: int) -> dict[str, Float[Tensor, "draw"]]:
    """The three ranks of Gaussian random matrices of a shape; none of them depends on the variance of the entries.

    Only the triangle of the QR decomposition is drawn, so an embedding's costs no more than a square matrix's.
    """
    generator = np.random.default_rng(derive_seed(seed, "random ranks", *shape))
    values = [torch.linalg.svdvals(random_triangle(*shape, generator=generator)) for _ in range(n_draws)]
    drawn = torch.stack(values)  # [draw, singular]
    return {name: measure(drawn) for name, measure in RANKS.items()}


def random_triangle(n_rows: int, n_columns: int, *, generator: np.random.Generator) -> Float[Tensor, "shorter shorter"]:
    """R of the QR decomposition of a Gaussian [n_rows, n_columns], or of its transpose where that is the longer one.

    Chi-distributed diagonal, Gaussian above it (Bartlett 1933): the same singular values in distribution and, for
    n_rows >= n_columns, columns of the same lengths and cosines.
    """
    longer, shorter = max(n_rows, n_columns), min(n_rows, n_columns)
    triangle = np.triu(generator.standard_normal((shorter, shorter)), 1)
    triangle += np.diag(np.sqrt(generator.chisquare(longer - np.arange(shorter))))
    return torch.from_numpy(triangle)


def _stable_rank(s: Float[Tensor, "*batch singular"]) -> Float[Tensor, "*batch"]:
    return _scaled(s).square().sum(-1)


def _effective_rank(s: Float[Tensor, "*batch singular"]) -> Float[Tensor, "*batch"]:
    scaled = _scaled(s)
    total = scaled.sum(-1, keepdim=True)
    share = scaled / total.clamp_min(1)
    return torch.where(total[..., 0] > 0, torch.special.entr(share).sum(-1).exp(), 0.0)


def _participation_ratio(s: Float[Tensor, "*batch singular"]) -> Float[Tensor, "*batch"]:
    scaled = _scaled(s)
    return scaled.sum(-1).square() / scaled.square().sum(-1).clamp_min(1)


def _scaled(s: Float[Tensor, "*batch singular"]) -> Float[Tensor, "*batch singular"]:
    """s / s_1, so that squares neither overflow nor vanish; zeros stay zeros."""
    largest = s[..., :1]
    return torch.where(largest > 0, s / torch.where(largest > 0, largest, 1.0), 0.0)


RANKS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "stable_rank": _stable_rank,
    "effective_rank": _effective_rank,
    "participation_ratio": _participation_ratio,
}
"""Each rank as a function of singular values [..., singular], for callers that have these already."""
