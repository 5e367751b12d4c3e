"""Where federated agents search: a box or a finite set, cut into regions.

Points lie in the unit cube; :class:`SearchDomain` scales them. Everything is public.
Needs torch and numpy only.
"""

import hashlib

import torch
from torch import Tensor

from botorch_dp._validation import (
    check_box,
    check_count,
    check_inside,
    check_tensor,
)


class Regions:
    """The unit cube cut into P boxes of equal volume.

    The prime factors of P go to the dimensions in turn, the largest first: P = 4 cuts
    each of two dimensions in two, or one dimension in four.

    Args:
        dim: The number of dimensions D.
        num_regions: The number of regions P.

    Example:
        >>> regions = Regions(2, 4)
        >>> regions.index(torch.tensor([[0.1, 0.9], [0.9, 0.1]]))
        tensor([1, 2])
        >>> regions.box(1)
        ([0.0, 0.5], [0.5, 1.0])
    """

    def __init__(self, dim: int, num_regions: int) -> None:
        self.dim = check_count("dim", dim)
        self.num_regions = check_count("num_regions", num_regions)
        self.cuts = [1] * dim
        for i, factor in enumerate(_prime_factors(num_regions)):
            self.cuts[i % dim] *= factor

    def index(self, X: Tensor) -> Tensor:
        """Return the region of each row of a ``... x D`` tensor in the unit cube."""
        cuts = torch.tensor(self.cuts, device=X.device)
        cells = (X * cuts).long().clamp(min=0).minimum(cuts - 1)
        index = torch.zeros(X.shape[:-1], dtype=torch.long, device=X.device)
        for j, cut in enumerate(self.cuts):
            index = index * cut + cells[..., j]
        return index

    def box(self, region: int) -> tuple[list[float], list[float]]:
        """Return the lower and upper corner of a region."""
        lower, upper = [], []
        for cut in reversed(self.cuts):
            region, cell = divmod(region, cut)
            lower.append(cell / cut)
            upper.append((cell + 1) / cut)
        return lower[::-1], upper[::-1]


class SearchDomain:
    """A box, or a finite set of candidates in it.

    Args:
        bounds: A ``2 x D`` tensor of lower and upper bounds, which gives dtype and
            device.
        candidates: A ``C x D`` tensor of all points to choose from; None for the box.
    """

    def __init__(self, bounds: Tensor, candidates: Tensor | None = None) -> None:
        self.bounds = check_box("bounds", bounds)
        self.candidates = None
        if candidates is not None:
            check_tensor("candidates", candidates, ("C", self.dim))
            inside = check_inside("candidates", candidates, self.bounds)
            self.candidates = self.to_unit(inside)

    @property
    def dim(self) -> int:
        """The number of dimensions D."""
        return self.bounds.shape[-1]

    @property
    def fingerprint(self) -> str:
        """A digest of bounds and candidates, which is the same for equal domains."""
        digest = hashlib.sha256()
        for tensor in (self.bounds, self.candidates):
            if tensor is not None:
                digest.update(tensor.cpu().double().numpy().astype("<f8").tobytes())
        return digest.hexdigest()

    def to_unit(self, X: Tensor) -> Tensor:
        """Scale points to the unit cube."""
        return (X - self.bounds[0]) / (self.bounds[1] - self.bounds[0])

    def from_unit(self, X: Tensor) -> Tensor:
        """Scale points of the unit cube to the bounds, despite rounding errors."""
        X = self.bounds[0] + X * (self.bounds[1] - self.bounds[0])
        return X.clamp(*self.bounds)


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors of a number, the largest first."""
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return factors[::-1]
