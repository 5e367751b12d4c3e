"""Rows of a ledger: what can be recorded, and what is left of a plan."""

import pytest

from botorch_dp import GDP, ApproxDP, Ledger
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.privacy import (
    FixedSizeGaussianEvent,
    GaussianEvent,
    PoissonGaussianEvent,
    PrivacyAccountant,
    PrivacyEvent,
)
from botorch_dp.privacy.entries import LedgerHeader


class TestHeader:
    @pytest.mark.parametrize(
        ("cap", "filter"), [(None, None), (GDP(1.0), None), (ApproxDP(1.0, 0.1), "gdp")]
    )
    def test_round_trips(self, cap, filter):
        header = LedgerHeader(id="f00", cap=cap, filter=filter)
        assert LedgerHeader.from_row(header.to_row()) == header

    @pytest.mark.parametrize("row", ["", "[]", "{}", '{"id": "1", "cap": {}}'])
    def test_what_is_no_header(self, row):
        with pytest.raises((KeyError, TypeError, ValueError)):
            LedgerHeader.from_row(row)


class TestCharging:
    def test_entries_say_what_when_and_how(self, make_ledger):
        ledger = make_ledger()
        entry = ledger.charge(
            GaussianEvent(2.0),
            count=3,
            mechanism="m",
            adjacency="zero_out",
            noise="seeded",
        )
        assert ledger.entries == (entry,)
        assert entry.event == GaussianEvent(2.0)
        assert (entry.count, entry.mechanism, entry.noise) == (3, "m", "seeded")
        assert entry.time.endswith("+00:00")
        assert ledger.adjacency == "zero_out"

    def test_an_event_knows_its_adjacency(self, make_ledger):
        with pytest.raises(InvalidArgumentError, match=r"'zero_out'.*'replace_one'"):
            make_ledger().charge(PoissonGaussianEvent(1.0, 0.1))
        with pytest.raises(InvalidArgumentError, match=r"'replace_one'.*'zero_out'"):
            make_ledger().charge(
                FixedSizeGaussianEvent(1.0, 1, 10), adjacency="zero_out"
            )

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"event": PrivacyEvent()}, "event"),
            ({"event": type("Mine", (GaussianEvent,), {})(1.0)}, "library's own"),
            ({"event": type("Own", (PrivacyEvent,), {})()}, "library's own"),
            ({"count": 10**400}, "count.*401 digits"),
            ({"count": 2**53 + 1}, "count"),
            ({"noise": "numpy"}, "noise.*'numpy'"),
            ({"unit": "row"}, "unit.*'row'"),
            ({"mechanism": 3}, "mechanism.*3"),
            ({"run": None}, "run.*None"),
            ({"condition": 1.0}, "condition"),
        ],
    )
    def test_nothing_is_appended_that_cannot_be_read_again(
        self, make_ledger, arguments, match
    ):
        ledger = make_ledger(GDP(5.0))
        with pytest.raises(InvalidArgumentError, match=match):
            ledger.charge(**{"event": GaussianEvent(1.0), **arguments})
        ledger.charge(GaussianEvent(1.0), mechanism="\ud800")  # half a character
        assert [entry.event for entry in ledger.entries] == [GaussianEvent(1.0)]
        if ledger.path:
            assert Ledger(ledger.path).entries == ledger.entries

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"event": "gaussian"}, "event.*'gaussian'"),
            ({"event": GaussianEvent(1.0), "count": 0}, "count.*0"),
            ({"event": GaussianEvent(1.0), "adjacency": "swap"}, "adjacency.*'swap'"),
        ],
    )
    def test_bad_charges(self, make_ledger, arguments, match):
        ledger = make_ledger()
        with pytest.raises(InvalidArgumentError, match=match):
            ledger.charge(**arguments)
        assert len(ledger) == 0


class TestPlans:
    EVENT = PoissonGaussianEvent(1.0, 0.1)

    @pytest.fixture
    def cap(self):
        accountant = PrivacyAccountant()
        accountant.compose(self.EVENT, 30)
        return ApproxDP(accountant.get_epsilon(1e-5) * 1.0001, 1e-5)

    def test_a_plan_is_remembered(self, tmp_path, cap):
        ledger = Ledger(tmp_path / "l.db", cap)
        ledger.reserve([(self.EVENT, 30)], adjacency="zero_out")
        ledger.charge(self.EVENT, count=10, adjacency="zero_out")
        again = Ledger(tmp_path / "l.db")
        assert again.plan == ledger.plan
        assert again.allows(self.EVENT, 20)
        assert not again.allows(self.EVENT, 21)

    def test_a_plan_is_recognized_up_to_rounding(self, make_ledger, cap):
        ledger = make_ledger(cap)
        ledger.reserve([(self.EVENT, 30)], adjacency="zero_out")
        rounded = PoissonGaussianEvent(1.0 * (1 + 3e-16), 0.1)
        assert rounded != self.EVENT
        assert not ledger.allows(PoissonGaussianEvent(1.0 - 1e-6, 0.1))
        ledger.charge(rounded, count=20, adjacency="zero_out")
        ledger.charge(self.EVENT, count=10, adjacency="zero_out")
        with pytest.raises(BudgetExceededError):
            ledger.charge(rounded, adjacency="zero_out")

    def test_gaussian_releases_may_be_divided_otherwise(self, make_ledger):
        plan = [(self.EVENT, 30), (GaussianEvent(2.0), 1)]
        accountant = PrivacyAccountant()
        for event, count in plan:
            accountant.compose(event, count)
        ledger = make_ledger(ApproxDP(accountant.get_epsilon(1e-5) * 1.0001, 1e-5))
        ledger.reserve(plan, adjacency="zero_out")
        for _ in range(4):  # four times mu = 1/4 is mu = 1/2
            ledger.charge(GaussianEvent(4.0), adjacency="zero_out")
        with pytest.raises(BudgetExceededError):
            ledger.charge(GaussianEvent(100.0), adjacency="zero_out")
        ledger.charge(self.EVENT, count=30, adjacency="zero_out")
