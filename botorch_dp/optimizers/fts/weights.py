r"""Weights of agents in the broadcast for each region: public and fixed in advance.

References:
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
        Section 3.2, and the authors' scripts for the schedule.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_count, check_nonnegative, check_tensor
from botorch_dp.exceptions import InvalidArgumentError


@dataclass(frozen=True, eq=False)
class ExplorationWeights:
    r"""Softmax weights that prefer agents which started in a region, less over time.

    In round t, with :math:`a_t` decreasing linearly from ``strength`` to 0, agent n has
    weight :math:`\varphi_n^{(i)} \propto \exp(a_t)` for its own region i and
    :math:`\propto 1` for the others. The weights of a region add up to one over all N
    agents, whether or not they answer. They depend on the round and the assignment,
    never on private data.

    Args:
        assignment: The region of each agent, an ``N`` tensor of whole numbers.
        num_regions: The number of regions P.
        strength: The initial preference a; 15 in the paper.
        hold: The number of rounds before it decreases; 10 in the authors' script.
        fall: The number of rounds in which it decreases to zero; 30 in that script.

    Example:
        >>> weights = ExplorationWeights(torch.tensor([0, 1, 0]), num_regions=2)
        >>> weights(0).round(decimals=3)
        tensor([[0.5000, 0.0000, 0.5000],
                [0.0000, 1.0000, 0.0000]], dtype=torch.float64)
        >>> weights(40)
        tensor([[0.3333, 0.3333, 0.3333],
                [0.3333, 0.3333, 0.3333]], dtype=torch.float64)
    """

    assignment: Tensor
    num_regions: int
    strength: float = 15.0
    hold: int = 10
    fall: int = 30

    def __post_init__(self) -> None:
        check_count("num_regions", self.num_regions)
        check_nonnegative("strength", self.strength)
        check_count("hold", self.hold, minimum=0)
        check_count("fall", self.fall, minimum=0)
        regions = check_tensor("assignment", self.assignment, ("N",), dtype=torch.int64)
        if (regions < 0).any() or (regions >= self.num_regions).any():
            raise InvalidArgumentError(
                f"assignment must be regions from 0 to {self.num_regions - 1}, got "
                f"{regions!r}."
            )

    def preference(self, number: int) -> float:
        """Return :math:`a_t` in a round, starting at 0."""
        past = number - self.hold + 1
        if past <= 0:
            return self.strength
        return self.strength * max(0.0, 1.0 - past / self.fall) if self.fall else 0.0

    def describe(self) -> dict[str, Any]:
        """Return the public parameters as plain values, the assignment as a digest."""
        regions = self.assignment.cpu().numpy().astype("<i8").tobytes()
        return {
            "strength": self.strength,
            "hold": self.hold,
            "fall": self.fall,
            "assignment": hashlib.sha256(regions).hexdigest()[:16],
        }

    def __call__(self, number: int) -> Tensor:
        """Return the ``P x N`` weights of a round, starting at 0."""
        regions = torch.arange(self.num_regions, device=self.assignment.device)
        own = self.assignment == regions.unsqueeze(-1)  # P x N
        return (self.preference(number) * own.double()).softmax(dim=-1)
