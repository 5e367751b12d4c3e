"""Continue a search after its fit, and pay for further scores."""

import os
import uuid
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sklearn.utils import check_random_state, indexable
from sklearn.utils.validation import check_is_fitted

from botorch_dp.exceptions import (
    InvalidArgumentError,
    UnpaidReleaseWarning,
)
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.independence import check_independence
from botorch_dp.integrations.sklearn.legs import Leg, fresh_seed, part_of, seeded
from botorch_dp.integrations.sklearn.methods import ADJACENCY
from botorch_dp.integrations.sklearn.people import (
    check_same_count,
    check_same_unit,
    check_unit,
    counted,
    people_of,
)
from botorch_dp.integrations.sklearn.record_losses import Scoring
from botorch_dp.integrations.sklearn.records import read_alike
from botorch_dp.integrations.sklearn.refitted import refitted_has
from botorch_dp.integrations.sklearn.remembered import Remembered
from botorch_dp.integrations.sklearn.schema import typed_training
from botorch_dp.integrations.sklearn.score_release import ScoreRelease
from botorch_dp.integrations.sklearn.scoring import for_records, make_scoring
from botorch_dp.integrations.sklearn.separation import check_alike, check_separate
from botorch_dp.integrations.sklearn.shown import ShownSearch
from botorch_dp.integrations.sklearn.stages import StagedSearch
from botorch_dp.integrations.sklearn.stopping import TIMED, uninterrupted
from botorch_dp.integrations.sklearn.tally_release import TallyRelease
from botorch_dp.privacy import Certificate, Declaration, Guarantee, Ledger
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.budget import check_affordable, warn_of_large_delta
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.report import write_page


class PrivateScore(NamedTuple):
    """A released score.

    Attributes:
        score: The score with noise, higher is better.
        noise_std: The standard deviation of the noise, which is public. For a score
            that is not a mean over records, an estimate from what was released.
    """

    score: float
    noise_std: float


class ContinuedSearch(ShownSearch):
    """The part of a search that comes after its fit."""

    guarantee: Guarantee
    method: str
    scoring: Any
    loss_range: tuple[float, float] | None
    method_options: Any
    ledger: Ledger | None
    max_records_per_person: int | None
    timeout: float | None
    schema: Any
    checkpoint: str | os.PathLike[str] | None
    certificate_: Certificate

    def resume(
        self,
        *,
        X_val: Any,
        y_val: Any = None,
        groups: Any = None,
        guarantee: Guarantee | None = None,
        X: Any = None,
        y: Any = None,
        **fit_params: Any,
    ) -> Any:
        """Continue the search where it ended.

        With a guarantee, a new search starts at ``best_params_`` and spends that much
        more from the same ledger, whose cap must allow it; otherwise nothing is
        trained. The usual ledger has no more than the guarantee of ``fit``: pass
        ``ledger=Ledger(cap=...)`` with a larger cap. Without a guarantee, a search that
        was stopped spends the rest of its own budget, as it was planned.

        ``history_`` and ``num_fits_`` then include all parts, and ``certificate_``
        everything that was charged. ``best_score_`` is that of the last part, if it was
        released there.

        Args:
            X_val: The inputs of the private records, the same as in ``fit``.
            y_val: The targets of the private records.
            groups: The names of their persons; needed if ``fit`` was given groups.
            guarantee: The guarantee of what is released from now on; by default what
                is left of a search that was stopped.
            X: The training inputs; by default those of ``fit``, which a search keeps
                only in the process that called ``fit``.
            y: The training targets.
            **fit_params: Further arguments of the estimator's ``fit``, if ``X`` is
                given.

        Returns:
            The search itself.

        Raises:
            BudgetExceededError: Before anything is trained, if the cap of the ledger
                does not allow the guarantee.
        """
        check_is_fitted(self, "best_params_")
        check_same_unit("resume", self.certificate_.unit, groups)
        training = self._training("resume", X, y, fit_params)
        known, ledger = self._remembered, self._ledger("resume")
        if guarantee is None:
            if known.state is None:
                raise InvalidArgumentError(
                    "guarantee must be given: this search has spent its own budget, or "
                    "it was loaded from a file. Give the guarantee of what is to be "
                    "released from now on."
                )
            leg = replace(known.leg, ledger=ledger, state=known.state)
        else:
            check_guarantee("guarantee", guarantee)
            number = self._num_legs
            leg = Leg(
                guarantee,
                checkpoint=part_of(self.checkpoint, number),
                checkpoint_before=part_of(self.checkpoint, number - 1),
                number=number,
                first=self.best_params_,
                ledger=ledger,
                history=self.history_,
                num_fits=self.num_fits_,
                is_timed=TIMED in self.certificate_.assumptions,
            )
        return self._run(leg, *training[:2], X_val, y_val, groups, training[2])

    def report(
        self, path: str | os.PathLike[str], *, declaration: Declaration | None = None
    ) -> Path:
        """Write a page of HTML about everything released, and return the file.

        It shows the certificate, and the ledger unless this search was loaded and its
        ledger was in memory. All of it is public.

        Args:
            path: The file.
            declaration: What the owner of the data says about it.
        """
        check_is_fitted(self, "certificate_")
        certificate, ledger = self.certificate_, self._known_ledger()
        if declaration is not None:
            certificate = certificate.with_declaration(declaration)
        if ledger is not None and not len(ledger):
            ledger = None  # it has no charges to show
        return write_page(certificate.to_html(ledger), path)

    def private_score(
        self,
        *,
        X_val: Any,
        y_val: Any = None,
        groups: Any = None,
        guarantee: Guarantee,
        X: Any = None,
        y: Any = None,
    ) -> PrivateScore:
        """Release the score of the refitted model on private records, and pay for it.

        The score is that of ``scoring``, with losses clipped to ``loss_range``. Noise
        is Laplace's under a ``PureDP`` and Gaussian otherwise. ``certificate_`` then
        includes this release. For ``"roc_auc"``, ``"f1"``, ``"precision"`` and
        ``"recall"`` the noise is on counts, and the score is their ratio: it is biased,
        and ``noise_std`` is an estimate.

        Args:
            X_val: The inputs of the private records, the same as in ``fit``.
            y_val: The targets of the private records.
            groups: The names of their persons; needed if ``fit`` was given groups.
            guarantee: The guarantee of this release. The cap of the ledger must allow
                it.
            X: The training inputs, by whose types private records are read; by default
                those of ``fit``, which a search keeps only in the process that called
                ``fit``.
            y: The training targets.

        Returns:
            The noisy score and the standard deviation of its noise.

        Raises:
            BudgetExceededError: Before anything is scored, if the cap of the ledger
                does not allow it.
        """
        check_is_fitted(self, "best_estimator_")
        check_same_unit("private_score", self.certificate_.unit, groups)
        check_guarantee("guarantee", guarantee)
        X, y, _ = self._training("private_score", X, y, {})
        check_separate(X, y, X_val, y_val)
        schema, X, y = typed_training(self.schema, X, y, X_val)
        check_alike(X, y, X_val, y_val, schema=schema)
        ledger, scoring = self._ledger("private_score"), self._make_scoring(y)
        records = read_alike(
            X_val,
            y_val,
            training=indexable(X, y),
            schema=schema,
            people=people_of(groups, X_val, self.max_records_per_person),
        )
        now = counted(records.people, num_records=len(records))
        check_same_count("private_score", self._counted_by_fit, now)
        scoring = for_records(scoring, records)
        warn_of_large_delta(guarantee, records.num_persons)
        settings: dict[str, Any] = {
            "num_records": records.num_persons,
            "generator": self._generator(ledger),
            "secure": bool((self.method_options or {}).get("secure")),
        }
        release: ScoreRelease | TallyRelease
        if isinstance(scoring, CandidateScoring):
            account = RunAccount(
                ledger,
                f"score {uuid.uuid4().hex}",
                adjacency=ADJACENCY,
                unit=records.unit,
                condition=scoring.condition,
            )
            release = TallyRelease(scoring, guarantee, account=account, **settings)
        else:
            assert scoring.loss_range is not None
            release = ScoreRelease(
                guarantee,
                ledger=ledger,
                loss_range=scoring.loss_range,
                adjacency=ledger.adjacency or ADJACENCY,
                unit=records.unit,
                **settings,
            )
        account, plan = release.account, release.planned_releases()
        check_unit(ledger, account.unit)
        check_affordable(ledger, plan, account.adjacency, unit=account.unit)
        scoring.try_on(self.best_estimator_, records.of_training)
        check_independence(scoring, self.best_estimator_, records.witnesses)
        losses = torch.from_numpy(
            scoring.private_losses(self.best_estimator_, records, is_tried=True)
        )
        try:
            with uninterrupted():
                release.release(losses.unsqueeze(-1))
        finally:
            if len(ledger):
                self.certificate_ = _recounted(self.certificate_, ledger)
        assert release.loss is not None
        return PrivateScore(scoring.score(release.loss), release.noise_std)

    @refitted_has("score")
    def score(self, X: Any, y: Any = None) -> float:
        """Return the refitted model's own score on **public** test data.

        A score on the private records would be a release that was not paid for. If
        ``X`` is what ``fit`` was given as ``X_val``, there is a warning: use
        ``release_score=True`` or :meth:`private_score` instead. Recognized are, in the
        process that called ``fit``, the same object, a view of its memory, and a copy
        of the same type with the same values in the same order. Not recognized are
        other types (``float32``, a list of an array), another order of rows or
        columns, and parts that are copies.
        """
        if self._remembered.are_private(X):
            warnings.warn(
                "These records were given to fit as private. Their score is one more "
                "release, without noise, and no certificate counts it: do not publish "
                "it. private_score(X_val=..., y_val=..., guarantee=...) pays for one.",
                UnpaidReleaseWarning,
                stacklevel=2,
            )
        return super().score(X, y)

    def _run(
        self,
        leg: Leg,
        X: Any,
        y: Any,
        X_val: Any,
        y_val: Any,
        groups: Any,
        fit_params: dict[str, Any],
    ) -> Any:
        """Run one leg of the search."""
        raise NotImplementedError

    @property
    def _remembered(self) -> Remembered:
        known = vars(self).get("_in_this_process")
        return known if isinstance(known, Remembered) else Remembered()

    @property
    def _counted_by_fit(self) -> str | None:
        """How many private records the fit had; a copy of the search knows it too."""
        return vars(self).get("_num_private")

    def _make_scoring(self, training_targets: Any) -> Scoring | CandidateScoring:
        return make_scoring(
            self.scoring,
            self.loss_range,
            estimator=self.estimator,
            prefers_log_loss=self.method in ("auto", "dp-gibo"),
            training_targets=training_targets,
        )

    def _check_limits(self, points_are_private: bool) -> None:
        for name in ("timeout", "checkpoint"):
            if points_are_private and getattr(self, name) is not None:
                raise InvalidArgumentError(
                    f"{name} must be None with method={self.method!r}, whose points "
                    "are private until it ends, and with them training times and "
                    f"state, got {getattr(self, name)!r}. Use method='auto'."
                )

    def _forget(self) -> None:
        """Drop the results of an earlier fit."""
        names = [name for name in vars(self) if name.endswith("_")]
        for name in [*names, "_in_this_process", "_num_legs", "_num_private"]:
            self.__dict__.pop(name, None)

    def _publish(
        self,
        search: StagedSearch,
        evaluation: Evaluation,
        leg: Leg,
        stopped: str | None,
    ) -> None:
        """Set the attributes of everything that was released."""
        found = search.found(stopped)
        for name in ("best_score_", "best_score_std_", "best_estimator_", "plan_"):
            self.__dict__.pop(name, None)  # of an earlier leg
        self.best_params_ = found.params
        if found.loss is not None:
            self.best_score_ = evaluation.scoring.score(found.loss)
            self.best_score_std_ = found.loss_std
        self.history_ = leg.history + found.history
        self.certificate_ = found.certificate
        if found.plan is not None:
            self.plan_ = found.plan
        self.num_fits_ = leg.num_fits + evaluation.num_fits
        self.stopped_ = stopped

    def _remember(
        self,
        search: StagedSearch,
        leg: Leg,
        training: tuple[Any, Any, dict[str, Any]],
        private_inputs: Any,
    ) -> None:
        """Keep what a continuation needs, in this process only."""
        self._num_legs = leg.number + 1
        self._in_this_process = Remembered(
            training,
            search.ledger,
            private_inputs,
            state=None if self.stopped_ is None else search.public_state,
            leg=replace(leg, ledger=None, state=None),
        )

    def _training(
        self, method: str, X: Any, y: Any, fit_params: dict[str, Any]
    ) -> tuple[Any, Any, dict[str, Any]]:
        if X is not None:
            return X, y, fit_params
        if self._remembered.training is None:
            raise InvalidArgumentError(
                f"{method} needs X and y, the training records: this search was loaded "
                "or copied, and only the search that was fitted remembers them."
            )
        return self._remembered.training

    def _known_ledger(self) -> Ledger | None:
        """Return the ledger of the fit, None if it was in the memory of another."""
        ledger = self._remembered.ledger
        ledger = self.ledger if ledger is None else ledger
        if ledger is None and self.checkpoint is not None:
            path = f"{os.fspath(self.checkpoint)}.ledger"
            ledger = Ledger(path) if os.path.exists(path) else None
        return ledger

    def _ledger(self, method: str) -> Ledger:
        """Return the ledger of the fit."""
        ledger = self._known_ledger()
        if ledger is None:
            raise InvalidArgumentError(
                f"{method} needs the ledger of the fit, but this search was loaded or "
                "copied, and its ledger was in memory. Set ledger=Ledger(path, cap=...)"
                " before fit."
            )
        return ledger

    def _generator(self, ledger: Ledger) -> torch.Generator | None:
        if self.random_state is None:
            return None
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return seeded(fresh_seed(seed, len(ledger)))


def _recounted(certificate: Certificate, ledger: Ledger) -> Certificate:
    """Return a certificate with the present charges of a ledger."""
    counted = Certificate.from_ledger(
        ledger,
        assumptions=certificate.assumptions,
        parameters=certificate.parameters,
    )
    return replace(counted, assumptions=tuple(dict.fromkeys(counted.assumptions)))
