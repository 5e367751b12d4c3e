"""A release at the end that holds in the worst case, without an assumption on data."""

import math
from functools import cached_property
from typing import Any

from torch import Tensor

from botorch_dp._validation import check_choice
from botorch_dp.optimizers.core.private_values import PrivateValues
from botorch_dp.optimizers.release.planning import default_evaluations, spread_out
from botorch_dp.optimizers.release.problem import ReleaseProblem
from botorch_dp.optimizers.release.scores import METHODS, StableScores
from botorch_dp.optimizers.release.strategy import ReleasedCandidate, ReleaseStrategy
from botorch_dp.privacy import (
    ApproxDP,
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    PermuteAndFlipMechanism,
    PrivacyEvent,
    PureDP,
)
from botorch_dp.privacy.account import RunAccount


class StableRelease(ReleaseStrategy):
    """Chooses points without private data, and one candidate at the end.

    The points fill the space: on a box they are the starting point and the first points
    of a Sobol sequence, and in a list the ones that are farthest from each other. The
    choice is made by :class:`~botorch_dp.privacy.PermuteAndFlipMechanism`. It gets the
    whole budget, or half of it if the value is released as well.

    Args:
        problem: The public facts about the run.
        account: The account that is charged for every release.
        scoring: How candidates are scored: ``"evaluated"``, ``"per-record"`` or
            ``"linear"`` (:mod:`botorch_dp.optimizers.release.scores`); by default the
            one with the smallest regret in a simulation with public numbers only.
    """

    guarantees = (PureDP, ApproxDP)
    needs = "a PureDP or an ApproxDP, which a choice can meet (or set adaptive=True)"
    outputs = ("point", "both", "value")
    takes_batches = True
    has_start = True

    def __init__(
        self,
        problem: ReleaseProblem,
        account: RunAccount,
        *,
        scoring: str | None = None,
    ) -> None:
        super().__init__(problem, account)
        self._scoring = (
            None if scoring is None else check_choice("scoring", scoring, METHODS)
        )
        self._design = _choose_design(problem)
        self._values = PrivateValues()
        self._rows: dict[int, int] = {}  # from a candidate to the row of its losses

    @classmethod
    def default_evaluations(
        cls, guarantee: Guarantee, output: str, num_records: int
    ) -> int:
        """Return how many points to evaluate by default."""
        choice, _ = split_budget(guarantee, output)
        return default_evaluations(num_records, choice.to_pure().epsilon)

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the choice, and of the value if it is released."""
        releases = [(self._chooser.event(), 1)]
        if self._valuer is not None:
            releases.append((self._valuer.event(1), 1))
        return releases

    def next(self, step: int) -> list[int]:
        """Return the next points of the design."""
        size = self.problem.batch_size
        return self._design[step * size : (step + 1) * size]

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Keep the losses until the end."""
        if not self._rows:
            self._values.reserve(len(self._design), private_losses)
        # After a tell that was refused, the losses of the next one take their place.
        rows = self._values.append(private_losses)
        self._rows.update(zip(indices, rows, strict=True))
        return 0.0

    def finish(self) -> ReleasedCandidate:
        """Choose a candidate, then release its value."""
        rows = [self._rows[index] for index in self._design]
        private = self._values.columns(rows)  # n x T
        scores, method = self._scores, self._method
        chooser, valuer = self._chooser, self._valuer
        details = {
            "scoring": method,
            "sensitivity": chooser.sensitivity,
            "scale": chooser.scale,
        }
        chosen = chooser.release(
            scores.private_scores(method, private), ledger=self.account
        )
        index, value = int(scores.candidates(method)[chosen]), None
        if valuer is not None:
            details["value_sensitivity"] = valuer.sensitivity
            details["value_noise_std"] = (
                valuer.noise_std
                if isinstance(valuer, GaussianMechanism)
                else math.sqrt(2.0) * valuer.scale
            )
            loss = scores.private_value(method, private, index).reshape(1)
            released = float(valuer.release(loss, ledger=self.account))
            value = self.problem.loss_range[0] + released
        return ReleasedCandidate(
            None if self.problem.output == "value" else index, value, details
        )

    # Computed from public numbers, so that an error comes before any evaluation.
    @cached_property
    def _scores(self) -> StableScores:
        return StableScores(
            self.problem.kernel,
            self.problem.candidates,
            self._design,
            num_records=self.problem.num_records,
            width=self.problem.loss_width,
            noise_variance=self.problem.noise_variance,
        )

    @cached_property
    def _method(self) -> str:
        if self._scoring is not None:
            return self._scoring
        epsilon = self._shares[0].to_pure().epsilon
        return self._scores.choose_method(epsilon, self.problem.prior_std)

    @cached_property
    def _chooser(self) -> PermuteAndFlipMechanism:
        size = self._scores.sensitivity(self._method)
        return PermuteAndFlipMechanism(
            self._shares[0], sensitivity=size, **self.problem.noise
        )

    @cached_property
    def _valuer(self) -> LaplaceMechanism | GaussianMechanism | None:
        share = self._shares[1]
        if share is None:
            return None
        kind = LaplaceMechanism if isinstance(share, PureDP) else GaussianMechanism
        size = self._scores.value_sensitivity(self._method)
        return kind(share, sensitivity=size, **self.problem.noise)

    @property
    def _shares(self) -> tuple[Guarantee, Guarantee | None]:
        return split_budget(self.problem.guarantee, self.problem.output)

    def forget(self) -> None:
        """Drop all losses."""
        self._values.forget()
        self._rows.clear()

    def restore(self, state: dict[str, Any]) -> None:
        """Start over: nothing was released, and the points are the same."""
        del state
        self.forget()


def split_budget(whole: Guarantee, output: str) -> tuple[Guarantee, Guarantee | None]:
    """Return the shares of the point and of the value."""
    if output == "point":
        return whole, None
    if isinstance(whole, PureDP):
        return PureDP(whole.epsilon / 2), PureDP(whole.epsilon / 2)
    assert isinstance(whole, ApproxDP)
    return PureDP(whole.epsilon / 2), ApproxDP(whole.epsilon / 2, whole.delta)


def _choose_design(problem: ReleaseProblem) -> list[int]:
    """Return the points to evaluate, which fill the space."""
    total = problem.num_steps * problem.batch_size
    if problem.is_sequence:
        return list(range(total))
    return spread_out(problem.candidates, total, problem.start)
