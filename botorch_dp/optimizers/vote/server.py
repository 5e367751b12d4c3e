r"""The server of a vote: adds up the marks of all agents and releases the winner.

**Who is protected.** An agent, with all its data, against everyone who sees the winner.
In a neighbouring vote one agent sends nothing, so that all its marks are zero
(zero-out). The number of agents is public, as are the candidates, the ballot, and who
scores what. Marks lie between 0 and 1, so one agent can only raise the sums, each by at
most 1. Hence permute-and-flip needs no factor of two ([McKenna2020permute]_), and a
vote costs the same however many candidates there are:

.. math::
    \Pr[\text{a candidate that is } t \text{ votes behind wins}] \le e^{-\epsilon t}.

**Whom agents trust** is a choice between three releases:

* ``"server"``: the server sees every ballot and releases the winner, nothing else.
* ``"aggregation"``: each agent adds a share of the noise to its ballot, and a protocol
  for secure aggregation shows the server the sum of all ballots only. The sums of all
  candidates are public, with Gaussian noise. ``num_honest`` agents must add their
  share. Here all of them are played in one process, see
  :class:`~botorch_dp.privacy.SharedGaussianMechanism`.
* ``"nobody"``: each agent adds all the noise that protects it, so that even its own
  ballot may be seen. The noise of the sums is :math:`\sqrt N` times as large.

In the last two, an agent whose marks are zero still sends its noise. If it sent
nothing at all, its absence would show.

Gaussian noise protects all sums together. Its size grows with the norm of a ballot,
hence with the number of candidates. It protects the ballot minus its mean, which
decides the same winner and is at most half as long.

References:
    .. [McKenna2020permute] R. McKenna and D. Sheldon. Permute-and-Flip: A New
        Mechanism for Differentially Private Selection. NeurIPS 2020.
"""

import math
import uuid
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_instance,
    describe_private,
)
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.core.state import Stateful
from botorch_dp.optimizers.vote.election import MARK_STEP, Election
from botorch_dp.privacy import (
    Certificate,
    GaussianMechanism,
    Guarantee,
    Ledger,
    PermuteAndFlipMechanism,
    PrivacyEvent,
    SecureNoise,
    SharedGaussianMechanism,
    clip_rows,
    gaussian_noise_std,
)
from botorch_dp.privacy.account import RunAccount, check_ledger
from botorch_dp.privacy.budget import check_gaussian
from botorch_dp.privacy.certificate import PUBLIC_SETTINGS, WORST_CASE
from botorch_dp.privacy.report import result_card

_TRUST = {
    "server": "central: agents send their marks to a server that is trusted to add "
    "them up, to release the winner alone, and to keep everything else secret",
    "aggregation": "secure aggregation: nobody sees the marks of an agent; at least "
    "{num_honest} agents other than those who try to learn something add their share "
    "of the noise, to one sum only. An agent without marks adds its share as well; "
    "otherwise its absence is not protected",
    "nobody": "local: each agent adds noise to its marks before it sends them. An "
    "agent without marks sends noise alone; otherwise its absence is not protected",
}
TRUST = tuple(_TRUST)
_ASSUMPTIONS = (
    WORST_CASE,
    "the marks of an agent depend on its own data and on public facts, not on other "
    "agents' data: its models were not trained together with others",
    "the number of agents, the candidates and who scores which of them are public",
    PUBLIC_SETTINGS,
)


@dataclass(frozen=True)
class VoteResult:
    """What a vote has decided: public.

    Attributes:
        index: The index of the winner.
        candidate: The winner.
        certificate: What is guaranteed to every agent.
        sums: The sums of all candidates with noise, ``m`` numbers: marks minus the mean
            of each agent. None if only the winner was released.
    """

    index: int
    candidate: Any
    certificate: Certificate
    sums: Tensor | None = None

    def _repr_html_(self) -> str:
        """Return the winner and the certificate, for notebooks."""
        rows = [("winner", str(self.candidate)), ("index", str(self.index))]
        if self.sums is not None:
            sums = ", ".join(f"{one:.4g}" for one in self.sums.tolist())
            rows.append(("sums", sums))
        return result_card("Vote", rows, self.certificate)


class VoteServer(Stateful):
    """Turns the private marks of agents into one winner.

    Args:
        election: The settings that all agents and the server share.
        guarantee: The guarantee of the vote: ``PureDP`` (or another one, which is
            converted) if the server is trusted, and otherwise one that Gaussian noise
            can meet.
        trust: Whom agents trust: ``"server"``, ``"aggregation"`` or ``"nobody"``.
        num_honest: For ``"aggregation"``, the number of agents that surely add their
            share of the noise; two thirds of all by default.
        ledger: The ledger to charge; by default a new one with the guarantee as its
            cap.
        generator: Seeds the noise: for experiments only.
        secure: Whether to draw exact noise; only if the server is trusted.
        device: The device of sums.

    Attributes:
        run_id: The identity of the vote, also after it is resumed.

    Example:
        >>> from botorch_dp import PureDP
        >>> server = VoteServer(Election(100, ["a", "b", "c"]), PureDP(epsilon=1.0))
        >>> marks = torch.tensor([[0.1, 0.9, 0.3]], dtype=torch.float64)
        >>> server.release(marks.expand(100, 3))
        1
        >>> server.result().candidate
        'b'
    """

    name: ClassVar[str] = "private-vote"

    def __init__(
        self,
        election: Election,
        guarantee: Guarantee,
        *,
        trust: str = "server",
        num_honest: int | None = None,
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        device: torch.device | str = "cpu",
    ) -> None:
        self.election = check_instance("election", election, Election)
        self.trust = check_choice("trust", trust, TRUST)
        self.num_honest = self._check_honest(num_honest)
        if trust != "server":
            check_gaussian(guarantee, secure=False)
            if secure:
                raise InvalidArgumentError(
                    f"secure=True is for trust='server', got trust={trust!r}: shares "
                    "of discrete noise do not add up to such noise."
                )
        self.guarantee, self._secure = guarantee, secure
        self._generator, self._device = generator, torch.device(device)
        self._mechanism = self._make_mechanism()
        check_ledger("ledger", ledger, optional=True)
        self.ledger = Ledger(cap=guarantee) if ledger is None else ledger
        self.run_id = uuid.uuid4().hex
        self._account = self._account_of(self.run_id)
        self._winner: int | None = None
        self._sums: Tensor | None = None

    def _check_honest(self, num_honest: int | None) -> int | None:
        if self.trust != "aggregation":
            if num_honest is not None:
                raise InvalidArgumentError(
                    f"num_honest is for trust='aggregation', got trust={self.trust!r}."
                )
            return None
        agents = self.election.num_agents
        if num_honest is None:
            num_honest = math.ceil(2 * agents / 3)
        if check_count("num_honest", num_honest) > agents:
            raise InvalidArgumentError(
                f"num_honest must be at most the number of agents, {agents}, got "
                f"{num_honest}."
            )
        return num_honest

    def _make_mechanism(
        self,
    ) -> PermuteAndFlipMechanism | GaussianMechanism | SharedGaussianMechanism:
        public: dict[str, Any] = {"adjacency": "zero_out", "unit": "agent"}
        if self.trust == "server":
            # Marks are multiples of MARK_STEP up to 1, and sums of them are exact.
            return PermuteAndFlipMechanism(
                self.guarantee,
                sensitivity=1.0,
                monotone=True,
                generator=self._generator,
                secure=self._secure,
                **public,
            )
        num_candidates = self.election.num_candidates
        spread = self.election.ballot.spread(num_candidates)
        if self.num_honest is not None:
            return SharedGaussianMechanism(
                noise_multiplier=gaussian_noise_std(self.guarantee, sensitivity=1.0),
                clip_norm=spread,
                num_entries=num_candidates,
                num_honest=self.num_honest,
                generator=self._generator,
                unit="agent",
            )
        return GaussianMechanism(
            self.guarantee,
            sensitivity=spread,
            generator=self._generator,
            **public,
        )

    @property
    def done(self) -> bool:
        """Whether the vote has been released, or at least paid for."""
        return self._account.num_charged > 0

    @property
    def sums(self) -> Tensor | None:
        """The noisy sums of all candidates: public. None if there are none."""
        return None if self._sums is None else self._sums.clone()

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise in each sum, in votes."""
        if isinstance(self._mechanism, PermuteAndFlipMechanism):
            return self._mechanism.scale  # that of an exponential distribution
        return self._mechanism.noise_std * math.sqrt(self._noise_shares)

    @property
    def _noise_shares(self) -> float:
        """How often the noise that protects one agent is in the sums."""
        if self.trust == "nobody":
            return float(self.election.num_agents)
        assert self.num_honest is not None
        return self.election.num_agents / self.num_honest

    def event(self) -> PrivacyEvent:
        """Return the cost of the vote."""
        return self._mechanism.event(self.election.num_candidates)

    def reserve(self) -> None:
        """Raise unless the ledger can pay for the vote.

        Call it before agents train models.
        """
        if not self.done:
            self._account.reserve([(self.event(), 1)])

    def release(self, private_marks: Tensor) -> int:
        """Charge the ledger, then draw the winner.

        Args:
            private_marks: An ``N x m`` tensor of all agents' marks, with zeros for an
                agent that sent nothing. Marks outside of [0, 1] are clipped, and those
                that are not finite count as 0.

        Returns:
            The index of the winner, which may be published.
        """
        if self.done:
            raise OptimizerStateError(
                "This vote has been paid for and is over: call result(), or hold "
                "another one with a budget of its own."
            )
        shape = (self.election.num_agents, self.election.num_candidates)
        if (
            not isinstance(private_marks, Tensor)
            or private_marks.shape != shape
            or private_marks.dtype not in (torch.float32, torch.float64)
        ):
            raise InvalidArgumentError(
                f"private_marks must be a {shape[0]} x {shape[1]} tensor of float32 or "
                f"float64, got {describe_private(private_marks)}."
            )
        marks = clipped_marks(private_marks.to(self._device))
        if isinstance(self._mechanism, PermuteAndFlipMechanism):
            chosen = self._mechanism.release(marks.sum(dim=0), ledger=self._account)
            self._winner = int(chosen)
        else:
            self._sums = self._noisy_sums(marks, self._mechanism)
            self._winner = int(self._sums.argmax())
        return self._winner

    def _noisy_sums(
        self, marks: Tensor, mechanism: GaussianMechanism | SharedGaussianMechanism
    ) -> Tensor:
        """Return the sums with the noise of all agents together."""
        rows = marks - marks.mean(dim=-1, keepdim=True)
        if isinstance(mechanism, SharedGaussianMechanism):
            return mechanism.release(rows, ledger=self._account)
        # All ballots are one release: an agent moves its own row alone.
        rows = clip_rows(rows, mechanism.sensitivity)
        return mechanism.release(rows, ledger=self._account).sum(dim=0)

    def result(self) -> VoteResult:
        """Return the winner, with its certificate."""
        if self._winner is None:
            raise OptimizerStateError(
                "The vote was paid for, but it was interrupted before a winner was "
                "drawn: hold another one with a budget of its own."
                if self.done
                else "No vote has been held: call release(), or tell()."
            )
        return VoteResult(
            index=self._winner,
            candidate=self.election.candidates[self._winner],
            certificate=self.certificate(),
            sums=self.sums,
        )

    def certificate(self) -> Certificate:
        """Return what is guaranteed to every agent."""
        trust = _TRUST[self.trust].format(num_honest=self.num_honest)
        return Certificate.from_ledger(
            self.ledger,
            unit="agent",
            assumptions=(*_ASSUMPTIONS, trust),
            parameters=self._certified_parameters(),
            runs=self._account.runs,
        )

    def _certified_parameters(self) -> dict[str, Any]:
        honest = {} if self.num_honest is None else {"num_honest": self.num_honest}
        return {
            "method": self.name,
            "num_agents": self.election.num_agents,
            "num_candidates": self.election.num_candidates,
            "candidates_per_agent": self.election.num_scores,
            "ballot": self.election.ballot.to_dict(),
            "trust": self.trust,
            **honest,
            "budget": repr(self.guarantee),
        }

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": self.name,
            "election": self.election.to_json(),
            "guarantee": self.guarantee.to_dict(),
            "trust": self.trust,
            "num_honest": self.num_honest,
        }

    def _state(self) -> dict[str, Any]:
        return {"run_id": self.run_id, "winner": self._winner, "sums": self._sums}

    def _check_state(self, state: dict[str, Any]) -> None:
        winner, sums = state["winner"], state["sums"]
        size = self.election.num_candidates
        charged = self._account_of(state["run_id"]).num_charged
        if winner is None:
            if sums is not None:
                raise ValueError("sums without a winner")
            return
        if check_count("winner", winner, minimum=0) >= size:
            raise ValueError(f"winner {winner} of {size} candidates")
        if (sums is None) != (self.trust == "server"):
            raise ValueError(f"sums for trust={self.trust!r}")
        if sums is not None and (sums.shape != (size,) or not sums.isfinite().all()):
            raise ValueError(f"sums must be {size} finite numbers")
        if not charged:
            raise OptimizerStateError(
                "state_dict has a winner that the ledger was not charged for: open the "
                "ledger that was charged."
            )

    def _restore(self, state: dict[str, Any]) -> None:
        self.run_id, self._account = state["run_id"], self._account_of(state["run_id"])
        self._winner, sums = state["winner"], state["sums"]
        self._sums = None if sums is None else sums.to(self._device)

    def _account_of(self, run_id: str) -> RunAccount:
        return RunAccount(
            self.ledger,
            f"{self.name} {check_instance('run_id', run_id, str)}",
            adjacency=self._mechanism.adjacency,
            unit=self._mechanism.unit,
        )


def clipped_marks(private_marks: Tensor) -> Tensor:
    """Return marks as multiples of ``MARK_STEP`` in [0, 1], in double precision."""
    marks = private_marks.detach().double().nan_to_num(0.0, 0.0, 0.0).clamp(0.0, 1.0)
    return (marks / MARK_STEP).round() * MARK_STEP
