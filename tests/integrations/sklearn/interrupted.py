"""Searches that end early, on a model that counts and fails on demand."""

import numpy as np

from botorch_dp import ApproxDP, Ledger
from botorch_dp.integrations.sklearn import PrivateSearch, Real
from tests.integrations.sklearn.constant import X_TRAIN, Y_TRAIN, Constant

N = 400
NUMBERS = {"level": Real(0.0, 1.0)}
MIXED = {"level": Real(0.0, 1.0), "sign": ["plus", "minus"]}
BUDGET = ApproxDP(1.0, 1e-6)
# Searches with one to three stages, and how many models each stage trains.
SEARCHES = {
    "choice": ({"method": "stable", "num_candidates": 4}, [4]),
    "gradients": (
        {"method": "dp-gibo", "num_steps": 3, "max_evaluations": 6},
        [2, 2, 2],
    ),
    "both": (
        {
            "method": "dp-gibo",
            "space": MIXED,
            "num_steps": 3,
            "num_candidates": 4,
            "max_evaluations": 11,
            "release_score": True,
        },
        [4, 2, 2, 2, 1],
    ),
}


class Failing(Constant):
    """Raises when a given number of models has been trained, or while it predicts."""

    at, error, when = None, RuntimeError, "fit"
    num_fits = 0

    def fit(self, X, y, sample_weight=None):
        super().fit(X, y)
        self._fail("fit")
        return self

    def predict(self, X):
        if len(X) > 100:  # the private records, in the company of training records
            self._fail("predict")
        return super().predict(X)

    def _fail(self, when):
        if type(self).num_fits == self.at and when == self.when:
            type(self).at = None  # once
            raise self.error(f"while it {when}s")

    @classmethod
    def fail(cls, at, error=RuntimeError, when="fit"):
        cls.num_fits, cls.at, cls.error, cls.when = 0, at, error, when


def private(level=0.8, n=N):
    targets = np.random.default_rng(1).normal(level, 0.1, size=n)
    return {"X_val": np.zeros((n, 1)), "y_val": targets}


def search_of(kind="gradients", guarantee=BUDGET, **settings):
    usual = {"space": NUMBERS, "loss_range": (0.0, 4.0), "random_state": 0}
    settings = {**usual, **SEARCHES[kind][0], **settings}
    return PrivateSearch(Failing(), guarantee=guarantee, **settings)


def fit(search, **data):
    return search.fit(X_TRAIN, Y_TRAIN, **(data or private()))


def whole(kind="gradients", **settings):
    """The search without an interruption, with a ledger to look into."""
    Failing.fail(None)
    ledger = settings.pop("ledger", None)
    ledger = Ledger(cap=BUDGET) if ledger is None else ledger
    return fit(search_of(kind, ledger=ledger, **settings))
