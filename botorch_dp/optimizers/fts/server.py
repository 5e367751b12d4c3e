r"""The server of a federation: noisy weighted sums of the agents' vectors.

In every round each agent sends a sample :math:`\omega_n` of its weights, M numbers. The
server clips each vector to norm :math:`C = S / \sqrt P`. In one release it sends, for
each of the P regions, :math:`\frac1q \sum_{n \in \mathcal S} \varphi_n^{(i)}
\hat\omega_n` plus noise, where :math:`\mathcal S` is a secret sample of agents
([Dai2021dpfts]_, Algorithm 1).

**Who is protected.** An agent, with all its data, against everyone who sees broadcasts.
Weights and noise depend on the number N of agents and on their regions, so these are
public. In a neighbouring federation one agent sends nothing (zero-out), or another
vector (replace-one, for samples of fixed size). Removing an agent altogether would
change the weights and the noise of the others, and is not covered.

**Sensitivity.** An agent's joint contribution to all regions has norm at most
:math:`C \sqrt{\sum_i (\varphi_n^{(i)})^2}`. The largest over all agents is the
sensitivity (``"tight"``). The paper's bound :math:`C \sqrt P \varphi_{\max}`
(``"paper"``) gives up to :math:`\sqrt P` times more noise for the same guarantee.

**Whom agents trust** is a choice between two releases:

* ``"server"``: the server sees every vector, as in the paper.
* ``"aggregation"``: each agent clips, weights and samples its own vector, adds a share
  of the noise, and a protocol for secure aggregation shows the server the sum only.
  ``num_honest`` agents must add their share. The guarantee is the same, and all N
  shares together have :math:`\sqrt{N / \text{num\_honest}}` times the noise. See
  :class:`~botorch_dp.privacy.SharedGaussianMechanism`.

The server broadcasts noise even if the sample is empty. (The authors' scripts then
broadcast a random vector without noise, which reveals that it was empty.)

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

import math
import uuid
from typing import Any, ClassVar

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_choice,
    check_clip_norm,
    check_count,
    check_instance,
    check_positive,
    describe_private,
)
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.optimizers.core.state import Stateful
from botorch_dp.optimizers.fts.honest import check_num_honest
from botorch_dp.optimizers.fts.weights import ExplorationWeights
from botorch_dp.privacy import (
    Certificate,
    Ledger,
    PrivacyEvent,
    SharedGaussianMechanism,
    SubsampledGaussianMechanism,
    clip_rows,
)
from botorch_dp.privacy.account import RunAccount, check_ledger
from botorch_dp.privacy.certificate import WORST_CASE

SENSITIVITIES = ("tight", "paper")
WHOM = ("server", "aggregation")
_TRUST = {
    "server": "central: agents send their vectors to a server that is trusted to clip, "
    "sample and add noise, and to keep samples and vectors secret",
    "aggregation": "secure aggregation: nobody sees the vector of an agent, if the "
    "protocol holds. In every round, at least {num_honest} agents other than those who "
    "try to learn something add their share of the noise, and each adds it to one sum "
    "only. The server sees who takes part",
}
_ASSUMPTIONS = (
    WORST_CASE,
    "the number of agents, their regions and weights are public",
    "what is protected is the contents of broadcasts, not the times at which they come",
    "all settings, including the clip norm, were chosen without private data",
)


class DPFTSServer(Stateful):
    r"""Turns the private vectors of agents into broadcasts.

    Args:
        weights: The weights of the agents by region and round.
        num_features: The number M of entries of a vector.
        clip_norm: The bound S; a vector is clipped to :math:`S / \sqrt P`.
        noise_multiplier: The ratio z of noise to sensitivity.
        sampling_rate: The probability q that an agent is in the sample of a round
            (Poisson sampling).
        sample_size: The size of a uniform sample, instead of ``sampling_rate``; it
            doubles the sensitivity. Only if the server is trusted.
        trust: Whom agents trust: ``"server"`` or ``"aggregation"``.
        num_honest: For ``"aggregation"``, the number of agents that surely add their
            share of the noise in every round; two thirds of all by default.
        sensitivity: ``"tight"`` or ``"paper"``, see above.
        num_rounds: The number of broadcasts.
        ledger: The ledger to charge.
        dtype: The dtype of broadcasts.
        device: The device of broadcasts.
        generator: Seeds noise and samples: for experiments only.

    Attributes:
        run_id: The identity of the run, also after it is resumed.

    Example:
        >>> assignment = torch.arange(100) % 2
        >>> server = DPFTSServer(
        ...     ExplorationWeights(assignment, num_regions=2), num_features=50,
        ...     clip_norm=11.0, noise_multiplier=1.0, sampling_rate=0.25, num_rounds=40,
        ... )
        >>> broadcast = server.release(torch.randn(100, 50, dtype=torch.float64))
        >>> broadcast.shape, server.num_broadcasts
        (torch.Size([2, 50]), 1)
    """

    name: ClassVar[str] = "dp-fts-de"

    def __init__(
        self,
        weights: ExplorationWeights,
        num_features: int,
        *,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float | None = None,
        sample_size: int | None = None,
        trust: str = "server",
        num_honest: int | None = None,
        sensitivity: str = "tight",
        num_rounds: int,
        ledger: Ledger | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
        generator: torch.Generator | None = None,
    ) -> None:
        self.weights = weights
        self.num_agents = len(weights.assignment)
        self.num_regions = weights.num_regions
        self.num_features = check_count("num_features", num_features)
        self.clip_norm = check_clip_norm("clip_norm", clip_norm)
        self.noise_multiplier = check_positive("noise_multiplier", noise_multiplier)
        self.sensitivity = check_choice("sensitivity", sensitivity, SENSITIVITIES)
        self.num_rounds = check_count("num_rounds", num_rounds)
        self.sampling_rate, self.sample_size = sampling_rate, sample_size
        self.trust = check_choice("trust", trust, WHOM)
        self.num_honest = self._check_honest(num_honest)
        check_ledger("ledger", ledger, optional=True)
        self.ledger = Ledger() if ledger is None else ledger
        self._generator = generator
        self._tkwargs: dict[str, Any] = {"dtype": dtype, "device": torch.device(device)}
        self._last: Tensor | None = None
        self._charged: int | None = None  # the round whose sum is not known yet
        self.run_id = uuid.uuid4().hex
        self._account = self._account_of(self.run_id)
        self._reserve()

    def _check_honest(self, num_honest: int | None) -> int | None:
        if self.trust == "server":
            if num_honest is not None:
                raise InvalidArgumentError(
                    f"num_honest is for trust='aggregation', got trust={self.trust!r}."
                )
            return None
        if self.sample_size is not None or self.sampling_rate is None:
            raise InvalidArgumentError(
                "trust='aggregation' needs sampling_rate, because each agent draws for "
                f"itself, got sample_size={self.sample_size!r}."
            )
        return check_num_honest(num_honest, self.num_agents)

    def _reserve(self) -> None:
        """Reserve all rounds, or as many as the cap allows, as one plan."""
        event, num_rounds = self.event(), self.num_rounds
        if not self.ledger.allows(event, num_rounds):
            too_many, num_rounds = num_rounds, 0
            while too_many - num_rounds > 1:
                middle = (too_many + num_rounds) // 2
                if self.ledger.allows(event, middle):
                    num_rounds = middle
                else:
                    too_many = middle
        if not num_rounds and len(self.ledger):
            return  # the ledger may belong to a finished run that is loaded next
        if not num_rounds:
            raise InvalidArgumentError(
                f"ledger must allow at least one broadcast, {event!r}: its cap is "
                f"{self.ledger.cap!r}."
            )
        self._account.reserve([(event, num_rounds)])

    @property
    def num_broadcasts(self) -> int:
        """The number of broadcasts that were released, or at least paid for."""
        return self._account.num_charged

    @property
    def done(self) -> bool:
        """Whether all broadcasts have been released."""
        return self.num_broadcasts >= self.num_rounds

    @property
    def broadcast(self) -> Tensor | None:
        """The last broadcast, ``P x M``; None before the first."""
        return None if self._last is None else self._last.clone()

    @property
    def rate(self) -> float:
        """The expected share of agents in the sample of a round."""
        if self.sampling_rate is not None:
            return self.sampling_rate
        assert self.sample_size is not None
        return self.sample_size / self.num_agents

    def noise_std(self, number: int) -> float:
        """Return the standard deviation of the noise in a round, starting at 0.

        With shares of noise, it is that of the shares of all agents.
        """
        shares = self.num_agents / (self.num_honest or self.num_agents)
        return self._mechanism(number).noise_std * math.sqrt(shares) / self.rate

    def event(self) -> PrivacyEvent:
        """Return the cost of a broadcast, which is the same in every round."""
        return self._mechanism(0).event()

    def release(self, private_messages: Tensor, where: Tensor | None = None) -> Tensor:
        r"""Return the next broadcast ([Dai2021dpfts]_, Algorithm 1, lines 5 to 13).

        With ``trust="aggregation"``, this plays all agents in one process.

        Args:
            private_messages: An ``N x M`` tensor of all agents' vectors, with zeros for
                an agent that sent nothing. A vector that is not finite counts as zero.
            where: For ``"aggregation"``, an ``N`` tensor of booleans: which agents give
                their share, with a vector or without; all if None.

        Returns:
            A ``P x M`` tensor, which may be published.
        """
        number = self._next()
        shape = (self.num_agents, self.num_features)
        if (
            not isinstance(private_messages, Tensor)
            or private_messages.shape != shape
            or private_messages.dtype not in (torch.float32, torch.float64)
        ):
            raise InvalidArgumentError(
                f"private_messages must be a {shape[0]} x {shape[1]} tensor of float32 "
                f"or float64, got {describe_private(private_messages)}."
            )
        messages = private_messages.detach().to(**self._tkwargs)
        rows = self._contributions(messages, number)  # N x (P M)
        if self.trust == "aggregation" and where is not None:
            rows = rows[where]
        total = self._mechanism(number).release(rows, ledger=self._account)
        return self._broadcast(total)

    def share(self, private_message: Tensor, *, agent: int, number: int) -> Tensor:
        """Return what one agent gives to the secure sum of a round: private.

        In a deployment with ``trust="aggregation"``, an agent calls it on a server of
        its own, which has the same settings and is never charged.

        Args:
            private_message: The agent's vector, ``M``.
            agent: The index of the agent.
            number: The index of the round, starting at 0. Call it once for each round:
                two shares of one round protect less than one.

        Returns:
            A ``P M`` tensor of whole numbers (int64).
        """
        mechanism = self._shared_mechanism(number)
        messages = private_message.detach().to(**self._tkwargs).unsqueeze(0)
        return mechanism.shares(self._contributions(messages, number, agent))[0]

    def charge_round(self) -> int:
        """Charge the ledger for the next broadcast, before agents give their shares.

        If their sum then fails, the round is over: it has its cost and no broadcast.

        Returns:
            The index of the round, starting at 0.
        """
        number = self._next()
        self._shared_mechanism(number).charge(self._account)
        self._last, self._charged = None, number
        return number

    def release_sum(self, total: Tensor) -> Tensor:
        """Return the broadcast of the round that was charged last.

        Args:
            total: The sum of the agents' shares modulo 2^64, ``P M``, which a protocol
                for secure aggregation computed.
        """
        if self._charged is None:
            raise OptimizerStateError(
                "release_sum needs a round that was charged: call charge_round() first."
            )
        number, self._charged = self._charged, None
        return self._broadcast(self._shared_mechanism(number).decode(total))

    def _next(self) -> int:
        """Return the index of the next round.

        The ledger counts: another process may have gone on from the same state.
        """
        number = self.num_broadcasts
        if number >= self.num_rounds:
            raise OptimizerStateError(
                f"All {self.num_rounds} broadcasts have been released."
            )
        return number

    def _broadcast(self, total: Tensor) -> Tensor:
        mean = (total / self.rate).reshape(self.num_regions, self.num_features)
        self._last = mean.to(**self._tkwargs)
        return self._last.clone()

    def _contributions(
        self, messages: Tensor, number: int, agent: int | None = None
    ) -> Tensor:
        """Clip the vectors of all agents, or one, and weight them (lines 9 and 10)."""
        clipped = clip_rows(messages, self.clip_norm / math.sqrt(self.num_regions))
        weights = self.weights(number).to(clipped)  # P x N
        if agent is not None:
            weights = weights[:, [agent]]
        return (weights.mT.unsqueeze(-1) * clipped.unsqueeze(1)).flatten(1)

    def _mechanism(
        self, number: int
    ) -> SubsampledGaussianMechanism | SharedGaussianMechanism:
        if self.num_honest is not None and self.sampling_rate is not None:
            return SharedGaussianMechanism(
                noise_multiplier=self.noise_multiplier,
                clip_norm=self.contribution_bound(number),
                num_entries=self.num_regions * self.num_features,
                num_honest=self.num_honest,
                sampling_rate=self.sampling_rate,
                generator=self._generator,
                unit="agent",
            )
        fixed = self.sample_size is not None
        return SubsampledGaussianMechanism(
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.contribution_bound(number),
            sampling_rate=self.sampling_rate,
            sample_size=self.sample_size,
            num_records=self.num_agents if fixed else None,
            generator=self._generator,
            unit="agent",
        )

    def _shared_mechanism(self, number: int) -> SharedGaussianMechanism:
        mechanism = self._mechanism(number)
        if not isinstance(mechanism, SharedGaussianMechanism):
            raise OptimizerStateError(
                f"Shares need trust='aggregation', got trust={self.trust!r}."
            )
        return mechanism

    def contribution_bound(self, number: int) -> float:
        """Return the largest norm that an agent can add to the sum in a round."""
        weights = self.weights(number)
        if self.sensitivity == "paper":
            return float(weights.max()) * self.clip_norm
        largest = float(weights.square().sum(dim=0).max().sqrt())
        # Allows for rounding in the product of a weight and a vector.
        slack = 1.0 + 8.0 * torch.finfo(self._tkwargs["dtype"]).eps
        return largest * self.clip_norm / math.sqrt(self.num_regions) * slack

    def certificate(self, *assumptions: str) -> Certificate:
        """Return what is guaranteed about all broadcasts so far.

        Args:
            assumptions: What the guarantee rests on besides, such as a protocol.
        """
        return Certificate.from_ledger(
            self.ledger,
            unit="agent",
            assumptions=(
                *_ASSUMPTIONS,
                _TRUST[self.trust].format(num_honest=self.num_honest),
                *assumptions,
            ),
            parameters=self.settings(),
            runs=self._account.runs,
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        honest = {} if self.num_honest is None else {"num_honest": self.num_honest}
        return {
            "method": self.name,
            "trust": self.trust,
            **honest,
            "num_agents": self.num_agents,
            "num_regions": self.num_regions,
            "num_features": self.num_features,
            "clip_norm": self.clip_norm,
            "noise_multiplier": self.noise_multiplier,
            "sampling_rate": self.sampling_rate,
            "sample_size": self.sample_size,
            "sensitivity": self.sensitivity,
            "num_rounds": self.num_rounds,
            "weights": self.weights.describe(),
        }

    def _state(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "num_broadcasts": self.num_broadcasts,
            "broadcast": self._last,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        number = check_count("num_broadcasts", state["num_broadcasts"], minimum=0)
        shape, last = (self.num_regions, self.num_features), state["broadcast"]
        if last is not None and (last.shape != shape or not last.isfinite().all()):
            raise OptimizerStateError(
                f"state_dict must have a finite broadcast of shape {shape}."
            )
        charged = self._account_of(state["run_id"]).num_charged
        if charged < number:
            raise OptimizerStateError(
                f"state_dict has {number} broadcasts, but the ledger has only "
                f"{charged} of them: open the ledger that was charged."
            )

    def _restore(self, state: dict[str, Any]) -> None:
        """Rounds that were charged after the state was saved are over."""
        account = self._account_of(state["run_id"])
        if self._generator is not None:
            self._rehearse(range(self.num_broadcasts, account.num_charged))
        self.run_id, self._account = state["run_id"], account
        last = state["broadcast"]
        self._last = None if last is None else last.to(**self._tkwargs)
        self._charged = None

    def _account_of(self, run_id: str) -> RunAccount:
        mechanism = self._mechanism(0)
        return RunAccount(
            self.ledger,
            f"{self.name} {check_instance('run_id', run_id, str)}",
            adjacency=mechanism.adjacency,
            unit=mechanism.unit,
        )

    def _rehearse(self, numbers: range) -> None:
        """Draw the seeded noise of past rounds, so that none of it is used again."""
        size = self.num_regions * self.num_features
        nothing = torch.zeros(self.num_agents, size, **self._tkwargs)
        for number in numbers:
            self._mechanism(number).release(nothing, ledger=Ledger())
