"""What leaves a search: releases and nothing else, whatever the records are."""

import ctypes
import logging
import math
import os
import pickle
import sys
import threading
import time
import uuid
import warnings

import joblib
import numpy as np
import pytest
import torch
from scipy.stats import binom
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import BaggingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from botorch_dp import GDP, ApproxDP, Ledger, PureDP
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from botorch_dp.integrations.sklearn import methods as methods_module
from botorch_dp.integrations.sklearn import private_search as private_search_module
from botorch_dp.integrations.sklearn import score_release as score_module
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.optimizers.release.problem import ReleaseProblem
from botorch_dp.privacy import GaussianEvent

pytestmark = pytest.mark.default_device

N = 50
TRAIN = (np.zeros((20, 1)), np.zeros(20))
SPACE = {"level": Real(0.0, 1.0)}


LIBC = ctypes.CDLL(None)  # prints as compiled code does


class Panic(BaseException):
    """As from code that is not Python."""


class Fragile(RegressorMixin, BaseEstimator):
    """Predicts a constant, and does to hostile records what they ask for."""

    def __init__(self, level=0.5):
        self.level = level

    def fit(self, X, y):
        return self

    def predict(self, X):
        if (X == 666.0).any():
            raise RuntimeError(f"a private record: {X.tolist()}")
        if (X == 667.0).any():
            time.sleep(0.01)  # so that threads meet
            warnings.warn("a private record", stacklevel=2)
            print("a private record")
            print("a private record", file=sys.stderr)
            logging.getLogger(__name__).log(60, "a private record")
        if (X == 670.0).any():
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("a private record", stacklevel=2)
            print("a private record", file=sys.__stdout__)
            print("a private record", file=sys.__stderr__)
            os.write(1, b"a private record")
            LIBC.puts(b"a private record")
        if (X == 669.0).any():
            raise Panic(f"a private record: {X.tolist()}")
        return np.where(X[:, 0] == 668.0, np.nan, self.level)


def private(record=(0.0, 0.5)):
    """Neighbours: the first record is one of ours, or a hostile one."""
    rng = np.random.default_rng(1)
    X, y = np.zeros((N, 1)), rng.uniform(size=N)
    X[0], y[0] = record
    return {"X_val": X, "y_val": y}


HOSTILE = [
    (0.0, 1e300),
    (0.0, np.nan),
    (0.0, -np.inf),
    (np.nan, 0.0),
    (666.0, 0.0),
    (667.0, 0.0),
    (668.0, 0.0),
    (669.0, 0.0),
    (670.0, 0.0),
]


def search_of(method="dp-gibo", guarantee=None, **settings):
    settings = {"loss_range": (0.0, 1.0), "random_state": 0, **settings}
    return PrivateSearch(
        Fragile(), SPACE, guarantee or ApproxDP(1.0, 1e-5), method=method, **settings
    )


@pytest.fixture
def seen(monkeypatch):
    """The private losses of every evaluation, as they are made."""
    found = []
    losses = Evaluation.losses

    def spy(self, candidates):
        found.append(losses(self, candidates))
        return found[-1]

    monkeypatch.setattr(Evaluation, "losses", spy)
    return found


@pytest.mark.parametrize("record", HOSTILE)
class TestOneRecord:
    def test_changes_its_own_losses_alone(self, record, seen):
        for data in (private(), private(record)):
            search_of("stable", num_candidates=8).fit(*TRAIN, **data)
        ours, theirs = seen
        assert (ours[1:] == theirs[1:]).all()
        assert theirs.isfinite().all()
        assert 0.0 <= theirs.min() <= theirs.max() <= 1.0

    def test_moves_a_gradient_by_no_more_than_its_share(self, record):
        """Without noise to speak of, a step of gradient descent tells its gradient."""
        clip_norm, found = 0.3, []
        for data in (private(), private(record)):
            search = search_of(
                guarantee=GDP(1e9),
                num_steps=1,
                clip_norm=clip_norm,
                method_options={"update": "sgd", "step_size": 0.5},
            ).fit(*TRAIN, **data)
            found.append(search.best_params_["level"])
        moved = abs(found[0] - found[1]) / 0.5
        assert moved <= 2 * clip_norm / N + 1e-6

    def test_moves_a_score_by_no_more_than_its_share(self, record):
        scores = []
        for data in (private(), private(record)):
            search = search_of(
                guarantee=GDP(1e9),
                num_steps=1,
                release_score=True,
                method_options={"update": "sgd", "step_size": 1e-9},
            ).fit(*TRAIN, **data)
            scores.append(search.best_score_)
        assert abs(scores[0] - scores[1]) <= 1.0 / N + 1e-6

    @pytest.mark.parametrize("method", ["auto", "dp-gibo", "stable"])
    @pytest.mark.parametrize("backend", ["sequential", "threading"])
    def test_says_nothing(self, record, method, backend, capfd, caplog):
        with (
            warnings.catch_warnings(record=True) as caught,
            joblib.parallel_config(backend),
        ):
            warnings.simplefilter("always")
            settings = {} if method == "auto" else {"num_candidates": 4}
            search_of(method, n_jobs=2, **settings).fit(*TRAIN, **private(record))
        LIBC.fflush(None)
        assert caught == []
        assert capfd.readouterr() == ("", "")
        assert caplog.records == []


class TestOwnDevices:
    """What a model does by itself to the data, or says of training records."""

    def test_in_place(self):
        """A scaler that writes into what it is given, and a record it cannot take."""
        rng = np.random.default_rng(0)
        X = rng.normal(5.0, 2.0, size=(200, 2))
        y = (X[:, 0] > 5.0).astype(int)
        model = make_pipeline(StandardScaler(copy=False), LogisticRegression())
        found = []
        for value in (5.0, np.nan):
            X_train, X_val = X[:50].copy(), X[50:].copy()
            X_val[0, 0] = value
            given = [X_train.copy(), X_val.copy()]
            search = PrivateSearch(
                model,
                {"logisticregression__C": Real(0.1, 10.0, log=True)},
                ApproxDP(1e6, 1e-5),
                method="stable",
                num_candidates=2,
                release_score=True,
                random_state=0,
            ).fit(X_train, y[:50], X_val=X_val, y_val=y[50:])
            assert np.array_equal(X_train, given[0])
            assert np.array_equal(X_val, given[1], equal_nan=True)
            scaler = search.best_estimator_[0]
            assert scaler.mean_ == pytest.approx(X_train.mean(axis=0))
            found.append(search.best_score_)
        assert abs(found[0] - found[1]) <= 1 / 150 + 1e-3  # noise is tiny

    def test_warnings_of_training_are_shown(self):
        class Loud(Fragile):
            def fit(self, X, y):
                warnings.warn("about training", UserWarning, stacklevel=2)
                return self

        search = search_of("stable", num_candidates=2).set_params(estimator=Loud())
        with pytest.warns(UserWarning, match="about training"):
            search.fit(*TRAIN, **private())

    def test_threads_leave_everything_as_it_was(self):
        before = sys.stdout, sys.stderr, list(warnings.filters), logging.root.disabled
        with joblib.parallel_config("threading"):
            search_of("stable", n_jobs=4).fit(*TRAIN, **private((666.0, 0.0)))
        after = sys.stdout, sys.stderr, list(warnings.filters), logging.root.disabled
        assert before == after
        assert logging.root.manager.disable == 0
        assert threading.active_count() < 50


class Moody(Fragile):
    """Cannot be trained at some levels, and complains at others."""

    def fit(self, X, y):
        if 0.6 < self.level < 0.9:
            raise FloatingPointError(f"diverged at {self.level}")
        if 0.3 < self.level < 0.4:
            raise Panic(f"panic at {self.level}")
        if self.level >= 0.9:
            warnings.warn(f"slow at {self.level}", stacklevel=2)
        print(f"trained at {self.level}")
        return self


class TestPrivatePoints:
    """Where UCB goes depends on exact losses: no model may tell where it is."""

    def fit(self, target, first=0.5):
        search = search_of(
            "kusner",
            ApproxDP(1e3, 0.5),  # or it warns that its noise is larger than anything
            num_candidates=20,
            num_steps=6,
            refit=False,  # what was released is public
            method_options={"correlation": 0.9},
        ).set_params(estimator=Moody(first))
        data = {"X_val": np.zeros((1, 1)), "y_val": np.array([target])}
        return search.fit(*TRAIN, **data)

    @pytest.mark.parametrize("target", [0.0, 0.35, 0.75, 1.0])
    def test_says_nothing(self, target, capfd):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            search = self.fit(target)
        assert caught == []
        # Of the one fit that shows what is always wrong.
        assert capfd.readouterr() == ("trained at 0.5\n", "")
        assert [step["params"] for step in search.history_] == [None] * 6

    def test_what_is_always_wrong_is_said(self):
        with pytest.raises(FloatingPointError, match=r"diverged at 0\.7"):
            self.fit(0.0, first=0.7)


class TestParts:
    """Each of them is tested elsewhere; here, that a fit makes use of it."""

    def test_records_are_read_by_themselves(self, seen):
        """One word makes text of an array of numbers, which an encoder tells apart."""
        y = np.array([0, 1] * 20)
        for first in (0.0, "x"):
            PrivateSearch(
                make_pipeline(
                    OneHotEncoder(handle_unknown="ignore"), LogisticRegression()
                ),
                {"logisticregression__C": Real(0.1, 10.0)},
                PureDP(1.0),
                method="stable",
                scoring="neg_log_loss",
                num_candidates=2,
                random_state=0,
            ).fit(
                y[:, None].astype(float),
                y,
                X_val=np.array([[first], *[[1.0]] * (N - 1)]),
                y_val=np.ones(N, dtype=int),
            )
        assert (seen[0][1:] == seen[1][1:]).all()
        assert (seen[0][1:] < 0.5).all()

    def test_training_records_are_refused(self):
        X, y = np.zeros((40, 1)), np.zeros(40)
        with pytest.raises(InvalidArgumentError, match="not trained on"):
            search_of().fit(X, y, X_val=X[10:], y_val=y[10:])

    def test_the_budget_is_the_cap(self, monkeypatch):
        tasks = []
        choose = methods_module.choice_of

        def spy(method, task, evaluation):
            tasks.append(task)
            return choose(method, task, evaluation)

        monkeypatch.setattr(private_search_module, "choice_of", spy)
        search_of("stable", PureDP(0.5), num_candidates=2).fit(*TRAIN, **private())
        assert tasks[0].ledger.cap == PureDP(0.5)

    @pytest.mark.parametrize("loss_range", [(0.0, 1.0), (-2.0, 3.0)])
    def test_the_score_has_noise_for_its_sensitivity(self, loss_range, monkeypatch):
        made = []

        class Spy(score_module.GaussianMechanism):
            def __init__(self, guarantee, **settings):
                made.append((guarantee, settings["sensitivity"]))
                super().__init__(guarantee, **settings)

        monkeypatch.setattr(score_module, "GaussianMechanism", Spy)
        search = search_of(
            guarantee=GDP(0.5), loss_range=loss_range, num_steps=2, release_score=True
        ).fit(*TRAIN, **private())
        ((guarantee, sensitivity),) = made
        width = loss_range[1] - loss_range[0]
        assert width / N <= sensitivity <= width / N * (1 + 1e-6)
        assert guarantee.mu == pytest.approx(0.5 * math.sqrt(0.1))
        assert search.certificate_.guarantee.mu == pytest.approx(0.5)

    def test_the_score_is_what_was_released(self, monkeypatch):
        class Fixed(score_module.GaussianMechanism):
            def release(self, private_value, *, ledger, batch_dims=0):
                super().release(private_value, ledger=ledger, batch_dims=batch_dims)
                return torch.full_like(private_value, 0.25)

        monkeypatch.setattr(score_module, "GaussianMechanism", Fixed)
        search = search_of(
            guarantee=GDP(0.5), loss_range=(-2.0, 3.0), num_steps=2, release_score=True
        ).fit(*TRAIN, **private())
        assert search.best_score_ == 1.75  # minus the loss 0.25 above the lower end

    def test_the_score_is_part_of_the_price(self):
        """A ledger that can pay for gradients and not for the score, too."""
        ledger = Ledger(cap=GDP(1.0))
        ledger.charge(GaussianEvent(1 / math.sqrt(0.05)))
        fit = search_of(guarantee=GDP(1.0), release_score=True, ledger=ledger).fit
        with pytest.raises(BudgetExceededError, match="this run would bring it to"):
            fit(*TRAIN, **private())
        assert len(ledger) == 1

    def test_shared_parts_of_a_model_learn_nothing(self):
        class Remembers(Fragile):
            def predict(self, X):
                self.last_ = X.sum()
                return super().predict(X)

        inner = Remembers().fit(*TRAIN)
        inner.fitted_ = True
        search = PrivateSearch(
            BaggingRegressor(FrozenEstimator(inner), n_estimators=2, random_state=0),
            {"max_samples": Real(0.5, 1.0)},
            PureDP(1.0),
            method="stable",
            loss_range=(0.0, 1.0),
            num_candidates=2,
        ).fit(*TRAIN, **private((123.0, 0.0)))
        assert search.num_fits_ == 2
        assert not hasattr(inner, "last_")

    def test_sums_that_would_overflow(self):
        with pytest.raises(InvalidArgumentError, match=r"neither beyond 1e\+100"):
            search_of(loss_range=(0.0, 1e306)).fit(*TRAIN, **private())


HIDING = {
    "auto": {"guarantee": PureDP(1e-9), "max_evaluations": 4},
    # No noise hides all digits, so steps are signs.
    "dp-gibo": {
        "guarantee": ApproxDP(1e-9, 1e-12),
        "num_steps": 2,
        "method_options": {"update": torch.optim.Rprop, "step_size": 0.1},
    },
    "stable": {"guarantee": ApproxDP(1e-9, 1e-12), "num_candidates": 4},
}
NOW = "2026-01-01T00:00:00.000+00:00"
PUBLIC = {
    "best_params_",
    "best_estimator_",
    "history_",
    "certificate_",
    "num_fits_",
    "schema_",
    "stopped_",
}


@pytest.fixture
def without_chance(monkeypatch):
    """Return a function that starts random names again, while the clock stands."""

    def restart():
        numbers = iter(range(1000))
        monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=next(numbers)))

    monkeypatch.setattr("botorch_dp.privacy.ledger._now", lambda: NOW)
    return restart


@pytest.mark.parametrize("method", [*HIDING])
def test_nothing_else_is_published(method, without_chance):
    """Neither new attributes, nor how many records could not be read."""
    training = (np.zeros((20, 1), dtype=int), np.zeros(20))
    found = []
    for first in (0, 0.5):  # the second is no whole number
        without_chance()
        X_val = np.zeros((N, 1))
        X_val[0] = first
        search = search_of(method, **HIDING[method])
        search.fit(*training, X_val=X_val, y_val=np.zeros(N))
        published = {name for name in vars(search) if name.endswith("_")}
        assert published - {"plan_"} == PUBLIC
        assert ("plan_" in published) == (method != "stable")
        found.append(pickle.dumps(vars(search)))
    assert found[0] == found[1]


def test_a_search_that_fails_says_what_it_cost():
    class Failing(Fragile):
        def fit(self, X, y):
            if self.level > 0.9:
                raise FloatingPointError("diverged")
            return self

    data = {"X_val": np.zeros((N, 1)), "y_val": np.ones(N)}  # uphill, into the wall
    search = search_of(num_steps=20).set_params(estimator=Failing())
    with pytest.raises(FloatingPointError):
        search.fit(*TRAIN, **data)
    assert 0 < search.certificate_.num_releases < 20
    assert "training records (X, y) are NOT protected" in str(search.certificate_)
    assert "worst case over all neighbouring data sets" in str(search.certificate_)
    assert search.stopped_ == "error"
    assert len(search.history_) == search.certificate_.num_releases


def test_private_records_are_no_arguments_of_fit():
    data = private()
    for held in (data["X_val"], [(data["X_val"], data["y_val"])], {"a": data["y_val"]}):
        with pytest.raises(InvalidArgumentError, match="eval_set must not contain p"):
            search_of().fit(*TRAIN, **data, eval_set=held)


@pytest.mark.parametrize("method", [*HIDING])
def test_equal_releases_leave_equal_searches(method, without_chance):
    """Two data sets that differ in everything, noise that hides everything."""
    found = []
    for level in (0.1, 0.9):
        without_chance()
        rng = np.random.default_rng(2)
        data = {"X_val": np.zeros((N, 1)), "y_val": rng.normal(level, 0.1, size=N)}
        search = search_of(method, **HIDING[method]).fit(*TRAIN, **data)
        found.append(vars(search))
    assert str(found[0]) == str(found[1])
    assert pickle.dumps(found[0]) == pickle.dumps(found[1])


def test_no_private_value_is_kept():
    X = np.random.default_rng(3).normal(size=(400, 2))
    y = (X[:, 0] > 0).astype(int)
    X_val, y_val = X[200:].copy(), y[200:].copy()
    search = PrivateSearch(
        LogisticRegression(),
        {"C": Real(1e-2, 1e2, log=True)},
        ApproxDP(1.0, 1e-5),
        max_evaluations=12,
    ).fit(X[:200], y[:200], X_val=X_val, y_val=y_val)
    kept = pickle.dumps(search)
    assert X[:200].tobytes() not in kept
    assert not any(row.tobytes() in kept for row in X_val)
    exact = search.best_estimator_.score(X_val, y_val)
    assert np.float64(exact).tobytes() not in kept


class TestAudit:
    """The released choice between two candidates, on neighbouring data sets.

    Permute-and-flip chooses 0 with probability 0.82 or 0.18 here, a ratio of e^1.5:
    less than e^2, since the scores move by half of what is allowed for. With 200 runs
    on either side the bound is above 0.3 with a power of over 0.99, and unclipped
    losses (0.99998 against 0.00002) are found out almost surely.
    """

    EPSILON, RUNS = 2.0, 200

    def _lower_bound(self):
        """A 99 % lower bound on epsilon from the choices of many searches."""
        counts = []
        for record in ((0.0, 0.0), (0.0, 1.0)):
            # A single private record: it alone decides which level is better.
            data = {"X_val": np.zeros((1, 1)), "y_val": np.array([record[1]])}
            chosen = [
                search_of(
                    "stable",
                    PureDP(self.EPSILON),
                    random_state=seed,
                    num_candidates=2,
                    refit=False,
                )
                .fit(*TRAIN, **data)
                .best_params_["level"]
                for seed in range(self.RUNS)
            ]
            counts.append(sum(level == 0.0 for level in chosen))
        low = binom.ppf(0.005, self.RUNS, counts[0] / self.RUNS)
        high = binom.ppf(0.995, self.RUNS, counts[1] / self.RUNS)
        return math.log(max(low, 1.0) / max(high, 1.0))

    @pytest.fixture(autouse=True)
    def _two_levels(self, monkeypatch):
        monkeypatch.setattr(
            methods_module.SearchSpace,
            "candidates",
            lambda self, count, *, first, seed: [{"level": 0.0}, {"level": 1.0}],
        )

    def test_holds(self):
        assert 0.3 < self._lower_bound() <= self.EPSILON

    def test_finds_scores_that_are_not_clipped(self, monkeypatch):
        """Losses of ten where the range says one: the audit must notice."""
        monkeypatch.setattr(ReleaseProblem, "clip", lambda self, private: 10 * private)
        assert self._lower_bound() > self.EPSILON
