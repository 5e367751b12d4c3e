"""What a user sends: noise of the right size for every guarantee, and clipping."""

import math
import warnings

import pytest
import torch

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.optimizers.local_release import LocalRelease
from botorch_dp.privacy import GaussianEvent

from .problems import DOUBLE, seeded

B = 1.5


class TestNoise:
    def test_gdp(self):
        assert LocalRelease(GDP(0.5), B).noise_std == pytest.approx(2 * B / 0.5)

    def test_rdp_has_the_corrected_sensitivity(self):
        q, epsilon = 4.0, 0.7
        # The paper prints B sqrt(q / (2 epsilon)), half of this.
        expected = B * math.sqrt(2 * q / epsilon)
        assert LocalRelease(RDP(q, epsilon), B).noise_std == pytest.approx(expected)

    def test_analytic_is_far_below_classical(self):
        with pytest.warns(WeakGuaranteeWarning, match="with probability 0.2"):
            analytic = LocalRelease(ApproxDP(2.0, 0.2), B)
        with pytest.warns(WeakGuaranteeWarning, match="with probability 0.2"):
            classical = LocalRelease(ApproxDP(2.0, 0.2), B, mechanism="classical")
        expected = 2 * B * math.sqrt(2 * math.log(1.25 / 0.2)) / 2.0
        assert classical.noise_std == pytest.approx(expected)
        # The measured facts of the calibration say 1.59 times.
        assert classical.noise_std / analytic.noise_std == pytest.approx(1.59, abs=0.01)

    def test_laplace_is_for_the_l1_norm(self):
        release = LocalRelease(PureDP(2.0), B, mechanism="laplace")
        assert release.noise_std == pytest.approx(math.sqrt(2) * 2 * B / 2.0)
        large = torch.tensor([10.0, -10.0, 10.0, 10.0], **DOUBLE)
        clipped = []
        release._mechanism.release = lambda value, **_: clipped.append(value)
        release(large, ledger=Ledger())
        assert float(clipped[0].abs().sum()) == pytest.approx(B)

    def test_small_delta_warns_not(self):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            LocalRelease(ApproxDP(1.0, 1e-5), B)

    @pytest.mark.parametrize(
        ("guarantee", "mechanism"),
        [
            (GDP(1.0), "gaussian"),
            (RDP(3.0, 1.0), "gaussian"),
            (ApproxDP(1.0, 1e-4), "gaussian"),
            (ApproxDP(0.5, 1e-4), "classical"),
            (PureDP(1.0), "laplace"),
            (ApproxDP(1.0, 1e-4), "laplace"),
        ],
    )
    def test_one_message_fits_its_guarantee_and_two_do_not(self, guarantee, mechanism):
        release = LocalRelease(guarantee, B, mechanism=mechanism, generator=seeded())
        ledger = Ledger(cap=guarantee)
        zeros = torch.zeros(3, **DOUBLE)
        release(zeros, ledger=ledger)
        if mechanism != "classical":  # which may leave some
            with pytest.raises(BudgetExceededError):
                release(zeros, ledger=ledger)

    def test_classical_charges_what_it_really_gives(self):
        # At epsilon = 10 the textbook noise gives 10.39: its own cap refuses it.
        release = LocalRelease(ApproxDP(10.0, 1e-5), B, mechanism="classical")
        ledger = Ledger(cap=ApproxDP(10.0, 1e-5))
        with pytest.raises(BudgetExceededError):
            release(torch.zeros(3, **DOUBLE), ledger=ledger)

    def test_secure(self):
        release = LocalRelease(ApproxDP(1.0, 1e-5), B, secure=True)
        ledger = Ledger(cap=ApproxDP(1.0, 1e-5))
        assert release(torch.zeros(3, **DOUBLE), ledger=ledger).shape == (3,)


class TestLostMessages:
    @pytest.mark.parametrize("mechanism", ["gaussian", "laplace"])
    def test_skipping_leaves_the_generator_where_a_message_would(self, mechanism):
        guarantee = PureDP(1.0) if mechanism == "laplace" else GDP(1.0)
        zeros, values = torch.zeros(2, 3, **DOUBLE), []
        for skip in (False, True):
            release = LocalRelease(
                guarantee, B, mechanism=mechanism, generator=seeded(8)
            )
            if skip:
                release.skip(zeros)
            else:
                release(zeros, ledger=Ledger(), batch_dims=1)
            values.append(release(zeros, ledger=Ledger(), batch_dims=1))
        assert torch.equal(*values)

    def test_charges_what_a_message_does(self):
        release, sent, lost = LocalRelease(GDP(0.5), B), Ledger(), Ledger()
        release(torch.zeros(3, **DOUBLE), ledger=sent)
        release.charge(lost, size=3)
        assert sent.entries[0].event == lost.entries[0].event == GaussianEvent(2.0)
        assert sent.entries[0].noise == lost.entries[0].noise


class TestRefuses:
    def test_bad_arguments(self):
        with pytest.raises(InvalidArgumentError, match="clip_norm must be"):
            LocalRelease(GDP(1.0), 0.0)
        with pytest.raises(InvalidArgumentError, match="mechanism must be one of"):
            LocalRelease(GDP(1.0), 1.0, mechanism="uniform")
        with pytest.raises(InvalidArgumentError, match="needs guarantee to be an"):
            LocalRelease(GDP(1.0), 1.0, mechanism="classical")
        with pytest.raises(InvalidArgumentError, match="guarantee must be a"):
            LocalRelease(1.0, 1.0)
