"""Mechanisms: they charge before they draw, keep to their distribution, leak nothing.

Audits show every mechanism at its claim, and reject the same mechanism when its noise
is 1.5 times too small or its sensitivity off by two. Noise that cannot be seeded is
audited at confidence 1 - 1e-6, so that a sound mechanism fails once in a million runs.
Power against both faults: above 1 - 1e-6 for Gaussian noise (mu_audit_power, exact);
measured with other seeds, 40 of 40 for exponential and 100 of 100 for Laplace and
for sampled Gaussian noise.
"""

import math
import warnings

import pytest
import torch

from botorch_dp import (
    GDP,
    RDP,
    ApproxDP,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    PrivacyAccountant,
    PureDP,
    SubsampledGaussianMechanism,
)
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    UnsupportedConversionError,
)
from botorch_dp.privacy import (
    ExponentialEvent,
    FixedSizeGaussianEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PureEvent,
    SecureNoise,
    ZCDPEvent,
    audit_epsilon,
    audit_epsilon_finite,
    audit_mu,
    mu_audit_power,
    worst_log_ratio,
)
from botorch_dp.privacy.mechanisms import exponential as selection

CPU = torch.device("cpu")
NAN, INF = math.nan, math.inf


def make(kind, **kwargs):
    if kind == "gaussian":
        return GaussianMechanism(GDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "laplace":
        return LaplaceMechanism(PureDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "exponential":
        return ExponentialMechanism(PureDP(1.0), sensitivity=0.5, **kwargs)
    if kind == "poisson":
        return SubsampledGaussianMechanism(
            noise_multiplier=1.0, clip_norm=0.5, sampling_rate=0.5, **kwargs
        )
    return SubsampledGaussianMechanism(
        noise_multiplier=1.0, clip_norm=0.5, sample_size=2, num_records=4, **kwargs
    )


KINDS = ["gaussian", "laplace", "exponential", "poisson", "fixed_size"]


def private_value(kind, **tkwargs):
    return torch.ones((4, 3) if kind in ("poisson", "fixed_size") else 3, **tkwargs)


@pytest.mark.parametrize("kind", KINDS)
class TestEveryMechanism:
    """One test case for all: what a mechanism added later has to pass as well."""

    def test_charges_one_release_and_keeps_dtype(self, kind, tkwargs, generator):
        ledger = Ledger()
        mechanism = make(kind, generator=generator)
        released = mechanism.release(private_value(kind, **tkwargs), ledger=ledger)
        assert released.device == CPU
        if kind != "exponential":
            assert released.dtype == tkwargs["dtype"]
            assert released.shape == (3,)
        [entry] = ledger.entries
        assert (entry.count, entry.mechanism) == (1, mechanism.name)
        assert (entry.adjacency, entry.noise) == (mechanism.adjacency, "seeded")

    def test_charges_before_it_draws(self, kind, double, monkeypatch):
        mechanism = make(kind)
        drawn = []
        for name in ("add_gaussian", "add_laplace", "noisy_argmax"):
            monkeypatch.setattr(
                mechanism.noise_source, name, lambda *args: drawn.append(args)
            )
        ledger = Ledger(cap=ApproxDP(1e-3, 1e-6))
        with pytest.raises(BudgetExceededError):
            mechanism.release(private_value(kind, **double), ledger=ledger)
        assert drawn == []
        assert len(ledger) == 0

    def test_a_failure_while_drawing_stays_charged(self, kind, double, monkeypatch):
        mechanism = make(kind)

        def fail(*args):
            raise RuntimeError("power cut")

        for name in ("add_gaussian", "add_laplace", "noisy_argmax"):
            monkeypatch.setattr(mechanism.noise_source, name, fail)
        ledger = Ledger()
        with pytest.raises(RuntimeError, match="power cut"):
            mechanism.release(private_value(kind, **double), ledger=ledger)
        assert len(ledger) == 1

    def test_private_values_never_raise_or_warn(self, kind, tkwargs, generator):
        mechanism = make(kind, generator=generator)
        for bad in (NAN, INF, -INF, 1e38, 0.0):
            value = private_value(kind, **tkwargs)
            value.view(-1)[1] = bad
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                released = mechanism.release(value, ledger=Ledger())
            assert released.isfinite().all()

    def test_same_seed_same_release(self, kind, double):
        value = private_value(kind, **double)
        one, other = (
            make(kind, generator=torch.Generator("cpu").manual_seed(3)).release(
                value, ledger=Ledger()
            )
            for _ in range(2)
        )
        assert torch.equal(one, other)

    def test_takes_an_accountant_for_a_ledger(self, kind, double):
        accountant = PrivacyAccountant()
        make(kind).release(private_value(kind, **double), ledger=accountant)
        assert len(accountant) == 1

    def test_releases_carry_no_gradient(self, kind, double):
        value = private_value(kind, **double).requires_grad_()
        released = make(kind).release(value, ledger=Ledger())
        assert not released.requires_grad

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda value: value.long(), "int64"),
            (lambda value: value.half(), "float16"),
            (lambda value: value[:0], "empty"),
            (lambda value: value.tolist(), "list|float"),
            (lambda value: value.to_sparse(), "dense"),
        ],
    )
    def test_bad_values_are_not_charged(self, kind, change, match, double):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match=f"private_.*({match})"):
            make(kind).release(change(private_value(kind, **double)), ledger=ledger)
        assert len(ledger) == 0

    def test_bad_ledger(self, kind, double):
        with pytest.raises(InvalidArgumentError, match=r"ledger.*None"):
            make(kind).release(private_value(kind, **double), ledger=None)

    def test_generator_and_secure(self, kind, generator):
        with pytest.raises(InvalidArgumentError, match="secure"):
            make(kind, generator=generator, secure=True)

    def test_bad_adjacency(self, kind):
        with pytest.raises(InvalidArgumentError, match=r"adjacency.*'swap'"):
            make(kind, adjacency="swap")


class TestParameters:
    @pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF, "1", None])
    @pytest.mark.parametrize(
        ("build", "name"),
        [
            (lambda b: GaussianMechanism(GDP(1.0), sensitivity=b), "sensitivity"),
            (lambda b: LaplaceMechanism(PureDP(1.0), sensitivity=b), "sensitivity"),
            (lambda b: ExponentialMechanism(PureDP(1.0), sensitivity=b), "sensitivity"),
            (
                lambda b: SubsampledGaussianMechanism(
                    noise_multiplier=b, clip_norm=1.0, sampling_rate=0.1
                ),
                "noise_multiplier",
            ),
            (
                lambda b: SubsampledGaussianMechanism(
                    noise_multiplier=1.0, clip_norm=b, sampling_rate=0.1
                ),
                "clip_norm",
            ),
        ],
    )
    def test_bad_numbers_are_named(self, build, name, bad):
        with pytest.raises(InvalidArgumentError, match=f"{name}.*{bad!r}"):
            build(bad)

    @pytest.mark.parametrize(
        "mechanism", [GaussianMechanism, LaplaceMechanism, ExponentialMechanism]
    )
    def test_a_float_is_not_a_guarantee(self, mechanism):
        with pytest.raises(InvalidArgumentError, match=r"guarantee.*1\.0"):
            mechanism(1.0, sensitivity=1.0)

    def test_gaussian_noise_is_never_pure(self):
        with pytest.raises(UnsupportedConversionError, match="Laplace"):
            GaussianMechanism(PureDP(1.0), sensitivity=1.0)

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

    def test_replacement_is_not_monotone(self):
        with pytest.raises(InvalidArgumentError, match=r"monotone.*replace_one"):
            ExponentialMechanism(PureDP(1.0), sensitivity=1.0, monotone=True)


class TestEvents:
    def test_gaussian(self):
        assert make("gaussian").noise_std == 0.5
        assert make("gaussian").event(3) == GaussianEvent(1.0)

    def test_laplace(self):
        assert make("laplace").event(3) == LaplaceEvent(1.0)

    def test_exponential(self):
        assert make("exponential").event() == ExponentialEvent(1.0)
        assert make("exponential").scale == 1.0
        monotone = make("exponential", monotone=True, adjacency="add_or_remove_one")
        assert monotone.scale == 0.5

    def test_subsampled(self):
        assert make("poisson").event() == PoissonGaussianEvent(1.0, 0.5)
        assert make("poisson").noise_std == 0.5
        assert make("fixed_size").event() == FixedSizeGaussianEvent(1.0, 2, 4)
        assert make("fixed_size").noise_std == 1.0  # replace-one doubles it

    @pytest.mark.parametrize("grid", [None, -10])
    def test_secure_costs_come_from_the_sampler(self, grid):
        source = SecureNoise(grid)
        gaussian = make("gaussian", secure=source).event(7)
        laplace = make("laplace", secure=source).event(7)
        assert isinstance(gaussian, ZCDPEvent)
        assert isinstance(laplace, PureEvent)
        excess = 0.0 if grid is None else 1e-3
        assert gaussian.rho >= 0.5 * (1 + excess)
        assert laplace.epsilon >= 1.0 + excess
        assert gaussian.rho == pytest.approx(0.5, rel=0.1)

    @pytest.mark.parametrize("kind", ["gaussian", "laplace"])
    def test_a_grid_too_coarse_for_the_noise(self, kind, double):
        ledger = Ledger()
        mechanism = make(kind, secure=SecureNoise(-2))
        with pytest.raises(InvalidArgumentError, match=r"2\^-2.*too coarse"):
            mechanism.release(torch.zeros(100, **double), ledger=ledger)
        assert len(ledger) == 0

    @pytest.mark.parametrize("secure", [False, True])
    def test_a_mechanism_fits_a_cap_of_its_own_guarantee(self, secure, double):
        guarantee = ApproxDP(1.0, 1e-5)
        ledger = Ledger(cap=guarantee)
        mechanism = GaussianMechanism(guarantee, sensitivity=1.0, secure=secure)
        mechanism.release(torch.zeros(3, **double), ledger=ledger)
        with pytest.raises(BudgetExceededError):
            mechanism.release(torch.zeros(3, **double), ledger=ledger)

    def test_secure_renyi(self, double):
        ledger = Ledger(cap=RDP(8.0, 1.0))
        mechanism = GaussianMechanism(RDP(8.0, 1.0), sensitivity=1.0, secure=True)
        mechanism.release(torch.zeros(3, **double), ledger=ledger)
        assert len(ledger) == 1


class TestBatches:
    @pytest.mark.parametrize("kind", ["gaussian", "laplace"])
    def test_each_batch_element_is_charged(self, kind, double):
        ledger = Ledger()
        value = torch.zeros(4, 5, 2, **double)
        assert make(kind).release(value, ledger=ledger, batch_dims=2).shape == (4, 5, 2)
        make(kind).release(value, ledger=ledger)
        assert [entry.count for entry in ledger.entries] == [20, 1]

    def test_each_choice_is_charged(self, double):
        ledger = Ledger()
        chosen = make("exponential").release(
            torch.zeros(4, 5, 3, **double), ledger=ledger
        )
        assert chosen.shape == (4, 5)
        assert ledger.entries[0].count == 20

    @pytest.mark.parametrize("bad", [-1, 3, 1.5])
    def test_bad_batch_dims(self, bad, double):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match=f"batch_dims.*{bad}"):
            make("gaussian").release(
                torch.zeros(2, 2, **double), ledger=ledger, batch_dims=bad
            )
        assert len(ledger) == 0


class TestExponential:
    def test_exact_probabilities_on_neighbours(self, generator, double):
        # exp(eps (q - q') / (2 Delta)) with |q - q'| <= Delta: closed form, no samples.
        mechanism = make("exponential")
        worst = 0.0
        for _ in range(200):
            scores = torch.randn(20, generator=generator, device=CPU).double()
            shift = torch.rand(20, generator=generator, device=CPU).double() * 2 - 1
            other = scores + 0.5 * shift.sign()
            worst = max(
                worst,
                worst_log_ratio(
                    torch.log_softmax(scores / mechanism.scale, 0),
                    torch.log_softmax(other / mechanism.scale, 0),
                ),
            )
        assert 0.8 < worst <= 1.0

    def test_monotone_needs_half_the_noise(self, generator):
        mechanism = make("exponential", monotone=True, adjacency="add_or_remove_one")
        scores = torch.randn(20, generator=generator, device=CPU).double()
        for other in (scores + 0.5, scores + 0.5 * (scores > 0)):
            ratio = worst_log_ratio(
                torch.log_softmax(scores / mechanism.scale, 0),
                torch.log_softmax(other / mechanism.scale, 0),
            )
            assert ratio <= 1.0
        mixed = scores + 0.5 * (scores > 0) - 0.5 * (scores <= 0)
        assert (
            worst_log_ratio(
                torch.log_softmax(scores / mechanism.scale, 0),
                torch.log_softmax(mixed / mechanism.scale, 0),
            )
            > 1.0
        )

    def test_a_million_candidates_in_chunks(self, monkeypatch, double):
        monkeypatch.setattr(selection, "_CHUNK", 1000)
        scores = torch.zeros(1_000_000, **double)
        scores[654_321] = 1e3
        mechanism = make("exponential")
        assert int(mechanism.release(scores, ledger=Ledger())) == 654_321
        lazily = (scores[i : i + 1000] for i in range(0, 1_000_000, 1000))
        assert int(mechanism.release(lazily, ledger=Ledger())) == 654_321

    def test_bad_chunks(self, double):
        ledger = Ledger()
        good, bad = torch.zeros(2, 3, **double), torch.zeros(3, 3, **double)
        with pytest.raises(InvalidArgumentError, match="at least one chunk"):
            make("exponential").release([], ledger=ledger)
        with pytest.raises(InvalidArgumentError, match="int64"):
            make("exponential").release([good, good.long()], ledger=ledger)
        assert len(ledger) == 0
        with pytest.raises(InvalidArgumentError, match=r"batch shape.*\(3,\)"):
            make("exponential").release([good, bad], ledger=ledger)
        assert len(ledger) == 0
        with pytest.raises(InvalidArgumentError, match=r"batch shape.*\(3,\)"):
            make("exponential").release(iter([good, bad]), ledger=ledger)


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


class Broken:
    """Makes the noise of a mechanism 1.5 times too small without telling its ledger."""

    @staticmethod
    def noise(mechanism):
        for name in ("noise_std", "scale"):
            if hasattr(mechanism, name):
                setattr(mechanism, name, getattr(mechanism, name) / 1.5)
        return mechanism


SOURCES = ["seeded", "system", "secure"]


def noise_arguments(source, generator):
    return {
        "seeded": {"generator": generator},
        "system": {},
        "secure": {"secure": SecureNoise(-20)},
    }[source]


def confidence_for(source):
    return 0.99 if source == "seeded" else 1 - 1e-6


class TestAudits:
    def outputs(self, mechanism, shift, num=8000):
        """Outputs on two neighbouring values that differ by ``shift``."""
        accountant = PrivacyAccountant()
        values = (torch.zeros(num, dtype=torch.float64, device=CPU) for _ in range(2))
        return [
            mechanism.release(value + by, ledger=accountant, batch_dims=1)
            for value, by in zip(values, (0.0, shift), strict=True)
        ]

    @pytest.mark.parametrize("source", SOURCES)
    def test_gaussian(self, source, generator):
        arguments = noise_arguments(source, generator)
        confidence = confidence_for(source)
        power = mu_audit_power(
            true_mu=1.5, claimed_mu=1.0, num_samples=8000, confidence=confidence
        )
        assert power > 0.999999

        def audit(mechanism, shift):
            return audit_mu(
                *self.outputs(mechanism, shift),
                threshold=shift / 2,
                confidence=confidence,
            )

        claim = GDP(1.0)
        good = audit(make("gaussian", **arguments), 0.5)
        assert not good.rejects(claim)
        assert good.lower_bound > 0.7
        assert audit(Broken.noise(make("gaussian", **arguments)), 0.5).rejects(claim)
        assert audit(make("gaussian", **arguments), 1.0).rejects(claim)

    @pytest.mark.parametrize("source", SOURCES)
    def test_laplace(self, source, generator):
        arguments = noise_arguments(source, generator)

        def audit(mechanism, shift):
            return audit_epsilon(
                *self.outputs(mechanism, shift),
                threshold=0.0,
                confidence=confidence_for(source),
            )

        claim = PureDP(1.0)
        good = audit(make("laplace", **arguments), 0.5)
        assert not good.rejects(claim)
        assert good.lower_bound > 0.7
        assert audit(Broken.noise(make("laplace", **arguments)), 0.5).rejects(claim)
        assert audit(make("laplace", **arguments), 1.0).rejects(claim)

    def choices(self, mechanism, factor, num, candidates=20):
        scores = torch.zeros(candidates, dtype=torch.float64, device=CPU)
        other = torch.full_like(scores, -0.5 * factor)
        other[0] = 0.5 * factor
        accountant = PrivacyAccountant()
        return [
            mechanism.release(s.expand(num, candidates), ledger=accountant)
            for s in (scores, other)
        ]

    @pytest.mark.parametrize("source", SOURCES)
    def test_exponential(self, source, generator):
        # The worst of these 20 outcomes gives 0.918, short of the claim by six standard
        # errors: confidence 0.99 is enough for noise that cannot be seeded, too.
        arguments = noise_arguments(source, generator)
        num = 24_000 if source == "secure" else 60_000
        claim = PureDP(1.0)

        def audit(mechanism, factor):
            return audit_epsilon_finite(
                *self.choices(mechanism, factor, num), num_outcomes=20
            )

        good = audit(make("exponential", **arguments), 1)
        assert not good.rejects(claim)
        assert good.lower_bound > 0.4
        assert audit(Broken.noise(make("exponential", **arguments)), 1).rejects(claim)
        if source != "secure":  # the same code, and each choice takes OpenDP 0.15 ms
            assert audit(make("exponential", **arguments), 2).rejects(claim)

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
