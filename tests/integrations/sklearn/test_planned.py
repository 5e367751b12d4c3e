"""Searches that plan themselves: what they do, train, spend and say."""

import math

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    WeakGuaranteeWarning,
)
from botorch_dp.integrations.sklearn import Integer, PrivateSearch, Real
from botorch_dp.privacy import GaussianEvent, PermuteAndFlipEvent
from botorch_dp.privacy.budget import after_choice
from tests.integrations.sklearn.constant import (
    BUDGET,
    X_TRAIN,
    Y_TRAIN,
    Constant,
    fitted,
    private,
    search_of,
)

pytestmark = pytest.mark.default_device

NUMBERS = {"level": Real(0.0, 1.0)}
MIXED = {"level": Real(0.0, 1.0), "sign": ["plus", "minus"]}
CATEGORIES = {"level": [0.1, 0.5, 0.9], "sign": ["plus", "minus"]}
WHOLE = {"level": Real(0.0, 1.0), "whole": Integer(-3, 3)}
MANY = {
    "level": Real(0.0, 1.0),
    "whole": Integer(-3, 3),
    "scale": Real(0.1, 10.0, log=True),
    "sign": ["plus", "minus"],
}
GUARANTEES = [BUDGET, GDP(0.3), RDP(4.0, 0.3), PureDP(1.0), ApproxDP(0.05, 1e-5)]
BOTH = "permute-and-flip, then dp-gibo"


def auto(space, data=None, guarantee=BUDGET, **settings):
    data = private(0.7) if data is None else data
    return fitted(space, data, guarantee, method="auto", **settings)


class TestChooses:
    @pytest.mark.parametrize(
        ("space", "n", "guarantee", "method"),
        [
            (NUMBERS, 20_000, BUDGET, BOTH),
            (NUMBERS, 20_000, GDP(0.3), BOTH),
            (NUMBERS, 20_000, RDP(4.0, 0.3), BOTH),
            (NUMBERS, 20_000, PureDP(1.0), "permute-and-flip"),
            (NUMBERS, 60, BUDGET, "dp-gibo"),  # too few records for a choice
            (MIXED, 20_000, BUDGET, BOTH),
            (MIXED, 20_000, GDP(0.3), BOTH),
            (MIXED, 20_000, RDP(4.0, 0.3), BOTH),
            (MIXED, 20_000, PureDP(1.0), "permute-and-flip"),
            (MIXED, 1_999, BUDGET, "permute-and-flip"),
            (CATEGORIES, 20_000, BUDGET, "permute-and-flip"),
            (CATEGORIES, 20_000, GDP(0.3), "permute-and-flip"),
            ({"whole": Integer(0, 9)}, 20_000, BUDGET, "permute-and-flip"),
        ],
    )
    def test_by_public_facts(self, space, n, guarantee, method):
        search = auto(space, private(0.7, n=n), guarantee)
        assert search.plan_.method == method
        assert len(search.history_) == search.plan_.num_candidates + (
            0 if search.plan_.descent is None else search.plan_.descent.num_steps
        )
        if search.plan_.choice is not None:  # the estimator's own values come first
            own = Constant().get_params()
            assert search.history_[0]["params"] == {name: own[name] for name in space}

    def test_finds_a_number(self):
        assert auto(NUMBERS).best_params_["level"] == pytest.approx(0.7, abs=0.05)

    def test_finds_categories_and_numbers(self):
        found = auto(MIXED, private(-0.3)).best_params_
        assert found["sign"] == "minus"
        assert found["level"] == pytest.approx(0.3, abs=0.1)

    def test_finds_categories(self):
        found = auto(CATEGORIES, private(-0.9), PureDP(1.0))
        assert found.best_params_ == {"level": 0.9, "sign": "minus"}
        assert found.num_fits_ == 6  # all there are

    def test_finds_whole_numbers(self):
        found = auto(WHOLE, private(2.6), loss_range=(0.0, 36.0)).best_params_
        assert isinstance(found["whole"], int)
        assert found["whole"] + found["level"] == pytest.approx(2.6, abs=0.2)


class TestTrains:
    @pytest.mark.parametrize("space", [NUMBERS, MIXED, CATEGORIES, WHOLE, MANY])
    @pytest.mark.parametrize("most", [3, 11, 60, 90])
    @pytest.mark.parametrize("release_score", [False, True])
    def test_never_more_models_than_allowed(self, space, most, release_score):
        before = Constant.num_fits
        settings = {"max_evaluations": most, "release_score": release_score}
        search = auto(space, private(0.7, n=3_000), **settings, refit=False)
        trained = Constant.num_fits - before
        assert trained == search.num_fits_ <= most
        assert trained <= search.plan_.num_evaluations + release_score
        assert trained >= 0.5 * min(most, 6)  # and it makes use of them

    @pytest.mark.parametrize("space", [NUMBERS, MIXED, WHOLE, MANY])
    @pytest.mark.parametrize("most", [12, 60])
    def test_nor_with_gradients_alone(self, space, most):
        search = fitted(space, private(0.7, n=3_000), max_evaluations=most)
        assert 6 <= search.num_fits_ <= most

    @pytest.mark.parametrize("method", ["auto", "dp-gibo"])
    def test_at_most_sixty_by_default(self, method):
        search = fitted(NUMBERS, private(0.7, n=3_000), method=method)
        assert 40 <= search.num_fits_ <= 60

    def test_ten_simplices_by_default(self):
        class Nine(Constant):
            def __init__(self, a=0, b=0, c=0, d=0, e=0, f=0, g=0, h=0, i=0):
                self.a, self.b, self.c, self.d, self.e = a, b, c, d, e
                self.f, self.g, self.h, self.i = f, g, h, i

            def predict(self, X):
                return np.zeros(len(X))

        search = search_of(dict.fromkeys("abcdefghi", Real(-1.0, 1.0)), method="auto")
        search.set_params(estimator=Nine())
        search.fit(X_TRAIN, Y_TRAIN, **private(0.5, n=50))
        assert search.num_fits_ == 100

    def test_a_total_of_the_bar_and_two_lines(self, capsys):
        search = auto(NUMBERS, verbose=1)
        shown = capsys.readouterr()
        assert f"{search.num_fits_}/{search.num_fits_}" in shown.err
        assert shown.out == f"{search.plan_}\n"
        assert shown.out.count("\n") == 2


def spent(ledger):
    """The pure epsilon and the mu of everything that was charged."""
    squares, epsilon = 0.0, 0.0
    for entry in ledger.entries:
        if isinstance(entry.event, GaussianEvent):
            squares += entry.count / entry.event.noise_multiplier**2
        else:
            epsilon += entry.count * entry.event.pure_epsilon
    return epsilon, math.sqrt(squares)


class TestSpends:
    @pytest.mark.parametrize("release_score", [False, True])
    @pytest.mark.parametrize("guarantee", GUARANTEES)
    @pytest.mark.parametrize("space", [NUMBERS, MIXED, CATEGORIES])
    def test_what_the_plan_says(self, space, guarantee, release_score):
        ledger = Ledger(cap=guarantee)
        search = auto(
            space,
            private(0.7, n=9_000),
            guarantee,
            ledger=ledger,
            release_score=release_score,
        )
        plan = search.plan_
        epsilon, mu = spent(ledger)
        choices = [
            entry.event.epsilon
            for entry in ledger.entries
            if isinstance(entry.event, PermuteAndFlipEvent)
        ]
        assert choices == ([] if plan.choice is None else [plan.choice.epsilon])
        if plan.descent is not None:
            left = guarantee.to_gdp()
            if plan.choice is not None:
                left = after_choice(guarantee, plan.choice.epsilon)
            assert mu == pytest.approx(left.mu, rel=1e-6)
            share = math.sqrt(0.9) if release_score else 1.0
            assert plan.descent.mu == pytest.approx(share * left.mu)
        elif not release_score:
            assert epsilon == pytest.approx(guarantee.to_pure().epsilon)
            assert mu == 0
        assert hasattr(search, "best_score_") == release_score
        if isinstance(guarantee, RDP):
            cost = sum(
                e.count * e.event.rdp_at(guarantee.order) for e in ledger.entries
            )
            assert cost <= guarantee.epsilon * (1 + 1e-9)

    def test_all_of_epsilon(self):
        """Basic composition would leave a part of it."""
        for space in (NUMBERS, MIXED):
            search = auto(space)
            assert search.plan_.method == BOTH
            assert search.certificate_.epsilons[1e-5] == pytest.approx(1.0, rel=1e-6)

    @pytest.mark.parametrize("space", [NUMBERS, MIXED, CATEGORIES])
    @pytest.mark.parametrize("release_score", [False, True])
    def test_refused_before_anything_is_trained(self, space, release_score):
        """A ledger that could pay for the choice and not for what follows."""
        ledger = Ledger(cap=BUDGET)
        ledger.charge(GaussianEvent(20.0))
        before = Constant.num_fits
        with pytest.raises(BudgetExceededError, match="1 charge"):
            auto(space, ledger=ledger, release_score=release_score)
        assert Constant.num_fits == before
        assert len(ledger) == 1

    @pytest.mark.parametrize("epsilon", [0.8, 1.0])
    def test_refused_if_it_can_pay_for_each_stage_and_not_for_both(self, epsilon):
        """The choice and the gradients cost an epsilon of about a half each."""
        ledger = Ledger(cap=ApproxDP(epsilon, 1e-5))
        before = Constant.num_fits
        if epsilon == 1.0:
            assert auto(MIXED, ledger=ledger).plan_.method == BOTH
            return
        with pytest.raises(BudgetExceededError, match="Nothing was "):
            auto(MIXED, ledger=ledger)
        assert Constant.num_fits == before
        assert len(ledger) == 0

    def test_a_large_delta_is_warned_of_once(self):
        for space in (NUMBERS, MIXED, CATEGORIES):
            with pytest.warns(WeakGuaranteeWarning, match="delta above one") as caught:
                auto(space, private(0.7, n=3_000), ApproxDP(1.0, 0.01))
            assert len(caught) == 1


class TestSays:
    def test_what_was_chosen_and_why(self):
        search = auto(MIXED)
        text = str(search.certificate_)
        assert f"method=auto: {BOTH}" in text
        assert "reason=20000 records suffice for gradients after a choice of c" in text
        assert "num_candidates=36" in text
        assert "choice_epsilon=0.5" in text
        assert "max_evaluations=60" in text
        assert "budget=ApproxDP(epsilon=1, delta=1e-05)" in text
        assert "training records (X, y) are NOT protected" in text

    def test_of_a_choice_alone(self):
        text = str(auto(CATEGORIES).certificate_)
        assert "method=auto: permute-and-flip" in text
        assert BOTH not in text
        assert "reason=all points of the space can be evaluated" in text

    def test_no_plan_without_one(self):
        search = fitted(NUMBERS, private(0.5, n=99), method="stable")
        with pytest.raises(AttributeError, match="only method='auto' and method='dp-"):
            search.plan_  # noqa: B018
        with pytest.raises(AttributeError, match="call fit first"):
            search_of(NUMBERS).plan_  # noqa: B018


class TestGradients:
    """``method="dp-gibo"``: planned, but for what is given."""

    def test_all_is_planned(self):
        plan = fitted(NUMBERS, private(0.7, n=500)).plan_
        assert (plan.method, plan.descent.num_steps) == ("dp-gibo", 20)

    def test_what_is_given_wins(self):
        search = fitted(NUMBERS, private(0.7, n=500), num_steps=3, clip_norm=0.25)
        assert search.plan_.descent.num_steps == len(search.history_) == 3
        assert search.plan_.descent.clip_norm == 0.25
        assert "clip_norm=0.25" in str(search.certificate_)

    def test_steps_and_evaluations(self):
        space = {**NUMBERS, "scale": Real(0.1, 10.0)}
        search = fitted(space, private(0.7, n=500), num_steps=5, max_evaluations=10)
        assert len(search.history_) == 5
        assert search.num_fits_ == 10
        assert search.plan_.descent.num_directions == 1

    def test_points_a_step(self, capsys):
        options = {"batch_size": 2}
        search = fitted(NUMBERS, private(0.7, n=500), method_options=options, verbose=1)
        assert search.num_fits_ == 2 * len(search.history_)
        assert f"{search.num_fits_}fit" in capsys.readouterr().err  # without a total

    def test_after_a_choice(self):
        search = fitted(MIXED, private(-0.7), RDP(4.0, 0.3), num_candidates=8)
        assert search.plan_.num_candidates == 8
        assert search.best_params_["sign"] == "minus"
        assert search.num_fits_ == 8 + 40


class TestErrors01:
    """Losses of 0 and 1, whose mean over records is smooth."""

    @pytest.fixture(scope="class")
    def records(self):
        X, y = make_classification(6_000, 200, n_informative=10, random_state=0)
        data = {"X_val": X[200:3_200], "y_val": y[200:3_200]}
        return X[:200], y[:200], data, (X[3_200:], y[3_200:])

    @pytest.mark.parametrize("method", ["auto", "dp-gibo"])
    def test_better_than_the_defaults(self, records, method):
        X, y, data, test = records
        model = LogisticRegression()  # overfits
        search = PrivateSearch(
            model,
            {"C": Real(1e-4, 1e4, log=True)},
            BUDGET,
            method=method,
            scoring="accuracy",
            random_state=0,
        ).fit(X, y, **data)
        assert search.score(*test) > model.fit(X, y).score(*test) + 0.02
        assert "scoring=accuracy" in str(search.certificate_)

    def test_by_default_without_probabilities(self, records):
        X, y, data, _ = records
        search = PrivateSearch(
            SVC(), {"C": Real(1e-3, 1e3, log=True)}, BUDGET, max_evaluations=4
        ).fit(X, y, **data)
        assert "scoring=accuracy" in str(search.certificate_)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"num_steps": 3}, "num_steps needs method='dp-gibo', got 3 with method='auto"),
        ({"num_candidates": 3}, "num_candidates needs method='stable', got 3"),
        ({"clip_norm": 1.0}, r"clip_norm needs method='dp-gibo', got 1\.0"),
        (
            {"method_options": {"secure": True}},
            r"method_options needs method='dp-gibo' or method='stable', got \{'sec",
        ),
        ({"max_evaluations": 1}, "max_evaluations must be a whole number of at least "),
        (
            {"max_evaluations": 2, "release_score": True},
            "max_evaluations must be a whole number of at least 3, got 2",
        ),
        (
            {"max_evaluations": 9, "method": "stable"},
            "max_evaluations needs method='auto' or method='dp-gibo', got 9 with meth",
        ),
        (
            {"max_evaluations": 9, "method": "dp-gibo", "num_candidates": 8},
            r"max_evaluations=9 leaves no two points for a gradient, with 1 models .*"
            "and 8 candidates",
        ),
        (
            {"method": "dp-gibo", "method_options": {"max_evaluations": 9}},
            r"must not contain \['max_evaluations'\]: PrivateSearch sets them",
        ),
    ],
)
def test_bad_arguments(settings, match):
    before = Constant.num_fits
    settings = {"method": "auto", **settings}
    with pytest.raises(InvalidArgumentError, match=match):
        fitted(MIXED, private(0.5, n=9), **settings)
    assert Constant.num_fits == before


def test_other_records_follow_the_same_plan():
    """The plan and all settings depend on public facts alone."""
    found = []
    for mean, std in ((0.1, 0.01), (np.nan, 3.0)):
        search = auto(MIXED, private(mean, n=3_000, std=std))
        found.append((search.plan_, search.certificate_.parameters))
    assert found[0] == found[1]
