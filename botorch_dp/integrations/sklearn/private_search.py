"""PrivateSearch: tune the hyperparameters of any estimator on private records.

Models are trained on (X, y) and scored on private validation records. Only mechanisms
release anything about these: hyperparameters, and a score if it is paid for. Other
usual results of a search, such as the score of each candidate, are not available,
because each would be a release that was not paid for.
"""

import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_random_state, indexable
from sklearn.utils.validation import _num_samples
from tqdm import tqdm

from botorch_dp._validation import check_choice
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.evaluation import Evaluation, progress_bar
from botorch_dp.integrations.sklearn.from_files import SearchOfFiles
from botorch_dp.integrations.sklearn.legs import (
    Leg,
    fresh_seed,
    seeded,
    warn_of_end,
)
from botorch_dp.integrations.sklearn.methods import (
    METHODS,
    Task,
    check_names,
    choice_of,
)
from botorch_dp.integrations.sklearn.people import (
    People,
    check_same_count,
    counted,
    people_of,
    public_facts,
)
from botorch_dp.integrations.sklearn.planned import (
    plan_automatically,
    plan_gradients,
    stages_of,
)
from botorch_dp.integrations.sklearn.record_losses import RecordLoss, Scoring
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.schema import Schema, typed_training
from botorch_dp.integrations.sklearn.scoring import (
    check_method,
    for_records,
    warn_of_rare_classes,
)
from botorch_dp.integrations.sklearn.search_checkpoint import (
    SearchCheckpoint,
    check_same_settings,
    end_checkpoint,
    ledger_of,
    settings_of,
)
from botorch_dp.integrations.sklearn.separation import (
    check_alike,
    check_fit_params,
    check_no_folds,
    check_separate,
)
from botorch_dp.integrations.sklearn.space import SearchSpace
from botorch_dp.integrations.sklearn.stages import StagedSearch, Stages
from botorch_dp.integrations.sklearn.stopping import Limits, SearchStopped
from botorch_dp.privacy import Guarantee, Ledger
from botorch_dp.privacy.calibration import check_guarantee


class PrivateSearch(SearchOfFiles):
    """Search hyperparameters under differential privacy of the validation records.

    ``fit(X, y, X_val=..., y_val=...)`` trains models on (X, y), scores them on the
    private records (X_val, y_val), and releases hyperparameters with a small loss.
    **The training records are not protected**: a model reveals its training data.

    There are four methods:

    * ``"auto"`` (the default) plans the method and all its settings from public facts,
      as :func:`botorch_dp.minimize` does. Numbers: a choice among points that fill the
      space, and private gradients from there, or one of the two. Categories and
      numbers: a choice among random points of the whole space, then gradients in the
      numbers if n epsilon is at least 2,000. Categories alone, or ``PureDP``: a choice.
      ``plan_`` and the certificate say what was chosen and why.
    * ``"dp-gibo"`` follows private gradients, starting from the estimator's own values.
      Losses are interpolated between integers: k + 1 models per point for one or two
      integer parameters. Three or more are rounded instead. If there are categories, a
      choice with half of epsilon comes first, and gradients start there.
    * ``"stable"`` fits ``num_candidates`` points, chosen without the private data, and
      releases one by the permute-and-flip mechanism. It satisfies pure differential
      privacy.
    * ``"kusner"`` is the published release after UCB, for comparison. It assumes a
      Gaussian process and adds far more noise. It needs
      ``method_options={"correlation": ...}``. The evaluated points are also private:
      training is silent, and workers and logs must not show the points.

    Every private record is read by itself, cell by cell, by the types of the training
    columns. A copy of the model scores it together with a few training records. A
    record that cannot be read or scored has the largest loss, without any message.
    Read files with :meth:`from_csv` or
    :func:`~botorch_dp.integrations.sklearn.read_csv`. With another reader one cell may
    change its whole column for good: whole numbers beyond 2^53 lose digits, or days and
    months are swapped. The estimator sees polars frames and Arrow tables as pandas
    frames.

    ``certificate_`` counts what its ledger was charged, and nothing else. The costs of
    several fits on the same private records add up. Only a shared ``ledger`` counts
    them together. Without one, every fit certifies its own cost alone, and no
    certificate states the total.

    Args:
        estimator: The scikit-learn estimator or pipeline to tune.
        space: Maps parameter names (``"svc__C"`` in a pipeline) to :class:`Real`,
            :class:`Integer`, :class:`Categorical`, a list of choices, a range
            ``(low, high)`` or ``(low, high, "log")``, or a frozen ``uniform``,
            ``loguniform`` or ``randint`` of ``scipy.stats``. ``when=`` makes a
            parameter depend on others, and a list of such dicts is one of several
            spaces. Parameters that are not set keep the estimator's own values.
        guarantee: The guarantee of ``fit`` as a whole: any for ``"auto"``;
            ``ApproxDP``, ``GDP`` or ``RDP`` for ``"dp-gibo"``; ``PureDP`` or
            ``ApproxDP`` for ``"stable"``; ``ApproxDP`` for ``"kusner"``.
        method: ``"auto"``, ``"dp-gibo"``, ``"stable"`` or ``"kusner"``.
        scoring: The name of a score that is a mean over records (``"accuracy"``,
            ``"balanced_accuracy"``, ``"neg_log_loss"``, ``"neg_brier_score"``,
            ``"neg_mean_squared_error"`` and others); a score with parameters, such as
            :func:`~botorch_dp.integrations.sklearn.pinball_loss`,
            :func:`~botorch_dp.integrations.sklearn.class_weighted` or
            :func:`~botorch_dp.integrations.sklearn.ranking_accuracy`, which estimates
            the AUC; a callable ``(estimator, X, y)`` that returns one loss for each
            record (lower is better) and gets the targets as an array; or, for a choice
            among candidates (``"auto"`` and ``"stable"``), ``"roc_auc"``, ``"f1"``,
            ``"precision"``, ``"recall"`` or the functions of these names, such as
            :func:`~botorch_dp.integrations.sklearn.roc_auc`. The default for
            classifiers with ``predict_proba`` is log loss with ``"auto"`` and
            ``"dp-gibo"``, for other classifiers and methods accuracy, and for
            regressors squared error.
        num_steps: The number of gradient steps for ``"dp-gibo"``, planned by default,
            or of UCB steps (30). With ``"stable"``, the number of candidates to fit;
            the scores of the others are estimated. All by default.
        num_candidates: The number of candidates for the methods other than ``"auto"``:
            32 by default, 1000 for ``"kusner"``. ``"dp-gibo"`` has candidates only if
            there are categories.
        clip_norm: The bound on the gradient of a record's loss for ``"dp-gibo"``, where
            every parameter's range has length 1. It is planned by default.
        max_evaluations: How many models ``"auto"`` or ``"dp-gibo"`` may train before
            the refit, never exceeded. By default 10 (d + 1) for d parameters, at least
            60; with ``"dp-gibo"``, candidates come on top of the default, and
            ``num_steps`` replaces it.
        loss_range: The range ``(low, high)`` of a record's loss. Losses outside are
            clipped, which keeps the guarantee but costs accuracy. The default is (0, 1)
            for accuracy and (0, log 100) for log loss. Squared and absolute errors are
            in units of the target and need a range. Never choose it from private data.
        release_score: Whether to release ``best_score_`` with part of the budget: half
            of epsilon after a choice alone; with gradients a tenth of their mu squared.
        method_options: Further keyword arguments of :class:`~botorch_dp.DPGIBO` or
            :class:`~botorch_dp.PrivateBO`, for the methods other than ``"auto"``.
        refit: Whether to train a model on (X, y) with the released parameters, for
            ``predict`` and similar methods. It is not trained on private records.
        ledger: The ledger to charge; by default a new one for each fit, with the
            guarantee as its cap. Share one ledger between all searches on the same
            private records.
        max_records_per_person: With ``groups``, a bound k that replaces the mean: the
            loss of a person is the sum over its records divided by k, clipped to
            ``loss_range``. Records then count equally, and a person counts at most as
            much as k of the worst records. It must not be chosen from private data.
        random_state: Seeds the noise, for experiments only, as the certificate says.
            None uses noise from the operating system.
        n_jobs: The number of models to train at a time. If training the first model
            takes less than 0.2 seconds, threads train the others, and private records
            are scored by one model after another. Otherwise joblib's processes do both.
            A backend of joblib that you configured always comes first.
        verbose: Prints the plan and shows a progress bar if above 0; by default in a
            terminal or a notebook.
        timeout: After how many seconds to stop, except for the refit. The clock is read
            before and between models, never while private records are scored. What
            was paid for is kept; models since the last release are discarded. Running
            time is assumed not to reveal private records, as the certificate says.
            Not for ``"kusner"``, whose training times depend on private points.
        max_fits: How many models ``fit`` may train before it stops in the same way;
            the plan does not depend on it, in contrast to ``max_evaluations``.
        checkpoint: A file with the public state of the search, written before and after
            every release. If the process is killed, ``fit`` with the same settings and
            data continues from it, and after a limit as well. Unless the ledger has a
            file, it is kept in ``<checkpoint>.ledger``. A release that was paid for but
            lost when the process was killed is not repeated: its cost is counted, and
            the search continues without it, with a warning.
        cv: Must be None. Folds would train models on private records, and such a model
            is itself a release. Split off training records, or train on private
            records with :class:`~botorch_dp.integrations.opacus.JointBudget`.
        schema: The types of columns, a :class:`Schema` or a dict, if X and X_val are
            tables. Columns that it does not name have the types of the training data.

    Attributes:
        best_params_: The released hyperparameters, only those that are set.
        best_score_: The released score (higher is better), if ``release_score``. Noise
            may move it out of its range.
        best_score_std_: The standard deviation of that noise, which is public; an
            estimate for ``"roc_auc"``, ``"f1"``, ``"precision"`` and ``"recall"``, and
            None with ``"kusner"``.
        best_estimator_: The model trained with them on (X, y), if ``refit``.
        history_: The public parameters and noise of every step, without scores.
        certificate_: The certificate of everything that the ledger was charged.
        num_fits_: The number of models that the search trained before the refit.
        stopped_: Why the search ended early: ``"timeout"``, ``"max_fits"``,
            ``"interrupted"`` (Ctrl-C) or ``"error"``; None if it did not. The last two
            raise, and all attributes are set nevertheless: ``best_params_`` are then
            the best so far by what was released, or the starting parameters. The model
            is refitted if anything was released.
        schema_: The types of all columns, or None if the data need no schema.
        plan_: The :class:`~botorch_dp.optimizers.auto.search_plan.SearchPlan` of
            ``"auto"`` or ``"dp-gibo"``.

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
        >>> sorted(search.best_params_), search.plan_.method
        (['C'], 'permute-and-flip, then dp-gibo')
    """

    def __init__(
        self,
        estimator: Any,
        space: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        guarantee: Guarantee,
        *,
        method: str = "auto",
        scoring: str | Scoring | CandidateScoring | RecordLoss | None = None,
        num_steps: int | None = None,
        num_candidates: int | None = None,
        clip_norm: float | None = None,
        max_evaluations: int | None = None,
        loss_range: tuple[float, float] | None = None,
        release_score: bool = False,
        method_options: Mapping[str, Any] | None = None,
        refit: bool = True,
        ledger: Ledger | None = None,
        max_records_per_person: int | None = None,
        random_state: int | np.random.RandomState | None = None,
        n_jobs: int | None = None,
        verbose: int | None = None,
        timeout: float | None = None,
        max_fits: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        cv: None = None,
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.estimator = estimator
        self.space = space
        self.guarantee = guarantee
        self.method = method
        self.scoring = scoring
        self.num_steps = num_steps
        self.num_candidates = num_candidates
        self.clip_norm = clip_norm
        self.max_evaluations = max_evaluations
        self.loss_range = loss_range
        self.release_score = release_score
        self.method_options = method_options
        self.refit = refit
        self.ledger = ledger
        self.max_records_per_person = max_records_per_person
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.timeout = timeout
        self.max_fits = max_fits
        self.checkpoint = checkpoint
        self.cv = cv
        self.schema = schema

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        groups: Any = None,
        **fit_params: Any,
    ) -> "PrivateSearch":
        """Search, and train a model with the released parameters.

        Args:
            X: The training inputs, which are not protected.
            y: The training targets, which are not protected.
            X_val: The inputs of the private records. Their number is public.
            y_val: The targets of the private records.
            groups: The name of the person of every private record, if people are to be
                protected with all their records. A person then has one loss, the mean
                over its records. The number of persons is public. Records without a
                name count as those of one person.
            **fit_params: Further arguments of the estimator's ``fit``, for the training
                records.

        Returns:
            The search itself.
        """
        leg = Leg(self.guarantee, checkpoint=self.checkpoint)
        return self._run(leg, X, y, X_val, y_val, groups, fit_params)

    def _run(
        self,
        leg: Leg,
        X: Any,
        y: Any,
        X_val: Any,
        y_val: Any,
        groups: Any,
        fit_params: dict[str, Any],
    ) -> "PrivateSearch":
        """Run one leg: a fit, or its continuation."""
        check_choice("method", self.method, METHODS)
        check_no_folds(self.cv)
        space = SearchSpace(self.space)
        check_names(self.estimator, space)
        check_separate(X, y, X_val, y_val)
        schema, X, y = typed_training(self.schema, X, y, X_val)
        scoring = self._make_scoring(y)
        check_method(scoring, self.method)
        warn_of_rare_classes(scoring, y)
        check_alike(X, y, X_val, y_val, schema=schema)
        check_guarantee("guarantee", leg.guarantee, num_records=_num_samples(X_val))
        check_fit_params(fit_params, X_val, y_val)
        people = people_of(groups, X_val, self.max_records_per_person)
        num_private = counted(people, num_records=_num_samples(X_val))
        if not leg.is_new:
            check_same_count("resume", self._counted_by_fit, num_private)
        points_are_private = self.method == "kusner"
        self._check_limits(points_are_private)
        limits = Limits(self.timeout, self.max_fits)
        task, checkpoint = self._task(leg, space, X, X_val, schema, people)
        if leg.is_new:
            self._forget()
        self._num_private = num_private
        self.schema_ = schema
        training = indexable(X, y)
        with progress_bar(self.method, self.verbose) as bar:
            private = read_alike(
                X_val, y_val, training=training, schema=schema, people=people
            )
            evaluation = Evaluation(
                estimator=self.estimator,
                scoring=for_records(scoring, private),
                training=(*training, fit_params),
                private=private,
                n_jobs=self.n_jobs,
                bar=bar,
                points_are_private=points_are_private,
                kind_of=space.kind_of,
                limits=limits,
            )
            search = StagedSearch(
                self._stages(task, evaluation),
                task,
                evaluation,
                save=checkpoint.save if checkpoint.is_kept else None,
            )
            if checkpoint.state is not None:
                search.load_state_dict(checkpoint.state)
            if not checkpoint.has_ended:
                search.check_affordable()
                end_checkpoint(leg.checkpoint_before)
            if search.stages.plan is not None and not bar.disable:
                tqdm.write(str(search.stages.plan))
            stopped = None
            try:
                if not checkpoint.has_ended:
                    search.run()
            except SearchStopped as limit:
                stopped = limit.reason
            except BaseException as error:
                stopped = "error" if isinstance(error, Exception) else "interrupted"
                with contextlib.suppress(Exception):  # none may hide the first error
                    self._publish(search, evaluation, leg, stopped)
                    self._remember(search, leg, (X, y, fit_params), X_val)
                    if self.refit and search.num_released:
                        self.best_estimator_ = evaluation.fitted(self.best_params_)
                    warn_of_end(search, stopped)
                raise
            self._publish(search, evaluation, leg, stopped)
            self._remember(search, leg, (X, y, fit_params), X_val)
            if self.refit:
                self.best_estimator_ = evaluation.fitted(self.best_params_)
        warn_of_end(search, stopped)
        return self

    def _stages(self, task: Task, evaluation: Evaluation) -> Stages:
        if self.method in ("stable", "kusner"):
            choice = choice_of(self.method, task, evaluation)
            num_models = choice.run.num_steps * choice.run.batch_size
            return Stages(choice, num_models=num_models)
        plan = plan_automatically if task.is_auto else plan_gradients
        return stages_of(plan(task, evaluation), task, evaluation)

    def _task(
        self,
        leg: Leg,
        space: SearchSpace,
        X: Any,
        X_val: Any,
        schema: Schema | None,
        people: People | None,
    ) -> tuple[Task, SearchCheckpoint]:
        """Return the public settings of a leg, and its checkpoint."""
        own = self.estimator.get_params() if leg.first is None else leg.first
        first = space.start(own)
        settings = settings_of(
            self.get_params(deep=False),
            guarantee=leg.guarantee,
            space=space,
            start=first,
            schema=schema,
            **public_facts(people, num_records=_num_samples(X_val)),
            num_training_records=_num_samples(X),
        )
        check_same_settings(leg.settings, settings)
        leg.settings = settings
        checkpoint = SearchCheckpoint(leg.checkpoint, settings)
        if leg.state is not None:
            checkpoint.state = leg.state
        ledger = leg.ledger
        if ledger is None:
            ledger = ledger_of(self.ledger, self.checkpoint, leg.guarantee)
        leg.check_accounted(ledger)
        seed, generator = secrets.randbelow(2**31), None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if checkpoint.state is not None:
            seed = int(checkpoint.state["seed"])  # the candidates must be the same
        is_timed = self.timeout is not None or leg.is_timed
        if checkpoint.state is not None:
            is_timed |= bool(checkpoint.state["is_timed"])
        if self.random_state is not None:
            is_new = leg.is_first and checkpoint.state is None
            generator = seeded(seed if is_new else fresh_seed(seed, len(ledger)))
        task = Task(
            space=space,
            guarantee=leg.guarantee,
            ledger=ledger,
            first=first,
            num_steps=self.num_steps,
            num_candidates=self.num_candidates,
            clip_norm=self.clip_norm,
            max_evaluations=self.max_evaluations,
            release_score=self.release_score,
            options=dict(self.method_options or {}),
            generator=generator,
            seed=seed,
            is_timed=is_timed,
            is_auto=self.method == "auto",
        )
        return task, checkpoint
