r"""A private vote of agents in one process.

Many agents tune the same kind of model, each on data of its own. One agent's validation
data is too small to tell good settings from bad ones, but all agents together can: each
scores the candidates on its own data, and they vote. Agents maximize their scores.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_callable, check_tensor
from botorch_dp.exceptions import OptimizerStateError
from botorch_dp.optimizers.vote.ballots import Ballot, RegretBallot
from botorch_dp.optimizers.vote.election import Election
from botorch_dp.optimizers.vote.server import VoteResult, VoteServer
from botorch_dp.privacy import Guarantee, Ledger, SecureNoise


class PrivateVote(VoteServer):
    """Agents choose one of several candidates together, with privacy for each agent.

    Args:
        candidates: The candidates: an ``m x d`` tensor or a list of plain values.
        num_agents: The number of agents N, which is public.
        guarantee: The guarantee of the vote, see :class:`VoteServer`.
        ballot: How scores become marks between 0 and 1.
        candidates_per_agent: The number of candidates that each agent scores; all by
            default.
        trust: Whom agents trust: ``"server"``, ``"aggregation"`` or ``"nobody"``.
        num_honest: The number of agents that surely add their share of the noise, for
            ``trust="aggregation"``.
        seed: The seed from which it is drawn which candidates an agent scores: public.
        ledger: The ledger to charge; by default a new one with the guarantee as its
            cap.
        generator: Seeds the noise: for experiments only.
        secure: Whether to draw exact noise; only if the server is trusted.
        device: The device of scores and sums.

    Example:
        >>> from botorch_dp import PureDP
        >>> vote = PrivateVote(
        ...     [0.01, 0.1, 1.0], num_agents=100, guarantee=PureDP(epsilon=1.0)
        ... )
        >>> accuracies = torch.tensor([0.80, 0.91, 0.85], dtype=torch.float64)
        >>> def scores(indices):  # N x s indices of candidates to N x s scores
        ...     return accuracies[indices]
        >>> result = vote.run(scores)
        >>> result.candidate, result.certificate.adjacency
        (0.1, 'zero_out')
    """

    def __init__(
        self,
        candidates: Sequence[Any] | Tensor,
        *,
        num_agents: int,
        guarantee: Guarantee,
        ballot: Ballot | None = None,
        candidates_per_agent: int | None = None,
        trust: str = "server",
        num_honest: int | None = None,
        seed: int = 0,
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        device: torch.device | str = "cpu",
    ) -> None:
        election = Election(
            num_agents,
            candidates,  # type: ignore[arg-type]  # it makes a list of a tensor
            ballot=RegretBallot() if ballot is None else ballot,
            candidates_per_agent=candidates_per_agent,
            seed=seed,
        )
        super().__init__(
            election,
            guarantee,
            trust=trust,
            num_honest=num_honest,
            ledger=ledger,
            generator=generator,
            secure=secure,
            device=device,
        )
        self._asked: Tensor | None = None

    def ask(self) -> Tensor:
        """Return which candidates each agent has to score: public.

        Returns:
            An ``N x s`` tensor of indices: row n is for agent n.

        Raises:
            BudgetExceededError: If the ledger cannot pay for the vote.
        """
        if self.done:
            raise OptimizerStateError("This vote is over: call result().")
        self.reserve()
        if self._asked is None:
            self._asked = self.election.assignment(self._device)
        return self._asked.clone()

    def tell(self, scores: Tensor, where: Tensor | None = None) -> None:
        """Take the scores of the agents and hold the vote.

        Args:
            scores: An ``N x s`` tensor: private, maximized. A score that is not finite
                counts as the worst.
            where: An ``N`` tensor of booleans: which agents take part; all if None. The
                scores of the others do not count. Who takes part is private as well.
        """
        if self._asked is None:
            raise OptimizerStateError("tell needs an ask() before it.")
        if where is not None:
            size = self.election.num_agents
            check_tensor("where", where, (size,), dtype=torch.bool)
        marks = self.election.marks(scores, self._asked)
        if where is not None:
            marks = marks * where.unsqueeze(-1).to(marks.device)
        self.release(marks)

    def run(self, objective: Callable[[Tensor], Tensor]) -> VoteResult:
        """Ask, tell, and return the winner.

        Args:
            objective: A function from ``N x s`` indices of candidates to ``N x s``
                scores.
        """
        check_callable("objective", objective)
        if not self.done:
            self.tell(objective(self.ask()))
        return self.result()
