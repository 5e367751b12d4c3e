"""Calibration: closed forms, published noise, and what the classical one gives."""

import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from botorch_dp import GDP, RDP, ApproxDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError, WeakGuaranteeWarning
from botorch_dp.privacy import (
    classical_gaussian_noise_std,
    curves,
    gaussian_guarantee,
    gaussian_noise_std,
    gaussian_rdp,
    laplace_guarantee,
    laplace_scale,
    zcdp_noise_std,
)

sensitivities = st.floats(1e-6, 1e6)


epsilons = st.floats(1e-3, 50.0)


deltas = st.floats(-12.0, -0.05).map(lambda exponent: 10.0**exponent)


@given(epsilon=epsilons, delta=deltas, sensitivity=sensitivities)
def test_gaussian_there_and_back(epsilon, delta, sensitivity):
    noise_std = gaussian_noise_std(ApproxDP(epsilon, delta), sensitivity=sensitivity)
    back = gaussian_guarantee(noise_std=noise_std, sensitivity=sensitivity)
    assert back.epsilon(delta) == pytest.approx(epsilon, rel=1e-7)


@given(sensitivity=sensitivities, factor=st.floats(0.1, 10.0))
def test_gaussian_noise_scales_with_sensitivity(sensitivity, factor):
    one, other = (
        gaussian_noise_std(GDP(0.7), sensitivity=s)
        for s in (sensitivity, factor * sensitivity)
    )
    assert other == pytest.approx(factor * one, rel=1e-12)


def test_rdp_corrects_the_factor_four():
    # Values clipped at B differ by 2B when replaced: B sqrt(2 q / eps), not the
    # B sqrt(q / (2 eps)) that forgets the two.
    order, epsilon, clip = 4.0, 0.5, 3.0
    noise_std = gaussian_noise_std(RDP(order, epsilon), sensitivity=2 * clip)
    assert noise_std == pytest.approx(clip * math.sqrt(2 * order / epsilon))
    found = gaussian_rdp(noise_std=noise_std, sensitivity=2 * clip, order=order)
    assert found.epsilon == pytest.approx(epsilon)
    too_small = gaussian_rdp(
        noise_std=clip * math.sqrt(order / (2 * epsilon)),
        sensitivity=2 * clip,
        order=order,
    )
    assert too_small.epsilon == pytest.approx(4 * epsilon)


@given(epsilon=epsilons, sensitivity=sensitivities)
def test_laplace_there_and_back(epsilon, sensitivity):
    scale = laplace_scale(PureDP(epsilon), sensitivity=sensitivity)
    assert scale == pytest.approx(sensitivity / epsilon)
    back = laplace_guarantee(scale=scale, sensitivity=sensitivity)
    assert back.epsilon == pytest.approx(epsilon)


def test_laplace_may_spend_a_delta():
    pure = laplace_scale(PureDP(1.0), sensitivity=1.0)
    approx = laplace_scale(ApproxDP(1.0, 0.1), sensitivity=1.0)
    assert approx < pure


class TestClassical:
    @pytest.mark.parametrize(
        ("epsilon", "delta", "waste"), [(1.0, 0.2, 2.29), (2.0, 0.2, 1.59)]
    )
    def test_wasteful_at_the_papers_budgets(self, epsilon, delta, waste):
        guarantee = ApproxDP(epsilon, delta)
        with pytest.warns(WeakGuaranteeWarning, match="more than needed"):
            classical = classical_gaussian_noise_std(guarantee, sensitivity=1.0)
        exact = gaussian_noise_std(guarantee, sensitivity=1.0)
        assert classical / exact == pytest.approx(waste, abs=5e-3)

    def test_under_protects_at_large_epsilon(self):
        with pytest.warns(
            WeakGuaranteeWarning, match=r"under-protects.*epsilon=10\.39"
        ):
            classical_gaussian_noise_std(ApproxDP(10.0, 1e-5), sensitivity=1.0)

    def test_is_the_textbook_formula(self):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeakGuaranteeWarning)
            found = classical_gaussian_noise_std(ApproxDP(0.5, 1e-6), sensitivity=3.0)
        assert found == pytest.approx(3 * math.sqrt(2 * math.log(1.25e6)) / 0.5)

    def test_needs_epsilon_and_delta(self):
        with pytest.raises(InvalidArgumentError, match=r"guarantee.*ApproxDP.*GDP"):
            classical_gaussian_noise_std(GDP(1.0), sensitivity=1.0)


class TestZCDP:
    @settings(deadline=None)
    @given(epsilon=st.floats(1e-2, 20.0), delta=st.floats(1e-10, 0.01))
    def test_meets_the_guarantee_with_a_little_more_noise(self, epsilon, delta):
        guarantee = ApproxDP(epsilon, delta)
        noise_std = zcdp_noise_std(guarantee, sensitivity=1.0)
        assert curves.zcdp_epsilon(0.5 / noise_std**2, delta) <= epsilon
        exact = gaussian_noise_std(guarantee, sensitivity=1.0)
        assert exact < noise_std < 1.5 * exact

    @pytest.mark.parametrize("guarantee", [GDP(0.5), RDP(8.0, 1.0)])
    def test_otherwise_as_the_gaussian(self, guarantee):
        assert zcdp_noise_std(guarantee, sensitivity=3.0) == pytest.approx(6.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize(
    "call",
    [
        lambda bad: gaussian_noise_std(GDP(1.0), sensitivity=bad),
        lambda bad: gaussian_guarantee(noise_std=1.0, sensitivity=bad),
        lambda bad: laplace_scale(PureDP(1.0), sensitivity=bad),
        lambda bad: laplace_guarantee(scale=1.0, sensitivity=bad),
        lambda bad: zcdp_noise_std(GDP(1.0), sensitivity=bad),
        lambda bad: classical_gaussian_noise_std(ApproxDP(1, 0.1), sensitivity=bad),
    ],
)
def test_bad_sensitivity(call, bad):
    with pytest.raises(InvalidArgumentError, match="sensitivity"):
        call(bad)


@pytest.mark.parametrize(
    "call",
    [gaussian_noise_std, laplace_scale, zcdp_noise_std],
    ids=lambda f: f.__name__,
)
def test_a_loose_float_is_not_a_guarantee(call):
    with pytest.raises(InvalidArgumentError, match=r"guarantee must be.*1\.0"):
        call(1.0, sensitivity=1.0)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_noise(bad):
    with pytest.raises(InvalidArgumentError, match="noise_std"):
        gaussian_guarantee(noise_std=bad, sensitivity=1.0)
    with pytest.raises(InvalidArgumentError, match="scale"):
        laplace_guarantee(scale=bad, sensitivity=1.0)
