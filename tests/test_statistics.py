from itertools import product

import numpy as np
import pytest

from interp.errors import InputError
from interp.statistics import bootstrap_interval, permutation_p_value, sign_flip_p_values
from tests.untyped import as_without_type_checks


def test_bootstrap_interval_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    samples = rng.normal(1.0, 2.0, size=(50, 400))  # 400 experiments of 50 samples, resampled together
    low, high = bootstrap_interval(samples, seed=1)
    assert 0.90 < np.mean((low < 1.0) & (high > 1.0)) < 0.97


def test_bootstrap_interval_equals_one_element_at_a_time():
    values = np.random.default_rng(0).normal(size=(20, 2, 3))
    low, high = bootstrap_interval(values, seed=7)
    assert low.shape == high.shape == (2, 3)
    one_low, one_high = bootstrap_interval(values[:, 1, 2], seed=7)
    assert (low[1, 2], high[1, 2]) == pytest.approx((float(one_low), float(one_high)))


def test_one_sample_has_an_unknown_interval_and_none_is_refused():
    low, high = bootstrap_interval(np.ones((1, 2)))
    assert np.isnan(low).all()
    assert np.isnan(high).all()
    with pytest.raises(InputError, match="at least one sample"):
        bootstrap_interval(np.ones((0, 2)))
    with pytest.raises(InputError, match=r"between 0 and 1, but 95.0"):
        bootstrap_interval(np.ones(3), level=95.0)


def test_p_value_counts_the_observed_among_the_draws():
    draws = np.arange(19.0)
    assert permutation_p_value(100.0, draws) == pytest.approx(1 / 20)
    assert permutation_p_value(0.0, draws) == pytest.approx(1.0)
    assert permutation_p_value(17.0, draws) == pytest.approx(3 / 20)


def test_corrected_p_values_hold_their_level():
    """Without any effect, 5% of sweeps of 30 cells may have a cell below 0.05."""
    generator = np.random.default_rng(0)
    found = [(sign_flip_p_values(generator.normal(size=(10, 30))).min() <= 0.05) for _ in range(200)]
    assert np.mean(found) < 0.1
    effects = generator.normal(size=(30, 10))
    effects[:, 4] += 3
    p = sign_flip_p_values(effects, seed=2)
    assert p.argmin() == 4
    assert p[4] == 1 / 4096


@pytest.mark.parametrize("n", [7, 15])
@pytest.mark.parametrize("alternative", ["two_sided", "greater", "less"])
def test_p_values_of_single_cells_equal_a_loop(n, alternative):
    effects = np.random.default_rng(1).normal(0.3, 1, size=(n, 2, 3))
    p = sign_flip_p_values(effects, correction="none", alternative=alternative, seed=3)
    corrected = sign_flip_p_values(effects, alternative=alternative, seed=3)
    assert p.shape == (2, 3)
    assert (p <= corrected).all()
    for cell in np.ndindex(2, 3):
        alone = effects[:, cell[0], cell[1]]
        assert p[cell] == sign_flip_p_values(alone[:, None], alternative=alternative, seed=3)[0]
        if n == 7:
            means = [(np.array(signs) * alone).mean() for signs in product((1, -1), repeat=n)]
            sign = {"two_sided": np.abs, "greater": np.array, "less": np.negative}[alternative]
            assert p[cell] == np.mean(sign(means) >= sign(alone.mean()) - 1e-12)


def test_a_steady_small_effect_is_hidden_by_others_spread_until_it_is_asked_alone():
    generator = np.random.default_rng(0)
    effects = np.stack([generator.normal(0, 1, 12), np.full(12, 0.1)], axis=1)
    assert sign_flip_p_values(effects)[1] > 0.3
    assert sign_flip_p_values(effects, correction="none")[1] == 2 / 2**12
    low, high = bootstrap_interval(effects)
    assert low[1] > 0.05
    assert high[1] < 0.15


def test_unknown_corrections_and_alternatives_are_refused():
    with (
        as_without_type_checks(),
        pytest.raises(InputError, match="correction='holm' and alternative='two_sided' aren't"),
    ):
        sign_flip_p_values(np.ones((3, 2)), correction="holm")
    with as_without_type_checks(), pytest.raises(InputError, match="alternatives two_sided, greater, less"):
        sign_flip_p_values(np.ones((3, 2)), alternative="both")
