"""A model whose best parameters are known, and searches for them."""

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import PrivateSearch

RNG = np.random.default_rng(0)
X_TRAIN, Y_TRAIN = np.zeros((20, 1)), np.zeros(20)
BUDGET = ApproxDP(1.0, 1e-5)
PLENTY = ApproxDP(1e3, 1e-5)


class Constant(RegressorMixin, BaseEstimator):
    """Predicts a constant, which is best at the mean of the targets."""

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
    usual = {"method": "dp-gibo", "loss_range": (0.0, 4.0), "random_state": 0}
    settings = {**usual, **settings}
    return PrivateSearch(Constant(), space, guarantee, **settings)


def fitted(space, data, guarantee=BUDGET, **settings):
    return search_of(space, guarantee, **settings).fit(X_TRAIN, Y_TRAIN, **data)
