"""Scores of candidates: the positive class."""

import pickle

import numpy as np
import pytest

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn import f1, roc_auc


def test_the_larger_class_is_positive():
    found = roc_auc().resolved(np.array(["no", "yes", "no", "no"]))
    assert found.positive == "yes"
    assert found.share == 0.25
    assert f1(positive="no").resolved(["no", "yes"]).positive == "no"
    assert pickle.loads(pickle.dumps(found)) == found  # joblib sends it to workers


@pytest.mark.parametrize(
    ("scoring", "targets", "match"),
    [
        (roc_auc(), None, "scoring='roc_auc' needs training targets that are classes"),
        (roc_auc(), [0.5, 1.5, 2.5], "targets that are classes"),
        (f1(), [[0, 1], [1, 0]], "targets that are classes"),
        (f1(), [0, 1, 2], r"scoring='f1' needs positive=.*\[0, 1, 2\], got None"),
        (f1(positive=3), [0, 1], r"one of the training classes \[0, 1\], got 3"),
    ],
)
def test_refused(scoring, targets, match):
    with pytest.raises(InvalidArgumentError, match=match):
        scoring.resolved(targets)
