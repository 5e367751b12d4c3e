"""PrivateSearch: what it finds, what it costs, what it says."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression, Ridge

from botorch_dp import GDP, PureDP
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import Categorical, Integer, PrivateSearch, Real
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
                max_evaluations=12,
                random_state=3,
                n_jobs=n_jobs,
            )
            .fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
            .best_params_
            for n_jobs in (None, 2)
        ]
        assert found[0] == found[1]


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

    def test_a_bar(self, capsys):
        fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99), verbose=1)
        shown = capsys.readouterr()
        assert "dp-gibo: 100%" in shown.err
        assert "40/40" in shown.err
        assert shown.out.startswith("Plan: 20 gradient steps of 2 points, 40 evalu")
        assert shown.out.count("\n") == 2

    def test_quiet_by_default(self, capsys):
        fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
        assert capsys.readouterr() == ("", "")

    def test_pickled(self):
        search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
        again = pickle.loads(pickle.dumps(search))
        assert again.best_params_ == search.best_params_
        assert str(again.certificate_) == str(search.certificate_)


CATEGORIES = {"level": Real(0.0, 1.0), "sign": ["plus", "minus"]}


@pytest.mark.parametrize(
    ("space", "settings", "match"),
    [
        ({"level": Real(0, 1)}, {"method": "grid"}, "method must be one of 'auto'"),
        ({"level": Real(0, 1)}, {"guarantee": 1.0}, "guarantee must be"),
        (
            {"level": Real(0, 1)},
            {"guarantee": PureDP(1.0)},
            "which adds Gaussian noise",
        ),
        (
            {"C": Real(0, 1)},
            {},
            r"space contains 'C', but Constant has no such parameter\. Available",
        ),
        (
            {"sign": ["plus", "minus"]},
            {},
            r"only categories, \['sign'\]\. Use method='auto'",
        ),
        (
            CATEGORIES,
            {"method_options": {"secure": True}},
            "secure=True does not support releasing gradients together",
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
            r"clip_norm needs method='dp-gibo', got 1\.0 with method='stable'",
        ),
        (
            {"level": Real(0, 1)},
            {"method_options": {"ledger": None, "clip_norm": 1.0}},
            r"must not contain \['clip_norm', 'ledger'\]: PrivateSearch sets them",
        ),
        (
            {"level": Real(0, 1)},
            {"method": "kusner"},
            r"method='kusner' needs method_options=\{'correlation': ...\}",
        ),
        (
            CATEGORIES,
            {"method_options": {"adjacency": "zero_out"}},
            r"must keep adjacency='replace_one' if space has categories \(\['sign'\]\)",
        ),
        (
            {"level": Real(0, 1)},
            {"method": "stable", "method_options": {"x": 1}},
            "does not take these options",
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
