"""What every mechanism does: it checks, charges and draws, in this order."""

import warnings

import pytest
import torch

from botorch_dp import (
    GDP,
    ApproxDP,
    ExponentialMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    Ledger,
    PermuteAndFlipMechanism,
    PrivacyAccountant,
    PureDP,
    SubsampledGaussianMechanism,
)
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from tests.devices import DEVICE, seeded
from tests.privacy.mechanisms.cases import (
    CHOICES,
    INF,
    KINDS,
    NAN,
    make,
    private_value,
)

DRAWS = ("add_gaussian", "add_laplace", "noisy_argmax", "exponential_argmax")


@pytest.mark.parametrize("kind", KINDS)
class TestEveryMechanism:
    """One test case for all: what a mechanism added later has to pass as well."""

    def test_charges_one_release_and_keeps_dtype(self, kind, tkwargs, generator):
        ledger = Ledger()
        mechanism = make(kind, generator=generator)
        released = mechanism.release(private_value(kind, **tkwargs), ledger=ledger)
        assert released.device == DEVICE
        if kind not in CHOICES:
            assert released.dtype == tkwargs["dtype"]
            assert released.shape == (3,)
        [entry] = ledger.entries
        assert (entry.count, entry.mechanism) == (1, mechanism.name)
        assert (entry.adjacency, entry.noise) == (mechanism.adjacency, "seeded")

    def test_charges_before_it_draws(self, kind, double, monkeypatch):
        mechanism = make(kind)
        drawn = []
        for name in DRAWS:
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

        for name in DRAWS:
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
            make(kind, generator=seeded(3)).release(value, ledger=Ledger())
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
                lambda b: PermuteAndFlipMechanism(PureDP(1.0), sensitivity=b),
                "sensitivity",
            ),
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
        "mechanism",
        [
            GaussianMechanism,
            LaplaceMechanism,
            ExponentialMechanism,
            PermuteAndFlipMechanism,
        ],
    )
    def test_a_float_is_not_a_guarantee(self, mechanism):
        with pytest.raises(InvalidArgumentError, match=r"guarantee.*1\.0"):
            mechanism(1.0, sensitivity=1.0)


class TestBatches:
    @pytest.mark.parametrize("bad", [-1, 3, 1.5])
    def test_bad_batch_dims(self, bad, double):
        ledger = Ledger()
        with pytest.raises(InvalidArgumentError, match=f"batch_dims.*{bad}"):
            make("gaussian").release(
                torch.zeros(2, 2, **double), ledger=ledger, batch_dims=bad
            )
        assert len(ledger) == 0

    @pytest.mark.parametrize(
        ("kind", "shape"), [("exponential", (5, 3)), ("poisson", (5, 4, 2))]
    )
    def test_batch_dims_that_the_shape_decides(self, kind, shape, double):
        ledger = Ledger()
        value = torch.zeros(shape, **double)
        make(kind).release(value, ledger=ledger, batch_dims=1)
        make(kind).release(value, ledger=ledger)
        assert [entry.count for entry in ledger.entries] == [5, 5]
        for bad in (0, 2):
            with pytest.raises(InvalidArgumentError, match=f"batch_dims.*{bad}"):
                make(kind).release(value, ledger=ledger, batch_dims=bad)
        assert len(ledger) == 2
