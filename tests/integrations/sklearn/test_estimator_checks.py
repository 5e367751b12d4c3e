"""scikit-learn's own checks, of a search that holds a part of the data out."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import _num_samples

from botorch_dp import ApproxDP
from botorch_dp.integrations.sklearn import PrivateSearch, Real


class HeldOut(PrivateSearch):
    """The checks call ``fit(X, y)``; every fourth record is private here.

    Trained on as well, which is no way to use it, but keeps all checks' data whole.
    """

    def fit(self, X, y=None):
        inputs, targets = indexable(X, y)
        rows = np.arange(0, _num_samples(inputs), 4)
        X_val = _safe_indexing(inputs, rows)
        y_val = None if targets is None else _safe_indexing(targets, rows)
        if hasattr(X_val, "reset_index"):  # by which they would be recognized
            X_val = X_val.reset_index(drop=True)
        return super().fit(X, y, X_val=X_val, y_val=y_val)


@pytest.mark.default_device
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(
    [
        HeldOut(
            LogisticRegression(),
            {"C": Real(1e-2, 1e2, log=True)},
            ApproxDP(1.0, 1e-5),
            max_evaluations=12,
            random_state=0,
        ),
        HeldOut(
            Ridge(),
            {"alpha": Real(1e-2, 1e2, log=True)},
            ApproxDP(1.0, 1e-5),
            method="stable",
            num_candidates=4,
            loss_range=(0.0, 10.0),
            random_state=0,
        ),
    ]
)
def test_of_scikit_learn(estimator, check):
    check(estimator)
