import math

import numpy as np
import pytest
import torch

from interp.complexity.spectra import (
    effective_rank,
    participation_ratio,
    random_ranks,
    singular_values,
    stable_rank,
)
from interp.errors import InputError
from tests.untyped import as_without_type_checks

RANKS = (stable_rank, effective_rank, participation_ratio)


def with_spectrum(spectrum, rows=7, columns=5):
    """A matrix with given singular values and random singular vectors."""
    generator = torch.Generator().manual_seed(1)
    left, _ = torch.linalg.qr(torch.randn(rows, rows, generator=generator, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(columns, columns, generator=generator, dtype=torch.float64))
    middle = torch.zeros(rows, columns, dtype=torch.float64)
    middle.diagonal().copy_(torch.tensor(spectrum))
    return left @ middle @ right


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("n", [1, 2, 6])
def test_an_orthogonal_matrix_has_full_rank(rank, n):
    orthogonal, _ = torch.linalg.qr(torch.randn(n, n, generator=torch.Generator().manual_seed(0)).double())
    assert float(rank(3 * orthogonal)) == pytest.approx(n)


@pytest.mark.parametrize("rank", RANKS)
def test_a_product_of_two_vectors_has_rank_one(rank):
    matrix = torch.outer(torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 1.0, 4.0, -1.0]))
    assert float(rank(matrix)) == pytest.approx(1, abs=1e-5)


def test_known_spectrum_gives_the_formulas():
    spectrum = [4.0, 2.0, 1.0, 1.0, 0.0]
    matrix = with_spectrum(spectrum)
    assert singular_values(matrix).numpy() == pytest.approx(spectrum, abs=1e-12)
    assert float(stable_rank(matrix)) == pytest.approx((16 + 4 + 1 + 1) / 16)
    assert float(participation_ratio(matrix)) == pytest.approx(64 / 22)
    entropy = -sum(share * math.log(share) for share in (0.5, 0.25, 0.125, 0.125))
    assert float(effective_rank(matrix)) == pytest.approx(math.exp(entropy))


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
def test_scale_does_not_count(rank, scale):
    matrix = with_spectrum([4.0, 2.0, 1.0, 1.0, 0.5])
    assert float(rank(scale * matrix)) == pytest.approx(float(rank(matrix)))


@pytest.mark.parametrize("rank", RANKS)
def test_a_batch_is_measured_matrix_by_matrix_and_zero_has_no_rank(rank):
    batch = torch.randn(2, 3, 6, 4, generator=torch.Generator().manual_seed(2))
    batch[1, 2] = 0
    ranks = rank(batch)
    assert ranks.dtype == torch.float64
    assert float(ranks[1, 2]) == 0
    for i in range(2):
        for j in range(3):
            assert float(ranks[i, j]) == pytest.approx(float(rank(batch[i, j])))
            assert float(rank(batch[i, j].T)) == pytest.approx(float(ranks[i, j]))


@pytest.mark.parametrize("shape", [(24, 24), (60, 12), (12, 60)])
def test_random_ranks_are_those_of_gaussian_matrices(shape):
    """The triangle that is drawn against whole matrices of the shape."""
    drawn = random_ranks(shape, n_draws=300, seed=0)
    whole = torch.randn(300, *shape, generator=torch.Generator().manual_seed(5))
    for rank in RANKS:
        ours, theirs = drawn[rank.__name__], rank(whole)
        error = math.hypot(float(ours.std()), float(theirs.std())) / math.sqrt(300)
        assert abs(float(ours.mean() - theirs.mean())) < 4 * error
        assert float(ours.std() / theirs.std()) == pytest.approx(1, abs=0.25)


def test_random_ranks_follow_from_the_seed_alone():
    first, again, other = (random_ranks((8, 5), n_draws=3, seed=seed)["stable_rank"].numpy() for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert (first != other).all()


def test_a_spectrum_is_refused_where_there_is_none():
    with pytest.raises(InputError, match=r"shape \(3, 0\); give \[\.\.\., row, column\]"):
        stable_rank(torch.zeros(3, 0))
    with pytest.raises(InputError, match="NaN or an infinity"):
        effective_rank(torch.tensor([[1.0, torch.inf]]))
    with as_without_type_checks(), pytest.raises(InputError, match=r"shape \(3,\)"):
        participation_ratio(torch.zeros(3))
