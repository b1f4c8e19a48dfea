"""Intervals against scipy, against textbooks, and by how often they cover known means."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvsim.statistics import (
    ecdf_band,
    holm,
    mean_interval,
    median_interval,
    paired_difference,
    quantile_interval,
    share_interval,
)

REPETITIONS = 2000


def generator(*seed: int) -> np.random.Generator:
    return np.random.default_rng([20261027, *seed])


def coverage(interval: object, truth: object) -> float:
    return float(np.mean((interval.low <= truth) & (truth <= interval.high)))


# --- Coverage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 30, 200])
def test_mean_intervals_cover_normal_and_uniform_values(n):
    assert 0.93 <= coverage(mean_interval(generator(n).normal(7, 3, (REPETITIONS, n))), 7) <= 0.97
    assert 0.93 <= coverage(mean_interval(generator(n).uniform(0, 40, (REPETITIONS, n))), 20) <= 0.97


@pytest.mark.parametrize("n", [30, 100, 200])
@pytest.mark.parametrize(("a", "b"), [(5, 95), (1, 49), (0.5, 9.5), (2, 2)])
@pytest.mark.parametrize("mirror", [False, True])
def test_intervals_of_mean_shares_cover_near_0_and_1(n, a, b, mirror):
    values = generator(n, int(a)).beta(a, b, (REPETITIONS, n))
    truth = a / (a + b)
    if mirror:
        values, truth = 1 - values, 1 - truth
    interval = mean_interval(values, bounds=(0, 1))
    assert 0.93 <= coverage(interval, truth) <= 0.97
    assert interval.low.min() >= 0
    assert interval.high.max() <= 1


def test_skewness_correction_is_needed_near_0():
    values = generator(1).beta(0.5, 9.5, (REPETITIONS, 30))
    assert coverage(mean_interval(values), 0.05) < 0.93


@pytest.mark.parametrize("n", [30, 100, 300])
@pytest.mark.parametrize("mirror", [False, True])
def test_wilson_intervals_cover_shares_near_0_and_1(n, mirror):
    # The share differs from one repetition to the next: for a single one, few successes are too
    # coarse for any interval to come close to its confidence.
    truth = generator(n).uniform(0.005, 0.1, REPETITIONS)
    successes = generator(n, 1).binomial(n, truth)
    if mirror:
        truth, successes = 1 - truth, n - successes
    assert 0.93 <= coverage(share_interval(successes, n), truth) <= 0.97


@pytest.mark.parametrize("shared", [0.0, 1.0, 5.0])
def test_paired_differences_cover_and_gain_what_is_shared(shared):
    rng = generator(int(shared))
    common = shared * rng.normal(size=(REPETITIONS, 30))
    a, b = (common + rng.normal(mean, 1, (REPETITIONS, 30)) for mean in (3.0, 1.0))
    paired = paired_difference(a, b)
    assert 0.93 <= coverage(paired, 2.0) <= 0.97
    assert np.median(paired.correlation) == pytest.approx(shared**2 / (1 + shared**2), abs=0.02)
    # Independent seeds would need 1 + shared^2 times as many trials.
    assert np.median(paired.variance_ratio) == pytest.approx(1 + shared**2, rel=0.05)


def test_median_intervals_cover_at_least_as_promised():
    assert (
        0.95 <= coverage(median_interval(generator(2).exponential(1, (REPETITIONS, 30))), np.log(2)) <= 0.975
    )


def test_quantile_intervals_cover_at_least_as_promised():
    interval = quantile_interval(generator(3).normal(size=(REPETITIONS, 200)), 0.9)
    assert 0.945 <= coverage(interval, stats.norm.ppf(0.9)) <= 0.975


def test_the_band_holds_the_whole_distribution():
    rng, held = generator(4), 0
    for _ in range(REPETITIONS):
        band = ecdf_band(rng.uniform(size=50))
        # The true function is the identity; between jumps the step before it counts.
        before = np.concatenate([[0], band.share[:-1]])
        half = np.sqrt(np.log(2 / 0.05) / 100)
        held += bool(np.all((band.low <= band.x) & (band.x <= before + half)))
    assert 0.93 <= held / REPETITIONS <= 0.98


# --- Values ----------------------------------------------------------------------------------------


def test_mean_interval_is_students():
    values = generator(5).gamma(2, 3, (4, 12))
    interval = mean_interval(values, 0.9)
    for row, n, mean, se, low, high in zip(
        values, interval.n, interval.mean, interval.se, interval.low, interval.high, strict=True
    ):
        wanted = stats.ttest_1samp(row, 0).confidence_interval(0.9)
        assert (n, mean, se) == (12, pytest.approx(row.mean()), pytest.approx(stats.sem(row)))
        assert (low, high) == (pytest.approx(wanted.low), pytest.approx(wanted.high))


def test_bounds_change_nothing_for_symmetric_values():
    values = np.linspace(0.4, 0.6, 31)
    plain, corrected = mean_interval(values), mean_interval(values, bounds=(0, 1))
    assert corrected.low == pytest.approx(plain.low)
    assert corrected.high == pytest.approx(plain.high)


def test_halls_transformation_is_inverted():
    values = generator(6).beta(0.5, 9.5, 40)
    interval = mean_interval(values, bounds=(0, 1))
    g, n, sd = stats.skew(values), 40, values.std(ddof=1)
    for limit, t in ((interval.low, stats.t.ppf(0.975, 39)), (interval.high, -stats.t.ppf(0.975, 39))):
        x = (values.mean() - limit) / sd
        assert np.sqrt(n) * (x + g * x**2 / 3 + g**2 * x**3 / 27 + g / (6 * n)) == pytest.approx(t)


def test_missing_values_are_counted_and_never_averaged():
    interval = mean_interval([[-1, 4, 8, -1], [np.nan, 1, 2, 3]], missing=-1)
    assert interval.n.tolist() == [2, 3]
    assert interval.missing.tolist() == [2, 1]
    assert interval.mean.tolist() == [6, 2]


@pytest.mark.parametrize("bounds", [None, (0, 1)])
def test_cells_without_spread(bounds):
    nan = np.nan
    interval = mean_interval([[nan, nan, nan], [0.7, nan, nan], [0.1, 0.1, 0.1], [1, 1, nan]], bounds=bounds)
    assert interval.n.tolist() == [0, 1, 3, 2]
    assert interval.constant.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(interval.mean, [nan, 0.7, 0.1, 1])
    np.testing.assert_array_equal(interval.se, [nan, nan, 0, 0])
    np.testing.assert_array_equal(interval.low, [nan, nan, 0.1, 1])
    np.testing.assert_array_equal(interval.high, [nan, nan, 0.1, 1])
    assert not interval.clipped.any()


def test_an_interval_that_would_leave_its_bounds_is_clipped_and_marked():
    values = np.zeros((2, 30))
    values[0, 0], values[1] = 0.02, np.linspace(0.4, 0.5, 30)
    interval = mean_interval(values, bounds=(0, 1))
    assert interval.clipped.tolist() == [True, False]
    assert interval.low[0] == 0
    assert mean_interval(values).low[0] < 0


def test_wilson_is_scipys_and_exact_at_the_ends():
    n = 30
    interval = share_interval(np.arange(n + 1), n, 0.9)
    for k in range(n + 1):
        wanted = stats.binomtest(k, n).proportion_ci(0.9, method="wilson")
        assert (interval.low[k], interval.high[k]) == (
            pytest.approx(wanted.low, abs=1e-12),
            pytest.approx(wanted.high),
        )
    assert interval.low[0] == 0
    assert interval.high[n] == 1
    none_of_30 = share_interval(0, 30)
    assert none_of_30.share == 0
    assert none_of_30.high == pytest.approx(0.1135, abs=1e-4)
    assert np.isnan(share_interval(0, 0)[1:]).all()


def test_median_limits_are_the_tabulated_order_statistics():
    # 95% limits for the median of 30: the 10th and the 21st value.
    interval = median_interval(generator(7).permutation(30) + 1)
    assert (interval.quantile, interval.low, interval.high) == (15.5, 10, 21)
    # Five values give no 95% interval, six do: the extremes.
    few = median_interval([[1, 2, 3, 4, 5, np.nan], [6, 5, 4, 3, 2, 1]])
    np.testing.assert_array_equal(few.quantile, [3, 3.5])
    np.testing.assert_array_equal(few.low, [np.nan, 1])
    np.testing.assert_array_equal(few.high, [np.nan, 6])
    assert few.missing.tolist() == [1, 0]


@pytest.mark.parametrize("q", [0.05, 0.25, 0.5, 0.9])
def test_quantiles_are_numpys_and_limits_scipys(q):
    values = generator(8).normal(size=(3, 77))
    interval = quantile_interval(values, q)
    np.testing.assert_allclose(interval.quantile, np.quantile(values, q, axis=-1))
    for row, low, high in zip(values, interval.low, interval.high, strict=True):
        wanted = stats.quantile_test(row, p=q).confidence_interval(0.95)
        np.testing.assert_array_equal([low, high], [wanted.low, wanted.high])


def test_band_of_a_small_sample():
    band = ecdf_band([3, 1, np.nan, 1, 2, -1], missing=-1)
    half = np.sqrt(np.log(40) / 8)
    assert (band.n, band.missing, band.x.tolist()) == (4, 2, [1, 2, 3])
    assert band.share.tolist() == [0.5, 0.75, 1]
    np.testing.assert_allclose(band.low, np.clip(band.share - half, 0, 1))
    np.testing.assert_allclose(band.high, [1, 1, 1])
    assert ecdf_band([np.nan]).x.size == 0


def test_paired_difference_is_scipys_paired_test():
    a, b = generator(9).normal(size=(2, 25))
    b += 0.8 * a
    paired, wanted = paired_difference(a, b), stats.ttest_rel(a, b)
    interval = wanted.confidence_interval(0.95)
    assert paired.p_value == pytest.approx(wanted.pvalue)
    assert (paired.low, paired.high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert paired.correlation == pytest.approx(np.corrcoef(a, b)[0, 1])
    assert paired.variance_ratio == pytest.approx((a.var() + b.var()) / (a - b).var())


def test_paired_differences_against_one_baseline_and_missing_pairs():
    nan = np.nan
    paired = paired_difference([[5, 6, nan, 9], [1, 2, 3, 4]], [1, 2, 3, -1], missing=-1)
    assert paired.n.tolist() == [2, 3]
    assert paired.missing.tolist() == [2, 1]
    assert paired.mean.tolist() == [4, 0]
    assert paired.constant.tolist() == [True, True]
    # Always the same difference: a sign test, 2 * (1/2)^n; always none: nothing to test.
    assert paired.p_value.tolist() == [0.5, 1]
    assert paired.variance_ratio.tolist() == [np.inf, np.inf]
    both_constant = paired_difference([1, 1, 1], [0, 0, 0])
    assert np.isnan(both_constant.correlation)
    assert np.isnan(both_constant.variance_ratio)
    assert paired_difference([1.0], [0.0]).mean == 1
    assert np.isnan(paired_difference([nan], [0.0]).mean)


def test_holm_is_the_textbook_example():
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03, 0.005]), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(holm([0.5, np.nan, 0.9, 0.01]), [1, np.nan, 1, 0.03])
    assert holm([]).size == 0


def test_the_layout_of_an_array_changes_no_bit():
    values = generator(10).random((50, 30))
    for other in (np.asfortranarray(values), values[:, None, :][:, 0]):
        for one, same in zip(mean_interval(values), mean_interval(other), strict=True):
            np.testing.assert_array_equal(one, same)
    alone = [mean_interval(row, bounds=(0, 1)).high for row in values]
    np.testing.assert_array_equal(mean_interval(values, bounds=(0, 1)).high, alone)
