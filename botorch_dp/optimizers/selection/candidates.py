"""What a selection draws from: a list, the rows of a tensor, or a box."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp._validation import check_tensor
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.search_box import SearchBox
from botorch_dp.privacy.noise import NoiseSource


class Candidates(ABC):
    """The set from which every run draws its x uniformly."""

    @abstractmethod
    def draw(self, source: NoiseSource, device: torch.device) -> Any:
        """Return one candidate, drawn uniformly.

        Args:
            source: The source of the randomness.
            device: The device on which the source draws.
        """

    @abstractmethod
    def first(self) -> Any:
        """Return the candidate that is released if there is no run."""

    @abstractmethod
    def check(self, name: str, x: Any) -> Any:
        """Return ``x`` if it has the form of a candidate."""

    @abstractmethod
    def describe(self) -> str:
        """Return what is drawn from, in words."""


class FiniteCandidates(Candidates):
    """Candidates with numbers, from 0 to ``size - 1``."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many candidates there are."""

    @abstractmethod
    def at(self, index: int) -> Any:
        """Return the candidate with this number."""

    def features(self) -> Tensor | None:
        """Return an ``m x d`` tensor in [0, 1] that describes the candidates."""
        return None

    def draw(self, source: NoiseSource, device: torch.device) -> Any:
        """Return one candidate, drawn uniformly."""
        uniform = float(source.uniform(torch.Size([]), device))
        return self.at(min(int(uniform * self.size), self.size - 1))

    def first(self) -> Any:
        """Return the first candidate."""
        return self.at(0)


class ListedCandidates(FiniteCandidates):
    """A sequence of any values.

    Every run gets a copy: a run that changes its candidate tells no other run.

    Args:
        items: The candidates.
    """

    def __init__(self, items: Sequence[Any]) -> None:
        try:
            self._items = copy.deepcopy(list(items))
        except TypeError:
            self._items = []
        if not self._items or isinstance(items, (str, bytes, dict)):
            raise InvalidArgumentError(
                "candidates must be a list with at least one candidate or an m x d "
                f"tensor, got {items!r}; for a box give bounds=."
            )

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return len(self._items)

    def at(self, index: int) -> Any:
        """Return the candidate with this number."""
        return copy.deepcopy(self._items[index])

    def check(self, name: str, x: Any) -> Any:
        """Return ``x``, which may be anything."""
        del name
        return x

    def describe(self) -> str:
        """Return what is drawn from, in words."""
        return f"a list of {self.size}"


class CandidateRows(FiniteCandidates):
    """The rows of a tensor.

    Args:
        points: An ``m x d`` tensor, one candidate in each row.
        features: The same points in [0, 1]; by default scaled by their own extremes.
    """

    def __init__(self, points: Tensor, features: Tensor | None = None) -> None:
        check_tensor("candidates", points, ("m", "d"), finite=True)
        self._points, self._features = points.detach().clone(), features

    @property
    def size(self) -> int:
        """How many candidates there are."""
        return len(self._points)

    def at(self, index: int) -> Tensor:
        """Return a copy of a row."""
        return self._points[index].clone()

    def features(self) -> Tensor:
        """Return the points scaled to [0, 1]."""
        if self._features is not None:
            return self._features
        low, high = self._points.amin(dim=0), self._points.amax(dim=0)
        width = torch.where(high > low, high - low, torch.ones_like(low))
        return (self._points - low) / width

    def check(self, name: str, x: Any) -> Tensor:
        """Return ``x`` if it is a ``d`` tensor."""
        check_tensor(name, x, (self._points.shape[-1],), finite=True)
        return x.detach().to(self._points)

    def describe(self) -> str:
        """Return what is drawn from, in words."""
        return f"{self.size} points in {self._points.shape[-1]} dimension(s)"


class CandidateBox(Candidates):
    """The points of a box, uniform in search coordinates.

    Args:
        search_box: The box and its coordinates.
    """

    def __init__(self, search_box: SearchBox) -> None:
        self._search_box = search_box

    def draw(self, source: NoiseSource, device: torch.device) -> Tensor:
        """Return a point, drawn uniformly in search coordinates."""
        uniform = source.uniform(torch.Size([self._search_box.dim]), device)
        return self._point(uniform)

    def first(self) -> Tensor:
        """Return the centre in search coordinates."""
        lower = self._search_box.box[0]
        return self._point(torch.full_like(lower, 0.5, dtype=torch.float64))

    def check(self, name: str, x: Any) -> Tensor:
        """Return ``x`` if it is a point of the box."""
        return self._search_box.check_inside(name, x)

    def describe(self) -> str:
        """Return what is drawn from, in words."""
        return f"a box in {self._search_box.dim} dimension(s)"

    def grid(self, num_points: int) -> CandidateRows:
        """Return Sobol points of the box, the same ones every time.

        Args:
            num_points: How many.
        """
        engine = SobolEngine(self._search_box.dim, scramble=True, seed=0)
        unit = engine.draw(num_points, dtype=torch.float64)
        unit = unit.to(self._search_box.bounds.device)
        return CandidateRows(self._point(unit), unit.to(self._search_box.bounds))

    def _point(self, uniform: Tensor) -> Tensor:
        lower, upper = self._search_box.box
        U = lower + uniform.to(lower) * (upper - lower)
        return self._search_box.from_search(U)


def make_candidates(
    candidates: Sequence[Any] | Tensor | None,
    bounds: Tensor | None,
    transform: str | Sequence[str],
) -> Candidates:
    """Return what to draw from: exactly one of ``candidates`` and ``bounds``."""
    if (candidates is None) == (bounds is None):
        raise InvalidArgumentError(
            "candidates or bounds must be given, and not both: candidates is a list "
            "or an m x d tensor, bounds a 2 x d box."
        )
    if bounds is not None:
        return CandidateBox(SearchBox(bounds, transform))
    if transform != "linear":
        raise InvalidArgumentError(
            f"transform needs bounds=, got {transform!r} with candidates."
        )
    if isinstance(candidates, Tensor):
        return CandidateRows(candidates)
    assert candidates is not None
    return ListedCandidates(candidates)
