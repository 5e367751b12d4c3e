r"""DP-FTS-DE: private federated Thompson sampling, all agents in one process.

Agents with related functions learn from each other through a trusted server that
releases noisy sums of their messages ([Dai2021dpfts]_, Algorithms 1 and 2). With one
region it is DP-FTS. Agents maximize their scores.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm import tqdm

from botorch_dp._validation import check_count, check_tensor, describe_private
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers.fts.federation import Federation
from botorch_dp.optimizers.fts.late_messages import LastMessages
from botorch_dp.optimizers.fts.private_state import PrivatelyStateful
from botorch_dp.optimizers.fts.server import DPFTSServer
from botorch_dp.privacy import Certificate, Ledger
from botorch_dp.privacy.report import result_card


@dataclass(frozen=True)
class FederatedResult:
    """What a federation has found.

    Attributes:
        broadcasts: All broadcasts, ``T x P x M``: public if the method is private.
        certificate: What is guaranteed to every agent about all broadcasts.
        private_x: The best point of each agent, ``N x D``: private to that agent.
        private_scores: Its score there, ``N``: private to that agent.
        private_best_so_far: The best score of each agent after each step,
            ``(1 + num_steps) x N``: private to the agents.
    """

    broadcasts: Tensor
    certificate: Certificate
    private_x: Tensor
    private_scores: Tensor
    private_best_so_far: Tensor

    def _repr_html_(self) -> str:
        """Return the certificate, for notebooks, and nothing that is private."""
        rounds, regions, features = self.broadcasts.shape
        text = f"{rounds} of {regions} region(s) with {features} features"
        rows = [("broadcasts", text), ("agents", str(len(self.private_x)))]
        return result_card("Federation", rows, self.certificate)


class FederatedSimulation(PrivatelyStateful):
    """All agents of a federation in one process: ask, tell and run.

    Step 0 evaluates initial points, each agent in its own region. Every later step
    evaluates one point per agent. Subclasses define what the agents share in between.
    The state contains the agents' scores, so it is private; the state of a
    :class:`DPFTSServer` may be published.

    Args:
        federation: The settings that all agents share.
        num_steps: The number of steps after step 0.
        candidates: All points to choose from, ``C x D``; the box by default.
        own_bounds: An ``N x 2 x D`` tensor of the boxes in which the agents search, one
            for each; the whole domain by default.
        max_age: For how many rounds the last vector of an agent that does not answer
            still counts; 0 by default, see :class:`LastMessages`.
        seed: The seed of the agents' choices; from the operating system by default.
        dtype: The dtype of points and scores.
        device: The device of points and scores.
    """

    name: ClassVar[str]

    def __init__(
        self,
        federation: Federation,
        *,
        num_steps: int,
        candidates: Tensor | None = None,
        own_bounds: Tensor | None = None,
        max_age: int = 0,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.federation = federation
        self.num_steps = check_count("num_steps", num_steps)
        self._tkwargs: dict[str, Any] = {"dtype": dtype, "device": device}
        self.agents = federation.agents(
            candidates=candidates, own_bounds=own_bounds, seed=seed, **self._tkwargs
        )
        self._late = LastMessages(federation.num_agents, max_age)
        self._number = 0  # the index of the next step
        self._pending: Tensor | None = None
        self._told = False  # whether the agents have the scores of this step
        self._rows: Tensor | None = None  # the vectors of a step that is not finished
        self._broadcasts: list[Tensor] = []
        self._best: list[Tensor] = []

    @property
    def done(self) -> bool:
        """Whether all steps have been taken."""
        return self._number > self.num_steps

    def ask(self) -> Tensor:
        """Return where to evaluate next, ``N x k x D``: row n is for agent n."""
        if self.done:
            raise OptimizerStateError(
                f"All {self.num_steps} steps have been taken: call result()."
            )
        if self._pending is None:
            # Agents follow the broadcast of the previous step only.
            is_new = len(self._broadcasts) == self._number > 0
            broadcast = self._broadcasts[-1] if is_new else None
            self._pending = self.agents.ask(self._number, broadcast)
        return self._pending.clone()  # an objective may write to it

    def tell(
        self,
        scores: Tensor,
        where: Tensor | None = None,
        answers: Tensor | None = None,
    ) -> None:
        """Take the scores of the agents, then broadcast what they share.

        If the broadcast fails, for example because the ledger cannot be written, call
        ``tell`` again. The agents already have the scores, and only the broadcast is
        repeated.

        Args:
            scores: An ``N x k`` tensor: private, maximized.
            where: An ``N`` tensor of booleans: which agents take part in this round;
                all if None. Agents may join late, leave and come back. The vectors of
                those who are away count as zero, or as their last ones (``max_age``).
            answers: An ``N`` tensor of booleans: whose vectors reach the server in
                time; ``where`` if None. An agent learns from its score also if its
                vector is late.
        """
        if self._pending is None:
            raise OptimizerStateError("tell needs points: call ask() first.")
        shape = self._pending.shape[:2]
        if not isinstance(scores, Tensor) or scores.shape != shape:
            raise InvalidArgumentError(
                f"scores must be a tensor of shape {' x '.join(map(str, shape))}, one "
                f"score for each agent and point, got {describe_private(scores)}."
            )
        if where is not None:
            check_tensor("where", where, tuple(shape[:1]), dtype=torch.bool)
        if answers is not None:
            check_tensor("answers", answers, tuple(shape[:1]), dtype=torch.bool)
            answers = answers if where is None else answers & where
        if not self._told:
            self.agents.tell(self._pending, scores, where)
            self._best.append(self.agents.best[1])
            self._told = True
        # No agent would use a broadcast after the last step.
        if self._number < self.num_steps:
            broadcast = self._broadcast(where if answers is None else answers)
            if broadcast is not None:
                self._broadcasts.append(broadcast)
        self._pending, self._told, self._rows = None, False, None
        self._number += 1

    @abstractmethod
    def _broadcast(self, where: Tensor | None) -> Tensor | None:
        """Return the ``P x M`` broadcast after this step; None if there is none.

        Args:
            where: Whose vectors have arrived in this round; all if None.
        """

    def _private_messages(self, where: Tensor | None) -> Tensor:
        """Return the ``N x M`` vectors that count, zero for those who are away."""
        if self._rows is None:  # else a release failed, and is repeated
            messages = self.agents.messages(self._number)
            self._rows = self._late.update(messages, where)
        return self._rows

    @abstractmethod
    def certificate(self) -> Certificate:
        """Return what is guaranteed to every agent."""

    def run(
        self, objective: Callable[[Tensor], Tensor], *, progress: bool = True
    ) -> FederatedResult:
        """Ask and tell until done.

        Args:
            objective: A function from ``N x k x D`` points to ``N x k`` scores.
            progress: Whether to show a progress bar.
        """
        with tqdm(
            total=self.num_steps + 1,
            initial=self._number,
            desc=self.name,
            unit="step",
            disable=not progress,
        ) as bar:
            while not self.done:
                self.tell(objective(self.ask()))
                bar.update()
        return self.result()

    def result(self) -> FederatedResult:
        """Return what has been found so far."""
        if not self._best:
            raise OptimizerStateError("No step has been taken: call run(), or ask().")
        x, scores = self.agents.best
        shape = (0, self.federation.num_regions, self.federation.num_features)
        empty = torch.empty(shape, **self._tkwargs)
        return FederatedResult(
            broadcasts=torch.stack(self._broadcasts) if self._broadcasts else empty,
            certificate=self.certificate(),
            private_x=x,
            private_scores=scores,
            private_best_so_far=torch.stack(self._best),
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "method": self.name,
            "num_steps": self.num_steps,
            "max_age": self._late.max_age,
            "federation": self.federation.to_json(),
        }

    def _state(self) -> dict[str, Any]:
        return {
            "number": self._number,
            "agents": self.agents.private_state_dict(),
            "broadcasts": self._broadcasts,
            "best": self._best,
            "late": self._late.private_state_dict(),
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        number = check_count("number", state["number"], minimum=0)
        shape = (self.federation.num_regions, self.federation.num_features)
        if any(broadcast.shape != shape for broadcast in state["broadcasts"]):
            raise ValueError(f"broadcasts must have shape {shape}")
        if len(state["best"]) != number or len(state["broadcasts"]) > number:
            raise ValueError(f"{len(state['best'])} best scores after {number} steps")
        self.agents.check_state_dict(state["agents"])
        self._late.check_state_dict(state["late"])

    def _restore(self, state: dict[str, Any]) -> None:
        self.agents.load_private_state_dict(state["agents"])
        self._number, self._pending, self._told = state["number"], None, False
        self._rows = None
        self._late.load_private_state_dict(state["late"], self._tkwargs["device"])
        self._broadcasts = [one.to(**self._tkwargs) for one in state["broadcasts"]]
        self._best = [one.to(**self._tkwargs) for one in state["best"]]


class DPFTSDE(FederatedSimulation):
    r"""Private federated Thompson sampling with distributed exploration.

    After ``num_rounds`` broadcasts, or when the ledger's cap allows no more, nothing is
    released. The agents then continue by themselves at no further cost.

    Args:
        federation: The settings that all agents and the server share.
        num_steps: The number of steps after step 0.
        clip_norm: The bound S of the agents' vectors.
        noise_multiplier: The ratio z of noise to sensitivity.
        sampling_rate: The probability q that an agent is in the sample of a round.
        sample_size: The size of a uniform sample, instead of ``sampling_rate``.
        trust: Whom agents trust: ``"server"``, or ``"aggregation"``, where the server
            sees the sums of noisy vectors only, see :class:`DPFTSServer`.
        num_honest: For ``"aggregation"``, the number of agents that surely add their
            share of the noise in every round; two thirds of all by default.
        num_rounds: The number of broadcasts; ``num_steps`` by default.
        sensitivity: ``"tight"`` or ``"paper"``, see :class:`DPFTSServer`.
        candidates: All points to choose from, ``C x D``; the box by default.
        ledger: The ledger to charge.
        seed: The seed of the agents' choices; from the operating system by default.
        generator: Seeds the server's noise and samples: for experiments only.
        dtype: The dtype of points and scores.
        device: The device of points and scores.

    Example:
        >>> federation = Federation(
        ...     num_agents=20, lower=(0.0,), upper=(1.0,), lengthscale=(0.2,),
        ...     num_features=30, num_regions=2, num_initial=3,
        ... )
        >>> opt = DPFTSDE(
        ...     federation, num_steps=3, clip_norm=5.0, noise_multiplier=1.0,
        ...     sampling_rate=0.5,
        ... )
        >>> peaks = torch.linspace(0.4, 0.6, 20, dtype=torch.float64)
        >>> def scores(X):  # from N x k x D points to N x k scores
        ...     return -(X.squeeze(-1) - peaks.unsqueeze(-1)).square()
        >>> result = opt.run(scores, progress=False)
        >>> result.private_x.shape, result.certificate.adjacency
        (torch.Size([20, 1]), 'zero_out')
    """

    name = "dp-fts-de"

    def __init__(
        self,
        federation: Federation,
        *,
        num_steps: int,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float | None = None,
        sample_size: int | None = None,
        trust: str = "server",
        num_honest: int | None = None,
        num_rounds: int | None = None,
        sensitivity: str = "tight",
        candidates: Tensor | None = None,
        own_bounds: Tensor | None = None,
        max_age: int = 0,
        ledger: Ledger | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        if trust == "aggregation" and max_age:
            raise InvalidArgumentError(
                "max_age must be 0 for trust='aggregation', where nobody keeps an "
                f"agent's vector, got {max_age}."
            )
        super().__init__(
            federation,
            num_steps=num_steps,
            candidates=candidates,
            own_bounds=own_bounds,
            max_age=max_age,
            seed=seed,
            dtype=dtype,
            device=device,
        )
        self.server = DPFTSServer(
            federation.weights(device),
            federation.num_features,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            sample_size=sample_size,
            trust=trust,
            num_honest=num_honest,
            sensitivity=sensitivity,
            num_rounds=num_steps if num_rounds is None else num_rounds,
            ledger=ledger,
            generator=generator,
            **self._tkwargs,
        )
        self._exhausted = False

    def _broadcast(self, where: Tensor | None) -> Tensor | None:
        if self._exhausted or self.server.done:
            return None
        try:
            messages = self._private_messages(where)
            if self.server.trust == "server":
                return self.server.release(messages)
            return self.server.release(messages, where)
        except BudgetExceededError:
            self._exhausted = True  # public: it depends on the number of rounds
            return None

    def certificate(self) -> Certificate:
        """Return what is guaranteed to every agent about all broadcasts so far."""
        return self.server.certificate()

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**self.server.settings(), **super().settings()}

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "server": self.server.state_dict()}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        self.server.check_state_dict(state["server"])

    def _restore(self, state: dict[str, Any]) -> None:
        self.server.load_state_dict(state["server"])
        super()._restore(state)
