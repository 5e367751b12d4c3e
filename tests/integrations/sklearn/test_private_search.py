"""PrivateSearch: what it finds, what it costs, what it says."""

import math
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from botorch_dp import GDP, RDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    UselessReleaseWarning,
)
from botorch_dp.integrations.sklearn import Categorical, Integer, PrivateSearch, Real
from botorch_dp.privacy import GaussianEvent

pytestmark = pytest.mark.default_device

RNG = np.random.default_rng(0)
X_TRAIN, Y_TRAIN = np.zeros((20, 1)), np.zeros(20)
BUDGET = ApproxDP(1.0, 1e-5)
PLENTY = ApproxDP(1e3, 1e-5)


class Constant(RegressorMixin, BaseEstimator):
    """Predicts what it is told: the best it can do is known."""

    num_fits = 0

    def __init__(self, level=0.5, whole=0, sign="plus", scale=1.0):
        self.level, self.whole, self.sign, self.scale = level, whole, sign, scale

    def fit(self, X, y, sample_weight=None):
        type(self).num_fits += 1
        self.weights_ = sample_weight
        return self

    def predict(self, X):
        total = self.level + self.whole
        return np.full(len(X), total if self.sign == "plus" else -total)


def private(mean, n=20_000, std=0.1):
    targets = RNG.normal(mean, std, size=n)
    return {"X_val": np.zeros((n, 1)), "y_val": targets}


def search_of(space, guarantee=BUDGET, **settings):
    settings = {"loss_range": (0.0, 4.0), "random_state": 0, **settings}
    return PrivateSearch(Constant(), space, guarantee, **settings)


def fitted(space, data, guarantee=BUDGET, **settings):
    return search_of(space, guarantee, **settings).fit(X_TRAIN, Y_TRAIN, **data)


class TestFinds:
    """Minimizers of mean squared errors, which are means."""

    def test_a_number_by_gradients(self):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.8), num_steps=20)
        assert search.best_params_["level"] == pytest.approx(0.8, abs=0.05)
        assert search.num_fits_ == 40  # two points a step
        assert len(search.history_) == 20
        later = [row["params"]["level"] for row in search.history_[10:]]
        assert search.best_params_["level"] == pytest.approx(np.mean(later))
        assert search.best_estimator_.level == search.best_params_["level"]

    def test_a_number_on_a_log_scale(self):
        search = fitted({"level": Real(0.01, 1.0, log=True)}, private(0.3))
        assert search.best_params_["level"] == pytest.approx(0.3, abs=0.1)

    def test_where_few_records_lose_much_and_many_gain_a_little(self):
        """A bound of a quarter of the range would turn their mean gradient around."""

        def losses(model, X, y):
            return np.where(y > 0, 10 * model.level, 0.5 * (1 - model.level))

        n = 20_000
        data = {"X_val": np.zeros((n, 1)), "y_val": np.arange(n) % 10 == 0}
        settings = {"scoring": losses, "loss_range": (0.0, 10.0)}
        right = fitted({"level": Real(0.0, 1.0)}, data, **settings)
        wrong = fitted({"level": Real(0.0, 1.0)}, data, clip_norm=2.5, **settings)
        assert right.best_params_["level"] < 0.1 < 0.9 < wrong.best_params_["level"]

    def test_whole_numbers_by_gradients(self):
        space = {"whole": Integer(-5, 5)}
        data = private(2.3)
        search = fitted(space, data, num_steps=20, loss_range=(0.0, 60.0))
        assert search.best_params_ == {"whole": 2}  # with 0.5: 2.5
        assert isinstance(search.best_params_["whole"], int)

    def test_categories_first_then_numbers(self):
        space = {"level": Real(0.0, 1.0), "sign": ["plus", "minus"]}
        search = fitted(space, private(-0.7), num_steps=20, num_candidates=8)
        assert search.best_params_["sign"] == "minus"
        assert search.best_params_["level"] == pytest.approx(0.7, abs=0.05)
        assert search.certificate_.num_releases == 21
        assert search.num_fits_ == 8 + 40

    def test_the_best_candidate_by_brute_force(self):
        space = {"level": Real(0.0, 1.0), "sign": Categorical(["plus", "minus"])}
        data = private(-0.35)
        search = fitted(space, data, PLENTY, method="stable", num_candidates=40)
        candidates = [row["params"] for row in search.history_]
        assert len(candidates) == search.num_fits_ == 40
        means = [
            np.square(Constant(**p).predict(data["X_val"]) - data["y_val"]).mean()
            for p in candidates
        ]
        assert search.best_params_ == candidates[int(np.argmin(means))]

    def test_fewer_evaluations_than_candidates(self):
        search = fitted(
            {"level": Real(0.0, 1.0)},
            private(0.62),
            PLENTY,
            method="stable",
            num_candidates=200,
            num_steps=8,
        )
        assert search.num_fits_ == 8
        assert search.best_params_["level"] == pytest.approx(0.62, abs=0.05)
        evaluated = [row["params"]["level"] for row in search.history_]
        assert search.best_params_["level"] not in evaluated

    def test_starts_from_the_estimators_own_values(self):
        space = {"level": Real(0.0, 1.0)}
        first = {"level": 0.5}
        data = private(0.5, n=100)
        search = fitted(space, data, method="stable", num_candidates=4)
        assert search.history_[0]["params"] == first
        # Noise so large that a step goes nowhere by itself: the start is what shows.
        still = fitted(
            space,
            private(0.5, n=100),
            PLENTY,
            num_steps=1,
            method_options={"update": "sgd", "step_size": 1e-9},
        )
        assert still.best_params_["level"] == pytest.approx(0.5, abs=1e-6)

    def test_a_pipeline_and_its_friends(self):
        X = RNG.normal(size=(600, 3))
        y = (X[:, 0] > 0).astype(int)
        search = PrivateSearch(
            make_pipeline(StandardScaler(), LogisticRegression()),
            {"logisticregression__C": Real(1e-3, 1e3, log=True)},
            BUDGET,
            num_steps=2,
        ).fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
        assert search.predict(X).shape == (600,)
        assert search.predict_proba(X).shape == (600, 2)
        assert search.score(X, y) == search.best_estimator_.score(X, y) > 0.9
        assert search.classes_.tolist() == [0, 1]
        assert search.n_features_in_ == 3
        assert not hasattr(search, "transform")

    def test_arguments_of_fit(self):
        weights = np.ones(20)
        search = search_of({"level": Real(0.0, 1.0)}, num_steps=1)
        search.fit(X_TRAIN, Y_TRAIN, sample_weight=weights, **private(0.5, n=50))
        assert search.best_estimator_.weights_ is weights

    def test_workers_change_nothing(self):
        X = RNG.normal(size=(400, 2))
        y = (X.sum(axis=1) > 0).astype(int)
        found = [
            PrivateSearch(
                LogisticRegression(),
                {"C": Real(1e-3, 1e3, log=True)},
                BUDGET,
                num_steps=2,
                random_state=3,
                n_jobs=n_jobs,
            )
            .fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
            .best_params_
            for n_jobs in (None, 2)
        ]
        assert found[0] == found[1]


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
        assert search.best_score_ == pytest.approx(
            search.score(X[200:], y[200:]), abs=1e-2
        )

    def test_one_ledger_for_several_searches(self):
        ledger = Ledger(cap=ApproxDP(1.0, 1e-5))
        space = {"level": Real(0.0, 1.0)}
        half = GDP(ApproxDP(1.0, 1e-5).to_gdp().mu / math.sqrt(2))
        for _ in range(2):
            search = fitted(space, private(0.5, n=99), half, ledger=ledger)
        assert len(ledger) == 20
        assert search.certificate_.epsilons[1e-5] == pytest.approx(1.0)
        before = Constant.num_fits
        with pytest.raises(BudgetExceededError, match="this run would bring it to"):
            fitted(space, private(0.5, n=99), half, ledger=ledger)
        assert Constant.num_fits == before
        assert len(ledger) == 20

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
        assert len(ledger) == 10


class TestSays:
    def test_certificate(self):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
        text = str(search.certificate_)
        assert "training records (X, y) are NOT protected" in text
        assert "FOR EXPERIMENTS ONLY" in text
        assert "scoring=neg_mean_squared_error" in text
        assert "loss_range=[0.0, 4.0]" in text
        assert "budget=ApproxDP(epsilon=1, delta=1e-05)" in text

    def test_noise_of_the_system_by_default(self):
        search = fitted(
            {"level": Real(0.0, 1.0)}, private(0.5, n=99), random_state=None
        )
        assert not search.certificate_.for_experiments_only
        again = clone(search).fit(X_TRAIN, Y_TRAIN, **private(0.5, n=99))
        assert again.best_params_ != search.best_params_

    def test_seeds_repeat_themselves(self):
        data = private(0.5, n=99)
        one, two, other = (
            fitted({"level": Real(0.0, 1.0)}, data, random_state=seed).best_params_
            for seed in (1, 1, 2)
        )
        assert one == two != other

    def test_no_scores_but_released_ones(self):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
        with pytest.raises(AttributeError, match="release_score=True before fit"):
            search.best_score_  # noqa: B018
        with pytest.raises(AttributeError, match="exact scores of candidates are priv"):
            search.cv_results_  # noqa: B018
        with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
            search.nonsense  # noqa: B018
        assert {*search.history_[0]} == {"params", "noise_std"}

    def test_an_earlier_score_does_not_stay(self):
        data = private(0.5, n=99)
        search = fitted({"level": Real(0.0, 1.0)}, data, release_score=True)
        assert hasattr(search, "best_score_")
        search.set_params(release_score=False, refit=False).fit(
            X_TRAIN, Y_TRAIN, **data
        )
        assert not hasattr(search, "best_score_")
        assert not hasattr(search, "best_estimator_")
        assert not hasattr(search, "n_features_in_")

    def test_without_refit(self):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99), refit=False)
        with pytest.raises(AttributeError, match="refit=True"):
            search.predict(X_TRAIN)
        assert search.best_params_

    def test_a_bar(self, capsys):
        fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99), verbose=1)
        assert "dp-gibo: 20fit" in capsys.readouterr().err

    def test_quiet_by_default(self, capsys):
        fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
        assert capsys.readouterr() == ("", "")

    def test_pickled(self):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
        again = pickle.loads(pickle.dumps(search))
        assert again.best_params_ == search.best_params_
        assert str(again.certificate_) == str(search.certificate_)


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


CATEGORIES = {"level": Real(0.0, 1.0), "sign": ["plus", "minus"]}


@pytest.mark.parametrize(
    ("space", "settings", "match"),
    [
        ({"level": Real(0, 1)}, {"method": "grid"}, "method must be one of 'dp-gibo'"),
        ({"level": Real(0, 1)}, {"guarantee": 1.0}, "guarantee must be"),
        ({"level": Real(0, 1)}, {"guarantee": PureDP(1.0)}, "noise is Gaussian"),
        ({"C": Real(0, 1)}, {}, r"space names \['C'\], which Constant has not"),
        ({"sign": ["plus", "minus"]}, {}, "use method='stable' for"),
        (CATEGORIES, {"guarantee": RDP(4, 1.0)}, "an ApproxDP or a GDP where"),
        (
            CATEGORIES,
            {"method_options": {"secure": True}},
            "secure=True cannot be split",
        ),
        (
            {"level": Real(0, 1)},
            {"method": "stable", "guarantee": GDP(1.0)},
            "must be a PureDP or an ApproxDP",
        ),
        ({"level": Real(0, 1)}, {"method_options": {"x": 1}}, "arguments of DPGIBO"),
        (
            {"level": Real(0, 1)},
            {"method": "stable", "clip_norm": 1.0},
            r"clip_norm is for method='dp-gibo', got 1\.0 with method='stable'",
        ),
        (
            {"level": Real(0, 1)},
            {"method_options": {"ledger": None, "clip_norm": 1.0}},
            r"must not have \['clip_norm', 'ledger'\]: PrivateSearch has arguments",
        ),
        (
            {"level": Real(0, 1)},
            {"method": "kusner"},
            r"method='kusner' needs method_options=\{'correlation': ...\}",
        ),
        (
            CATEGORIES,
            {"method_options": {"adjacency": "zero_out"}},
            r"must leave adjacency='replace_one' where categories \(\['sign'\]\)",
        ),
        (
            {"level": Real(0, 1)},
            {"method": "stable", "method_options": {"x": 1}},
            "other options",
        ),
        ({"level": Real(0, 1)}, {"ledger": "file.db"}, "ledger must be a botorch_dp.L"),
        ({"level": Real(0, 1)}, {"num_steps": 0}, "num_steps must be a whole number"),
        (
            {"level": Real(0, 1)},
            {"clip_norm": -1.0},
            "clip_norm must be a finite number",
        ),
        (
            {"level": Real(0, 1)},
            {"method": "stable", "num_candidates": 1},
            "num_candidates must be a whole number of at least 2",
        ),
        ({"level": Real(0, 1)}, {"loss_range": None}, "loss_range must be given"),
    ],
)
def test_bad_arguments(space, settings, match):
    before = Constant.num_fits
    with pytest.raises(InvalidArgumentError, match=match):
        fitted(space, private(0.5, n=9), **settings)
    assert Constant.num_fits == before


def test_training_errors_are_raised():
    search = PrivateSearch(
        Ridge(), {"alpha": Real(-1.0, -0.5)}, BUDGET, loss_range=(0.0, 1.0)
    )
    with pytest.raises(ValueError, match="alpha"):
        search.fit(X_TRAIN, Y_TRAIN, **private(0.5, n=9))


def test_default_device_is_not_used():
    with torch.device("meta"):
        search = search_of(CATEGORIES, num_candidates=4, num_steps=2)
        search.fit(X_TRAIN, Y_TRAIN, **private(0.5, n=99))
    assert search.best_params_


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
        assert search.certificate_.num_releases == 11

    @pytest.mark.parametrize("method", ["dp-gibo", "stable"])
    def test_of_the_ledger(self, method):
        ledger = Ledger()
        ledger.charge(GaussianEvent(5.0), adjacency="zero_out")
        with pytest.raises(InvalidArgumentError, match="charges for adjacency='repl"):
            fitted({"level": Real(0, 1)}, private(0.5), method=method, ledger=ledger)
        assert len(ledger) == 1


def test_candidates_differ_without_a_seed():
    space, data = {"level": Real(0.0, 1.0)}, private(0.5, n=50)
    settings = {"method": "stable", "num_candidates": 4}
    first, second = (
        fitted(space, data, random_state=None, **settings).history_ for _ in range(2)
    )
    assert first != second
    assert first[0] == second[0]  # the estimator's own values
    seeded = [fitted(space, data, **settings).history_ for _ in range(2)]
    assert seeded[0] == seeded[1]


def test_an_estimator_that_is_none():
    for given in (Ridge, "ridge"):
        search = PrivateSearch(given, {"alpha": Real(0.0, 1.0)}, BUDGET)
        with pytest.raises(InvalidArgumentError, match="estimator must be an instance"):
            search.fit(X_TRAIN, Y_TRAIN, **private(0.5, n=9))
