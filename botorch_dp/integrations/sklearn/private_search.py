"""PrivateSearch: hyperparameters of any estimator, tuned on records that may not leak.

The models are trained on (X, y), as ever, and judged on private validation records.
What leaves of these is what a mechanism releases: hyperparameters, and a score if it is
paid for. Everything else that a search usually keeps (the score of each candidate, of
each fold) would be a release that nobody has paid for, and is absent.
"""

import secrets
from collections.abc import Mapping
from copy import deepcopy
from typing import Any, NoReturn

import numpy as np
import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import check_random_state, get_tags, indexable
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted
from tqdm import tqdm

from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.methods import (
    METHODS,
    PROTECTED,
    Task,
    choose_candidate,
    follow_gradients,
)
from botorch_dp.integrations.sklearn.record_losses import RecordLoss, make_scoring
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.separation import (
    check_alike,
    check_fit_params,
    check_separate,
)
from botorch_dp.integrations.sklearn.space import SearchSpace
from botorch_dp.privacy import Certificate, Guarantee, Ledger
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.certificate import PUBLIC_SETTINGS, RECORDS_ALONE, SAME_ROWS


def _refitted_has(name: str) -> Any:
    def check(search: "PrivateSearch") -> bool:
        if hasattr(search, "best_estimator_"):
            getattr(search.best_estimator_, name)
        elif search.refit:
            getattr(search.estimator, name)
        else:
            raise AttributeError  # __getattr__ says why
        return True

    return available_if(check)


class PrivateSearch(MetaEstimatorMixin, BaseEstimator):
    """Search hyperparameters under differential privacy of the validation records.

    ``fit(X, y, X_val=..., y_val=...)`` trains models on (X, y), scores them on the
    private records (X_val, y_val), and releases hyperparameters that are good for them.
    **The training records are not protected**: a model says what it was trained on.

    Three methods:

    * ``"dp-gibo"`` (the default) follows private gradients of a smooth loss from the
      estimator's own values, for many parameters that are numbers. Between whole
      numbers losses are interpolated (the continuous relaxation: k + 1 models a point
      for k such parameters), and what is released is rounded. Categories, if there are
      any, are chosen first by a stable release of whole candidates, with half of
      epsilon; gradients start from there.
    * ``"stable"`` fits ``num_candidates`` points that were chosen without the private
      data, and releases one by the exponential mechanism: any loss, any parameters,
      pure differential privacy.
    * ``"kusner"``: the published release after UCB, which assumes a Gaussian process
      and adds far more noise; to be compared with. It needs
      ``method_options={"correlation": ...}``. Which points are evaluated is private,
      too: models are trained in silence, and workers and logs must not show them.

    Every private record is read by itself, cell by cell, by the types of the training
    columns, and is scored by a copy of the model beside a few training records. A
    record that cannot be read or scored has the largest loss; nothing is said. Read
    private rows as text (``pandas.read_csv(..., dtype=str)``): what ``read_csv`` does
    to a whole column because of one cell cannot always be undone. It drops digits of
    whole numbers beyond 2^53 beside a gap, and it guesses from the first date whether
    the day comes first. In a column of text, private cells that are the same number
    (``01`` and ``1``) are the same word.

    ``certificate_`` counts what its ledger was charged, and nothing else. Several fits
    on the same private records compose: their costs add up. Only a shared ``ledger``
    counts them together. Without one, every fit certifies its own cost alone, and no
    certificate states the total.

    Args:
        estimator: What to tune: any scikit-learn estimator or pipeline.
        space: From the names of parameters (``"svc__C"`` in a pipeline) to
            :class:`Real`, :class:`Integer`, :class:`Categorical` or a list of choices.
        guarantee: What ``fit`` as a whole meets: ``ApproxDP`` for every method; ``GDP``
            with ``"dp-gibo"``, ``RDP`` too if there are no categories; ``PureDP`` with
            ``"stable"``.
        method: ``"dp-gibo"``, ``"stable"`` or ``"kusner"``.
        scoring: ``"accuracy"``, ``"neg_log_loss"``, ``"neg_mean_squared_error"``,
            ``"neg_mean_absolute_error"``, or a callable ``(estimator, X, y)`` that
            returns one loss for each record, lower is better; targets come to it as an
            array. By default, by the kind
            of estimator: log loss for ``"dp-gibo"``, otherwise accuracy; squared error
            for regressors.
        num_steps: How many steps: of gradients (10 by default; each trains d + 1
            models), or of UCB (30). With ``"stable"``, how many of the candidates are
            fitted, the others being estimated; by default all.
        num_candidates: How many candidates to choose among: 32, for ``"kusner"`` 1000.
            ``"dp-gibo"`` has candidates only where there are categories.
        clip_norm: The bound on the gradient of a record's loss, where every parameter's
            range has length 1. By default as large as leaves noise of three
            thousandths of the loss's range, but no less than a quarter of that range.
        loss_range: What a record's loss can be, ``(low, high)``: losses outside are
            clipped to it, which keeps the guarantee and costs accuracy. (0, 1) for
            errors and (0, log 100) for log loss by default; in the units of the target
            for squared and absolute errors. Never choose it from the private data.
        release_score: Whether to release ``best_score_``, too, with part of the budget
            (half of epsilon; with ``"dp-gibo"`` a tenth of what gradients have of mu
            squared).
        method_options: Further arguments of :class:`~botorch_dp.DPGIBO` or
            :class:`~botorch_dp.PrivateBO`, by name.
        refit: Whether to train a model on (X, y) with what was released, for
            ``predict`` and friends. Private records are not trained on.
        ledger: What is charged; by default a new one for each fit, with the guarantee
            as its cap. Give all searches on the same private records the same ledger:
            their costs add up, and only a shared ledger counts the sum.
        random_state: Seeds the noise: for experiments only, as the certificate says.
            None takes noise from the operating system.
        n_jobs: Models to train at a time, through joblib and its configured backend, in
            processes: threads take turns.
        verbose: Above 0, a progress bar.

    Attributes:
        best_params_: The released hyperparameters.
        best_score_: The released score, higher is better, if ``release_score``; noise
            may take it out of its range.
        best_estimator_: Trained with them on (X, y), if ``refit``.
        history_: The parameters of every step and the noise, which are public. No
            scores.
        certificate_: What is guaranteed, to whom, under which assumptions, for all that
            the ledger was charged, and nothing else. After a fit that failed, of what
            had been released by then, if anything.
        num_fits_: How many models the search trained, before the refit.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.linear_model import LogisticRegression
        >>> from botorch_dp import ApproxDP
        >>> from botorch_dp.integrations.sklearn import PrivateSearch, Real
        >>> X, y = make_classification(2000, random_state=0)
        >>> search = PrivateSearch(
        ...     LogisticRegression(),
        ...     {"C": Real(1e-3, 1e3, log=True)},
        ...     ApproxDP(epsilon=1.0, delta=1e-5),
        ... )
        >>> search = search.fit(X[:500], y[:500], X_val=X[500:], y_val=y[500:])
        >>> sorted(search.best_params_), search.certificate_.unit
        (['C'], 'record')
    """

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Any],
        guarantee: Guarantee,
        *,
        method: str = "dp-gibo",
        scoring: str | RecordLoss | None = None,
        num_steps: int | None = None,
        num_candidates: int | None = None,
        clip_norm: float | None = None,
        loss_range: tuple[float, float] | None = None,
        release_score: bool = False,
        method_options: Mapping[str, Any] | None = None,
        refit: bool = True,
        ledger: Ledger | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.estimator = estimator
        self.space = space
        self.guarantee = guarantee
        self.method = method
        self.scoring = scoring
        self.num_steps = num_steps
        self.num_candidates = num_candidates
        self.clip_norm = clip_norm
        self.loss_range = loss_range
        self.release_score = release_score
        self.method_options = method_options
        self.refit = refit
        self.ledger = ledger
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        **fit_params: Any,
    ) -> "PrivateSearch":
        """Search, and train a model with what was found.

        Args:
            X: Training inputs, not protected.
            y: Training targets, not protected.
            X_val: The inputs of the private records; how many there are is public.
            y_val: Their targets.
            **fit_params: Further arguments of the estimator's ``fit``, for the training
                records.

        Returns:
            The search itself.
        """
        check_choice("method", self.method, METHODS)
        check_guarantee("guarantee", self.guarantee)
        space = SearchSpace(self.space)
        self._check_names(space)
        scoring = make_scoring(
            self.scoring,
            self.loss_range,
            estimator=self.estimator,
            needs_gradients=self.method == "dp-gibo",
        )
        check_alike(X, y, X_val, y_val)
        check_separate(X, y, X_val, y_val)
        check_fit_params(fit_params, X_val, y_val)
        task = self._task(space)
        self._forget()
        training = indexable(X, y)
        with tqdm(desc=self.method, unit="fit", disable=not self.verbose) as bar:
            evaluation = Evaluation(
                estimator=self.estimator,
                scoring=scoring,
                training=(*training, fit_params),
                private=read_alike(*indexable(X_val, y_val), training=training),
                n_jobs=self.n_jobs,
                bar=bar,
                points_are_private=self.method == "kusner",
            )
            try:
                if self.method == "dp-gibo":
                    found = follow_gradients(task, evaluation)
                else:
                    found = choose_candidate(self.method, task, evaluation)
            except BaseException:
                if len(task.ledger):  # what was released until now has its price
                    self.certificate_ = Certificate.from_ledger(
                        task.ledger,
                        assumptions=(
                            RECORDS_ALONE,
                            SAME_ROWS,
                            PUBLIC_SETTINGS,
                            PROTECTED,
                        ),
                    )
                raise
            self.best_params_ = found.params
            if found.loss is not None:
                self.best_score_ = scoring.score(found.loss)
            self.history_ = found.history
            self.certificate_ = found.certificate
            if self.refit:
                self.best_estimator_ = evaluation.fitted(found.params)
            self.num_fits_ = evaluation.num_fits
        return self

    @_refitted_has("predict")
    def predict(self, X: Any) -> Any:
        """Predict with the refitted model."""
        return self._refitted().predict(X)

    @_refitted_has("predict_proba")
    def predict_proba(self, X: Any) -> Any:
        """Predict probabilities with the refitted model."""
        return self._refitted().predict_proba(X)

    @_refitted_has("predict_log_proba")
    def predict_log_proba(self, X: Any) -> Any:
        """Predict logarithms of probabilities with the refitted model."""
        return self._refitted().predict_log_proba(X)

    @_refitted_has("decision_function")
    def decision_function(self, X: Any) -> Any:
        """Call the refitted model's decision function."""
        return self._refitted().decision_function(X)

    @_refitted_has("transform")
    def transform(self, X: Any) -> Any:
        """Transform with the refitted model."""
        return self._refitted().transform(X)

    @_refitted_has("inverse_transform")
    def inverse_transform(self, X: Any) -> Any:
        """Transform back with the refitted model."""
        return self._refitted().inverse_transform(X)

    @_refitted_has("score")
    def score(self, X: Any, y: Any = None) -> float:
        """Return the refitted model's own score on **public** test data.

        On the private records this would be a release that nobody has paid for: ask
        for ``release_score=True`` instead.
        """
        return float(self._refitted().score(X, y))

    @property
    def classes_(self) -> Any:
        """The classes that the refitted model knows."""
        return self._of_refitted("classes_")

    @property
    def n_features_in_(self) -> int:
        """The number of features that the refitted model was trained on."""
        return self._of_refitted("n_features_in_")

    def __getattr__(self, name: str) -> NoReturn:
        why = _ABSENT.get(name)
        if name in _FITTED and "certificate_" not in vars(self):
            why = "call fit first."
        if hasattr(type(self), name) and not vars(self).get("refit", True):
            why = "it needs a model trained with the released parameters: refit=True."
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

    def _task(self, space: SearchSpace) -> Task:
        ledger = Ledger(cap=self.guarantee) if self.ledger is None else self.ledger
        if not isinstance(ledger, Ledger):
            raise InvalidArgumentError(
                f"ledger must be a botorch_dp.Ledger or None, got {ledger!r}."
            )
        seed, generator = secrets.randbelow(2**31), None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
            generator = torch.Generator(device="cpu").manual_seed(seed)
        return Task(
            space=space,
            guarantee=self.guarantee,
            ledger=ledger,
            first=space.start(self.estimator.get_params()),
            num_steps=self.num_steps,
            num_candidates=self.num_candidates,
            clip_norm=self.clip_norm,
            release_score=self.release_score,
            options=dict(self.method_options or {}),
            generator=generator,
            seed=seed,
        )

    def _check_names(self, space: SearchSpace) -> None:
        if isinstance(self.estimator, type) or not hasattr(
            self.estimator, "get_params"
        ):
            raise InvalidArgumentError(
                "estimator must be an instance of a scikit-learn estimator, such as "
                f"LogisticRegression(), got {self.estimator!r}."
            )
        known = self.estimator.get_params()
        names = [*space.numbers, *space.choices]
        # A part that is itself searched may bring parameters of its own.
        unknown = [
            name
            for name in names
            if name not in known and name.rpartition("__")[0] not in names
        ]
        if unknown:
            raise InvalidArgumentError(
                f"space names {unknown}, which {type(self.estimator).__name__} has "
                f"not; it has {sorted(known)}."
            )

    def _forget(self) -> None:
        """Drop what an earlier fit has found."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)

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


_FITTED = ("best_params_", "best_estimator_", "history_", "certificate_", "num_fits_")
_ABSENT = {
    "best_score_": "the score of what was found is a release of its own: ask for it "
    "with release_score=True before fit.",
    "cv_results_": "exact scores of candidates are private, and each would have to be "
    "paid for; history_ holds what is public.",
    "best_index_": "see best_params_ and history_.",
}
