"""Predictions of the refitted model, and attributes that a search does not have."""

import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from botorch_dp.integrations.sklearn import PrivateSearch, Real
from tests.integrations.sklearn.constant import (
    BUDGET,
    RNG,
    X_TRAIN,
    fitted,
    private,
    search_of,
)

pytestmark = pytest.mark.default_device


def test_a_pipeline_and_its_friends():
    X = RNG.normal(size=(600, 3))
    y = (X[:, 0] > 0).astype(int)
    search = PrivateSearch(
        make_pipeline(StandardScaler(), LogisticRegression()),
        {"logisticregression__C": Real(1e-3, 1e3, log=True)},
        BUDGET,
        max_evaluations=12,
    ).fit(X[:200], y[:200], X_val=X[200:], y_val=y[200:])
    assert search.predict(X).shape == (600,)
    assert search.predict_proba(X).shape == (600, 2)
    assert search.score(X, y) == search.best_estimator_.score(X, y) > 0.9
    assert search.classes_.tolist() == [0, 1]
    assert search.n_features_in_ == 3
    assert not hasattr(search, "transform")


def test_no_scores_but_released_ones():
    search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99))
    with pytest.raises(AttributeError, match="release_score=True before fit"):
        search.best_score_  # noqa: B018
    with pytest.raises(AttributeError, match="exact scores of candidates are priv"):
        search.cv_results_  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'$"):
        search.nonsense  # noqa: B018
    assert {*search.history_[0]} == {"params", "noise_std"}


def test_without_refit():
    search = fitted({"level": Real(0.0, 1.0)}, private(0.5, n=99), refit=False)
    with pytest.raises(AttributeError, match="refit=True"):
        search.predict(X_TRAIN)
    assert search.best_params_


def test_transformers():
    X = RNG.normal(size=(60, 2))
    search = PrivateSearch(
        make_pipeline(StandardScaler()),
        {"standardscaler__with_mean": [True, False]},
        BUDGET,
        method="stable",
        scoring=lambda model, X, y: (model.transform(X) ** 2).mean(axis=1),
        loss_range=(0.0, 10.0),
    ).fit(X[:30], X_val=X[30:])
    Z = search.transform(X)
    assert Z.tolist() == search.best_estimator_.transform(X).tolist()
    assert search.inverse_transform(Z) == pytest.approx(X)
    assert not hasattr(search, "predict")


def test_before_fit():
    search = search_of({"level": Real(0.0, 1.0)})
    with pytest.raises(NotFittedError):
        search.predict(X_TRAIN)
    with pytest.raises(AttributeError, match="'best_params_': call fit first"):
        search.best_params_  # noqa: B018
    with pytest.raises(AttributeError, match="it is not fitted, or refit=False"):
        search._of_refitted("classes_")
