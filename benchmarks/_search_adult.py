"""Private searches on Adult by three scores, and a search that is not private."""

import warnings
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from benchmarks._common import Row, in_parallel, mean_and_error
from benchmarks.problems import load_dataset
from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import Categorical, Integer, PrivateSearch, Real
from botorch_dp.integrations.sklearn.space import SearchSpace

EPSILONS = (0.3, 1.0, 3.0)
DELTA = 1e-6
NUM_FITS = 32
NUM_TRAIN, NUM_TEST = 5_000, 10_000
_WEIGHTS = Categorical([None, "balanced"])


def _log_loss(model: Any, X: Any, y: Any) -> float:
    # Probabilities below 1 % count as 1 %, as in the search.
    right = model.predict_proba(X)[np.arange(len(y)), y]
    return float(-np.log(np.clip(right, 0.01, 1)).mean())


def _auc(model: Any, X: Any, y: Any) -> float:
    return 100 * float(roc_auc_score(y, model.predict_proba(X)[:, 1]))


def _balanced(model: Any, X: Any, y: Any) -> float:
    return 100 * float(balanced_accuracy_score(y, model.predict(X)))


# The name of a score, how it is measured on test records, and its sign.
SCORES = {
    "neg_log_loss": ("log loss", _log_loss, -1.0),
    "roc_auc": ("AUC, %", _auc, 1.0),
    "balanced_accuracy": ("balanced accuracy, %", _balanced, 1.0),
}


def inputs() -> tuple[np.ndarray, np.ndarray, int]:
    """Adult's inputs as numbers, its classes, and how many columns are categories."""
    data = load_dataset("adult")
    codes = [data[name] for name in sorted(data) if name.startswith("cat_")]
    X = np.column_stack([*codes, data["numeric"]]).astype(np.float64)
    return X, data["y"].astype(int), len(codes)


def models(num_codes: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """The estimators, each with its space."""
    logistic = make_pipeline(
        make_column_transformer(
            (OneHotEncoder(handle_unknown="ignore"), slice(0, num_codes)),
            (StandardScaler(), slice(num_codes, None)),
        ),
        LogisticRegression(max_iter=100),
    )
    boosting = HistGradientBoostingClassifier(
        max_iter=40, early_stopping=False, random_state=0
    )
    return {
        "logistic regression": (
            logistic,
            {
                "logisticregression__C": Real(1e-5, 1e3, log=True),
                "logisticregression__class_weight": _WEIGHTS,
            },
        ),
        "boosting": (
            boosting,
            {
                "learning_rate": Real(1e-3, 1.0, log=True),
                "max_leaf_nodes": Integer(2, 64, log=True),
                "l2_regularization": Real(1e-3, 1e3, log=True),
                "class_weight": _WEIGHTS,
            },
        ),
    }


def replication(name: str, seed: int) -> dict[str, float]:
    """What each search reaches on test records, by its own score."""
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y, num_codes = inputs()
    rest, X_test, rest_y, y_test = train_test_split(
        X, y, test_size=NUM_TEST, stratify=y, random_state=seed
    )
    X, X_val, y, y_val = train_test_split(
        rest, rest_y, train_size=NUM_TRAIN, stratify=rest_y, random_state=seed
    )
    estimator, space = models(num_codes)[name]
    candidates = SearchSpace(space).candidates(NUM_FITS, first=None, seed=seed)
    fitted = [clone(estimator).set_params(**p) for p in candidates]
    fitted = [model.fit(X, y) for model in fitted]
    found: dict[str, float] = {}
    for scoring, (label, measure, sign) in SCORES.items():
        default = clone(estimator).fit(X, y)
        found[f"{label}|default parameters"] = measure(default, X_test, y_test)
        best = max(fitted, key=lambda m: sign * measure(m, X_val, y_val))
        found[f"{label}|best of {NUM_FITS}, NOT private"] = measure(
            best, X_test, y_test
        )
        for epsilon in EPSILONS:
            search = PrivateSearch(
                estimator,
                space,
                ApproxDP(epsilon, DELTA),
                scoring=scoring,
                max_evaluations=NUM_FITS,
                random_state=seed,
                verbose=0,
            ).fit(X, y, X_val=X_val, y_val=y_val)
            found[f"{label}|auto, epsilon = {epsilon:g}"] = measure(
                search.best_estimator_, X_test, y_test
            )
    return found


def rows(seeds: int) -> list[Row]:
    """A row for each estimator and search, a column for each score."""
    tasks = [(name, seed) for name in models(0) for seed in range(seeds)]
    return table_of(tasks, in_parallel(replication, tasks))


def table_of(tasks: list[tuple[str, int]], found: list[dict[str, float]]) -> list[Row]:
    """A table of what replications found."""
    table: dict[tuple[str, str], Row] = {}
    for name in dict.fromkeys(name for name, _ in tasks):
        own = [f for f, (n, _) in zip(found, tasks, strict=True) if n == name]
        for key in own[0]:
            label, search = key.split("|")
            row = table.setdefault((name, search), {"model": name, "search": search})
            values = [f[key] for f in own]
            row[label] = mean_and_error(values) if own[1:] else f"{values[0]:.4g}"
        for key in own[0]:
            table[name, key.split("|")[1]]["splits"] = len(own)
    return list(table.values())
