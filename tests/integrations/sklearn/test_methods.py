"""What the methods of a search cost and certify."""

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    UselessReleaseWarning,
)
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from botorch_dp.privacy import GaussianEvent
from tests.integrations.sklearn.constant import (
    BUDGET,
    PLENTY,
    RNG,
    X_TRAIN,
    Y_TRAIN,
    Constant,
    fitted,
    private,
    search_of,
)

pytestmark = pytest.mark.default_device


class TestCosts:
    @pytest.mark.parametrize(
        ("settings", "guarantee"),
        [
            ({}, BUDGET),
            ({}, GDP(0.5)),
            ({"release_score": True}, BUDGET),
            ({"release_score": True}, GDP(0.5)),
            ({"method": "stable"}, BUDGET),
            ({"method": "stable"}, PureDP(0.7)),
            ({"method": "stable", "release_score": True}, BUDGET),
            ({"method": "stable", "release_score": True}, PureDP(0.7)),
            ({"space": {"level": Real(0, 1), "sign": ["plus", "minus"]}}, BUDGET),
            (
                {
                    "space": {"level": Real(0, 1), "sign": ["plus", "minus"]},
                    "release_score": True,
                },
                BUDGET,
            ),
            ({"space": {"level": Real(0, 1), "sign": ["plus", "minus"]}}, GDP(0.5)),
            ({"method_options": {"secure": True}}, BUDGET),
        ],
    )
    def test_all_of_the_budget_and_no_more(self, settings, guarantee):
        settings = {"space": {"level": Real(0.0, 1.0)}, **settings}
        if "method_options" in settings:
            settings["random_state"] = None
        search = search_of(guarantee=guarantee, **settings, num_candidates=4)
        search.fit(X_TRAIN, Y_TRAIN, **private(0.5, n=200))
        certificate = search.certificate_
        delta = 1e-5
        allowed = (
            guarantee.epsilon(delta)
            if isinstance(guarantee, GDP)
            else guarantee.epsilon
        )
        assert certificate.epsilons[delta] <= allowed * (1 + 1e-9)
        if certificate.guarantee is not None:  # all Gaussian: to the last digit
            assert certificate.epsilons[delta] == pytest.approx(allowed)
        else:  # the sum of its parts, or a little better by accounting
            assert certificate.epsilons[delta] > 0.7 * allowed

    def test_the_score_is_released_with_noise(self):
        data = private(0.5)
        space = {"level": Real(0.0, 1.0)}
        found = fitted(space, data, num_steps=2, release_score=True)
        model = found.best_estimator_
        exact = -np.square(model.predict(data["X_val"]) - data["y_val"]).mean()
        mu = BUDGET.to_gdp().mu
        std = 4.0 / 20_000 / (mu * math.sqrt(0.1))
        assert found.best_score_ != exact
        assert found.best_score_ == pytest.approx(exact, abs=4 * std)
        stable = fitted(space, data, method="stable", release_score=True)
        assert stable.best_score_ == pytest.approx(-0.01, abs=0.02)

    def test_accuracy_counts_down_from_one(self):
        X = RNG.normal(size=(4_000, 1))
        y = (X[:, 0] > 0).astype(int)
        search = PrivateSearch(
            LogisticRegression(),
            {"C": Real(0.1, 10.0)},
            PLENTY,
            method="stable",
            num_candidates=2,
            release_score=True,
        ).fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
        exact = search.best_estimator_.score(X[200:], y[200:])
        assert search.best_score_ == pytest.approx(exact, abs=1e-2)

    def test_one_ledger_for_several_searches(self):
        ledger = Ledger(cap=ApproxDP(1.0, 1e-5))
        space = {"level": Real(0.0, 1.0)}
        half = GDP(ApproxDP(1.0, 1e-5).to_gdp().mu / math.sqrt(2))
        for _ in range(2):
            search = fitted(space, private(0.5, n=99), half, ledger=ledger)
        assert len(ledger) == 40
        assert search.certificate_.epsilons[1e-5] == pytest.approx(1.0)
        before = Constant.num_fits
        with pytest.raises(BudgetExceededError, match="this run would bring it to"):
            fitted(space, private(0.5, n=99), half, ledger=ledger)
        assert Constant.num_fits == before
        assert len(ledger) == 40

    def test_fits_without_a_shared_ledger_are_not_counted_together(self):
        """Each certifies its own cost, as the docstring says."""
        space, data = {"level": Real(0.0, 1.0)}, private(0.5, n=99)
        alone = [fitted(space, data, GDP(0.5)).certificate_ for _ in range(4)]
        for certificate in alone:
            assert certificate.guarantee.mu == pytest.approx(0.5)
        ledger = Ledger()
        for _ in range(4):
            search = fitted(space, data, GDP(0.5), ledger=ledger)
        assert search.certificate_.guarantee.mu == pytest.approx(1.0)
        said = " ".join(PrivateSearch.__doc__.split())
        assert "counts what its ledger was charged, and nothing else" in said
        assert "no certificate states the total" in said

    @pytest.mark.parametrize("settings", [{"method": "stable"}, {}])
    def test_refused_before_anything_is_fitted(self, settings):
        ledger = Ledger(cap=ApproxDP(1.0, 1e-5))
        ledger.charge(GaussianEvent(20.0))
        before = Constant.num_fits
        space = {"level": Real(0.0, 1.0), "sign": ["plus", "minus"]}
        with pytest.raises(BudgetExceededError, match="1 charge"):
            fitted(space, private(0.5, n=99), ledger=ledger, **settings)
        assert Constant.num_fits == before
        assert len(ledger) == 1

    def test_clones_share_the_ledger(self):
        ledger = Ledger()
        search = search_of({"level": Real(0.0, 1.0)}, ledger=ledger)
        copy = clone(search)
        assert copy.ledger is ledger
        copy.fit(X_TRAIN, Y_TRAIN, **private(0.5, n=99))
        assert len(ledger) == 20


def test_kusner():
    settings = {
        "method": "kusner",
        "num_steps": 3,
        "num_candidates": 20,
        "method_options": {"correlation": 0.9},
    }
    with pytest.warns(UselessReleaseWarning):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99), **settings)
    assert search.num_fits_ == 3
    assert [row["params"] for row in search.history_] == [None] * 3  # private
    assert "GP-ASSUMPTION PRIVACY" in str(search.certificate_)
    assert "training records (X, y) are NOT protected" in str(search.certificate_)


class TestAdjacency:
    """Two kinds of neighbours on one ledger are noticed before anything is fitted."""

    def test_a_score_has_that_of_the_gradients(self):
        search = fitted(
            {"level": Real(0.0, 1.0)},
            private(0.5),
            release_score=True,
            method_options={"adjacency": "zero_out"},
        )
        assert search.certificate_.adjacency == "zero_out"
        assert search.certificate_.num_releases == 21

    @pytest.mark.parametrize("method", ["dp-gibo", "stable"])
    def test_of_the_ledger(self, method):
        ledger = Ledger()
        ledger.charge(GaussianEvent(5.0), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match="charges for adjacency='repl"):
            fitted({"level": Real(0, 1)}, private(0.5), method=method, ledger=ledger)
        assert len(ledger) == 1
