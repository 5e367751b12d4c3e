"""A private choice among candidates by a score that is not a mean over records."""

import hashlib
from typing import Any

import torch
from torch import Generator, Tensor

from botorch_dp._validation import check_instance
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.integrations.sklearn.candidate_scoring import CandidateScoring
from botorch_dp.integrations.sklearn.tally_release import TallyRelease
from botorch_dp.optimizers.core.optimizer import OptimizationResult, Step
from botorch_dp.optimizers.core.private_optimizer import PrivateOptimizer
from botorch_dp.optimizers.core.private_values import Losses
from botorch_dp.optimizers.release.stable import split_budget
from botorch_dp.optimizers.release.strategy import ReleasedCandidate
from botorch_dp.privacy import (
    ApproxDP,
    Guarantee,
    Ledger,
    PermuteAndFlipMechanism,
    PrivacyEvent,
    PureDP,
    SecureNoise,
)
from botorch_dp.privacy.budget import warn_of_large_delta


class TallyChoice(PrivateOptimizer):
    """Evaluates all candidates in one step and releases one of them.

    :meth:`tell` takes a ``2 x k`` tensor, the tally of each of k candidates. The choice
    is made by :class:`~botorch_dp.privacy.PermuteAndFlipMechanism`. It gets the whole
    budget, or half of it if the score is released as well.

    Args:
        candidates: A ``k x d`` tensor.
        scoring: The score, with the classes of the training targets.
        num_records: The number n of private records, or of persons.
        guarantee: The guarantee of all releases together, ``PureDP`` or ``ApproxDP``.
        output: ``"point"``, or ``"both"`` to release the score.
        unit: Who is protected.
        ledger: The ledger to charge.
        generator: A seeded generator of the noise, for experiments only.
        secure: Whether to draw exact discrete noise.
    """

    name = "tally-choice"

    def __init__(
        self,
        *,
        candidates: Tensor,
        scoring: CandidateScoring,
        num_records: int,
        guarantee: Guarantee,
        output: str = "point",
        unit: str = "record",
        ledger: Ledger | None = None,
        generator: Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        check_instance(
            "guarantee",
            guarantee,
            (PureDP, ApproxDP),
            expected="a PureDP or an ApproxDP, which a choice can meet",
        )
        super().__init__(
            bounds=torch.stack([candidates.amin(dim=0), candidates.amax(dim=0)]),
            num_records=num_records,
            num_steps=1,
            transform="identity",
            guarantee=guarantee,
            unit=unit,
            ledger=ledger,
            secure=secure,
            condition=scoring.condition,
        )
        warn_of_large_delta(guarantee, num_records)
        self.candidates, self.output, self._scoring = candidates, output, scoring
        of_choice, of_score = split_budget(guarantee, output)
        self._chooser = PermuteAndFlipMechanism(
            of_choice,
            sensitivity=scoring.sensitivity(num_records),
            generator=generator,
            secure=secure,
            unit=unit,
        )
        self._valuer: TallyRelease | None = None
        if of_score is not None:
            self._valuer = TallyRelease(
                scoring,
                of_score,
                account=self.account,
                num_records=num_records,
                generator=generator,
                secure=secure,
            )
        self._released: ReleasedCandidate | None = None

    @property
    def batch_size(self) -> int:
        """The number of candidates, all of which are evaluated in one step."""
        return len(self.candidates)

    @property
    def done(self) -> bool:
        """Whether the choice has been made, or paid for."""
        return self._released is not None or self.account.num_charged > 0

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the choice, and of the score if it is released."""
        plan = [(self._chooser.event(), 1)]
        if self._valuer is not None:
            plan += self._valuer.planned_releases()
        return plan

    def result(self) -> OptimizationResult:
        """Return what was released, with its certificate."""
        if self._released is None or self._released.index is None:
            raise OptimizerStateError("Nothing was released.")
        x = self.candidates[self._released.index].clone()
        return OptimizationResult(
            x=x,
            average=x,
            history=self.history,
            certificate=self.certificate(),
            value=self._released.value,
            details=self._released.details,
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        candidates = self.candidates.numpy().tobytes()
        return {
            **super().settings(),
            "output": self.output,
            "scoring": repr(self._scoring),
            "sensitivity": self._chooser.sensitivity,
            "num_candidates": len(self.candidates),
            "candidates": hashlib.sha256(candidates).hexdigest()[:16],
        }

    def _propose(self) -> Tensor:
        return self.candidates

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        count = len(self.candidates)
        if not isinstance(losses, Tensor) or losses.shape != (2, count):
            raise InvalidArgumentError(
                f"losses must be a 2 x {count} tensor, a tally for each candidate."
            )
        private_tallies = losses.numpy()
        # Others may have charged since, and a choice without its score is wasted.
        self.account.reserve(self.planned_releases())
        utilities = self._scoring.utilities(private_tallies, self.num_records)
        chosen = self._chooser.release(torch.from_numpy(utilities), ledger=self.account)
        index, value, details = int(chosen), None, {"scale": self._chooser.scale}
        if self._valuer is not None:
            self._valuer.release(losses[:, [index]])
            value = self._valuer.loss
            details["score_noise_std"] = self._valuer.noise_std
        self._released = ReleasedCandidate(index, value, details)
        return Step(number=1, x=self.candidates[-1], num_evaluations=count)

    def _num_due(self, num_steps: int) -> int:
        return num_steps * len(self.planned_releases())

    def _state(self) -> dict[str, Any]:
        released = None if self._released is None else vars(self._released)
        return {**super()._state(), "released": released}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if state["released"] is not None:
            released = ReleasedCandidate(**state["released"])
            released.check(self.output, len(self.candidates))
            if left := self.account.left_of(self.planned_releases(), state["charges"]):
                raise ValueError(f"a release without the charges for {left!r}")

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        released = state["released"]
        self._released = None if released is None else ReleasedCandidate(**released)
        if released is None:
            self._history = []
