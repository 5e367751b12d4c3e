r"""Ballots: how an agent turns its scores of candidates into a vote.

An agent has a score for each candidate, where higher is better. Its ballot gives each
candidate a mark between 0 and 1, and the marks of all agents are added up. The bounds
0 and 1 are what privacy rests on. How scores become marks decides how much of the range
is used for differences between candidates, which is all that a vote can be about: if an
agent adds a constant to all its marks, nobody's place changes.

Everything here is private to the agent. A score that is not finite gets the mark 0.
Needs torch only, so that a deployed agent starts quickly.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_positive, check_range
from botorch_dp.exceptions import InvalidArgumentError


@dataclass(frozen=True)
class Ballot(ABC):
    """A public rule that turns scores into marks between 0 and 1.

    Example:
        >>> scores = torch.tensor([[0.750, 0.875, 1.0, 0.5]], dtype=torch.float64)
        >>> RegretBallot(width=0.25).mark(scores)
        tensor([[0.0000, 0.5000, 1.0000, 0.0000]], dtype=torch.float64)
        >>> RankBallot().mark(scores)
        tensor([[0.3333, 0.6667, 1.0000, 0.0000]], dtype=torch.float64)
        >>> ApprovalBallot(num_approved=2).mark(scores)
        tensor([[0., 1., 1., 0.]], dtype=torch.float64)
    """

    def mark(self, private_scores: Tensor) -> Tensor:
        """Return the marks of candidates, which are private.

        Args:
            private_scores: An ``n x s`` tensor, one row for each agent.

        Returns:
            An ``n x s`` tensor in double precision, on the device of the scores.
        """
        scores = private_scores.detach().double()
        finite = scores.isfinite()
        marks = self._mark(scores, finite).clamp(0.0, 1.0)
        # A rule that divides or subtracts may meet numbers beyond the range of doubles.
        return torch.where(finite, marks, 0.0).nan_to_num(0.0, 0.0, 0.0)

    @abstractmethod
    def _mark(self, scores: Tensor, finite: Tensor) -> Tensor:
        """Return marks of the finite scores; those of others do not count."""

    def spread(self, num_candidates: int) -> float:
        r"""Return the norm to which all marks minus their mean are clipped.

        Any m marks between 0 and 1 are within :math:`\sqrt m / 2`, which is attained if
        half of them are 0. Only sums with Gaussian noise need it.
        """
        return math.sqrt(num_candidates) / 2

    def to_dict(self) -> dict[str, Any]:
        """Return the rule as plain values, for JSON."""
        return {"type": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_dict(state: dict[str, Any]) -> "Ballot":
        """Return the rule that :meth:`to_dict` described."""
        kind = _KINDS.get(state.get("type", "")) if isinstance(state, dict) else None
        if kind is None:
            raise InvalidArgumentError(
                f"state must name a ballot ({', '.join(_KINDS)}), got {state!r}."
            )
        values = {key: value for key, value in state.items() if key != "type"}
        if set(values) != {item.name for item in fields(kind)}:
            raise InvalidArgumentError(
                f"state does not fit {kind.__name__}, got {state!r}."
            )
        return kind(**values)


@dataclass(frozen=True)
class ScoreBallot(Ballot):
    """The scores themselves, clipped to a public range.

    Args:
        low: The score that gets the mark 0.
        high: The score that gets the mark 1.
    """

    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        check_range("low and high", (self.low, self.high))

    def _mark(self, scores: Tensor, finite: Tensor) -> Tensor:
        del finite
        return (scores - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class CenteredBallot(Ballot):
    """The scores minus the agent's own mean, clipped.

    Levels differ between agents, but only differences between candidates matter. A
    small width makes these larger.

    Args:
        width: A score that is this far above the mean gets the mark 1, and one that is
            this far below gets the mark 0.
    """

    width: float = 0.1

    def __post_init__(self) -> None:
        check_positive("width", self.width)

    def _mark(self, scores: Tensor, finite: Tensor) -> Tensor:
        count = finite.sum(dim=-1, keepdim=True).clamp(min=1)
        total = torch.where(finite, scores, 0.0).sum(dim=-1, keepdim=True)
        return 0.5 + (scores - total / count) / (2 * self.width)


@dataclass(frozen=True)
class RegretBallot(Ballot):
    """How close each score is to the agent's own best one.

    Args:
        width: A score that is this far below the best gets the mark 0.
    """

    width: float = 0.1

    def __post_init__(self) -> None:
        check_positive("width", self.width)

    def _mark(self, scores: Tensor, finite: Tensor) -> Tensor:
        best = torch.where(finite, scores, -math.inf).amax(dim=-1, keepdim=True)
        return 1.0 - (best - scores) / self.width


@dataclass(frozen=True)
class RankBallot(Ballot):
    """The share of the other candidates that a candidate beats; a tie counts half."""

    def _mark(self, scores: Tensor, finite: Tensor) -> Tensor:
        ordered = torch.where(finite, scores, -math.inf)
        order = ordered.sort(dim=-1).values
        below = torch.searchsorted(order, ordered, side="left").double()
        not_above = torch.searchsorted(order, ordered, side="right").double()
        others = max(1, scores.shape[-1] - 1)
        return (below + (not_above - below - 1) / 2) / others

    def spread(self, num_candidates: int) -> float:
        """Return the norm of the marks 0, 1/(m - 1), ..., 1 minus 1/2."""
        m = num_candidates
        return math.sqrt(m * (m + 1) / (12 * (m - 1))) if m > 1 else 0.5


@dataclass(frozen=True)
class ApprovalBallot(Ballot):
    """The mark 1 for the best candidates, and 0 for the others.

    Candidates with the same score share what is left for them.

    Args:
        num_approved: The number of candidates that get the mark 1.
    """

    num_approved: int = 1

    def __post_init__(self) -> None:
        check_count("num_approved", self.num_approved)

    def _mark(self, scores: Tensor, finite: Tensor) -> Tensor:
        ordered = torch.where(finite, scores, -math.inf)
        order = ordered.sort(dim=-1).values
        size = scores.shape[-1]
        above = size - torch.searchsorted(order, ordered, side="right").double()
        tied = size - torch.searchsorted(order, ordered, side="left").double() - above
        return (self.num_approved - above) / tied

    def spread(self, num_candidates: int) -> float:
        """Return the norm of k ones and m - k zeros, minus their mean."""
        # Fewer are approved if some scores are not finite: half of all is the most.
        m, k = num_candidates, min(self.num_approved, num_candidates / 2)
        return math.sqrt(k * (1 - k / m))


_KINDS: dict[str, type[Ballot]] = {
    kind.__name__: kind
    for kind in (
        ScoreBallot,
        CenteredBallot,
        RegretBallot,
        RankBallot,
        ApprovalBallot,
    )
}
