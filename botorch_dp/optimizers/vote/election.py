r"""The settings of a vote: public, and the same for all agents and the server.

**Some candidates for each agent.** Training a model for each of m candidates may be too
much for an agent, so it can score s of them. Which ones is drawn from a public seed, so
that all candidates are scored equally often (up to one). The other candidates get the
mean of the agent's marks, so that they neither gain nor lose by it. If marks are linear
in the scores, the expected sum of a candidate's marks is then

.. math::
    \frac{s - 1}{m - 1}\, b_j + \text{const},

where :math:`b_j` is the sum of its marks if all agents score everything: the order of
the candidates does not change, but their distances shrink, and the noise does not. For
ranks the factor is s / m, because a random subset is a random set of opponents. For
:class:`RegretBallot` the order is kept only roughly: the best of a subset is not the
best of all.

Needs torch only, so that a deployed agent starts quickly.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_instance, describe_private
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.vote.ballots import Ballot, RegretBallot

# Sums of this many marks are exact, see MARK_STEP.
_MOST_AGENTS = 2**20
#: Marks are multiples of this, so that sums of them have no rounding error.
MARK_STEP = 2.0**-32
_FIELDS = ("num_agents", "candidates", "ballot", "candidates_per_agent", "seed")


@dataclass(frozen=True)
class Election:
    """The settings that agents and server share.

    None of them may be chosen by looking at the agents' data.

    Args:
        num_agents: The number of agents N.
        candidates: The candidates, as plain values: numbers, lists of numbers, or
            dictionaries such as ``{"C": 1.0}``.
        ballot: How scores become marks.
        candidates_per_agent: The number s of candidates that each agent scores; all by
            default.
        seed: The seed from which it is drawn which ones.

    Example:
        >>> election = Election(100, [{"C": 0.1}, {"C": 1.0}, {"C": 10.0}])
        >>> Election.from_json(election.to_json()) == election
        True
        >>> election.candidates_of(7)
        tensor([0, 1, 2])
    """

    num_agents: int
    candidates: Sequence[Any]
    ballot: Ballot = field(default_factory=RegretBallot)
    candidates_per_agent: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("num_agents", self.num_agents)
        if self.num_agents > _MOST_AGENTS:
            raise InvalidArgumentError(
                f"num_agents must be at most {_MOST_AGENTS}, so that sums of marks are "
                f"exact, got {self.num_agents}."
            )
        object.__setattr__(self, "candidates", _plain(self.candidates))
        check_instance("ballot", self.ballot, Ballot)
        check_count("seed", self.seed, minimum=0)
        if self.candidates_per_agent is not None:
            count = check_count(
                "candidates_per_agent", self.candidates_per_agent, minimum=2
            )
            if count > self.num_candidates:
                raise InvalidArgumentError(
                    f"candidates_per_agent must be at most {self.num_candidates}, the "
                    f"number of candidates, got {count}."
                )

    @property
    def num_candidates(self) -> int:
        """The number of candidates m."""
        return len(self.candidates)

    @property
    def num_scores(self) -> int:
        """The number s of scores of each agent."""
        return self.candidates_per_agent or self.num_candidates

    def assignment(self, device: torch.device | str = "cpu") -> Tensor:
        """Return which candidates each agent scores, ``N x s`` indices: public."""
        size, number = self.num_candidates, self.num_scores
        if number == size:
            return torch.arange(size, device=device).expand(self.num_agents, size)
        generator = torch.Generator(device="cpu").manual_seed(self.seed)
        counts = torch.zeros(size, dtype=torch.float64, device="cpu")
        rows = []
        for _ in range(self.num_agents):
            # Those that were scored least often; a random one of those with equal
            # counts.
            keys = torch.rand(
                size, generator=generator, dtype=torch.float64, device="cpu"
            )
            row = (counts + keys).argsort()[:number].sort().values
            counts[row] += 1
            rows.append(row)
        return torch.stack(rows).to(device)

    def candidates_of(self, agent: int) -> Tensor:
        """Return which candidates an agent scores, ``s`` indices: public."""
        check_count("agent", agent, minimum=0)
        if agent >= self.num_agents:
            raise InvalidArgumentError(
                f"agent must be below num_agents={self.num_agents}, got {agent}."
            )
        return self.assignment()[agent]

    def marks(self, private_scores: Tensor, assignment: Tensor) -> Tensor:
        """Return the marks of all candidates from the scores of some: private.

        Args:
            private_scores: An ``n x s`` tensor of scores, one row for each agent.
            assignment: The candidates that they belong to, ``n x s``.

        Returns:
            An ``n x m`` tensor in double precision. An agent without any finite score
            has only zeros.
        """
        if not isinstance(private_scores, Tensor) or (
            private_scores.shape != assignment.shape
            or not private_scores.is_floating_point()
        ):
            shape = " x ".join(map(str, assignment.shape))
            raise InvalidArgumentError(
                f"scores must be a {shape} tensor of floating point numbers, one for "
                "each agent and candidate that it scores, got "
                f"{describe_private(private_scores)}."
            )
        marks = self.ballot.mark(private_scores)
        others = marks.mean(dim=-1, keepdim=True)
        whole = others.expand(-1, self.num_candidates).clone()
        return whole.scatter_(-1, assignment.to(marks.device), marks)

    def to_json(self) -> str:
        """Return the settings as text."""
        return json.dumps(
            {
                "num_agents": self.num_agents,
                "candidates": list(self.candidates),
                "ballot": self.ballot.to_dict(),
                "candidates_per_agent": self.candidates_per_agent,
                "seed": self.seed,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Election":
        """Return the settings that :meth:`to_json` wrote."""
        try:
            state = json.loads(text)
            if set(state) != set(_FIELDS):
                raise ValueError(f"fields {sorted(state)}")
            return cls(**{**state, "ballot": Ballot.from_dict(state["ballot"])})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidArgumentError(
                f"text must be settings written by to_json(): {error}."
            ) from error


def _plain(candidates: Any) -> tuple[Any, ...]:
    """Return candidates as JSON reads them back."""
    if isinstance(candidates, Tensor):
        candidates = candidates.tolist()
    try:
        plain = json.loads(json.dumps(list(candidates), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "candidates must be plain values (numbers, texts, lists, dictionaries), "
            f"got {candidates!r}: {error}."
        ) from error
    if not plain:
        raise InvalidArgumentError("candidates must not be empty.")
    return tuple(plain)
