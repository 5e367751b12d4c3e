"""Distributions of the number of runs against their definitions and simulation."""

import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    AtLeast,
    AtMost,
    Binomial,
    Count,
    Poisson,
    SeededNoise,
    TruncatedNegativeBinomial,
)
from tests.devices import seeded
from tests.privacy.selection_cases import COUNTS

MORE = [
    Poisson(300.0),
    TruncatedNegativeBinomial(20.0, -0.5),
    TruncatedNegativeBinomial(1.01, 0.0),
    TruncatedNegativeBinomial(200.0, 1.0),
    AtMost(TruncatedNegativeBinomial(16.0, 0.0), 40),
]


@pytest.mark.parametrize("count", COUNTS + MORE, ids=repr)
class TestEveryCount:
    Z = np.array([0.0, 1e-12, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-9, 1.0])

    def test_probabilities_sum_to_one(self, count):
        table = count.probabilities(count.most)
        assert (table >= 0).all()
        assert table.sum() == pytest.approx(1.0, abs=1e-11)
        assert table @ np.arange(len(table)) == pytest.approx(count.mean, rel=1e-11)
        assert np.flatnonzero(table)[0] == count.least
        assert len(count.probabilities(3)) == 4
        assert count.probabilities(3) == pytest.approx(
            np.append(table, np.zeros(4))[:4], rel=1e-9
        )

    def test_generating_function_and_its_slope(self, count):
        table = count.probabilities(count.most)
        k = np.arange(len(table), dtype=float)
        with np.errstate(divide="ignore"):
            generating = np.log([table @ z**k for z in self.Z])
            slope = np.log([(k * table)[1:] @ z ** k[:-1] for z in self.Z])
        assert count.log_generating(self.Z) == pytest.approx(generating, abs=1e-10)
        assert count.log_slope(self.Z) == pytest.approx(slope, abs=1e-10)
        assert math.exp(count.log_slope(self.Z)[-1]) == pytest.approx(count.mean)

    def test_what_lies_beyond_most_is_negligible(self, count):
        table = count.probabilities(count.most + 500)
        k = np.arange(len(table))
        beyond = (k * table)[count.most + 1 :].sum()
        first = max(1, count.least)
        assert beyond <= 2.0**-59 * max(first * table[first], 1e-250)

    def test_draws(self, count):
        # Pearson's test on cells of at least 20 expected draws; seeds are fixed.
        source = SeededNoise(seeded(1))
        drawn = np.array([count.draw(source) for _ in range(400)])
        assert drawn.min() >= count.least
        assert drawn.max() <= count.most
        cells = np.searchsorted(
            np.cumsum(count.probabilities(count.most)), np.linspace(0.1, 0.9, 9)
        )
        edges = np.unique(np.concatenate([[-1], cells, [count.most]]))
        table = np.cumsum(np.append(count.probabilities(count.most), 0.0))
        expected = 400 * np.diff(np.append(0.0, table[edges[1:]]))
        found, _ = np.histogram(drawn, bins=edges + 0.5)
        keep = expected > 1
        statistic = ((found - expected)[keep] ** 2 / expected[keep]).sum()
        assert statistic <= stats.chi2.ppf(0.9999, max(1, keep.sum() - 1))


class TestPoisson:
    def test_definition(self):
        assert Poisson(4.0).probabilities(20) == pytest.approx(
            stats.poisson(4.0).pmf(np.arange(21))
        )


class TestTruncatedNegativeBinomial:
    def test_shape_one_is_geometric(self):
        found = TruncatedNegativeBinomial(4.0, 1.0).probabilities(20)
        assert found == pytest.approx(stats.geom(0.25).pmf(np.arange(21)))

    def test_shape_zero_is_logarithmic(self):
        count = TruncatedNegativeBinomial(4.0, 0.0)
        expected = stats.logser(1 - count.gamma).pmf(np.arange(1, 21))
        assert count.probabilities(20)[1:] == pytest.approx(expected)

    @pytest.mark.parametrize("shape", [-0.8, -0.5, 1e-9, 0.5, 7.0])
    @pytest.mark.parametrize("mean", [1.0 + 1e-6, 2.0, 5.0])
    def test_definition(self, mean, shape):
        count = TruncatedNegativeBinomial(mean, shape)
        with mpmath.workdps(50):
            gamma, eta = mpmath.mpf(count.gamma), mpmath.mpf(shape)
            expected = eta * (1 - gamma) / (gamma * (1 - gamma**eta))
            assert float(expected) == pytest.approx(mean, rel=1e-9)
            for k in (1, 2, 5):
                rising = mpmath.rf(eta, k) / mpmath.factorial(k)
                p = (1 - gamma) ** k * rising / (gamma**-eta - 1)
                assert count.probabilities(k)[k] == pytest.approx(float(p), rel=1e-8)

    def test_large_shapes_tend_to_poisson(self):
        found = TruncatedNegativeBinomial(8.0, 1000.0).probabilities(20)
        assert found == pytest.approx(Poisson(8.0).probabilities(20), abs=2e-3)


class TestBinomial:
    def test_definition(self):
        expected = stats.binom(7, 0.3).pmf(np.arange(8))
        assert Binomial(7, 0.3).probabilities(7) == pytest.approx(expected)
        assert Binomial(7, 1.0).probabilities(8).tolist() == [0] * 7 + [1, 0]


class TestFloorsAndCeilings:
    def test_a_floor_shifts(self):
        other = TruncatedNegativeBinomial(5.0, 1.0)
        found = AtLeast(other, 4).probabilities(20)
        assert found[:4].tolist() == [0.0] * 4
        assert found[4:] == pytest.approx(other.probabilities(17)[1:])
        assert AtLeast(other, 1).log_slope(np.array([0.3])) == pytest.approx(
            other.log_slope(np.array([0.3]))
        )

    def test_a_ceiling_collects_the_tail(self):
        other = TruncatedNegativeBinomial(5.0, 1.0)
        found = AtMost(other, 3).probabilities(4)
        assert found == pytest.approx([0, 0.2, 0.16, 0.64, 0])

    def test_a_ceiling_above_everything_changes_nothing(self):
        assert AtMost(Binomial(3, 0.5), 7).probabilities(7) == pytest.approx(
            Binomial(3, 0.5).probabilities(7)
        )


class TestMisuse:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: Poisson(0.0), "mean must be a finite number above 0"),
            (lambda: Poisson(1e6), "mean must lie between 0 and 100000"),
            (
                lambda: TruncatedNegativeBinomial(0.5, 1.0),
                "mean must lie between 1 and",
            ),
            (lambda: TruncatedNegativeBinomial(2.0, -1.0), "shape must lie above -1"),
            (lambda: TruncatedNegativeBinomial(2.0, "1"), "shape must be a number"),
            (lambda: TruncatedNegativeBinomial(2.0, math.nan), "shape must lie above"),
            (lambda: TruncatedNegativeBinomial(50.0, -0.9), "mean is too large for"),
            (lambda: Binomial(0, 0.5), "num_trials must be a whole number"),
            (lambda: Binomial(10**6, 0.5), "num_trials must be at most 100000"),
            (lambda: Binomial(2, 1.5), "probability must be at most 1"),
            (lambda: AtLeast(3, 2), "count must be a Count"),
            (lambda: AtLeast(Binomial(3, 1.0), 2), "minimum must be at least 3"),
            (lambda: AtMost(Binomial(3, 1.0), 2), "maximum must be at least 3"),
            (lambda: AtMost(Poisson(3.0), 0), "maximum must be a whole number"),
            (
                lambda: Count.from_dict({"type": "Poisson"}),
                "state must describe one of",
            ),
        ],
    )
    def test_names_the_argument(self, make, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make()
