r"""The best of a random number of private training runs, for little more than one.

A run trains a model at a candidate x and scores it, with privacy. A selection draws a
number K of runs from a public distribution, makes K independent runs at random
candidates, and releases the best one. For suitable distributions, the cost is that of
two or three runs, however many there are on average [Liu2019private]_,
[Papernot2022hyperparameter]_: see ``docs/theory/selection.md``.

References:
    .. [Liu2019private] J. Liu and K. Talwar. Private Selection from Private Candidates.
        STOC 2019.
    .. [Papernot2022hyperparameter] N. Papernot and T. Steinke. Hyperparameter Tuning
        with Renyi Differential Privacy. ICLR 2022.
"""

import copy
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_callable,
    check_choice,
    check_count,
    check_instance,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.selection.adaptive import Proposals
from botorch_dp.optimizers.selection.candidates import (
    CandidateBox,
    FiniteCandidates,
    make_candidates,
)
from botorch_dp.optimizers.selection.random_runs import RandomRuns, check_jobs
from botorch_dp.optimizers.selection.result import SelectionResult
from botorch_dp.optimizers.selection.runs import (
    CLAIMED,
    RunTerms,
    check_base,
    takes_account,
    user_traceback,
)
from botorch_dp.privacy import Certificate, Guarantee, Ledger, PrivacyAccountant
from botorch_dp.privacy.account import RunAccount, check_ledger
from botorch_dp.privacy.calibration import check_guarantee
from botorch_dp.privacy.certificate import PUBLIC_SETTINGS, WORST_CASE
from botorch_dp.privacy.counts import AtMost, Count
from botorch_dp.privacy.entries import UNITS
from botorch_dp.privacy.events import PrivacyEvent
from botorch_dp.privacy.noise import SeededNoise, make_noise_source
from botorch_dp.privacy.selection import SelectionEvent

_CHECKED = "a run costs at most its base: every run had an account that refused more"
_RELEASED = (
    "released were the candidate, the model and the score of the best run; the number "
    "of runs and all other runs are hidden"
)
_INDEPENDENT = (
    "runs are independent given the data: train_and_score keeps nothing for another "
    "run and shows nothing (no models of other runs, no warm starts, no logs)"
)
_SCORED = "the score of a run depends on private data through its releases alone"
_TIMED = (
    "the running time is not hidden: who can tell the number K of runs from it sees "
    "the best of K runs, which may cost as much as K runs (pad_to= fixes their number)"
)
_RULES = (Proposals, type(None))


class PrivateSelection:
    """Releases the best of a random number of private runs, and nothing else.

    ``train_and_score(x, account)`` trains at the candidate x and returns a score, or a
    pair of a score and a model. The highest score wins; equal scores are ordered by
    independent random numbers. The function must be private by itself: its releases,
    of which the score is one, are those in ``base``. Pass ``account`` as ``ledger=`` to
    its mechanisms, and a run that spends more than ``base`` is refused.

    The ledger is charged once, before the first run, from the distribution of the
    number of runs. That number, the other runs, their scores and models are never
    shown and not kept: there is no progress bar, no history and no checkpoint, because
    each of them would tell of runs that were not selected. Warnings of the function are
    ignored, because their number would tell the number of runs. For these reasons the
    class has no ``ask`` and ``tell`` and no ``state_dict``.

    Every call of :meth:`run` is a new selection and pays again. A call that is
    interrupted, or whose ``train_and_score`` raises, has paid and releases nothing
    else. An error of ``train_and_score`` is passed on and ends the selection. It counts
    as a run with the highest score, so that it costs no more than a result, if it
    depends on private data only through what its run released. It does not tell which
    run it was.

    Args:
        candidates: The values of x to choose from: a list of anything, or an ``m x d``
            tensor. Every run draws one, uniformly and with replacement.
        bounds: A ``2 x d`` box instead, in which x is drawn uniformly. It gives dtype
            and device.
        transform: The coordinates in which x is uniform, see
            :class:`~botorch_dp.optimizers.core.search_box.SearchBox`.
        base: What one run costs: an event, or pairs of an event and how many releases
            have that cost.
        count: The distribution of the number of runs, such as ``Poisson(16)``.
        guarantee: The guarantee that the selection has to meet. The constructor raises
            if it costs more. By default its cost follows from ``base`` and ``count``.
        ledger: The ledger to charge; by default a new one with the guarantee as its
            cap.
        proposals: How candidates are drawn after the first runs, see
            :class:`GPProposals`; by default uniformly.
        pad_to: Always make this many runs, so that the running time does not depend on
            the number that counts, which is then at most this one.
        default: The x that is released if there is no run (``Poisson`` may draw 0). By
            default the first candidate, or the centre of the box.
        adjacency: The neighbouring data sets for which the costs in ``base`` are
            stated.
        unit: Who is protected: ``"record"``, ``"person"``, ``"user"`` or ``"agent"``.
        n_jobs: How many runs joblib makes at a time. The function and what it returns
            must then be picklable, unless joblib is configured to use threads.
        generator: A seeded generator for experiments only. It decides the number of
            runs and the candidates, and allows seeded noise in a run.

    Attributes:
        event: What the selection costs.

    Example:
        >>> from botorch_dp import ApproxDP, GaussianMechanism
        >>> from botorch_dp.privacy import GDP
        >>> from botorch_dp.privacy.counts import Poisson
        >>> records = torch.rand(1_000, dtype=torch.float64)  # private
        >>> mechanism = GaussianMechanism(
        ...     GDP(mu=0.5), sensitivity=1 / 1_000, adjacency="zero_out"
        ... )
        >>> def train_and_score(x, account):
        ...     share = ((records - x).abs() < 0.1).double().mean()  # private
        ...     return mechanism.release(share, ledger=account)
        >>> selection = PrivateSelection(
        ...     [0.2, 0.4, 0.6, 0.8],
        ...     base=mechanism.event(),
        ...     count=Poisson(16),
        ...     guarantee=ApproxDP(epsilon=6.0, delta=1e-5),
        ... )
        >>> result = selection.run(train_and_score)
        >>> result.x in [0.2, 0.4, 0.6, 0.8]
        True
    """

    name: ClassVar[str] = "PrivateSelection"

    def __init__(
        self,
        candidates: Sequence[Any] | Tensor | None = None,
        *,
        bounds: Tensor | None = None,
        transform: str | Sequence[str] = "linear",
        base: PrivacyEvent | Sequence[tuple[PrivacyEvent, int]],
        count: Count,
        guarantee: Guarantee | None = None,
        ledger: Ledger | None = None,
        proposals: Proposals | None = None,
        pad_to: int | None = None,
        default: Any = None,
        adjacency: str = "zero_out",
        unit: str = "record",
        n_jobs: int = 1,
        generator: torch.Generator | None = None,
    ) -> None:
        self._candidates = make_candidates(candidates, bounds, transform)
        self.n_jobs = check_jobs(n_jobs)
        # A copy, which learns the candidates of this selection.
        self.proposals = copy.copy(check_instance("proposals", proposals, _RULES))
        self.pad_to = None if pad_to is None else check_count("pad_to", pad_to)
        if self.proposals is not None:
            self._candidates = self._proposable(self.proposals)
        self._default = (
            self._candidates.first()
            if default is None
            else self._candidates.check("default", default)
        )
        self.count = count
        self.event = SelectionEvent(
            base=check_base(base, adjacency),
            count=count if self.pad_to is None else AtMost(count, self.pad_to),
            proposal_ratios=proposals.ratios if proposals else (1.0, 1.0),
        )
        self.adjacency = adjacency
        self.unit = check_choice("unit", unit, UNITS)
        self.guarantee = guarantee
        if guarantee is not None:
            self._check_cost(check_guarantee("guarantee", guarantee))
        check_ledger("ledger", ledger, optional=True)
        self.ledger = Ledger(cap=guarantee) if ledger is None else ledger
        self._source = make_noise_source(generator, secure=False)
        self._random_runs = RandomRuns(
            self._candidates,
            self.event,
            self._source,
            proposals=self.proposals,
            pad_to=self.pad_to,
            n_jobs=self.n_jobs,
        )
        self._runs: list[str] = []  # the identities of the calls of run()

    @property
    def base(self) -> tuple[tuple[PrivacyEvent, int], ...]:
        """What one run costs: pairs of an event and how many releases have it."""
        return self.event.base

    def run(self, train_and_score: Callable[..., Any]) -> SelectionResult:
        """Make the runs, and release the best one.

        Args:
            train_and_score: A function of a candidate and the account of its run, or
                of a candidate alone. Without an account, nothing checks that a run
                costs no more than ``base``, and the certificate says so.

        Returns:
            The candidate, model and score of the best run, with a certificate.

        Raises:
            BudgetExceededError: If the ledger cannot pay. No run was made.
        """
        check_callable("train_and_score", train_and_score)
        terms = RunTerms(
            train_and_score=train_and_score,
            takes_account=takes_account(train_and_score),
            base=self.base,
            adjacency=self.adjacency,
            unit=self.unit,
            seeded=isinstance(self._source, SeededNoise),
            process=os.getpid(),
        )
        self._pay(None if terms.takes_account else CLAIMED)
        certificate = self.certificate()  # now, since nothing may fail after the runs
        best, error, own = None, None, None
        try:
            best = self._random_runs.best(terms)
        except BaseException as interruption:
            error = interruption
            own = user_traceback(error, sys._getframe())
            if self.n_jobs != 1:  # the other frames are joblib's, which count the runs
                own = error.__context__ = error.__cause__ = None
        # From here on, all that is known is the best run, or one error.
        if best is not None and best.error is not None:
            error, own = best.error, best.error.__traceback__
            user_traceback(error, sys._getframe())
        if error is not None:
            try:
                raise error.with_traceback(own)
            finally:
                del best, error, own  # no cycle may keep them alive
        if best is None:
            return SelectionResult(self._default, None, None, certificate)
        return SelectionResult(best.x, best.model, best.score, certificate)

    def certificate(self) -> Certificate:
        """Return what is guaranteed about everything charged to the ledger."""
        padded = f"always {self.pad_to} runs are made, of which a random number count"
        own = [entry for entry in self.ledger.entries if entry.run in self._runs]
        checked = () if any(entry.condition for entry in own) else (_CHECKED,)
        return Certificate.from_ledger(
            self.ledger,
            assumptions=(
                WORST_CASE,
                _RELEASED,
                *checked,
                _SCORED,
                _INDEPENDENT,
                _TIMED if self.pad_to is None else padded,
                PUBLIC_SETTINGS,
            ),
            parameters=self.settings(),
            runs=self._runs,
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        settings: dict[str, Any] = {
            "method": self.name,
            "candidates": self._candidates.describe(),
            "base": " + ".join(f"{count} x {event!r}" for event, count in self.base),
            "count": repr(self.event.count),
        }
        if self.proposals is not None:
            settings["proposals"] = repr(self.proposals)
        if self.pad_to is not None:
            settings["pad_to"] = self.pad_to
        if self.guarantee is not None:
            settings["budget"] = repr(self.guarantee)
        return settings

    def __repr__(self) -> str:
        settings = ", ".join(f"{k}={v!r}" for k, v in self.settings().items())
        return f"{self.name}({settings})"

    def _pay(self, condition: str | None) -> None:
        """Charge the whole selection, before the first run."""
        account = RunAccount(
            self.ledger,
            f"{self.name} {uuid.uuid4().hex}",
            adjacency=self.adjacency,
            unit=self.unit,
            condition=condition,
        )
        account.charge(
            self.event,
            mechanism=self.name,
            adjacency=self.adjacency,
            noise=self._source.name,
            unit=self.unit,
        )
        self._runs.append(account.run)

    def _proposable(self, proposals: Proposals) -> FiniteCandidates:
        """Return finite candidates, and tell the proposals about them."""
        if self.n_jobs != 1:
            raise InvalidArgumentError(
                f"n_jobs must be 1 with proposals, got {self.n_jobs!r}: a run can only "
                "follow the ones before it."
            )
        candidates = self._candidates
        if isinstance(candidates, CandidateBox):
            candidates = candidates.grid(proposals.num_points)
        assert isinstance(candidates, FiniteCandidates)
        proposals.start(candidates.size, candidates.features())
        return candidates

    def _check_cost(self, guarantee: Guarantee) -> None:
        accountant = PrivacyAccountant()
        accountant.compose(self.event)
        if not accountant.within(guarantee):
            spent = accountant.spent_of(guarantee)
            raise InvalidArgumentError(
                f"guarantee must be met by the selection, which costs {spent.unit}="
                f"{spent.amount:.6g} by {spent.method}, got {guarantee!r}: take a base "
                "with more noise, or a count with a smaller mean."
            )
