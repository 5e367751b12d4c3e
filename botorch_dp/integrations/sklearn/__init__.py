"""Private search of hyperparameters for scikit-learn estimators (extra ``sklearn``)."""

from typing import TYPE_CHECKING

from botorch_dp._imports import import_extra, lazy_imports

import_extra("sklearn", extra="sklearn", purpose="PrivateSearch")

if TYPE_CHECKING:
    from botorch_dp.integrations.sklearn.private_search import PrivateSearch
    from botorch_dp.integrations.sklearn.space import Categorical, Integer, Real

__all__ = ["Categorical", "Integer", "PrivateSearch", "Real"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_imports(__name__)
