"""Sums of samples: who is sampled, what is charged, and how much noise is needed.

The power of the audits against noise that is 1.5 times too small and a sensitivity that
is off by two was measured with other seeds: 100 of 100.
"""

import math

import pytest
import torch

from botorch_dp import GDP, ApproxDP, Ledger, SubsampledGaussianMechanism
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    FixedSizeGaussianEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PrivacyAccountant,
    audit_epsilon,
    audit_mu,
    noise_multiplier_for,
)
from tests.privacy.mechanisms.cases import Broken, make


class TestParameters:
    @pytest.mark.parametrize(
        "sampling",
        [
            {},
            {"sampling_rate": 0.1, "sample_size": 5},
            {"sample_size": 5},
            {"num_records": 5},
            {"sampling_rate": 0.1, "sample_size": 5, "num_records": 10},
        ],
    )
    def test_one_way_to_sample(self, sampling):
        with pytest.raises(InvalidArgumentError, match="either sampling_rate"):
            SubsampledGaussianMechanism(noise_multiplier=1.0, clip_norm=1.0, **sampling)

    @pytest.mark.parametrize("bad", [0, 2.5, -1])
    def test_bad_sample_size(self, bad):
        with pytest.raises(InvalidArgumentError, match="sample_size"):
            SubsampledGaussianMechanism(
                noise_multiplier=1.0, clip_norm=1.0, sample_size=bad, num_records=10
            )


class TestEvents:
    def test_subsampled(self):
        assert make("poisson").event() == PoissonGaussianEvent(1.0, 0.5)
        assert make("poisson").noise_std == 0.5
        assert make("fixed_size").event() == FixedSizeGaussianEvent(1.0, 2, 4)
        assert make("fixed_size").noise_std == 1.0  # replace-one doubles it


class TestSubsampled:
    def test_expected_sum(self, double, generator):
        rows = torch.tensor([[0.3, 0.0], [0.0, 0.4], [30.0, 40.0]], **double)
        mechanism = SubsampledGaussianMechanism(
            noise_multiplier=1e-6,
            clip_norm=0.5,
            sampling_rate=0.25,
            generator=generator,
        )
        accountant = PrivacyAccountant()
        draws = torch.stack(
            [mechanism.release(rows, ledger=accountant) for _ in range(4000)]
        )
        expected = 0.25 * torch.tensor([0.6, 0.8], **double)
        # Standard error below 0.004; a missing clip would be off by 7.
        assert torch.allclose(draws.mean(0), expected, atol=0.02)

    @pytest.mark.parametrize(
        "sampling", [{"sampling_rate": 1.0}, {"sample_size": 3, "num_records": 3}]
    )
    def test_a_record_counts_up_to_its_norm_and_no_more(self, sampling, double):
        # The sensitivity itself: all records are taken and there is next to no noise.
        mechanism = SubsampledGaussianMechanism(
            noise_multiplier=1e-10, clip_norm=0.5, **sampling
        )
        for norm, counted in ((1e300, 0.5), (0.6, 0.5), (0.5, 0.5), (0.4, 0.4)):
            rows = torch.zeros(3, 2, **double)
            rows[1] = norm * torch.tensor([0.6, 0.8], **double)
            released = mechanism.release(rows, ledger=PrivacyAccountant())
            assert float(released.norm()) == pytest.approx(counted, rel=1e-8)

    def test_fixed_size_takes_exactly_that_many(self, double):
        mechanism = SubsampledGaussianMechanism(
            noise_multiplier=1e-6, clip_norm=1.0, sample_size=3, num_records=10
        )
        released = mechanism.release(torch.ones(10, 1, **double), ledger=Ledger())
        assert float(released) == pytest.approx(3.0, abs=1e-4)

    @pytest.mark.parametrize("kind", ["poisson", "fixed_size"])
    def test_batches_are_sampled_and_charged_one_by_one(self, kind, double):
        ledger = Ledger()
        rows = torch.full((50, 4, 2), 100.0, **double)
        released = make(kind).release(rows.unsqueeze(0), ledger=ledger)
        assert released.shape == (1, 50, 2)
        assert ledger.entries[0].count == 50
        quiet = SubsampledGaussianMechanism(
            noise_multiplier=1e-9,
            clip_norm=1.0,
            **(
                {"sampling_rate": 0.5}
                if kind == "poisson"
                else {"sample_size": 2, "num_records": 4}
            ),
        )
        identity = torch.eye(4, **double).expand(50, 4, 4)
        samples = quiet.release(identity, ledger=PrivacyAccountant()).round()
        assert len({tuple(sample) for sample in samples.tolist()}) > 3
        if kind == "fixed_size":
            assert (samples.sum(dim=-1) == 2).all()

    @pytest.mark.parametrize("shape", [(3, 2), (4,)])
    def test_wrong_rows(self, shape, double):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match="private_value"):
            make("fixed_size").release(torch.ones(shape, **double), ledger=ledger)
        assert len(ledger) == 0


class TestAudits:
    def sums(self, mechanism, rows, other, num=5000):
        accountant = PrivacyAccountant()
        return [
            mechanism.release(r.expand(num, *r.shape), ledger=accountant)[:, 0]
            for r in (rows, other)
        ]

    def test_poisson(self, generator, double):
        # One record of norm clip_norm against none: epsilon at delta = 0.01.
        mechanism = make("poisson", generator=generator)
        rows = torch.zeros(4, 1, **double)
        other = rows.clone()
        other[2] = 1e9
        delta = 0.01
        accountant = PrivacyAccountant()
        accountant.compose(mechanism.event())
        claim = accountant.get_epsilon(delta)

        def audit(mechanism, other, threshold=0.8):
            samples = self.sums(mechanism, rows, other)
            return audit_epsilon(*samples, delta=delta, threshold=threshold)

        good = audit(mechanism, other)
        assert not good.rejects(claim)
        assert good.lower_bound > 0.4 * claim
        weak = Broken.noise(make("poisson", generator=generator))
        assert audit(weak, other).rejects(claim)
        twice = other.clone()
        twice[1] = 1e9  # two records changed: what a sensitivity off by two means
        lied = audit(make("poisson", generator=generator), twice, threshold=1.2)
        assert lied.rejects(claim)

    def test_fixed_size_sensitivity_is_doubled(self, generator, double):
        # All records sampled: then it is the Gaussian mechanism, and a replaced record
        # moves the sum by 2 clip_norm.
        mechanism = SubsampledGaussianMechanism(
            noise_multiplier=1.0,
            clip_norm=0.5,
            sample_size=4,
            num_records=4,
            generator=generator,
        )
        rows = torch.full((4, 1), 1e9, **double)
        other = rows.clone()
        other[0] = -1e9
        samples = self.sums(mechanism, rows, other, num=4000)
        claim = GDP(1.0)
        assert not audit_mu(*samples).rejects(claim)
        for factor in (1.5, 2.0):  # twice: what forgetting the factor two would add
            mechanism.noise_std = 1.0 / factor
            samples = self.sums(mechanism, rows, other, num=4000)
            assert audit_mu(*samples).rejects(claim)

    def test_fixed_size(self, generator, double):
        # Three of four records. The accounting's bound is not tight here, so that only
        # noise three times too small is sure to be found out.
        mechanism = SubsampledGaussianMechanism(
            noise_multiplier=1.0,
            clip_norm=0.5,
            sample_size=3,
            num_records=4,
            generator=generator,
        )
        rows = torch.zeros(4, 1, **double)
        rows[0] = -1e9
        accountant = PrivacyAccountant()
        accountant.compose(mechanism.event())
        claim = accountant.get_epsilon(0.01)

        def audit():
            samples = self.sums(mechanism, rows, -rows)
            return audit_epsilon(*samples, delta=0.01, threshold=0.8)

        assert not audit().rejects(claim)
        mechanism.noise_std /= 3
        assert audit().rejects(claim)


class TestNoiseForSampledReleases:
    BUDGET = ApproxDP(4.0, 1e-3)

    @pytest.mark.parametrize("beside", [None, GaussianEvent(1.0)])
    def test_meets_the_budget_and_no_more(self, beside):
        others = PrivacyAccountant()
        if beside is not None:
            others.compose(beside)
        z = noise_multiplier_for(
            self.BUDGET, sampling_rate=0.25, num_releases=20, beside=others
        )
        for factor, fits in ((1.0, True), (0.98, False)):
            event = PoissonGaussianEvent(factor * z, 0.25)
            assert others.plus(event, 20).within(self.BUDGET) == fits

    def test_tolerance(self):
        z = noise_multiplier_for(
            self.BUDGET, sampling_rate=0.25, num_releases=20, tolerance=1e-3
        )
        event = PoissonGaussianEvent(0.998 * z, 0.25)
        assert not PrivacyAccountant().plus(event, 20).within(self.BUDGET)

    @pytest.mark.parametrize("tolerance", [0.0, -0.1, math.nan])
    def test_no_tolerance_would_take_for_ever(self, tolerance):
        with pytest.raises(InvalidArgumentError, match="tolerance must be"):
            noise_multiplier_for(
                self.BUDGET, sampling_rate=0.25, num_releases=2, tolerance=tolerance
            )

    def test_what_no_noise_can_meet(self):
        beside = PrivacyAccountant()
        beside.compose(GaussianEvent(0.1))
        with pytest.raises(InvalidArgumentError, match="cannot be met"):
            noise_multiplier_for(
                self.BUDGET, sampling_rate=0.25, num_releases=20, beside=beside
            )
