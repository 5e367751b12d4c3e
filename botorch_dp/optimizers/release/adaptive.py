"""A release that publishes every observed mean, so that later points depend on it."""

import math
from typing import Any

from torch import Tensor

from botorch_dp._validation import check_count
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.release.problem import ReleaseProblem
from botorch_dp.optimizers.release.strategy import ReleasedCandidate, ReleaseStrategy
from botorch_dp.privacy import GaussianMechanism, Guarantee, PrivacyEvent, SecureNoise
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.budget import (
    check_gaussian,
    mean_sensitivity,
    share_of_a_step,
)


class AdaptiveRelease(ReleaseStrategy):
    """Releases every observed mean with Gaussian noise, and runs UCB on the releases.

    Args:
        problem: The public facts about the run.
        account: The account that is charged for every release.
    """

    can_resume = True

    def __init__(self, problem: ReleaseProblem, account: RunAccount) -> None:
        super().__init__(problem, account)
        sensitivity = mean_sensitivity(problem.loss_width, problem.num_records)
        share = share_of_a_step(
            problem.guarantee,
            problem.num_steps,
            sensitivity=sensitivity,
            size=1,
            secure=problem.noise["secure"],
        )
        self._mechanism = GaussianMechanism(
            share, sensitivity=sensitivity, **problem.noise
        )
        self.details = {"noise_std": self._mechanism.noise_std}
        self._start()

    @classmethod
    def check_guarantee(cls, guarantee: Guarantee, secure: bool | SecureNoise) -> None:
        """Raise unless Gaussian noise can meet the guarantee."""
        check_gaussian(guarantee, secure)

    @property
    def is_spent(self) -> bool:
        """Whether all steps have been paid for."""
        return self.account.num_known >= self.problem.num_steps

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the cost of a mean, once for each step."""
        return [(self._mechanism.event(1), self.problem.num_steps)]

    def num_due(self, num_steps: int) -> int:
        """Return how many releases ``num_steps`` steps must have been charged for."""
        return num_steps

    def next(self, step: int) -> list[int]:
        """Return the candidate with the largest upper confidence bound."""
        width = math.sqrt(self.problem.beta) * self._posterior.variance.sqrt()
        return [int((self._posterior.mean + width).argmax())]

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Release the mean loss, and learn from the release."""
        private = private_losses.mean(dim=0)
        released = self._mechanism.release(private, ledger=self.account)
        self._learn(indices[0], float(released))
        return self._mechanism.noise_std

    def finish(self) -> ReleasedCandidate:
        """Choose from what was released, which is post-processing and costs nothing."""
        mean, output = self._posterior.mean, self.problem.output
        index = int(mean.argmax())
        return ReleasedCandidate(
            None if output == "value" else index,
            None if output == "point" else self.problem.to_loss(float(mean[index])),
        )

    def so_far(self) -> ReleasedCandidate | None:
        """Return the best of what was released so far, if anything was."""
        return self.finish() if self._values else None

    def state(self) -> dict[str, Any]:
        """Return what was released."""
        return {"indices": self._indices, "values": self._values}

    def check_state(self, state: dict[str, Any], num_charged: int) -> None:
        """Raise unless the state can be restored and every value was paid for."""
        super().check_state(state, num_charged)
        if len(state["indices"]) > num_charged:
            raise ValueError(
                f"{len(state['indices'])} values, but only {num_charged} charges"
            )
        for index, value in zip(state["indices"], state["values"], strict=True):
            if not (
                0 <= check_count("index", index, minimum=0) < len(self._posterior.mean)
                and math.isfinite(value)
            ):
                raise ValueError(f"a value {value!r} at candidate {index!r}")

    def restore(self, state: dict[str, Any]) -> ReleasedCandidate | None:
        """Learn again from what was released."""
        self._start()
        for index, value in zip(state["indices"], state["values"], strict=True):
            self._learn(index, value)
        self.account.skip_noise(
            self._mechanism, size=1, device=self.problem.bounds.device
        )
        return self.finish() if self._values and self.is_spent else None

    def _start(self) -> None:
        noise = (self._mechanism.noise_std / self.problem.prior_std) ** 2
        self._indices: list[int] = []
        self._values: list[float] = []
        self._posterior = CandidatePosterior(
            self.problem.kernel,
            self.problem.candidates,
            noise_variance=self.problem.noise_variance + noise,
            max_observations=self.problem.num_steps,
        )

    def _learn(self, index: int, released: float) -> None:
        self._indices.append(index)
        self._values.append(released)
        self._posterior.observe(index, self.problem.to_gain(released))
