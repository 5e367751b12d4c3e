"""Federated and local Thompson sampling without privacy.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
"""

import torch
from torch import Tensor

from botorch_dp._validation import check_count
from botorch_dp.optimizers.fts.federation import Federation
from botorch_dp.optimizers.fts.simulation import DPFTSDE
from botorch_dp.privacy import Certificate


class FTSDE(DPFTSDE):
    """Federated Thompson sampling without privacy: every agent counts, as it is.

    With one region it is FTS (as modified by [Dai2021dpfts]_).

    Args:
        federation: What all agents and the server agree on.
        num_steps: How many steps after the initial one.
        candidates: All points to choose from, ``C x D``; the box by default.
        seed: Of agents' choices.
        dtype: Of points and scores.
        device: Of points and scores.
    """

    name = "fts-de"

    def __init__(
        self,
        federation: Federation,
        *,
        num_steps: int,
        candidates: Tensor | None = None,
        seed: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.federation = federation
        self.num_steps = check_count("num_steps", num_steps)
        self._tkwargs = {"dtype": dtype, "device": device}
        self.agents = federation.agents(
            candidates=candidates, seed=seed, **self._tkwargs
        )
        self.server = None
        self._weights = federation.weights(device)
        self._begin()

    def _will_broadcast(self) -> bool:
        return self._number < self.num_steps

    def _release(self, private_messages: Tensor) -> Tensor:
        return self._weights(self._number).to(private_messages) @ private_messages

    def certificate(self) -> Certificate:
        """Return that nothing is guaranteed."""
        return Certificate.not_private(f"{self.name} broadcasts without noise")


class ThompsonSampling(FTSDE):
    """Thompson sampling, every agent for itself: nothing is shared.

    Args are those of :class:`FTSDE`.
    """

    name = "ts"

    def _will_broadcast(self) -> bool:
        return False

    def certificate(self) -> Certificate:
        """Return that nothing is guaranteed, as nothing is released."""
        return Certificate.not_private("agents share nothing and add no noise")
