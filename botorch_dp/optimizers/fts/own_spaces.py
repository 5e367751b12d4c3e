"""Agents that search a part of the domain: a box of their own.

An agent's box is used by that agent only. The features, the regions and the weights
are those of the whole domain, so that its vector is a message like any other.

Points lie in the unit cube. Needs torch only.
"""

import hashlib

import torch
from torch import Tensor

from botorch_dp._validation import check_inside, check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.fts.regions import SearchDomain

# Points of a finite domain that are this close to a box belong to it.
_ROUNDING = 1e-9


class OwnSpaces:
    """The boxes of some agents.

    Args:
        own_bounds: An ``n x 2 x D`` tensor: the lower and upper corner of each agent's
            box, within the bounds of the domain.
        domain: The domain of all agents.

    Example:
        >>> domain = SearchDomain(torch.tensor([[0.0], [10.0]]))
        >>> spaces = OwnSpaces(torch.tensor([[[0.0], [5.0]], [[4.0], [10.0]]]), domain)
        >>> spaces.place(torch.tensor([[0.5], [0.5]])).squeeze(-1)
        tensor([0.2500, 0.7000])
    """

    def __init__(self, own_bounds: Tensor, domain: SearchDomain) -> None:
        check_tensor("own_bounds", own_bounds, ("n", 2, domain.dim), finite=True)
        check_inside("own_bounds", own_bounds.flatten(0, 1), domain.bounds)
        if (own_bounds[:, 0] > own_bounds[:, 1]).any():
            raise InvalidArgumentError(
                "own_bounds must have lower corners that are not above the upper ones."
            )
        self.boxes = domain.to_unit(own_bounds.to(domain.bounds))
        self.allowed: Tensor | None = None  # n x C
        if domain.candidates is not None:
            lower, upper = self.boxes.unsqueeze(2).unbind(dim=1)  # n x 1 x D
            points = domain.candidates
            inside = points >= lower - _ROUNDING
            inside &= points <= upper + _ROUNDING
            self.allowed = inside.all(dim=-1)
            if not self.allowed.any(dim=-1).all():
                raise InvalidArgumentError(
                    "own_bounds must contain a candidate for each agent: make the "
                    "boxes larger, or add candidates."
                )

    @property
    def fingerprint(self) -> str:
        """A digest of the boxes."""
        array = self.boxes.cpu().double().numpy().astype("<f8")
        return hashlib.sha256(array.tobytes()).hexdigest()

    def place(self, uniforms: Tensor) -> Tensor:
        """Return points at shares of each agent's box, ``n x ... x D``."""
        between = [1] * (uniforms.dim() - 2)
        lower, upper = (
            corner.reshape(len(corner), *between, -1)
            for corner in self.boxes.unbind(dim=1)
        )
        return lower + uniforms * (upper - lower)

    def choose(self, uniforms: Tensor, preferred: Tensor | None = None) -> Tensor:
        """Return random candidates of each agent, ``n x k`` indices.

        Args:
            uniforms: An ``n x k`` tensor of uniform numbers.
            preferred: An ``n x C`` tensor of booleans: the candidates to choose from,
                if an agent has any of them in its box.
        """
        assert self.allowed is not None
        mask = self.allowed
        if preferred is not None:
            both = mask & preferred
            mask = torch.where(both.any(dim=-1, keepdim=True), both, mask)
        count = mask.sum(dim=-1, keepdim=True)
        rank = (uniforms * count).long().minimum(count - 1)  # n x k
        position = mask.long().cumsum(dim=-1)
        return torch.searchsorted(position, rank + 1)

    def within(self, lower: Tensor, upper: Tensor) -> Tensor:
        """Return each agent's part of a region, or its whole box: ``n x 2 x D``.

        Args:
            lower: The ``n x D`` lower corners of the agents' regions.
            upper: Their upper corners.
        """
        low = self.boxes[:, 0].maximum(lower)
        high = self.boxes[:, 1].minimum(upper)
        meets = (low <= high).all(dim=-1)[:, None, None]
        return torch.where(meets, torch.stack([low, high], dim=1), self.boxes)
