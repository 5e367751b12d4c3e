"""Noise in shares: the distribution of its sum by brute force, and audits of a release.

The audits notice shares for twice as many honest parties as there are.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.privacy import (
    PoissonGaussianEvent,
    PrivacyAccountant,
    SharedGaussianMechanism,
    audit_epsilon,
    audit_mu,
)

N, D = 40, 5


def make(**kwargs):
    defaults = {"noise_multiplier": 1.0, "clip_norm": 2.0, "num_entries": D}
    return SharedGaussianMechanism(**{**defaults, "num_honest": N, **kwargs})


def rounded(std, width):
    """Return the probabilities of a rounded normal number, from -width to width."""
    k = np.arange(-width, width + 1)
    return norm.cdf(k + 0.5, scale=std) - norm.cdf(k - 0.5, scale=std)


def of_sum(std, count, width=400):
    """Return the probabilities of the sum of some of them, by convolution."""
    total = one = rounded(std, width)
    for _ in range(count - 1):
        total = np.convolve(total, one)[width:-width]
    return total


def of_one(std, count, width=400):
    """Return those of a rounded sum of one normal number and uniform ones."""
    fine = 64  # the midpoints of cells: their error falls with the fourth power of it
    k = np.arange(-width * fine, width * fine + 1) / fine
    density = norm.pdf(k, scale=std * math.sqrt(count)) / fine
    box = np.ones(fine + 1) / fine
    box[[0, -1]] /= 2
    for _ in range(count):
        density = np.convolve(density, box, mode="same")
    return density[::fine] * fine


def bound(std, count):
    """Return the bound of the lemma in docs/theory/shared_noise.md."""
    eta = 2 * sum(
        math.exp(-((std * math.pi * (2 * j - 1)) ** 2) / 2) for j in range(1, 9)
    )
    return count * eta * (1 + eta) ** (count - 1) + eta


def hockey_stick(p, shift, epsilon):
    moved = np.roll(p, shift)
    return np.clip(p - math.exp(epsilon) * moved, 0, None).sum()


class TestLemma:
    @pytest.mark.parametrize("count", [2, 5, 12])
    @pytest.mark.parametrize("std", [0.3, 0.5, 0.8, 2.0, 8.0])
    def test_sums_of_rounded_shares(self, std, count):
        gap = np.abs(of_sum(std, count) - of_one(std, count)).max()
        assert gap <= bound(std, count) + 1e-6  # of the numerical integration

    def test_it_is_needed(self):
        """With a coarse grid, the sum is not one rounded Gaussian."""
        gap = np.abs(of_sum(0.3, 5) - of_one(0.3, 5)).max()
        assert gap > 0.01

    @pytest.mark.parametrize("count", [3, 10])
    def test_privacy_by_brute_force(self, count):
        """Every (epsilon, delta) of the sum is within that of one Gaussian."""
        std, shift = 4.0, 6
        p = of_sum(std, count)
        gaussian = GDP(shift / (std * math.sqrt(count)))
        for epsilon in (0.0, 0.2, 0.5, 1.0, 2.0):
            assert hockey_stick(p, shift, epsilon) <= gaussian.delta(epsilon) + 1e-12
            assert hockey_stick(p, -shift, epsilon) <= gaussian.delta(epsilon) + 1e-12
        # It is not much more private, either.
        assert hockey_stick(p, shift, 0.5) >= 0.9 * gaussian.delta(0.5)


class TestShares:
    def test_grid_and_sensitivity(self):
        made = make()
        share = made.clip_norm / math.sqrt(N)
        assert 1024 <= share / made.step < 2048
        assert math.log2(made.step).is_integer()
        assert made.sensitivity == made.clip_norm + made.step * math.sqrt(D) / 2
        assert made.noise_std == made.sensitivity
        assert made.share_std * math.sqrt(N) == pytest.approx(made.noise_std)

    def test_a_row_stays_within_the_sensitivity(self, double, generator):
        made = make(noise_multiplier=1e-3)
        rows = 10 * torch.randn(500, D, generator=generator, **double)
        quiet = make(noise_multiplier=1e-3)
        quiet.noise_std = 0.0
        norms = quiet.decode(quiet.shares(rows)).norm(dim=-1)
        assert float(norms.max()) <= made.sensitivity
        assert float(norms.min()) >= 0.999 * made.clip_norm

    def test_whole_numbers_with_the_noise_of_a_share(self, double, generator):
        made = make(generator=generator)
        shares = made.shares(torch.zeros(4000, D, **double))
        assert shares.dtype == torch.int64
        assert float(made.decode(shares).std()) == pytest.approx(
            made.share_std, rel=0.02
        )

    def test_sums_wrap_around(self, double):
        """Masks may be added modulo 2^64 and taken off again."""
        made = make()
        shares = made.shares(torch.ones(N, D, **double))
        most = torch.iinfo(torch.int64).max
        masks = torch.full((N, D), most, device=shares.device) - shares.abs()
        masked = (shares + masks).sum(dim=0)
        assert torch.equal(masked - masks.sum(dim=0), shares.sum(dim=0))

    def test_coins(self, double):
        made = make(sampling_rate=0.3)
        made.noise_std = 0.0
        shares = made.decode(made.shares(torch.ones(3000, D, **double)))
        given = (shares != 0).all(dim=-1)
        assert torch.equal(given, (shares != 0).any(dim=-1))
        # 4.5 standard errors.
        assert float(given.double().mean()) == pytest.approx(0.3, abs=0.038)

    def test_sums_are_unbiased(self, double, generator):
        made = make(generator=generator, sampling_rate=0.5)
        rows = torch.randn(N, D, generator=generator, **double)
        norms = rows.norm(dim=-1, keepdim=True)
        expected = 0.5 * (rows * (2.0 / norms).clamp(max=1.0)).sum(dim=0)
        drawn = torch.stack(
            [made.release(rows, ledger=PrivacyAccountant()) for _ in range(2000)]
        )
        error = drawn.std(dim=0) / math.sqrt(2000)
        assert ((drawn.mean(dim=0) - expected).abs() < 4.5 * error).all()

    def test_broken_rows_count_as_zero(self, double):
        made = make()
        made.noise_std = 0.0
        rows = torch.ones(N, D, **double)
        rows[3, 1], rows[4, 0] = torch.nan, torch.inf
        shares = made.shares(rows)
        assert not shares[3:5].any()
        assert shares[5].all()


class TestCost:
    def test_is_charged_before_anything_is_drawn(self, double):
        ledger = Ledger()
        make(sampling_rate=0.2).release(torch.ones(N, D, **double), ledger=ledger)
        (entry,) = ledger.entries
        assert entry.event == PoissonGaussianEvent(1.0, 0.2)
        assert (entry.adjacency, entry.unit) == ("zero_out", "agent")

    def test_without_sampling_it_is_one_gaussian(self, double):
        accountant = PrivacyAccountant()
        make().release(torch.ones(N, D, **double), ledger=accountant)
        assert accountant.within(GDP(1.0))
        assert not accountant.within(GDP(0.99))

    def test_too_few_parties_release_nothing(self, double):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match="nothing is released"):
            make().release(torch.ones(N - 1, D, **double), ledger=ledger)
        assert not ledger.entries

    def test_a_cap_is_kept(self, double):
        made = make(noise_multiplier=0.1)
        ledger = Ledger(cap=ApproxDP(1.0, 1e-6))
        with pytest.raises(Exception, match="cap"):
            made.release(torch.ones(N, D, **double), ledger=ledger)

    @pytest.mark.parametrize(
        ("kwargs", "message"),
        [
            ({"num_honest": 0}, "num_honest"),
            ({"num_entries": 0}, "num_entries"),
            ({"noise_multiplier": 0.0}, "noise_multiplier"),
            ({"noise_multiplier": 1e-12}, "too small for sums"),
            ({"sampling_rate": 1.5}, "sampling_rate"),
            ({"clip_norm": -1.0}, "clip_norm"),
        ],
    )
    def test_bad_parameters(self, kwargs, message):
        with pytest.raises(InvalidArgumentError, match=message):
            make(**kwargs)

    def test_bad_rows(self, double):
        with pytest.raises(InvalidArgumentError, match="num_entries=5"):
            make().shares(torch.ones(N, 3, **double))


class TestAudit:
    """One party's row on one side; all others know theirs and take them off."""

    NUM = 20_000

    def samples(self, made, row, honest, double):
        rows = torch.zeros(self.NUM, honest, 1, **double)
        rows[:, 0] = row
        total = made.shares(rows).sum(dim=-2)
        return made.decode(total).squeeze(-1).cpu()

    @pytest.mark.parametrize("kind", ["sound", "broken"])
    def test_the_row_of_a_party(self, kind, double, generator):
        made = make(num_entries=1, num_honest=10, generator=generator)
        # Broken: half of those on whom the noise relies do not add theirs.
        honest = 10 if kind == "sound" else 5
        found = audit_mu(
            self.samples(made, 0.0, honest, double),
            self.samples(made, 2.0, honest, double),
            threshold=1.0,
        )
        assert found.rejects(GDP(1.0)) == (kind == "broken")
        assert found.lower_bound > 0.9

    @pytest.mark.parametrize("kind", ["sound", "broken"])
    def test_sampling(self, kind, double, generator):
        made = make(
            num_entries=1, num_honest=10, sampling_rate=0.2, generator=generator
        )
        claim = PrivacyAccountant().plus(made.event()).get_epsilon(1e-2)
        if kind == "broken":
            made.sampling_rate = 1.0  # the party gives its row every time
        found = audit_epsilon(
            self.samples(made, 0.0, 10, double),
            self.samples(made, 2.0, 10, double),
            delta=1e-2,
            threshold=3.0,
        )
        assert found.rejects(claim) == (kind == "broken")
