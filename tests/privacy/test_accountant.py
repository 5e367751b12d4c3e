"""The accountant: budgets, bad input, and its life as an accountant of Opacus."""

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import rdp
from opacus import PrivacyEngine
from opacus.accountants import (
    GaussianAccountant,
    PRVAccountant,
    RDPAccountant,
    create_accountant,
)
from opacus.accountants.analysis.rdp import compute_rdp
from opacus.accountants.utils import get_noise_multiplier
from scipy import integrate, stats

from botorch_dp import (
    GDP,
    RDP,
    ApproxDP,
    LaplaceMechanism,
    Ledger,
    PrivacyAccountant,
    PureDP,
)
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.privacy import (
    ApproxEvent,
    AssumedEvent,
    ExponentialEvent,
    GaussianEvent,
    LaplaceEvent,
    PoissonGaussianEvent,
    PureEvent,
    ZCDPEvent,
)
from botorch_dp.privacy.events import RDP_ORDERS
from tests.privacy.cases import EVENTS, account


class TestPitfalls:
    """What other accountants get wrong, shown to be wrong there and right here."""

    @pytest.mark.parametrize("bad", [math.nan, -1.0, 0.0, math.inf])
    def test_bad_noise_is_rejected_and_erases_nothing(self, bad):
        accountant = PrivacyAccountant()
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)
        before = accountant.get_epsilon(1e-5)
        with pytest.raises(InvalidArgumentError, match="noise_multiplier"):
            accountant.step(noise_multiplier=bad, sample_rate=0.1)
        with pytest.raises(InvalidArgumentError, match="sampling_rate"):
            accountant.step(noise_multiplier=1.0, sample_rate=2.0 if bad == 0 else bad)
        assert accountant.history == [(1.0, 0.1, 1)]
        assert accountant.get_epsilon(1e-5) == before

    def test_opacus_erases_its_history(self):
        with pytest.warns(UserWarning, match="experimental"):
            opacus = GaussianAccountant()
        opacus.step(noise_multiplier=1.0, sample_rate=0.1)
        with pytest.raises(ValueError, match="constant"):
            opacus.step(noise_multiplier=2.0, sample_rate=0.1)
        assert opacus.history == []


class TestBudgets:
    @pytest.mark.parametrize(
        ("budget", "event"),
        [
            (GDP(1.0), GaussianEvent(5.0)),
            (RDP(4.0, 2.0), GaussianEvent(5.0)),
            (ApproxDP(GDP(1.0).epsilon(1e-5), 1e-5), GaussianEvent(5.0)),
            (PureDP(5.0), LaplaceEvent(5.0)),
            (PureDP(5.0), ExponentialEvent(0.2)),
        ],
    )
    def test_exactly_25_fit(self, budget, event):
        assert account((event, 25)).within(budget)
        assert not account((event, 26)).within(budget)
        assert (
            account((event, 25))
            .spent_of(budget)
            .within(account((event, 25)).spent_of(budget).amount)
        )

    def test_rounding_does_not_refuse_the_last_step(self):
        for steps in range(1, 200):
            noise_multiplier = math.sqrt(steps) / 0.7
            assert account((GaussianEvent(noise_multiplier), steps)).within(GDP(0.7))

    @pytest.mark.parametrize("excess", [1e-7, 1e-5])
    def test_a_little_too_much_does_not_fit(self, excess):
        # Rounding is forgiven, parts in a million are not.
        more = 1 + excess
        epsilon = 1.0 * more
        for budget, event in (
            (PureDP(1.0), PureEvent(epsilon)),
            (GDP(1.0), GaussianEvent(1 / more)),
            (RDP(8.0, 4.0), GaussianEvent(1 / more)),
            (
                ApproxDP(1.0, 1e-5),
                GaussianEvent(1 / ApproxDP(epsilon, 1e-5).to_gdp().mu),
            ),
        ):
            assert not account((event, 1)).within(budget)
            assert account((event, 1)).spent_of(budget).amount > 1.0

    def test_pure_events_fit_into_gdp(self):
        event = PureEvent(0.5)
        mu = account((event, 1)).spent_of(GDP(1.0)).amount
        assert GDP(mu).to_pure().epsilon == pytest.approx(0.5)

    @pytest.mark.parametrize(
        ("budget", "event"),
        [
            (GDP(100.0), ApproxEvent(1e-3, 1e-9)),
            (GDP(100.0), AssumedEvent(1e-3, 1e-9)),
            (GDP(100.0), ZCDPEvent(1e-6)),
            (PureDP(100.0), GaussianEvent(100.0)),
            (RDP(2.0, 1e6), AssumedEvent(1e-3, 1e-9)),
            (RDP(2.0, 1e6), ApproxEvent(1e-3, 1e-9)),
        ],
    )
    def test_what_cannot_be_expressed_does_not_fit(self, budget, event):
        assert account((event, 1)).spent_of(budget).amount == math.inf
        assert not account((event, 1)).within(budget)

    def test_left(self):
        assert account((GaussianEvent(2.0), 1)).spent_of(GDP(1.0)).left(
            1.0
        ) == pytest.approx(math.sqrt(0.75))
        assert account((PureEvent(0.4), 1)).spent_of(PureDP(1.0)).left(1.0) == 0.6


class TestOpacus:
    @pytest.mark.default_device
    def test_trains_a_model_then_takes_a_laplace_release(self):
        torch.manual_seed(0)
        data = torch.utils.data.TensorDataset(
            torch.randn(64, 4), torch.randint(0, 2, (64,))
        )
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = PrivacyEngine(accountant="botorch_dp")
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=optimizer,
            data_loader=torch.utils.data.DataLoader(data, batch_size=16),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        for features, labels in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(features), labels).backward()
            optimizer.step()
        accountant = engine.accountant
        assert isinstance(accountant, PrivacyAccountant)
        assert accountant.history == [(1.0, 0.25, len(loader))]
        trained = engine.get_epsilon(1e-5)
        oracle = account((PoissonGaussianEvent(1.0, 0.25), len(loader)))
        assert trained == oracle.get_epsilon(1e-5)

        mechanism = LaplaceMechanism(PureDP(0.5), sensitivity=1.0, adjacency="zero_out")
        mechanism.release(torch.zeros(1), ledger=accountant)
        total = engine.get_epsilon(1e-5)
        assert trained < total < trained + 0.5
        assert len(accountant) == len(loader) + 1

    def test_adjacencies_do_not_mix(self):
        accountant = PrivacyAccountant()
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)
        with pytest.raises(InvalidArgumentError, match=r"zero_out.*'replace_one'"):
            accountant.charge(LaplaceEvent(1.0), adjacency="replace_one")
        accountant.charge(LaplaceEvent(1.0), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'add_or_remove"):
            accountant.charge(LaplaceEvent(1.0), adjacency="add_or_remove_one")
        other = PrivacyAccountant()
        other.load_state_dict(accountant.state_dict())
        with pytest.raises(InvalidArgumentError, match="adjacency"):
            other.charge(LaplaceEvent(1.0))
        replaced = PrivacyAccountant()
        replaced.charge(LaplaceEvent(1.0))
        with pytest.raises(InvalidArgumentError, match="replace_one"):
            replaced.step(noise_multiplier=1.0, sample_rate=0.1)
        assert replaced.history == []

    def test_units_do_not_mix(self):
        accountant, other = PrivacyAccountant(), PrivacyAccountant()
        accountant.charge(LaplaceEvent(1.0), unit="user")
        other.load_state_dict(accountant.state_dict())
        trained = PrivacyAccountant()
        trained.step(noise_multiplier=1.0, sample_rate=0.1)  # of records
        for before, adjacency in (
            (accountant, "replace_one"),
            (other, "replace_one"),
            (trained, "zero_out"),
        ):
            with pytest.raises(InvalidArgumentError, match=r"unit.*'agent'"):
                before.charge(LaplaceEvent(1.0), adjacency=adjacency, unit="agent")
            assert len(before) == 1
        accountant.charge(LaplaceEvent(1.0), unit="user")
        trained.charge(LaplaceEvent(1.0), adjacency="zero_out", unit="record")

    def test_a_saved_state_remembers_its_adjacency(self):
        accountant, other = PrivacyAccountant(), PrivacyAccountant()
        accountant.charge(LaplaceEvent(1.0), adjacency="zero_out")
        other.load_state_dict(accountant.state_dict())
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            other.charge(LaplaceEvent(1.0))
        other.charge(LaplaceEvent(1.0), adjacency="zero_out")

    def test_one_event_more_is_beside_all_others(self):
        accountant = account((PureEvent(0.1), 2))
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)
        more = accountant.plus(PureEvent(0.2), 3)
        assert more.groups() == {
            (PureEvent(0.1), 2),
            (PureEvent(0.2), 3),
            (PoissonGaussianEvent(1.0, 0.1), 1),
        }
        assert len(accountant) == 3  # which is left as it was

    def test_calibrates_opacus_noise(self):
        noise = get_noise_multiplier(
            target_epsilon=2.0,
            target_delta=1e-5,
            sample_rate=0.05,
            steps=50,
            accountant="botorch_dp",
        )
        found = account((PoissonGaussianEvent(noise, 0.05), 50)).get_epsilon(1e-5)
        assert found == pytest.approx(2.0, abs=0.02)

    def test_state_round_trips_through_opacus(self):
        accountant = create_accountant("botorch_dp")
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)
        accountant.step(noise_multiplier=1.0, sample_rate=0.1)
        accountant.step(noise_multiplier=2.0, sample_rate=0.1)
        for event in EVENTS:
            accountant.compose(event, 3)
        other = create_accountant("botorch_dp")
        other.load_state_dict(accountant.state_dict())
        assert other.history == [(1.0, 0.1, 2), (2.0, 0.1, 1)]
        assert other.groups() == accountant.groups()
        assert other.get_epsilon(1e-5) == accountant.get_epsilon(1e-5)

    @pytest.mark.parametrize(
        "state",
        [
            {"mechanism": "botorch_dp", "history": [(math.nan, 0.1, 1)]},
            {"mechanism": "botorch_dp", "history": [(1.0, 0.1, -1)]},
            {"mechanism": "rdp", "history": []},
            {
                "mechanism": "botorch_dp",
                "history": [],
                "events": [{"type": "GaussianEvent", "noise_multiplier": 1.0}],
            },
            {
                "mechanism": "botorch_dp",
                "history": [],
                "events": [{"type": "Unknown", "count": 1}],
            },
        ],
    )
    def test_a_bad_state_changes_nothing(self, state):
        accountant = account((GaussianEvent(1.0), 1))
        with pytest.raises(ValueError, match=r"."):
            accountant.load_state_dict(state)
        assert accountant.groups() == account((GaussianEvent(1.0), 1)).groups()


class TestRenyiCurve:
    @pytest.mark.parametrize(
        "event",
        [event for event in EVENTS if not isinstance(event, ApproxEvent)],
        ids=lambda event: type(event).__name__,
    )
    def test_adds_up_what_a_budget_counts(self, event):
        accountant = account((event, 3), (GaussianEvent(2.0), 1))
        accountant.step(noise_multiplier=1.5, sample_rate=0.02)
        for guarantee in accountant.to_rdp([1.5, 4.0, 100.0]):
            counted = accountant.spent_of(guarantee).amount
            assert guarantee.epsilon == pytest.approx(counted, rel=1e-12)

    def test_gaussian_closed_form(self):
        curve = account((GaussianEvent(2.0), 8)).to_rdp()
        assert len(curve) == len(RDP_ORDERS)
        for guarantee, order in zip(curve, RDP_ORDERS, strict=True):
            assert guarantee.order == order
            assert guarantee.epsilon == pytest.approx(order)

    @pytest.mark.parametrize(("noise", "rate"), [(1.1, 0.02), (0.7, 0.3)])
    def test_the_numbers_of_other_libraries(self, noise, rate):
        orders = [2.0, 3.0, 8.0, 32.0, 256.0]
        history = ((PoissonGaussianEvent(noise, rate), 3), (GaussianEvent(2.0), 5))
        ours = [one.epsilon for one in account(*history).to_rdp(orders)]
        opacus = 0.0
        theirs = rdp.RdpAccountant(orders)
        for multiplier, share, count in ((noise, rate, 3), (2.0, 1.0, 5)):
            opacus += compute_rdp(
                q=share, noise_multiplier=multiplier, steps=count, orders=orders
            )
            event = dp_accounting.GaussianDpEvent(multiplier)
            event = dp_accounting.PoissonSampledDpEvent(share, event)
            theirs.compose(event, count)
        np.testing.assert_allclose(ours, opacus, rtol=1e-9)
        np.testing.assert_allclose(ours, theirs.rdp, rtol=1e-9)

    @pytest.mark.parametrize("order", [1.5, 2.5, 10.5])
    def test_an_integral_between_whole_orders(self, order):
        """Ours is a line between moments: above the divergence, in both directions."""
        x = np.linspace(-40, 40, 200_001)
        none, whole = stats.norm.logpdf(x, 0, 1.1), stats.norm.logpdf(x, 1, 1.1)
        some = np.logaddexp(math.log(0.98) + none, math.log(0.02) + whole)
        (ours,) = account((PoissonGaussianEvent(1.1, 0.02), 1)).to_rdp([order])
        exact = [
            math.log(integrate.trapezoid(np.exp(order * p + (1 - order) * q), x))
            for p, q in ((some, none), (none, some))
        ]
        assert max(exact) < (order - 1) * ours.epsilon < 2 * max(exact)

    def test_never_below_the_epsilon(self):
        accountant = account((PoissonGaussianEvent(1.0, 0.05), 100))
        converted = min(g.to_approx(1e-5).epsilon for g in accountant.to_rdp())
        assert accountant.get_epsilon(1e-5) < converted < 5.0

    def test_nothing_released(self):
        (guarantee,) = PrivacyAccountant().to_rdp([2.0])
        assert 0 < guarantee.epsilon < 1e-9

    @pytest.mark.parametrize("event", [ApproxEvent(0.1, 1e-7), AssumedEvent(0.1, 1e-7)])
    def test_releases_that_can_fail_have_none(self, event):
        accountant = account((GaussianEvent(2.0), 1), (event, 1))
        with pytest.raises(UnsupportedConversionError, match=f"{type(event).__name__}"):
            accountant.to_rdp([2.0])

    @pytest.mark.parametrize("order", [1.0, 0.5, math.nan, math.inf])
    def test_bad_orders(self, order):
        with pytest.raises(InvalidArgumentError, match="order"):
            account((GaussianEvent(2.0), 1)).to_rdp([order])


class TestInterchange:
    HISTORY = ((1.0, 0.01, 1000), (2.0, 0.05, 20))

    @pytest.mark.parametrize("kind", [PRVAccountant, RDPAccountant])
    def test_from_opacus(self, kind):
        theirs = kind()
        theirs.history = list(self.HISTORY)
        ours = PrivacyAccountant.from_opacus(theirs)
        assert ours.history == list(self.HISTORY)
        assert ours.get_epsilon(1e-5) <= theirs.get_epsilon(1e-5)
        ours.step(noise_multiplier=1.0, sample_rate=0.01)
        assert theirs.history == list(self.HISTORY)  # which is left as it was
        with pytest.raises(InvalidArgumentError, match="adjacency"):
            ours.charge(LaplaceEvent(1.0), adjacency="replace_one")

    @pytest.mark.parametrize(
        "history", [[(math.nan, 0.1, 1)], [(1.0, 2.0, 1)], [(1.0, 0.1, 0)]]
    )
    def test_a_bad_history(self, history):
        theirs = RDPAccountant()
        theirs.history = history
        with pytest.raises(InvalidArgumentError):
            PrivacyAccountant.from_opacus(theirs)
        with pytest.raises(InvalidArgumentError, match="accountant"):
            PrivacyAccountant.from_opacus(history)

    def test_there_and_back(self):
        ours = account((PoissonGaussianEvent(1.0, 0.01), 1000), (GaussianEvent(9.0), 2))
        ours.step(noise_multiplier=2.0, sample_rate=0.05)
        theirs = ours.to_opacus("rdp")
        assert isinstance(theirs, RDPAccountant)
        back = PrivacyAccountant.from_opacus(theirs)
        assert back.get_epsilon(1e-5) == ours.get_epsilon(1e-5)
        prv = ours.to_opacus().get_epsilon(1e-5)
        assert ours.get_epsilon(1e-5) == pytest.approx(prv, rel=0.02)

    def test_what_opacus_does_not_know(self):
        other = account((GaussianEvent(1.0), 1), (LaplaceEvent(1.0), 1))
        with pytest.raises(UnsupportedConversionError, match="LaplaceEvent"):
            other.to_opacus()
        replaced = PrivacyAccountant()
        replaced.charge(GaussianEvent(1.0), adjacency="replace_one")
        with pytest.raises(UnsupportedConversionError, match="replace_one"):
            replaced.to_opacus()

    def test_of_a_ledger(self):
        """It keeps the adjacency for which the charges are stated."""
        ledgers = {name: Ledger() for name in ("replace_one", "zero_out")}
        for adjacency, ledger in ledgers.items():
            ledger.charge(GaussianEvent(2.0), count=3, adjacency=adjacency)
            ledger.charge(GaussianEvent(4.0), adjacency=adjacency)
        with pytest.raises(UnsupportedConversionError, match="replace_one"):
            ledgers["replace_one"].accountant().to_opacus("rdp")
        theirs = ledgers["zero_out"].accountant().to_opacus("rdp")
        assert theirs.history == [(2.0, 1.0, 3), (4.0, 1.0, 1)]

    def test_the_accountant_that_reports_too_little(self):
        ours = account((PoissonGaussianEvent(1.0, 0.05), 100))
        ours.compose(GaussianEvent(9.0))
        with pytest.raises(UnsupportedConversionError, match="less than what was"):
            ours.to_opacus("gdp")


class TestEvents:
    @pytest.mark.parametrize(
        ("event", "count", "match"),
        [("gaussian", 1, "event.*'gaussian'"), (GaussianEvent(1.0), 0, "count.*0")],
    )
    def test_bad_composition(self, event, count, match):
        with pytest.raises(InvalidArgumentError, match=match):
            PrivacyAccountant().compose(event, count)

    @pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
    def test_bad_delta(self, delta):
        with pytest.raises(InvalidArgumentError, match="delta"):
            account((GaussianEvent(1.0), 1)).get_epsilon(delta)
