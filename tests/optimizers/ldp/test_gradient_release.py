"""What a user sends: noise of the right size for every guarantee, and clipping."""

import dataclasses
import math
import warnings

import pytest
import torch
from scipy.stats import chi2

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.optimizers.ldp.gradient_release import (
    LocalRelease,
    _PaidFor,
    longest_message,
)
from botorch_dp.privacy import GaussianEvent, SecureNoise, SeededNoise
from tests.devices import DEVICE
from tests.optimizers.problems import DOUBLE, seeded

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


class TestChargeFirst:
    def test_is_a_release_that_is_charged_before_the_gradient_is_known(self):
        gradient, ledgers, values = torch.ones(3, **DOUBLE), [Ledger(), Ledger()], []
        for ledger in ledgers:
            release = LocalRelease(GDP(0.5), B, generator=seeded(3))
            if ledger is ledgers[0]:
                values.append(release(gradient, ledger=ledger))
                continue

            def private_gradient(ledger=ledger):
                assert len(ledger) == 1
                return gradient

            values.append(
                release.charge_first(
                    private_gradient, ledger=ledger, size=3, like=gradient
                )
            )
        assert torch.equal(*values)
        first, second = (ledger.entries for ledger in ledgers)
        assert [len(first), len(second)] == [1, 1]
        assert dataclasses.replace(first[0], time="") == dataclasses.replace(
            second[0], time=""
        )

    def test_a_spent_budget_comes_before_the_gradient(self):
        def private_gradient():
            raise AssertionError

        ledger = Ledger(cap=GDP(0.5))
        release = LocalRelease(GDP(0.5), B)
        release(torch.ones(3, **DOUBLE), ledger=ledger)
        with pytest.raises(BudgetExceededError):
            release.charge_first(
                private_gradient, ledger=ledger, size=3, like=torch.zeros(1, **DOUBLE)
            )

    def test_nothing_else_is_paid_for(self):
        event = GaussianEvent(2.0)
        for other in ({"event": GaussianEvent(1.0)}, {"event": event, "count": 2}):
            with pytest.raises(BudgetExceededError, match="was not paid for"):
                _PaidFor(event).charge(**other)
        paid = _PaidFor(event)
        paid.charge(event, mechanism="gaussian")
        with pytest.raises(BudgetExceededError, match="was not paid for"):
            paid.charge(event)
        _PaidFor(event, 2).charge(event, count=2)
        with pytest.raises(BudgetExceededError, match="was not paid for"):
            _PaidFor(event, 2).charge(event)


class TestRows:
    """Each row is one user's gradient: clipped, noised and charged by itself."""

    def test_a_batch_is_charged_once_for_each_row(self):
        ledger = Ledger()
        rows = torch.zeros(2, 4, 3, **DOUBLE)
        for batch_dims in ({}, {"batch_dims": 2}):
            LocalRelease(GDP(0.5), B)(rows, ledger=ledger, **batch_dims)
        assert [entry.count for entry in ledger.entries] == [8, 8]

    def test_rows_are_no_single_release(self):
        # Eight rows of norm B have the norm B sqrt(8), which the noise does not cover.
        ledger, rows = Ledger(), torch.zeros(2, 4, 3, **DOUBLE)
        for batch_dims in (0, 1, 3):
            with pytest.raises(InvalidArgumentError, match="batch_dims must be 2"):
                LocalRelease(GDP(0.5), B)(rows, ledger=ledger, batch_dims=batch_dims)
        assert len(ledger) == 0

    @pytest.mark.parametrize(
        ("gradients", "ledger", "match"),
        [
            (torch.zeros(3, **DOUBLE), None, "ledger must be a Ledger or a Privacy"),
            (torch.zeros((), **DOUBLE), Ledger(), "at least 1 dimension"),
            ([0.0], Ledger(), r"private_gradients must be a torch\.Tensor"),
        ],
    )
    def test_bad_arguments_are_not_charged(self, gradients, ledger, match):
        with pytest.raises(InvalidArgumentError, match=match):
            LocalRelease(GDP(0.5), B)(gradients, ledger=ledger)
        assert ledger is None or len(ledger) == 0


class TestLongestMessage:
    COUNT, FAILURE = 20_000, 0.05

    @pytest.mark.parametrize("dim", [1, 2, 5, 20, 100])
    @pytest.mark.parametrize("kind", ["gaussian", "laplace"])
    def test_noise_is_rarely_longer(self, kind, dim):
        """Of 20,000 draws, no more than a share of 0.05 and 4.5 standard errors."""
        source, zeros = SeededNoise(seeded(6)), torch.zeros(self.COUNT, dim, **DOUBLE)
        if kind == "gaussian":
            noise = source.add_gaussian(zeros, 3.0)
        else:
            noise = source.add_laplace(zeros, 3.0 / math.sqrt(2))
        bound = longest_message(
            clip_norm=1e-9, noise_std=3.0, dim=dim, failure=self.FAILURE
        )
        share = float((noise.norm(dim=-1) > bound).double().mean())
        error = math.sqrt(self.FAILURE * (1 - self.FAILURE) / self.COUNT)
        assert share <= self.FAILURE + 4.5 * error
        assert bound < 5 * float(noise.norm(dim=-1).mean())

    def test_it_is_sharp_for_a_single_number_with_laplace_noise(self):
        # P(|z| > b log(1 / failure)) = failure.
        bound = longest_message(clip_norm=1e-9, noise_std=1.0, dim=1, failure=1e-6)
        assert bound == pytest.approx(math.log(1e6) / math.sqrt(2))

    def test_without_noise_it_is_the_clip_norm_and_room_for_the_grid(self):
        assert longest_message(clip_norm=2.0, noise_std=0.0, dim=5) == 2.5

    @pytest.mark.parametrize("dim", [1, 2, 7, 50, 10_000])
    @pytest.mark.parametrize("failure", [0.3, 0.01, 1e-6, 1e-12])
    def test_is_at_least_what_each_kind_needs(self, dim, failure):
        bound = longest_message(clip_norm=2.0, noise_std=3.0, dim=dim, failure=failure)
        gaussian = math.sqrt(chi2.isf(failure, dim))
        assert bound >= 2.5 + 3.0 * gaussian
        assert bound <= 2.5 + 3.0 * (
            math.sqrt(dim) + math.sqrt(2) * math.log(3 / failure)
        )

    @pytest.mark.parametrize("mechanism", ["gaussian", "classical", "laplace"])
    @pytest.mark.parametrize("secure", [False, True, SecureNoise(-7)])
    def test_honest_messages_pass(self, mechanism, secure):
        release = LocalRelease(
            ApproxDP(1.0, 1e-3), B, mechanism=mechanism, secure=secure
        )
        far = torch.tensor([1e9, -1e9, 0.0], **DOUBLE)  # clipped to B
        longest = longest_message(clip_norm=B, noise_std=release.noise_std, dim=3)
        for _ in range(200):
            assert float(release(far, ledger=Ledger()).norm()) <= longest

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            ({"clip_norm": 0.0}, "clip_norm must be"),
            ({"noise_std": -1.0}, "noise_std must be"),
            ({"dim": 0}, "dim must be"),
            ({"failure": 1.0}, "failure must lie"),
        ],
    )
    def test_bad_arguments(self, change, match):
        facts = {"clip_norm": 1.0, "noise_std": 1.0, "dim": 2}
        with pytest.raises(InvalidArgumentError, match=match):
            longest_message(**{**facts, **change})


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


def test_a_bound_that_the_dtype_cannot_hold_costs_nothing():
    release, ledger = LocalRelease(GDP(1.0), 1e35), Ledger()
    rows = torch.ones(3, 2, dtype=torch.float32, device=DEVICE)
    with pytest.raises(InvalidArgumentError, match="bound must lie between"):
        release(rows, ledger=ledger, batch_dims=1)
    assert len(ledger) == 0
