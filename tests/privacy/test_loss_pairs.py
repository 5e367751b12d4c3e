"""Pairs of discrete losses: they dominate releases, and are hardly larger."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_dp.privacy import curves, loss_pairs
from botorch_dp.privacy.loss_pairs import (
    LossDistribution,
    approx_pair,
    connect_dots,
    fixed_size_pair,
    gaussian_pair,
    laplace_pair,
    pair_of_bounds,
    poisson_pair,
    symmetric_pair,
    zcdp_pair,
)
from tests.privacy.cases import delta_of_losses

EPSILONS = np.array([-6.0, -1.0, -0.2, -0.01, 0.0, 0.003, 0.05, 0.3, 1.0, 2.5, 6.0])


def check(way, exact, rel):
    """Check that a distribution is at and a little above an exact curve."""
    for epsilon in EPSILONS:
        truth, found = exact(epsilon), delta_of_losses(way, epsilon)
        assert found >= truth * (1 - 1e-15) - 1e-300
        assert found <= truth * (1 + rel) + 1e-30


def high_precision(mu, rate, direction, epsilon, digits=120):
    """The delta of a Poisson sample at any epsilon, from two integrals."""
    with mpmath.workdps(digits):
        mu, rate, odds = mpmath.mpf(mu), mpmath.mpf(rate), mpmath.exp(epsilon)

        def cdfs(x):  # without and with the record
            return mpmath.ncdf(x), (1 - rate) * mpmath.ncdf(x) + rate * mpmath.ncdf(
                x - mu
            )

        # The outputs at which the density ratio reaches e^epsilon are a half line.
        ratio = odds if direction == 0 else 1 / odds
        inner = (ratio - 1 + rate) / rate
        if inner <= 0:
            return mpmath.mpf(0) if direction else 1 - odds
        edge = mpmath.log(inner) / mu + mu / 2
        without, within = cdfs(edge)
        if direction == 0:
            return (1 - within) - odds * (1 - without)
        return without - odds * within


class TestPoisson:
    @pytest.mark.parametrize("direction", [0, 1])
    @pytest.mark.parametrize(
        ("noise", "rate"),
        list(itertools.product([0.3, 1.0, 5.0, 50.0], [1e-4, 0.02, 0.5, 0.999])),
    )
    def test_against_high_precision(self, noise, rate, direction):
        way = poisson_pair(1 / noise, rate).ways[direction]
        masses = np.exp(way.log_masses)
        assert masses.sum() + way.infinite == pytest.approx(1.0, abs=1e-9)
        assert (masses * np.exp(-way.losses)).sum() <= 1 + 1e-9
        scale = rate / noise
        for epsilon in [-scale, 0.0, scale / 10, scale, 5 * scale, 0.1, 1.0]:
            truth = high_precision(1 / noise, rate, direction, epsilon)
            found = delta_of_losses(way, epsilon)
            assert found >= truth * (1 - mpmath.mpf(10) ** -13) - mpmath.mpf(10) ** -25
            assert found <= truth * (1 + mpmath.mpf("0.05")) + mpmath.mpf(10) ** -17

    def test_without_the_record_losses_are_bounded(self):
        way = poisson_pair(1.0, 0.1).ways[1]
        assert way.infinite == 0.0
        assert way.losses[-1] == -math.log1p(-0.1)

    def test_losses_are_distinct(self):
        for noise, rate in itertools.product([0.2, 1.0, 1e6], [1e-6, 0.5]):
            losses = poisson_pair(1 / noise, rate).ways[0].losses
            assert (np.diff(losses) > 0).all()
            assert len(losses) < 10_000


class TestOthers:
    def test_gaussian(self):
        for mu in (1e-3, 0.5, 4.0):

            def exact(epsilon, mu=mu):
                delta = curves.gdp_delta(mu, abs(epsilon))
                return delta if epsilon >= 0 else 1 - math.exp(epsilon) * (1 - delta)

            check(gaussian_pair(mu).ways[0], exact, 1e-2)

    @pytest.mark.parametrize("rate", [0.01, 0.4])
    def test_fixed_size(self, rate):
        def exact(epsilon):
            delta = curves.sampled_gdp_delta(0.8, rate, abs(epsilon))
            return delta if epsilon >= 0 else 1 - math.exp(epsilon) * (1 - delta)

        check(fixed_size_pair(0.8, rate).ways[0], exact, 1e-2)

    def test_laplace_against_its_densities(self):
        x = np.linspace(-40, 41, 2_000_001)
        p, q = np.exp(-np.abs(x)) / 2, np.exp(-np.abs(x - 1)) / 2
        for epsilon in (-0.8, 0.0, 0.5, 0.99):
            exact = np.trapezoid(np.maximum(0.0, p - math.exp(epsilon) * q), x)
            found = delta_of_losses(laplace_pair(1.0).ways[0], epsilon)
            assert exact - 1e-9 <= found <= exact * 1.001 + 1e-9

    def test_randomized_response(self):
        way = approx_pair(0.7, 0.0).ways[0]
        for epsilon in (-1.0, -0.3, 0.0, 0.2, 0.69, 0.8):
            odds = math.exp(0.7)
            pairs = [(odds, 1.0), (1.0, odds)]
            exact = sum(max(0.0, p - math.exp(epsilon) * q) for p, q in pairs)
            exact /= 1 + odds
            assert delta_of_losses(way, epsilon) == pytest.approx(exact, abs=1e-10)
            assert delta_of_losses(way, epsilon) >= exact * (1 - 1e-15)

    def test_everything_may_be_revealed(self):
        way = approx_pair(0.7, 0.01).ways[0]
        assert delta_of_losses(way, 5.0) == pytest.approx(0.01)
        assert delta_of_losses(way, 0.0) == pytest.approx(0.01 + 0.99 * math.tanh(0.35))

    @pytest.mark.parametrize("rho", [1e-4, 0.02, 2.0])
    def test_zcdp_dominates_the_gaussian_of_its_rho(self, rho):
        way = zcdp_pair(rho).ways[0]
        mu = math.sqrt(2 * rho)
        for epsilon in np.array([0.0, 0.5, 2.0, 4.0]) * mu:
            found = delta_of_losses(way, epsilon)
            assert curves.gdp_delta(mu, epsilon) <= found
            assert found <= curves.zcdp_delta(rho, epsilon) * 1.05


class TestDots:
    @settings(deadline=None, max_examples=50)
    @given(seed=st.integers(0, 10**6), size=st.integers(2, 8))
    def test_any_dots_dominate(self, seed, size):
        # Whatever dots are chosen of the profile of a pair, it dominates that pair.
        rng = np.random.default_rng(seed)
        p, q = rng.dirichlet(np.ones(size)), rng.dirichlet(np.ones(size))

        def deltas(p, q, epsilons):
            excess = p - np.exp(epsilons)[:, None] * q
            return np.maximum(0.0, excess).sum(axis=1)

        ahead = np.append(0.0, np.cumsum(rng.exponential(0.3, rng.integers(1, 6))))
        behind = np.append(0.0, np.cumsum(rng.exponential(0.3, rng.integers(1, 6))))
        pair = connect_dots(ahead, deltas(p, q, ahead), behind, deltas(q, p, behind))
        for way, (a, b) in zip(pair.ways, ((p, q), (q, p)), strict=True):
            at = rng.normal(0.0, 2.0, 20)
            found = np.array([delta_of_losses(way, epsilon) for epsilon in at])
            assert (found >= deltas(a, b, at) - 1e-12).all()

    def test_dots_are_met(self):
        ahead = np.linspace(0.0, 5.0, 20)
        deltas = curves.gdp_deltas(0.5, ahead)
        way = symmetric_pair(ahead, deltas).ways[0]
        found = [delta_of_losses(way, epsilon) for epsilon in ahead]
        np.testing.assert_allclose(found, deltas, rtol=1e-9, atol=1e-25)

    def test_the_larger_delta_at_zero_counts(self):
        ahead = np.array([0.0, 1.0])
        pair = connect_dots(ahead, np.array([0.3, 0.0]), ahead, np.array([0.4, 0.0]))
        for way in pair.ways:
            assert delta_of_losses(way, 0.0) == pytest.approx(0.4)
            assert delta_of_losses(way, -1.0) == pytest.approx(1 - math.exp(-1.0))

    def test_bounds_that_are_not_convex(self):
        # A loose bound has corners; the pair has the largest profile below it.
        def steps(epsilons):
            return np.where(epsilons < 1, 0.9, curves.gdp_deltas(0.5, epsilons))

        way = pair_of_bounds((steps,), 6.0).ways[0]
        for epsilon in (0.0, 0.5, 0.99, 1.01, 2.0):
            found = delta_of_losses(way, epsilon)
            assert found >= curves.gdp_delta(0.5, epsilon)
            assert found <= steps(np.array([epsilon]))[0] * 1.001

    def test_bounds_for_each_direction(self):
        pair = pair_of_bounds(
            (
                lambda e: curves.sampled_gdp_deltas(1.0, 0.3, e),
                lambda e: curves.unsampled_gdp_deltas(1.0, 0.3, e),
            ),
            8.0,
        )
        for way, exact in zip(pair.ways, poisson_pair(1.0, 0.3).ways, strict=True):
            for epsilon in (-0.5, -0.1, 0.0, 0.2, 1.5):
                assert delta_of_losses(way, epsilon) == pytest.approx(
                    delta_of_losses(exact, epsilon), rel=1e-3, abs=1e-6
                )

    def test_rounding_of_the_curves_is_covered(self):
        # The raised curves are above high precision, and not twice as far as needed.
        for mu, rate in itertools.product([1e-6, 1e-3, 0.05, 1.0, 4.0], [1e-4, 0.9]):
            losses = loss_pairs._sampled_losses(mu, rate, 1.0)
            for direction, curve, signed in (
                (0, curves.sampled_gdp_deltas, losses),
                (1, curves.unsampled_gdp_deltas, -losses[::-1]),
            ):
                dots = loss_pairs._dots(signed, rate * mu)
                found = loss_pairs._raised(curve(mu, rate, dots), mu)
                for epsilon, delta in zip(dots, found, strict=True):
                    assert delta >= high_precision(mu, rate, direction, epsilon)


class TestCut:
    def test_rare_losses_become_infinite(self):
        losses = LossDistribution(
            np.array([-1.0, 0.5, 1.0, 2.0]), np.log([0.5, 0.4, 0.08, 0.02]), 0.0
        )
        assert losses.cut(0.01) is losses
        cut = losses.cut(0.05)
        assert cut.losses.tolist() == [-1.0, 0.5, 1.0]
        assert cut.infinite == pytest.approx(0.02)
        assert losses.cut(0.1 + 1e-12).losses.tolist() == [-1.0, 0.5]
        assert len(losses.cut(1.0).losses) == 1  # one loss is always left

    @given(mass=st.floats(1e-20, 0.5), epsilon=st.floats(-1.0, 3.0))
    def test_it_dominates(self, mass, epsilon):
        way = poisson_pair(1.0, 0.1).ways[0]
        cut = way.cut(mass)
        assert cut.infinite <= mass + way.infinite
        assert delta_of_losses(cut, epsilon) >= delta_of_losses(way, epsilon) - 1e-14
