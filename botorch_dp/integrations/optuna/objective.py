"""An objective for Optuna whose scores are released, and paid for."""

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import optuna
import torch
from torch import Tensor

from botorch_dp._validation import (
    check_callable,
    check_count,
    check_instance,
    check_range,
)
from botorch_dp.exceptions import BudgetExceededError, InvalidArgumentError
from botorch_dp.integrations.optuna.guard import ReleasedScoresOnly
from botorch_dp.privacy import (
    Certificate,
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    Ledger,
    LedgerEntry,
    PrivacyEvent,
    PureDP,
)
from botorch_dp.privacy.account import RunAccount, check_ledger
from botorch_dp.privacy.budget import (
    check_gaussian,
    mean_sensitivity,
    share_of_a_step,
    warn_of_large_delta,
)
from botorch_dp.privacy.certificate import (
    PUBLIC_SETTINGS,
    RECORDS_ALONE,
    TOLD_RECORDS,
    WORST_CASE,
)
from botorch_dp.privacy.entries import costs_the_same

_SEARCH_IS_PUBLIC = (
    "the study gets nothing about the records but the released scores: suggest and "
    "whatever else writes to its storage do not use them"
)


class Records(Protocol):
    """Private records: a tensor, an array, a list, a data set with slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Any: ...


class PrivateObjective:
    r"""An objective that returns the mean loss of private records, with noise.

    A trial costs one release: the mean of the losses, clipped to their range, plus
    Gaussian noise (Laplace noise under a ``PureDP``). All trials together meet the
    guarantee. They are planned in the ledger when the objective is made, and each is
    charged before its noise is drawn. When the budget is spent, the study stops.

    Several processes can work on one study. Each makes its own objective, with the same
    settings and with the same ledger file; together they make at most ``num_trials``
    releases.

    The search and the records are kept apart. ``suggest`` gets the trial, and
    ``losses`` gets parameters and records but not the trial, so that it cannot report
    intermediate scores, prune, or set attributes.

    If ``losses`` raises (``SystemExit`` included), or does not return one number for
    each record, the records are divided in two, and so on. A record that cannot be
    evaluated alone has the largest loss, and so has one whose loss is NaN. So the score
    moves no further by a record that breaks ``losses`` than by any other. The time does
    depend on it. Only ``KeyboardInterrupt`` is raised. To find a mistake, call
    :meth:`private_losses`. What ``losses`` prints, logs or warns of is not suppressed.

    Args:
        suggest: A function from a trial to a dict of parameters, which calls
            ``trial.suggest_float`` and so on. It must not use private records.
        losses: A function from these parameters and a part of the records to one loss
            for each of them, in which a record's loss must not depend on others.
        private_records: The n records: anything with a length and slices.
        loss_range: The range of a record's loss; losses are clipped to it.
        guarantee: The guarantee of all trials together.
        num_trials: The number of trials.
        study_name: The name of the study, in which alone the objective works.
        ledger: The ledger to charge: a file if there are several processes. By default
            one in memory whose cap is the guarantee.
        generator: A seeded generator of the noise, for experiments only.
        secure: Whether to draw exact discrete noise.

    Example:
        >>> from botorch_dp import ApproxDP
        >>> records = torch.linspace(0, 1, 1000, dtype=torch.float64)  # private
        >>> objective = PrivateObjective(
        ...     lambda trial: {"x": trial.suggest_float("x", 0, 1)},
        ...     lambda parameters, rows: (rows - parameters["x"]).abs(),
        ...     records,
        ...     loss_range=(0.0, 1.0),
        ...     guarantee=ApproxDP(epsilon=1.0, delta=1e-6),
        ...     num_trials=5,
        ...     study_name="example",
        ... )
        >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
        >>> study = objective.create_study()
        >>> study.optimize(objective)
        >>> len(study.trials), objective.num_left
        (5, 0)
    """

    def __init__(
        self,
        suggest: Callable[[optuna.Trial], Mapping[str, Any]],
        losses: Callable[[Mapping[str, Any], Any], Any],
        private_records: Records,
        *,
        loss_range: tuple[float, float],
        guarantee: Guarantee,
        num_trials: int,
        study_name: str,
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool = False,
    ) -> None:
        self._suggest = check_callable("suggest", suggest)
        self._losses = check_callable("losses", losses)
        self._records = private_records
        try:
            num_records = len(private_records)
        except TypeError:
            raise InvalidArgumentError(
                "private_records must have a length and slices, got a "
                f"{type(private_records).__name__}."
            ) from None
        self.num_records = check_count("number of private_records", num_records)
        self.loss_range = check_range("loss_range", loss_range)
        self.num_trials = check_count("num_trials", num_trials)
        self.study_name = check_instance("study_name", study_name, str)
        self.guarantee = guarantee
        self._mechanism = self._make_mechanism(generator, secure)
        warn_of_large_delta(guarantee, num_records)
        check_ledger("ledger", ledger, optional=True)
        ledger = Ledger(cap=guarantee) if ledger is None else ledger
        self._account = _StudyAccount(ledger, f"optuna {study_name}", self.num_trials)
        self._account.plan(self._mechanism.event(1))

    def _make_mechanism(
        self, generator: torch.Generator | None, secure: bool
    ) -> GaussianMechanism | LaplaceMechanism:
        low, high = self.loss_range
        sensitivity = mean_sensitivity(high - low, self.num_records)
        if isinstance(self.guarantee, PureDP):
            return LaplaceMechanism(
                PureDP(self.guarantee.epsilon / self.num_trials),
                sensitivity=sensitivity,
                generator=generator,
                secure=secure,
            )
        share = share_of_a_step(
            check_gaussian(self.guarantee, secure),
            self.num_trials,
            sensitivity=sensitivity,
            size=1,
            secure=secure,
        )
        return GaussianMechanism(
            share, sensitivity=sensitivity, generator=generator, secure=secure
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger that is charged."""
        return self._account.ledger

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each score."""
        if isinstance(self._mechanism, GaussianMechanism):
            return self._mechanism.noise_std
        return math.sqrt(2.0) * self._mechanism.scale

    @property
    def num_left(self) -> int:
        """How many trials the budget still allows, in all processes together."""
        left = self.num_trials - self._account.num_charged
        return left if left > 0 and self.ledger.allows(self._mechanism.event(1)) else 0

    def create_study(
        self,
        storage: optuna.storages.BaseStorage | str | None = None,
        **options: Any,
    ) -> optuna.Study:
        """Create or load the study, with a storage that admits released scores only.

        Args:
            storage: As for ``optuna.create_study``; a guard is put around it, unless it
                is one.
            options: Further arguments of ``optuna.create_study``, such as ``sampler``.
        """
        if not isinstance(storage, ReleasedScoresOnly):
            storage = ReleasedScoresOnly(storage)
        return optuna.create_study(
            storage=storage,
            study_name=self.study_name,
            direction="minimize",
            load_if_exists=True,
            **options,
        )

    def __call__(self, trial: optuna.Trial) -> float:
        """Return the released mean loss, or stop the study if the budget is spent.

        Args:
            trial: A trial of the study.

        Raises:
            TrialPruned: If the budget is spent. Nothing was evaluated or drawn.
        """
        study = trial.study
        if study.study_name != self.study_name or [
            direction.name for direction in study.directions
        ] != ["MINIMIZE"]:
            raise InvalidArgumentError(
                f"trial must be of the study {self.study_name!r}, which minimizes one "
                f"value, got one of {study.study_name!r} with directions "
                f"{[direction.name for direction in study.directions]}."
            )
        try:
            if not self.num_left:
                raise BudgetExceededError("The budget of the study is spent.")
            parameters = dict(self._suggest(trial))
            private_losses = self._bounded_losses(parameters)
            score = self._release(private_losses)
        except BudgetExceededError as error:
            _stop(study)
            raise optuna.TrialPruned(str(error)) from None
        if isinstance(trial.storage, ReleasedScoresOnly):
            trial.storage._admit(trial._trial_id, score)
        if not self.num_left:
            _stop(study)
        return score

    def private_losses(self, parameters: Mapping[str, Any]) -> Tensor:
        """Return the losses of all records without noise, or raise what they raise.

        This method is private: use it to find mistakes in ``losses``, best with made-up
        records, and do not log, store or send its result. It charges nothing.

        Args:
            parameters: The parameters, as ``suggest`` returns them.
        """
        return self._evaluated(parameters, 0, self.num_records)

    def certificate(self) -> Certificate:
        """Return the guarantee of everything that the ledger was charged for."""
        return Certificate.from_ledger(
            self.ledger,
            assumptions=(
                WORST_CASE,
                RECORDS_ALONE,
                _SEARCH_IS_PUBLIC,
                PUBLIC_SETTINGS,
                TOLD_RECORDS,
            ),
            parameters={
                "method": "optuna",
                "study_name": self.study_name,
                "num_records": self.num_records,
                "num_trials": self.num_trials,
                "loss_range": list(self.loss_range),
                "noise_std": self.noise_std,
                "asked for, all trials": repr(self.guarantee),
            },
            runs=[self._account.run],
        )

    def _release(self, private_losses: Tensor) -> float:
        low, _ = self.loss_range
        private_mean = (private_losses - low).mean().reshape(1)
        return low + float(self._mechanism.release(private_mean, ledger=self._account))

    def _bounded_losses(self, parameters: Mapping[str, Any]) -> Tensor:
        """Return all losses in their range; those that cannot be had are the largest.

        A row depends on its own record alone, if ``losses`` does.
        """
        low, high = self.loss_range
        found = torch.full(
            (self.num_records,), math.nan, dtype=torch.float64, device="cpu"
        )
        parts = [(0, self.num_records)]
        while parts:
            start, stop = parts.pop()
            try:
                found[start:stop] = self._evaluated(parameters, start, stop)
            except KeyboardInterrupt:
                raise
            except BaseException:  # it may depend on a record: it must not get out
                middle = (start + stop) // 2
                if stop - start > 1:
                    parts += [(start, middle), (middle, stop)]
        return found.nan_to_num(nan=high, posinf=high, neginf=low).clamp(low, high)

    def _evaluated(
        self, parameters: Mapping[str, Any], start: int, stop: int
    ) -> Tensor:
        rows = self._records[start:stop]
        # A copy, because losses may change its argument.
        losses = self._losses(dict(parameters), rows)
        losses = torch.as_tensor(losses, dtype=torch.float64, device="cpu")
        if losses.shape != (stop - start,):
            raise InvalidArgumentError(
                f"losses must return {stop - start} numbers, one for each record, got "
                f"shape {tuple(losses.shape)}."
            )
        return losses.detach()


class _StudyAccount(RunAccount):
    """The account of a study, which processes share: no release beyond its plan."""

    def __init__(self, ledger: Ledger, run: str, num_releases: int) -> None:
        super().__init__(ledger, run)
        self._num_releases = num_releases

    def plan(self, event: PrivacyEvent) -> None:
        """Reserve what is left of the plan, of which others may be charging parts."""
        while (charged := self.num_charged) < self._num_releases:
            for entry in self.entries:
                if not costs_the_same(entry.event, event):
                    raise InvalidArgumentError(
                        f"ledger has a charge of {self.run!r} for {entry.event!r}, but "
                        f"a trial now costs {event!r}. Use the same settings in all "
                        "processes, or another study_name."
                    )
            try:
                self.reserve([(event, self._num_releases - charged)])
                return
            except BudgetExceededError:
                if self.num_charged == charged:  # nobody was faster
                    raise

    def charge(self, event: PrivacyEvent, **labels: Any) -> LedgerEntry:
        """Record the cost of a release, and refuse to draw one beyond the plan.

        The ledger gives every charge a number of its own and never removes one. So at
        most ``num_releases`` charges of a study have as few or fewer up to their
        number, whoever made them, and each of these is drawn once.
        """
        entry = super().charge(event, **labels)
        # Of processes that charge at the same time, the ledger decides who was first.
        before = sum(e.count for e in self.entries if e.number <= entry.number)
        if before > self._num_releases:
            raise BudgetExceededError(
                f"All {self._num_releases} trials of {self.run!r} were made: another "
                "process was faster."
            )
        return entry


def _stop(study: optuna.Study) -> None:
    with contextlib.suppress(RuntimeError):  # the caller asks and tells by itself
        study.stop()
