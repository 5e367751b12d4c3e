"""Epsilons and deltas of a stretch of losses, against sums in plain Python."""

import math

import numpy as np
import pytest

from botorch_dp.privacy.loss_tails import LossTail

LOSSES = np.arange(-20, 21) * 0.1
PROBS = np.exp(-((LOSSES - 0.3) ** 2)) / np.exp(-((LOSSES - 0.3) ** 2)).sum()


def tail(t, **errors):
    """The losses above, tilted."""
    moment = PROBS @ np.exp(t * LOSSES)
    return LossTail(
        t=t,
        interval=0.1,
        first=-20,
        probs=PROBS * np.exp(t * LOSSES) / moment,
        log_moment=math.log(moment),
        **({"error": 0.0, "mass_error": 0.0, "infinite": 0.0} | errors),
    )


def exact(epsilon):
    return PROBS @ -np.expm1(np.minimum(epsilon - LOSSES, 0.0))


@pytest.mark.parametrize("t", [0.0, 0.5, 5.0])
def test_any_tilt_gives_the_same(t):
    epsilons = np.array([-1.93, -0.1, 0.0, 0.15, 0.7, 1.9])
    expected = [exact(epsilon) for epsilon in epsilons]
    np.testing.assert_allclose(tail(t).deltas(epsilons), expected, rtol=1e-9)
    for delta in (0.2, 1e-2, 1e-4):
        assert exact(tail(t).epsilon(delta)) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("share", [slice(None), slice(30, 31)])
def test_where_something_overflowed_nothing_is_known(share):
    broken = tail(0.5)
    broken.probs[share] = math.nan
    epsilons = np.array([-1.93, 0.0, 0.7])
    assert (broken.deltas(epsilons) == 1.0).all()
    for delta in (0.5, 1e-4):
        found = broken.epsilon(delta)
        assert exact(found) <= delta


def test_outside_of_the_stretch():
    found = tail(1.0, infinite=1e-3).deltas(np.array([-2.5, 2.5]))
    assert found.tolist() == pytest.approx([1.0, 1e-3])
    assert tail(1.0, infinite=1e-3).epsilon(1e-4) == math.inf
    assert tail(1.0).epsilon(0.999) == pytest.approx(-2.0)  # its first loss


def test_errors_are_added():
    plain = tail(1.0).deltas(np.array([0.5]))[0]
    distances = 0.1 * np.arange(1, 41)
    weights = np.exp(-distances) * -np.expm1(-distances)
    factor = math.exp(tail(1.0).log_moment - 0.5)
    for name, norm in (
        ("error", np.linalg.norm(weights)),
        ("mass_error", weights.max()),
    ):
        found = tail(1.0, **{name: 1e-3}).deltas(np.array([0.5]))[0]
        assert found - plain == pytest.approx(1e-3 * factor * norm, rel=1e-6)
