"""The runs of a joint budget by selection: what they may spend and how they pay."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.integrations.opacus.ledgers import ADJACENCY
from botorch_dp.integrations.opacus.score import ScorePlan
from botorch_dp.integrations.opacus.steps import BudgetedOptimizer
from botorch_dp.integrations.opacus.training import MakesPrivate, PlannedRun
from botorch_dp.optimizers.selection.private_selection import PrivateSelection
from botorch_dp.privacy import (
    Certificate,
    Count,
    Ledger,
    SelectionEvent,
)
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.accountant import Chargeable

_CPU = torch.device("cpu")


class SelectionRun(MakesPrivate):
    """One training run of a selection, and its score.

    Args:
        plan: What a training run costs.
        score_plan: How scores are released.
        account: Accepts what was planned for one run, and refuses more.
        generator: Seeds the run, for experiments only.
    """

    def __init__(
        self,
        plan: PlannedRun,
        score_plan: ScorePlan,
        *,
        account: Chargeable,
        generator: torch.Generator | None,
    ) -> None:
        self._plan, self._score_plan = plan, score_plan
        self._account, self._generator = account, generator
        self._is_trained = False
        self._optimizer: BudgetedOptimizer | None = None
        self._score: float | None = None

    def planned_run(self) -> PlannedRun:
        """Return what the training run costs."""
        return self._plan

    def pay_for_run(self, noise: str) -> None:
        """Charge the training run, or raise if there was one."""
        self._account.charge(
            self._plan.step_event,
            count=self._plan.num_steps,
            mechanism=JointSelection.name,
            adjacency=ADJACENCY,
            noise=noise,
        )
        self._is_trained = True

    def _notice_optimizer(self, optimizer: BudgetedOptimizer) -> None:
        self._optimizer = optimizer

    def end(self) -> None:
        """End the run.

        A step on the selected model after the selection would be a release that no
        bound covers. And gradients of records that wait for a step would leave with
        the model.
        """
        if self._optimizer is not None:
            self._optimizer.end()

    def score(self, private_scores: Tensor) -> float:
        """Return the mean of the records' scores with noise; higher is better.

        Args:
            private_scores: One score for each record. They are clipped to the budget's
                ``score_range``.
        """
        self._score = self._score_plan.release(
            private_scores, account=self._account, generator=self._generator
        )
        return self._score

    def check(self, returned: Any) -> Any:
        """Return what the user's function returned, if it comes from this run.

        A score without noise, or a model that was trained in another way, is private.
        """
        is_pair = isinstance(returned, tuple) and len(returned) == 2
        score, model = returned if is_pair else (returned, None)
        if not isinstance(score, float) or score != self._score:
            raise InvalidArgumentError(
                "train_and_score must return run.score(...), or a pair of it and the "
                "model, and not another score: only that one has noise."
            )
        if model is not None and not self._is_trained:
            raise InvalidArgumentError(
                "train_and_score must train its model with run.make_private(...)."
            )
        return returned


@dataclass(frozen=True)
class TrainAndScore:
    """The user's function, given a :class:`SelectionRun` instead of an account.

    Args:
        function: The user's function of a candidate and a run.
        plan: What a training run costs.
        score_plan: How scores are released.
        is_seeded: Whether runs are seeded, for experiments only.
    """

    function: Callable[[Any, SelectionRun], Any]
    plan: PlannedRun
    score_plan: ScorePlan
    is_seeded: bool

    def __call__(self, x: Any, account: Chargeable) -> Any:
        """Train at x and score."""
        generator = None
        if self.is_seeded:  # the selection has seeded torch for this run
            seed = int(torch.randint(2**62, (), device=_CPU))
            generator = torch.Generator(device=_CPU).manual_seed(seed)
        run = SelectionRun(
            self.plan, self.score_plan, account=account, generator=generator
        )
        try:
            return run.check(self.function(x, run))
        finally:
            run.end()


class JointSelection(PrivateSelection):
    """A selection that charges the training records and the validation records.

    With disjoint records, a run costs a training record its training steps, because a
    score adds nothing about it that the model does not tell. It costs a validation
    record the score, because the model does not depend on it.

    Args:
        candidates: The values of x to choose from.
        count: The distribution of the number of runs.
        charges: The ledger and the cost of each of the two sets, or of both.
        certify: Returns the certificate of the budget, given the assumptions and
            parameters of the selection.
        **options: Further arguments of :class:`PrivateSelection`.
    """

    name: ClassVar[str] = "JointBudget"

    def __init__(
        self,
        candidates: Sequence[Any] | Tensor | None,
        *,
        count: Count,
        charges: list[tuple[Ledger, SelectionEvent]],
        certify: Callable[[tuple[str, ...], dict[str, Any]], Certificate],
        **options: Any,
    ) -> None:
        super().__init__(
            candidates,
            base=[release for _, event in charges for release in event.base],
            count=count,
            ledger=charges[0][0],
            adjacency=ADJACENCY,
            **options,
        )
        self._charges, self._certify = charges, certify

    def certificate(self) -> Certificate:
        """Return what is guaranteed about all records."""
        own = super().certificate()
        return self._certify(tuple(own.assumptions), self.settings())

    def _pay(self, condition: str | None) -> None:
        """Charge the whole selection to all ledgers, before the first run."""
        run = f"{self.name} {uuid.uuid4().hex}"
        for ledger, event in self._charges:
            account = RunAccount(
                ledger,
                run,
                adjacency=ADJACENCY,
                unit=self.unit,
                condition=condition,
            )
            account.charge(
                event,
                mechanism=self.name,
                adjacency=ADJACENCY,
                noise=self._source.name,
                unit=self.unit,
            )
        self._runs.append(run)
