r"""DP-FTS-DE: private federated Thompson sampling, all agents in one process.

Agents with related functions, each of its own, learn from each other through a trusted
server that releases noisy sums of their beliefs ([Dai2021dpfts]_, Algorithms 1 and 2).
With one region it is DP-FTS, without noise FTS-DE and FTS, without a server Thompson
sampling. Agents maximize their scores.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from tqdm import tqdm

from botorch_dp._validation import check_count, describe_private
from botorch_dp.exceptions import (
    BudgetExceededError,
    InvalidArgumentError,
    OptimizerStateError,
)
from botorch_dp.optimizers.fts.federation import Federation
from botorch_dp.optimizers.fts.server import DPFTSServer
from botorch_dp.privacy import Certificate, Ledger


@dataclass(frozen=True)
class FederatedResult:
    """What a federation has found.

    Attributes:
        broadcasts: All broadcasts, ``T x P x M``: public.
        certificate: What is guaranteed to every agent, of all broadcasts.
        private_x: Each agent's best point, ``N x D``: private to that agent.
        private_scores: Its score there, ``N``: private to that agent.
        private_best_so_far: The best score of each agent after each step,
            ``(1 + num_steps) x N``: private to the agents, for measuring.
    """

    broadcasts: Tensor
    certificate: Certificate
    private_x: Tensor
    private_scores: Tensor
    private_best_so_far: Tensor


class DPFTSDE:
    r"""Private federated Thompson sampling with distributed exploration.

    Step 0 evaluates initial points, each agent in its own region; every later step one
    point an agent. After ``num_rounds`` broadcasts, or when the ledger's cap allows no
    more, nothing is released, and agents go on by themselves, at no further cost.

    Args:
        federation: What all agents and the server agree on.
        num_steps: How many steps after the initial one.
        clip_norm: The bound S of the agents' vectors.
        noise_multiplier: The noise z over the sensitivity.
        sampling_rate: The probability q that an agent counts in a round.
        sample_size: Or the size of a uniform subset.
        num_rounds: How many broadcasts; as many as steps by default.
        sensitivity: ``"tight"`` or ``"paper"``.
        candidates: All points to choose from, ``C x D``; the box by default.
        ledger: What is charged.
        seed: Of agents' choices; drawn from the operating system by default.
        generator: Seeds the server's noise and sample: for experiments only.
        dtype: Of points and scores.
        device: Of points and scores.

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
        >>> def scores(X):  # N x k x D points to N x k scores, each agent its own
        ...     return -(X.squeeze(-1) - peaks.unsqueeze(-1)).square()
        >>> result = opt.run(scores, progress=False)
        >>> result.private_x.shape, result.certificate.adjacency
        (torch.Size([20, 1]), 'zero_out')
    """

    name: ClassVar[str] = "dp-fts-de"

    def __init__(
        self,
        federation: Federation,
        *,
        num_steps: int,
        clip_norm: float,
        noise_multiplier: float,
        sampling_rate: float | None = None,
        sample_size: int | None = None,
        num_rounds: int | None = None,
        sensitivity: str = "tight",
        candidates: Tensor | None = None,
        ledger: Ledger | None = None,
        seed: int | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.federation = federation
        self.num_steps = check_count("num_steps", num_steps)
        self._tkwargs: dict[str, Any] = {"dtype": dtype, "device": device}
        self.agents = federation.agents(
            candidates=candidates, seed=seed, **self._tkwargs
        )
        self.server: DPFTSServer | None = DPFTSServer(
            federation.weights(device),
            federation.num_features,
            clip_norm=clip_norm,
            noise_multiplier=noise_multiplier,
            sampling_rate=sampling_rate,
            sample_size=sample_size,
            sensitivity=sensitivity,
            num_rounds=num_steps if num_rounds is None else num_rounds,
            ledger=ledger,
            generator=generator,
            **self._tkwargs,
        )
        self._begin()

    def _begin(self) -> None:
        self._number = 0  # of the step to be asked for
        self._pending: Tensor | None = None
        self._told = False  # whether the agents know the scores of this step
        self._exhausted = False
        self._broadcasts: list[Tensor] = []
        self._best: list[Tensor] = []

    @property
    def done(self) -> bool:
        """Whether all steps have been taken."""
        return self._number > self.num_steps

    def ask(self) -> Tensor:
        """Return where agents evaluate next, ``N x k x D``: agent n at its own row."""
        if self.done:
            raise OptimizerStateError(
                f"All {self.num_steps} steps have been taken: read result()."
            )
        if self._pending is None:
            broadcast = self._broadcasts[-1] if self._useful() else None
            self._pending = self.agents.ask(self._number, broadcast)
        return self._pending.clone()  # what an objective does to it stays there

    def _useful(self) -> bool:
        """Whether there is a broadcast of the round before to follow."""
        return len(self._broadcasts) == self._number > 0

    def tell(self, scores: Tensor, where: Tensor | None = None) -> None:
        """Take agents' scores, then let the server release a broadcast.

        Should the release fail (a ledger that cannot be written), call it again: the
        scores are known by then, and only the release is repeated.

        Args:
            scores: An ``N x k`` tensor: private, to be maximized.
            where: An ``N`` tensor of booleans: which agents take part in this round;
                all if None. The others' vectors count as zero.
        """
        if self._pending is None:
            raise OptimizerStateError("tell has nothing to answer: call ask() first.")
        shape = self._pending.shape[:2]
        if not isinstance(scores, Tensor) or scores.shape != shape:
            raise InvalidArgumentError(
                f"scores must be a tensor of shape {' x '.join(map(str, shape))}, one "
                f"score for each agent and point, got {describe_private(scores)}."
            )
        if where is not None and (
            where.shape != shape[:1] or where.dtype != torch.bool
        ):
            raise InvalidArgumentError(
                f"where must be a tensor of {shape[0]} booleans, got {where!r}."
            )
        if not self._told:
            self.agents.tell(self._pending, scores, where)
            self._best.append(self.agents.best[1])
            self._told = True
        if self._will_broadcast():
            messages = self.agents.messages(self._number)
            if where is not None:
                messages = messages * where.unsqueeze(-1)
            try:
                self._broadcasts.append(self._release(messages))
            except BudgetExceededError:
                self._exhausted = True  # public: it depends on the number of rounds
        self._pending, self._told = None, False
        self._number += 1

    def _will_broadcast(self) -> bool:
        # What is released after the last step would help nobody.
        assert self.server is not None
        useful = self._number < self.num_steps and not self._exhausted
        return useful and not self.server.done

    def _release(self, private_messages: Tensor) -> Tensor:
        assert self.server is not None
        return self.server.release(private_messages)

    def run(
        self, objective: Callable[[Tensor], Tensor], *, progress: bool = True
    ) -> FederatedResult:
        """Ask and tell until done.

        Args:
            objective: From ``N x k x D`` points to ``N x k`` scores.
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

    def certificate(self) -> Certificate:
        """Return what is guaranteed to every agent."""
        assert self.server is not None
        return self.server.certificate()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the simulation: PRIVATE, it holds agents' scores.

        What may be published is :meth:`DPFTSServer.state_dict`.
        """
        return copy.deepcopy(
            {
                "federation": self.federation.to_json(),
                "number": self._number,
                "agents": self.agents.state_dict(),
                "server": None if self.server is None else self.server.state_dict(),
                "broadcasts": self._broadcasts,
                "best": self._best,
            }
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of a simulation with the same settings."""
        if state_dict["federation"] != self.federation.to_json():
            raise OptimizerStateError("state_dict is of another federation.")
        state = copy.deepcopy(dict(state_dict))
        if self.server is not None:
            self.server.load_state_dict(state["server"])
        self.agents.load_state_dict(state["agents"])
        self._number, self._pending, self._told = state["number"], None, False
        self._broadcasts, self._best = state["broadcasts"], state["best"]
