"""Peek, then pick: noisy values say where to evaluate, an exact choice ends the run."""

import math
from typing import Any

from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_probability
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.core.private_values import PrivateValues
from botorch_dp.optimizers.release.peeking import (
    ThompsonPoints,
    point_of_improvement,
    point_of_upper_bound,
)
from botorch_dp.optimizers.release.planning import default_evaluations, spread_out
from botorch_dp.optimizers.release.problem import ReleaseProblem
from botorch_dp.optimizers.release.strategy import ReleasedCandidate, ReleaseStrategy
from botorch_dp.privacy import (
    GDP,
    RDP,
    ApproxDP,
    GaussianMechanism,
    Guarantee,
    PermuteAndFlipMechanism,
    PrivacyEvent,
    PureDP,
    SecureNoise,
)
from botorch_dp.privacy.account import RunAccount
from botorch_dp.privacy.budget import (
    after_choice,
    check_gaussian,
    mean_sensitivity,
    share_of_a_step,
)

# The default share of the points with a released value, and of the budget for these.
_PEEKS, _PEEK_SHARE = 0.3, 0.55
# The share of the peeks that fill the space before the model chooses.
_FIRST = 1 / 3
_ACQUISITIONS = ("ei", "thompson", "ucb")


class AdaptiveRelease(ReleaseStrategy):
    """Peeks at some means to learn where losses are low, then picks the best point.

    A *peek* releases the mean loss at a point with Gaussian noise. The first peeks fill
    the space, and the others maximize an acquisition function of a Gaussian process
    whose noise is known, by default the expected improvement. Any acquisition function
    will do, because the process only sees what was released. The remaining points are
    the best ones of samples from its posterior, and nothing is released about them. In
    the end, :class:`~botorch_dp.privacy.PermuteAndFlipMechanism` picks one of all
    evaluated points by their exact means. Every point follows from what was released,
    so the points are public.

    The losses are kept until the pick. A run that resumes from a state, which contains
    no losses, asks for all earlier points once more, together with the next one.

    Args:
        problem: The public facts about the run.
        account: The account that is charged for every release.
        num_peeks: The number of peeks, by default 30 % of the steps.
        peek_share: The share of the budget for peeks: of epsilon (``ApproxDP`` and
            ``RDP``) or of mu^2 (``GDP``). If the value is released as well, it gets
            half of the budget.
        acquisition: Where to peek: ``"ei"``, ``"thompson"`` or ``"ucb"``.
    """

    outputs = ("point", "both", "value")
    has_start = True
    can_resume = True

    def __init__(
        self,
        problem: ReleaseProblem,
        account: RunAccount,
        *,
        num_peeks: int | None = None,
        peek_share: float = _PEEK_SHARE,
        acquisition: str = "ei",
    ) -> None:
        super().__init__(problem, account)
        self._acquisition = check_choice("acquisition", acquisition, _ACQUISITIONS)
        self._values = PrivateValues()
        self._rows: dict[int, int] = {}  # from a candidate to the row of its losses
        if num_peeks is None:
            num_peeks = max(1, round(_PEEKS * problem.num_steps))
        self._num_peeks = check_count("num_peeks", num_peeks)
        if num_peeks > problem.num_steps:
            raise InvalidArgumentError(
                f"num_peeks must be at most num_steps={problem.num_steps}, got "
                f"{num_peeks!r}."
            )
        self._set_mechanisms(check_probability("peek_share", peek_share))
        first = math.ceil(_FIRST * self._num_peeks)
        self._first = (
            list(range(first))
            if problem.is_sequence
            else spread_out(problem.candidates, first, problem.start)
        )
        self._thompson: ThompsonPoints | None = None
        self._start()

    def _set_mechanisms(self, peek_share: float) -> None:
        problem, has_value = self.problem, self.problem.output != "point"
        size = mean_sensitivity(problem.loss_width, problem.num_records)
        pick = _share_of_pick(problem.guarantee, peek_share, has_value)
        rest = after_choice(
            problem.guarantee, pick.epsilon, secure=bool(problem.noise["secure"])
        )
        part = GDP(rest.mu * math.sqrt(0.5)) if has_value else rest

        def gaussian(count: int) -> GaussianMechanism:
            share = share_of_a_step(
                part,
                count,
                sensitivity=size,
                size=1,
                secure=problem.noise["secure"],
            )
            return GaussianMechanism(share, sensitivity=size, **problem.noise)

        self._peeker = gaussian(self._num_peeks)
        self._valuer = gaussian(1) if has_value else None
        self._chooser = PermuteAndFlipMechanism(pick, sensitivity=size, **problem.noise)
        self.details = {
            "num_peeks": self._num_peeks,
            "noise_std": self._peeker.noise_std,
            "sensitivity": size,
            "scale": self._chooser.scale,
        }
        if self._valuer is not None:
            self.details["value_noise_std"] = self._valuer.noise_std

    @classmethod
    def check_guarantee(cls, guarantee: Guarantee, secure: bool | SecureNoise) -> None:
        """Raise unless Gaussian noise can meet the guarantee."""
        check_gaussian(guarantee, secure)

    @classmethod
    def default_evaluations(
        cls, guarantee: Guarantee, output: str, num_records: int
    ) -> int:
        """Return how many points to evaluate by default."""
        pick = _share_of_pick(guarantee, _PEEK_SHARE, output != "point")
        return default_evaluations(num_records, pick.epsilon)

    @property
    def is_spent(self) -> bool:
        """Whether any part of the last releases was paid for."""
        return self.account.num_known > self._num_peeks

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the peeks, the pick, and the value if it is released."""
        return [(self._peeker.event(1), self._num_peeks), *self.last_releases()]

    def last_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the pick and of the value."""
        releases = [(self._chooser.event(), 1)]
        if self._valuer is not None:
            releases.append((self._valuer.event(1), 1))
        return releases

    def num_due(self, num_steps: int) -> int:
        """Return how many releases ``num_steps`` steps must have been charged for."""
        if num_steps >= self.problem.num_steps:
            return sum(count for _, count in self.plan())
        return min(num_steps, self._num_peeks)

    def next(self, step: int) -> list[int]:
        """Return the next point, after all points whose losses are lost."""
        known = self._indices[:step]
        point = self._indices[step] if step < len(self._indices) else self._choose()
        return [*(index for index in known if index not in self._rows), point]

    def _choose(self) -> int:
        """Return a point that was not evaluated, from what was released."""
        if self.account.num_known < self._num_peeks:
            left = [index for index in self._first if index not in self._indices]
            if left:
                return left[0]
            if self._peeked and self._acquisition != "thompson":
                return self._peek_at()
        if self._thompson is None:
            total, beta = self.problem.num_steps, self.problem.beta
            self._thompson = ThompsonPoints(self._posterior, total, beta)
        return self._thompson.next(self._released, self._indices)

    def _peek_at(self) -> int:
        """Return the point with the largest value of the acquisition function."""
        posterior, evaluated = self._posterior, self._indices
        if self._acquisition == "ucb":
            return point_of_upper_bound(posterior, self.problem.beta, evaluated)
        return point_of_improvement(posterior, self._peeked, evaluated)

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Keep the losses until the end, and peek at the mean of the last point."""
        if not self._rows:
            self._values.reserve(self.problem.num_steps, private_losses)
        # After a tell that was refused, the losses of the next one take their place.
        rows = self._values.append(private_losses)
        self._rows.update(zip(indices, rows, strict=True))
        if indices[-1] in self._indices:
            return 0.0
        if self.account.num_known >= self._num_peeks:
            self._learn(indices[-1], None)
            return 0.0
        private = private_losses[:, -1:].mean(dim=0)
        released = self._peeker.release(private, ledger=self.account)
        self._learn(indices[-1], float(released))
        return self._peeker.noise_std

    def finish(self) -> ReleasedCandidate:
        """Pick one of all evaluated points, then release its value."""
        rows = [self._rows[index] for index in self._indices]
        private = self._values.columns(rows).mean(dim=0)  # one mean for each point
        position = int(self._chooser.release(-private, ledger=self.account))
        value = None
        if self._valuer is not None:
            mean = private[position].reshape(1)
            released = float(self._valuer.release(mean, ledger=self.account))
            value = self.problem.loss_range[0] + released
        hidden = self.problem.output == "value"
        return ReleasedCandidate(None if hidden else self._indices[position], value)

    def so_far(self) -> ReleasedCandidate | None:
        """Return the best candidate by the peeks so far, at no further cost."""
        if not self._peeked:
            return None
        mean, output = self._posterior.mean, self.problem.output
        index = int(mean.argmax())
        return ReleasedCandidate(
            None if output == "value" else index,
            None if output == "point" else self.problem.to_loss(float(mean[index])),
        )

    def forget(self) -> None:
        """Drop all losses."""
        self._values.forget()
        self._rows.clear()

    def state(self) -> dict[str, Any]:
        """Return the points and what was released about each: a number or None."""
        return {"indices": self._indices, "values": self._released}

    def check_state(self, state: dict[str, Any], num_charged: int) -> None:
        """Raise unless the state can be restored and every value was paid for."""
        super().check_state(state, num_charged)
        indices, values = state["indices"], state["values"]
        num_values = sum(value is not None for value in values)
        if num_values > min(num_charged, self._num_peeks):
            raise ValueError(f"{num_values} values, but only {num_charged} charges")
        if len(indices) > self.problem.num_steps:
            raise ValueError(f"{len(indices)} points in {self.problem.num_steps} steps")
        if len(set(indices)) != len(indices):
            raise ValueError("a point that was evaluated twice")
        for index, value in zip(indices, values, strict=True):
            if not (
                0 <= check_count("index", index, minimum=0) < len(self._posterior.mean)
                and (value is None or math.isfinite(value))
            ):
                raise ValueError(f"a value {value!r} at candidate {index!r}")

    def restore(self, state: dict[str, Any]) -> None:
        """Learn again from what was released."""
        self._start()
        for index, value in zip(state["indices"], state["values"], strict=True):
            self._learn(index, value)
        self.account.skip_noise(self._peeker, size=1, device=self.problem.bounds.device)

    @property
    def _peeked(self) -> list[int]:
        """The candidates about which a value was released."""
        return [index for index, value in self._told if value is not None]

    @property
    def _indices(self) -> list[int]:
        """The candidates that were evaluated, in order."""
        return [index for index, _ in self._told]

    @property
    def _released(self) -> list[float | None]:
        """What was released about each of them."""
        return [value for _, value in self._told]

    def _start(self) -> None:
        self.forget()
        self._told: list[tuple[int, float | None]] = []
        self._thompson = None
        noise = (self._peeker.noise_std / self.problem.prior_std) ** 2
        self._posterior = CandidatePosterior(
            self.problem.kernel,
            self.problem.candidates,
            noise_variance=self.problem.noise_variance + noise,
            max_observations=self._num_peeks,
        )

    def _learn(self, index: int, released: float | None) -> None:
        if released is not None:
            self._posterior.observe(index, self.problem.to_gain(released))
            self._thompson = None
        self._told.append((index, released))  # at once: an interruption may come


def _share_of_pick(guarantee: Guarantee, peek_share: float, has_value: bool) -> PureDP:
    """Return the pure guarantee of the pick."""
    share = (1 - peek_share) * (0.5 if has_value else 1.0)
    if isinstance(guarantee, ApproxDP):
        return PureDP(share * guarantee.epsilon)
    if isinstance(guarantee, RDP):
        return RDP(guarantee.order, share * guarantee.epsilon).to_pure()
    return GDP(guarantee.to_gdp().mu * math.sqrt(share)).to_pure()
