"""Private search of hyperparameters for scikit-learn estimators (extra ``sklearn``)."""

from typing import TYPE_CHECKING

from botorch_dp._imports import import_extra, lazy_imports

import_extra("sklearn", extra="sklearn", purpose="PrivateSearch")

if TYPE_CHECKING:
    from botorch_dp.integrations.sklearn.auc import roc_auc
    from botorch_dp.integrations.sklearn.csv_files import PrivateData, read_csv
    from botorch_dp.integrations.sklearn.dimensions import Categorical, Integer, Real
    from botorch_dp.integrations.sklearn.hit_scores import f1, precision, recall
    from botorch_dp.integrations.sklearn.metrics import (
        class_weighted,
        huber_loss,
        pinball_loss,
        ranking_accuracy,
        top_k_accuracy,
    )
    from botorch_dp.integrations.sklearn.private_search import PrivateSearch
    from botorch_dp.integrations.sklearn.schema import Schema
    from botorch_dp.integrations.sklearn.tables import PrivateTable

__all__ = [
    "Categorical",
    "Integer",
    "PrivateData",
    "PrivateSearch",
    "PrivateTable",
    "Real",
    "Schema",
    "class_weighted",
    "f1",
    "huber_loss",
    "pinball_loss",
    "precision",
    "ranking_accuracy",
    "read_csv",
    "recall",
    "roc_auc",
    "top_k_accuracy",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
