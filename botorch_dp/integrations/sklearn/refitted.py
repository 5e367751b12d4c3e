"""Delegate predictions of a search to the model that it refitted."""

from copy import deepcopy
from typing import Any, NoReturn

from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from botorch_dp.integrations.sklearn.schema import typed
from botorch_dp.integrations.sklearn.tables import names_of

_FITTED = (
    "best_params_",
    "best_estimator_",
    "history_",
    "certificate_",
    "num_fits_",
    "stopped_",
    "plan_",
)
_ABSENT = {
    "best_score_": "the score is a release of its own; request it with "
    "release_score=True before fit.",
    "cv_results_": "exact scores of candidates are private, and each would have to be "
    "paid for. history_ contains what is public.",
    "plan_": "only method='auto' and method='dp-gibo' make a plan.",
    "best_index_": "see best_params_ and history_.",
}


def refitted_has(name: str) -> Any:
    """Make a method available if the refitted model has it."""

    def check(search: "RefittedModel") -> bool:
        if hasattr(search, "best_estimator_"):
            getattr(search.best_estimator_, name)
        elif search.refit:
            getattr(search.estimator, name)
        else:
            raise AttributeError  # __getattr__ gives the reason
        return True

    return available_if(check)


class RefittedModel(MetaEstimatorMixin, BaseEstimator):
    """The methods of a search that its refitted model implements."""

    estimator: Any
    refit: bool
    random_state: Any

    @refitted_has("predict")
    def predict(self, X: Any) -> Any:
        """Predict with the refitted model."""
        return self._refitted().predict(self._typed(X))

    @refitted_has("predict_proba")
    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities with the refitted model."""
        return self._refitted().predict_proba(self._typed(X))

    @refitted_has("predict_log_proba")
    def predict_log_proba(self, X: Any) -> Any:
        """Predict logarithms of probabilities with the refitted model."""
        return self._refitted().predict_log_proba(self._typed(X))

    @refitted_has("decision_function")
    def decision_function(self, X: Any) -> Any:
        """Call the decision function of the refitted model."""
        return self._refitted().decision_function(self._typed(X))

    @refitted_has("transform")
    def transform(self, X: Any) -> Any:
        """Transform with the refitted model."""
        return self._refitted().transform(self._typed(X))

    @refitted_has("inverse_transform")
    def inverse_transform(self, X: Any) -> Any:
        """Apply the inverse transform of the refitted model."""
        return self._refitted().inverse_transform(X)

    @refitted_has("score")
    def score(self, X: Any, y: Any = None) -> float:
        """Return the refitted model's own score on **public** test data."""
        return float(self._refitted().score(self._typed(X), y))

    @property
    def classes_(self) -> Any:
        """The classes of the refitted model."""
        return self._of_refitted("classes_")

    @property
    def n_features_in_(self) -> int:
        """The number of features of the refitted model."""
        return self._of_refitted("n_features_in_")

    def __getattr__(self, name: str) -> NoReturn:
        why = _ABSENT.get(name)
        if name in _FITTED and "certificate_" not in vars(self):
            why = "call fit first."
        if hasattr(type(self), name) and not vars(self).get("refit", True):
            why = "it needs a refitted model; set refit=True before fit."
        raise AttributeError(
            f"{type(self).__name__!r} object has no attribute {name!r}"
            + (f": {why}" if why else "")
        )

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.estimator_type = inner.estimator_type
        for name in ("classifier_tags", "regressor_tags", "transformer_tags"):
            setattr(tags, name, deepcopy(getattr(inner, name)))
        tags.input_tags = deepcopy(inner.input_tags)
        tags.target_tags = deepcopy(inner.target_tags)
        tags.non_deterministic = self.random_state is None or inner.non_deterministic
        return tags

    def _typed(self, X: Any) -> Any:
        """Return public inputs with the types that the model was trained on."""
        schema = vars(self).get("schema_")
        if schema is None or names_of(X) is None:
            return X
        return typed(X, schema, is_training=False)

    def _refitted(self) -> Any:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_

    def _of_refitted(self, name: str) -> Any:
        if "best_estimator_" not in vars(self):
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}: it is not "
                "fitted, or refit=False."
            )
        return getattr(self.best_estimator_, name)
