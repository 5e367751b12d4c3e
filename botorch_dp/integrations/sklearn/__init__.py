"""Private search of hyperparameters for scikit-learn estimators (extra ``sklearn``)."""

from typing import TYPE_CHECKING

from botorch_dp._imports import import_extra, lazy_imports

import_extra("sklearn", extra="sklearn", purpose="PrivateSearch")

if TYPE_CHECKING:
    from botorch_dp.integrations.sklearn.metrics import (
        class_weighted,
        huber_loss,
        pinball_loss,
        ranking_accuracy,
        top_k_accuracy,
    )
    from botorch_dp.integrations.sklearn.private_search import PrivateSearch
    from botorch_dp.integrations.sklearn.space import Categorical, Integer, Real

__all__ = [
    "Categorical",
    "Integer",
    "PrivateSearch",
    "Real",
    "class_weighted",
    "huber_loss",
    "pinball_loss",
    "ranking_accuracy",
    "top_k_accuracy",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
