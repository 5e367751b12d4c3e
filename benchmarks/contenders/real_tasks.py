"""The real tasks of the arena: models whose hyperparameters are tuned on private data.

A task trains on some records, tunes on the private ones and is judged by the mean loss
of test records. The loss of a record is clipped to a range that is known beforehand:

* ``errors``: 1 for a wrong prediction;
* ``log_losses``: minus the log of the probability of the class, at most log 100;
* ``relative_squares``: squared errors of targets with variance 1, at most 4.

Generated sets were chosen such that a model's defaults are far from the best ones.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_wine,
    make_classification,
    make_regression,
)
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from benchmarks.problems import load_dataset
from botorch_dp.integrations.sklearn import Categorical, Integer, Real

Array = npt.NDArray[Any]
Data = tuple[Array, Array]
Loss = Callable[[Any, Array, Array], Array]
LARGEST_LOG_LOSS, LARGEST_SQUARE = math.log(100.0), 4.0


def errors(model: Any, X: Array, y: Array) -> Array:
    return np.asarray(model.predict(X) != y, dtype=float)


def log_losses(model: Any, X: Array, y: Array) -> Array:
    """Classes are 0, 1, ... and all of them occur in the training records."""
    right = model.predict_proba(X)[np.arange(len(y)), np.asarray(y, dtype=int)]
    return -np.log(np.clip(right, 0.01, 1.0))


def relative_squares(model: Any, X: Array, y: Array) -> Array:
    return np.clip(np.square(model.predict(X) - y), 0.0, LARGEST_SQUARE)


class ARDKernelRidge(RegressorMixin, BaseEstimator):
    """Kernel ridge regression with a length scale for each of ten features.

    The defaults are those of scikit-learn's RBF and KernelRidge.
    """

    def __init__(
        self,
        l0: float = 1.0,
        l1: float = 1.0,
        l2: float = 1.0,
        l3: float = 1.0,
        l4: float = 1.0,
        l5: float = 1.0,
        l6: float = 1.0,
        l7: float = 1.0,
        l8: float = 1.0,
        l9: float = 1.0,
        alpha: float = 1.0,
    ) -> None:
        self.l0, self.l1, self.l2, self.l3, self.l4 = l0, l1, l2, l3, l4
        self.l5, self.l6, self.l7, self.l8, self.l9 = l5, l6, l7, l8, l9
        self.alpha = alpha

    def fit(self, X: Array, y: Array) -> "ARDKernelRidge":
        self.X_, self.mean_ = self._scaled(X), float(np.mean(y))
        K = _rbf(self.X_, self.X_) + self.alpha * np.eye(len(X))
        self.weights_ = np.linalg.solve(K, y - self.mean_)
        return self

    def predict(self, X: Array) -> Array:
        return self.mean_ + _rbf(self._scaled(X), self.X_) @ self.weights_

    def _scaled(self, X: Array) -> Array:
        return X / np.array([getattr(self, f"l{i}") for i in range(10)])


def _rbf(A: Array, B: Array) -> Array:
    squares = np.square(A).sum(axis=1)[:, None] + np.square(B).sum(axis=1) - 2 * A @ B.T
    return np.exp(-np.maximum(squares, 0.0) / 2)


@dataclass(frozen=True)
class RealTask:
    """A model, its hyperparameters, its data and the loss of a record.

    Attributes:
        data: Loads inputs and targets.
        model: Makes the estimator, whose own values are the start.
        space: The hyperparameters.
        loss: The loss of each record.
        loss_range: Its range.
        sizes: The numbers of training, private and test records.
        epsilons: The epsilons to run.
        needs_data: Whether ``BOTORCH_DP_DATA`` has to be set.
    """

    data: Callable[[], Data]
    model: Callable[[], Any]
    space: dict[str, Any]
    loss: Loss
    loss_range: tuple[float, float]
    sizes: tuple[int, int, int]
    epsilons: tuple[float, ...] = (1.0,)
    needs_data: bool = False

    @property
    def is_available(self) -> bool:
        return not self.needs_data or bool(os.environ.get("BOTORCH_DP_DATA"))

    def split(self, seed: int) -> tuple[Data, Data, Data]:
        """Return training, private and test records, with inputs of unit variance.

        The scales come from training records alone.
        """
        X, y = self.data()
        order = np.random.default_rng(seed).permutation(len(y))[: sum(self.sizes)]
        if len(order) < sum(self.sizes):
            raise ValueError(f"{len(y)} records are fewer than {self.sizes}")
        parts = np.split(order, np.cumsum(self.sizes)[:-1])
        scaler = StandardScaler().fit(X[parts[0]])
        targets = y
        if self.loss is relative_squares:
            targets = (y - y[parts[0]].mean()) / y[parts[0]].std()
        train, private, test = (
            (scaler.transform(X[part]), targets[part]) for part in parts
        )
        return train, private, test


@cache
def digits() -> Data:
    return load_digits(return_X_y=True)


@cache
def cancer() -> Data:
    return load_breast_cancer(return_X_y=True)


@cache
def wine() -> Data:
    return load_wine(return_X_y=True)


@cache
def diabetes() -> Data:
    return load_diabetes(return_X_y=True)


@cache
def noisy_classes() -> Data:
    """5 of 40 features matter, and a tenth of the labels is random."""
    return make_classification(
        6000,
        n_features=40,
        n_informative=5,
        n_redundant=0,
        flip_y=0.1,
        random_state=0,
    )


@cache
def sparse_regression() -> Data:
    """3 of 10 features matter."""
    X, y = make_regression(
        8000, n_features=10, n_informative=3, noise=50.0, random_state=0
    )
    return X, y


@cache
def adult_numbers() -> Data:
    """The six numeric features of Adult."""
    arrays = load_dataset("adult")
    return arrays["numeric"].astype(float), arrays["y"].astype(int)


@cache
def adult_all() -> Data:
    """Adult with an indicator for each category, but without countries."""
    arrays = load_dataset("adult")
    names = [name for name in arrays if name.startswith("cat_")]
    names.remove("cat_native-country")
    codes = [np.eye(int(arrays[name].max()) + 1)[arrays[name]] for name in names]
    X = np.concatenate([arrays["numeric"].astype(float), *codes], axis=1)
    return X, arrays["y"].astype(int)


def _svm() -> Any:
    return SVC(C=1.0, gamma=0.1)


def _ard() -> Any:
    return ARDKernelRidge()


_SVM_SPACE = {"C": Real(1e-2, 1e3, log=True), "gamma": Real(1e-4, 10.0, log=True)}
_ARD_SPACE = {
    **{f"l{i}": Real(0.3, 30.0, log=True) for i in range(10)},
    "alpha": Real(1e-3, 1e2, log=True),
}
_C_SPACE = {"C": Real(1e-4, 1e4, log=True)}
_ZERO_ONE, _LOG = (0.0, 1.0), (0.0, LARGEST_LOG_LOSS)
_SQUARES = (0.0, LARGEST_SQUARE)

REAL_TASKS: dict[str, RealTask] = {
    "svm-digits": RealTask(
        digits, _svm, _SVM_SPACE, errors, _ZERO_ONE, (500, 897, 400), (1.0, 3.0)
    ),
    "svm-cancer": RealTask(
        cancer, _svm, _SVM_SPACE, errors, _ZERO_ONE, (150, 269, 150)
    ),
    "elastic-net": RealTask(
        noisy_classes,
        lambda: LogisticRegression(l1_ratio=0.5, solver="saga", max_iter=100, tol=1e-3),
        {"C": Real(1e-3, 1e3, log=True), "l1_ratio": Real(0.0, 1.0)},
        log_losses,
        _LOG,
        (100, 2000, 3000),
        (1.0, 3.0),
    ),
    "boosting-adult": RealTask(
        adult_numbers,
        lambda: HistGradientBoostingClassifier(
            max_iter=30, l2_regularization=1.0, early_stopping=False, random_state=0
        ),
        {
            "learning_rate": Real(0.005, 1.0, log=True),
            "max_leaf_nodes": Integer(3, 100, log=True),
            "l2_regularization": Real(1e-3, 100.0, log=True),
            "interaction_cst": Categorical([None, "pairwise", "no_interactions"]),
        },
        errors,
        _ZERO_ONE,
        (3000, 5000, 10_000),
        (1.0, 3.0),
        needs_data=True,
    ),
    "mlp-digits": RealTask(
        digits,
        lambda: MLPClassifier(16, max_iter=15, random_state=0),
        {
            "learning_rate_init": Real(1e-4, 1.0, log=True),
            "alpha": Real(1e-5, 100.0, log=True),
            "hidden_layer_sizes": Integer(4, 64, log=True),
        },
        errors,
        _ZERO_ONE,
        (500, 897, 400),
    ),
    "ard-diabetes": RealTask(
        diabetes,
        _ard,
        _ARD_SPACE,
        relative_squares,
        _SQUARES,
        (150, 192, 100),
        (1.0, 3.0),
    ),
    "ard-generated": RealTask(
        sparse_regression,
        _ard,
        _ARD_SPACE,
        relative_squares,
        _SQUARES,
        (150, 4000, 3000),
    ),
    "logistic-wine": RealTask(
        wine,
        lambda: LogisticRegression(max_iter=100),
        _C_SPACE,
        log_losses,
        _LOG,
        (40, 98, 40),
    ),
    "logistic-adult": RealTask(
        adult_all,
        lambda: LogisticRegression(max_iter=100),
        _C_SPACE,
        log_losses,
        _LOG,
        (200, 5000, 10_000),
        needs_data=True,
    ),
}
