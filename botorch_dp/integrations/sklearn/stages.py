"""A search in stages: a private choice, private gradients, the release of a score.

Whatever has been released is kept when a search ends early, for whatever reason. A
stage is recorded before it is paid for, and its releases before the next one begins.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.integrations.sklearn.evaluation import Evaluation
from botorch_dp.integrations.sklearn.methods import (
    ADJACENCY,
    CandidateChoice,
    Found,
    Task,
    certified,
)
from botorch_dp.integrations.sklearn.people import check_unit
from botorch_dp.integrations.sklearn.score_release import ScoreRelease
from botorch_dp.integrations.sklearn.space import Branch, Params
from botorch_dp.integrations.sklearn.stopping import uninterrupted
from botorch_dp.optimizers import DPGIBO
from botorch_dp.optimizers.auto.search_plan import SearchPlan
from botorch_dp.optimizers.core.optimizer import Optimizer
from botorch_dp.optimizers.core.private_optimizer import PrivateOptimizer
from botorch_dp.privacy import Certificate, Ledger, PrivacyEvent
from botorch_dp.privacy.budget import check_affordable
from botorch_dp.privacy.certificate import OF_TOLD_LOSSES, WORST_CASE

_DELTAS = (1e-3, 1e-5, 1e-7)


@dataclass
class Gradients:
    """The stage of gradients.

    Attributes:
        run: The run of DP-GIBO.
        make: Makes a run with the same settings that starts somewhere else.
    """

    run: DPGIBO
    make: Callable[[Params], DPGIBO]

    @property
    def num_lost(self) -> int:
        """The number of releases that were paid for and never arrived."""
        return self.run.account.num_charged - len(self.run.history)

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs that are still to be paid."""
        paid = self.run.account.num_charged
        ((event, count),) = self.run.planned_releases()
        return [(event, count - paid)] if count > paid else []


@dataclass
class Stages:
    """The stages of a search, each of which may be absent.

    Attributes:
        choice: A choice among candidates.
        gradients: Gradients from there.
        score: The release of the score of the result.
        plan: The plan that they follow.
        num_models: The number of models to train; None if it is not known.
        certified: Further parameters of the certificate.
    """

    choice: CandidateChoice | None = None
    gradients: Gradients | None = None
    score: ScoreRelease | None = None
    plan: SearchPlan | None = None
    num_models: int | None = None
    certified: Mapping[str, Any] = field(default_factory=dict)

    def __iter__(self) -> Any:
        stages = (self.choice, self.gradients, self.score)
        return iter([stage for stage in stages if stage is not None])


class StagedSearch:
    """Runs the stages, and knows at any moment what has been released.

    Args:
        stages: The stages.
        task: The public settings of the search.
        evaluation: Computes the private losses.
        save: Is called with the public state whenever it has changed.
    """

    def __init__(
        self,
        stages: Stages,
        task: Task,
        evaluation: Evaluation,
        save: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.stages, self._task, self._evaluation = stages, task, evaluation
        self._save_state = save
        self._is_descending = stages.choice is None

    def check_affordable(self) -> None:
        """Raise unless the ledger can pay for all that is left to release."""
        costs: list[tuple[PrivacyEvent, int]] = []
        for stage in self.stages:
            costs += stage.planned_releases()
        gradients = self.stages.gradients
        adjacency = ADJACENCY if gradients is None else gradients.run.adjacency
        if costs:
            unit = self._evaluation.unit
            check_unit(self._task.ledger, unit)
            check_affordable(self._task.ledger, costs, adjacency, unit=unit)

    def run(self) -> None:
        """Go through the stages that are not yet done."""
        self._evaluation.expect(self.stages.num_models)
        choice, gradients, score = (
            self.stages.choice,
            self.stages.gradients,
            self.stages.score,
        )
        if choice is not None:
            if self._evaluation.points_are_private:  # errors must show beforehand
                self._evaluation.try_on(choice.candidates)
            self._take_steps(choice.run, choice.losses)
        # A released choice without numbers has no gradients. Their share is not spent.
        if gradients is not None and self._branch.numbers:
            self._start_gradients(gradients)
            self._take_steps(gradients.run, self._losses)
        if score is not None and score.planned_releases():
            self._save()
            losses = self._evaluation.losses([self.params])
            with uninterrupted():
                score.release(losses)
                self._save()

    @property
    def params(self) -> Params:
        """The best parameters so far, by what was released."""
        gradients = self.stages.gradients
        if gradients is None or not gradients.run.history:
            return self._start
        # The mean of the later iterates has less noise, at no further privacy cost.
        average = gradients.run.result().average
        return {**self._fixed, **self._branch.rounded(average.tolist())}

    @property
    def num_lost(self) -> int:
        """The number of releases that were paid for and never arrived."""
        return sum(stage.num_lost for stage in self.stages)

    @property
    def num_released(self) -> int:
        """The number of releases that were paid for and arrived."""
        return self._num_charged - self.num_lost

    def found(self, stopped: str | None = None) -> Found:
        """Return everything that has been released so far.

        Args:
            stopped: Why the search ended early, or None.
        """
        loss, loss_std, choice = None, None, self.stages.choice
        if choice is not None and choice.released is not None:
            loss, loss_std = choice.released[1], choice.loss_std
        if self.stages.score is not None:
            loss, loss_std = self.stages.score.loss, self.stages.score.noise_std
        return Found(
            params=self.params,
            loss=loss,
            history=self._history(),
            certificate=self._certificate(stopped),
            plan=self.stages.plan,
            loss_std=loss_std,
        )

    @property
    def ledger(self) -> Ledger:
        """The ledger that is charged."""
        return self._task.ledger

    @property
    def public_state(self) -> dict[str, Any] | None:
        """The state, or None if it is private until the search ends."""
        return None if self._evaluation.points_are_private else self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the public state, as plain values and tensors."""
        choice, gradients, score = (
            self.stages.choice,
            self.stages.gradients,
            self.stages.score,
        )
        has_gradients = gradients is not None and self._is_descending
        return {
            "seed": self._task.seed,
            "is_timed": self._task.is_timed,
            "num_fits": self._evaluation.num_fits,
            "choice": None if choice is None else choice.run.state_dict(),
            "gradients": gradients.run.state_dict()
            if gradients is not None and has_gradients
            else None,
            "score": None if score is None else score.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, after charging what the ledger lacks."""
        if not len(self.ledger):  # a new one must account for all stages together
            self.check_affordable()
        choice, gradients, score = (
            self.stages.choice,
            self.stages.gradients,
            self.stages.score,
        )
        try:
            self._evaluation.num_fits = int(state["num_fits"])
            if choice is not None:
                choice.run.load_state_dict(state["choice"])
            if gradients is not None and state["gradients"] is not None:
                self._start_gradients(gradients)
                gradients.run.load_state_dict(state["gradients"])
            if score is not None:
                score.load_state_dict(state["score"])
        except (LookupError, TypeError, ValueError) as error:
            raise OptimizerStateError(
                f"checkpoint holds no state of this search: {error!r}."
            ) from error

    @property
    def _start(self) -> Params:
        """Where gradients start: the released candidate, or the first parameters."""
        choice = self.stages.choice
        if choice is None or choice.released is None:
            return self._task.first
        return choice.released[0]

    @property
    def _fixed(self) -> Params:
        """The parameters at the start that gradients do not change."""
        return self._task.space.kind_of(self._start)

    @property
    def _branch(self) -> Branch:
        """The part of the space in which gradients go on."""
        return self._task.space.branch_of(self._start)

    @property
    def _num_charged(self) -> int:
        accounts = [
            stage.account if isinstance(stage, ScoreRelease) else stage.run.account
            for stage in self.stages
        ]
        return sum(account.num_charged for account in accounts)

    def _start_gradients(self, gradients: Gradients) -> None:
        if not self._is_descending:
            gradients.run = gradients.make(self._start)
            self._is_descending = True

    def _take_steps(
        self, run: Optimizer, losses: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._save()  # names the run before it is charged
        while not run.done:
            private_losses = losses(run.ask())
            with uninterrupted():
                run.tell(private_losses)
                self._save()

    def _save(self) -> None:
        if self._save_state is not None:
            self._save_state(self.state_dict())

    def _losses(self, X: torch.Tensor) -> torch.Tensor:
        branch, fixed = self._branch, self._fixed
        points = [
            [(weight, {**fixed, **params}) for weight, params in branch.models_at(x)]
            for x in X.tolist()
        ]
        return self._evaluation.interpolated(points)

    def _history(self) -> list[dict[str, Any]]:
        gradients, steps = self.stages.gradients, []
        if self.stages.choice is not None:
            steps += self.stages.choice.history
        if gradients is not None and gradients.run.history:
            branch, fixed = self._branch, self._fixed
            steps += [
                {
                    "params": {**fixed, **branch.rounded(step.x.tolist())},
                    "noise_std": step.noise_std,
                }
                for step in gradients.run.history
            ]
        return steps

    def _certificate(self, stopped: str | None) -> Certificate:
        """Return the certificate of everything that the ledger was charged."""
        task, stages = self._task, self.stages
        gradients, choice = stages.gradients, stages.choice
        early: dict[str, Any] = {} if stopped is None else {"stopped": stopped}
        if self.num_lost:
            early["lost_releases"] = self.num_lost
        stage = choice if gradients is None else gradients
        assert stage is not None
        last: PrivateOptimizer = stage.run
        if not len(task.ledger):
            certificate = _certificate_of_nothing(last.adjacency, last.unit)
        else:
            runs = [] if choice is None else list(choice.run.account.runs)
            if stages.score is not None:
                runs += stages.score.account.runs
            certificate = last.certificate(with_runs=runs)
        return certified(
            certificate, task, self._evaluation, **stages.certified, **early
        )


def _certificate_of_nothing(adjacency: str, unit: str) -> Certificate:
    """Return the certificate of a search that has released nothing."""
    return Certificate(
        unit=unit,
        adjacency=adjacency,
        guarantee=None,
        epsilons=dict.fromkeys(_DELTAS, 0.0),
        accountant="nothing was charged",
        assumptions=(WORST_CASE, *OF_TOLD_LOSSES),
        noise=(),
        num_releases=0,
    )
