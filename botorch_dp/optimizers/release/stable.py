"""Releases that hold in the worst case, without an assumption on the data."""

import math
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_count
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.release.scores import METHODS, StableScores
from botorch_dp.optimizers.release.strategy import Release, Released
from botorch_dp.privacy import (
    ApproxDP,
    ExponentialMechanism,
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    PrivacyEvent,
    PureDP,
    SecureNoise,
)
from botorch_dp.privacy.budget import check_gaussian, mean_sensitivity, share_of_a_step

if TYPE_CHECKING:
    from botorch_dp.optimizers.release.private_bo import PrivateBO

# Candidates among which a design is sought: more would not make it better.
_DESIGN_CANDIDATES = 10_000


class StableRelease(Release):
    """Points chosen without private data, and one choice in the end.

    Args:
        run: The optimizer.
        scoring: How candidates are scored: ``"evaluated"``, ``"per-record"`` or
            ``"linear"`` (:mod:`botorch_dp.optimizers.release.scores`); by default
            whichever promises most, from public numbers.
    """

    def __init__(self, run: "PrivateBO", *, scoring: str | None = None) -> None:
        super().__init__(run)
        self._scoring = (
            None if scoring is None else check_choice("scoring", scoring, METHODS)
        )
        self._design = self._choose_design()
        self._start()

    @staticmethod
    def check_guarantee(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
        """Return the guarantee if the exponential mechanism can meet it."""
        if not isinstance(guarantee, PureDP | ApproxDP):
            raise InvalidArgumentError(
                "guarantee must be a PureDP or an ApproxDP, which the exponential "
                f"mechanism can meet (or adaptive=True), got {guarantee!r}."
            )
        return guarantee

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the choice, and of the value if it is released."""
        releases = [(self._chooser.event(), 1)]
        if self._valuer is not None:
            releases.append((self._valuer.event(1), 1))
        return releases

    def next(self, step: int) -> list[int]:
        """Return the next points of the design."""
        size = self.run.batch_size
        return self._design[step * size : (step + 1) * size]

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Remember the losses until the end."""
        # By point: told once more after a failure, losses take the place of the first.
        self._private_losses[tuple(indices)] = private_losses
        return 0.0

    def finish(self) -> Released:
        """Choose a candidate, then release its value."""
        run, told = self.run, self._private_losses
        assert [index for indices in told for index in indices] == self._design
        private = torch.cat([*told.values()], dim=-1)  # n x T
        scores, method = self._scores, self._method
        chooser, valuer = self._chooser, self._valuer
        details = {
            "scoring": method,
            "sensitivity": chooser.sensitivity,
            "scale": chooser.scale,
        }
        if valuer is not None:
            details["value_sensitivity"] = valuer.sensitivity
        ledger = run.account
        chosen = chooser.release(scores.private_scores(method, private), ledger=ledger)
        index, released = int(scores.candidates(method)[chosen]), None
        if valuer is not None:
            loss = scores.private_value(method, private, index).reshape(1)
            released = run.loss_range[0] + float(valuer.release(loss, ledger=ledger))
        self._start()  # forget
        return Released(None if run.what == "value" else index, released, details)

    # From public numbers alone: all that may fail fails before anything is evaluated.
    @cached_property
    def _scores(self) -> StableScores:
        return StableScores(
            self.run.kernel,
            self.run.search_candidates,
            self._design,
            num_records=self.run.num_records,
            width=self.loss_width,
            noise_variance=self.run.noise_variance,
        )

    @cached_property
    def _method(self) -> str:
        epsilon = self._split()[0].to_pure().epsilon
        return self._scoring or self._scores.choose_method(epsilon)

    @cached_property
    def _chooser(self) -> ExponentialMechanism:
        size = self._scores.sensitivity(self._method)
        return ExponentialMechanism(self._split()[0], sensitivity=size, **self.noise)

    @cached_property
    def _valuer(self) -> LaplaceMechanism | GaussianMechanism | None:
        value = self._split()[1]
        if value is None:
            return None
        kind = LaplaceMechanism if isinstance(value, PureDP) else GaussianMechanism
        size = self._scores.value_sensitivity(self._method)
        return kind(value, sensitivity=size, **self.noise)

    def _split(self) -> tuple[Guarantee, Guarantee | None]:
        """Return the shares of the point and of the value."""
        whole = self.run.guarantee
        if self.run.what == "point":
            return whole, None
        if isinstance(whole, PureDP):
            return PureDP(whole.epsilon / 2), PureDP(whole.epsilon / 2)
        assert isinstance(whole, ApproxDP)
        return PureDP(whole.epsilon / 2), ApproxDP(whole.epsilon / 2, whole.delta)

    def _start(self) -> None:
        self._private_losses: dict[tuple[int, ...], Tensor] = {}

    def restore(self, state: dict[str, Any]) -> None:
        """Start over: nothing was released, and the points are the same."""
        del state
        self._start()

    def _choose_design(self) -> list[int]:
        """Return the points to evaluate: each where the others tell least."""
        run = self.run
        points, total = run.search_candidates, run.num_steps * run.batch_size
        size = min(len(points), max(_DESIGN_CANDIDATES, total))
        among = torch.linspace(
            0, len(points) - 1, size, dtype=torch.float64, device=points.device
        ).long()
        posterior = CandidatePosterior(
            run.kernel,
            points[among],
            noise_variance=run.noise_variance,
            max_observations=total,
        )
        chosen: list[int] = []
        seen = torch.zeros_like(posterior.variance, dtype=torch.bool)
        for _ in range(total):
            index = int(posterior.variance.masked_fill(seen, -1.0).argmax())
            seen[index] = True  # never twice
            posterior.observe(index)
            chosen.append(int(among[index]))
        return chosen


class AdaptiveRelease(Release):
    """Every observed mean is released, and UCB acts on what was released."""

    can_go_on: ClassVar[bool] = True

    def __init__(self, run: "PrivateBO") -> None:
        super().__init__(run)
        sensitivity = mean_sensitivity(self.loss_width, run.num_records)
        share = share_of_a_step(
            run.guarantee,
            run.num_steps,
            sensitivity=sensitivity,
            size=1,
            secure=run.secure,
        )
        self._mechanism = GaussianMechanism(
            share, sensitivity=sensitivity, **self.noise
        )
        self.details = {"noise_std": self._mechanism.noise_std}
        self._start()

    @staticmethod
    def check_guarantee(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
        """Return the guarantee if Gaussian noise can meet it."""
        return check_gaussian(guarantee, secure)

    @property
    def is_spent(self) -> bool:
        """Whether all steps have been paid for."""
        return self.run.account.num_charged >= self.run.num_steps

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the cost of a mean, once for each step."""
        return [(self._mechanism.event(1), self.run.num_steps)]

    def num_due(self, num_steps: int) -> int:
        """Return how many charges so many steps must have made."""
        return num_steps

    def next(self, step: int) -> list[int]:
        """Return the candidate with the largest upper confidence bound."""
        width = math.sqrt(self.run.beta) * self._posterior.variance.sqrt()
        return [int((self._posterior.mean + width).argmax())]

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Release the mean loss, and learn from that."""
        private = private_losses.mean(dim=0)
        released = self._mechanism.release(private, ledger=self.run.account)
        self._learn(indices[0], float(released))
        return self._mechanism.noise_std

    def finish(self) -> Released:
        """Choose from what was released: post-processing, at no cost."""
        mean, what = self._posterior.mean, self.run.what
        index = int(mean.argmax())
        return Released(
            None if what == "value" else index,
            None if what == "point" else self.to_loss(float(mean[index])),
        )

    def so_far(self) -> Released | None:
        """Return the best of what was released so far."""
        return self.finish() if self._values else None

    def state(self) -> dict[str, Any]:
        """Return what was released."""
        return {"indices": self._indices, "values": self._values}

    def check_state(self, state: dict[str, Any], num_charged: int) -> None:
        """Raise unless the state can be restored, and every value was paid for."""
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

    def restore(self, state: dict[str, Any]) -> Released | None:
        """Learn again from what was released."""
        self._start()
        for index, value in zip(state["indices"], state["values"], strict=True):
            self._learn(index, value)
        self.run.account.skip_noise(
            self._mechanism, size=1, device=self.run.bounds.device
        )
        return self.finish() if self._values and self.is_spent else None

    def _start(self) -> None:
        noise = (self._mechanism.noise_std / self.run.prior_std) ** 2
        self._indices: list[int] = []
        self._values: list[float] = []
        self._posterior = CandidatePosterior(
            self.run.kernel,
            self.run.search_candidates,
            noise_variance=self.run.noise_variance + noise,
            max_observations=self.run.num_steps,
        )

    def _learn(self, index: int, released: float) -> None:
        self._indices.append(index)
        self._values.append(released)
        self._posterior.observe(index, self.to_gain(released))
