"""The box that an optimizer searches, and the coordinates in which it does."""

from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_dp._deprecated import renamed_names
from botorch_dp._validation import check_box, check_choice, check_inside, check_tensor
from botorch_dp.exceptions import InvalidArgumentError

TRANSFORMS = ("linear", "log", "identity")


class SearchBox:
    """Maps a box to search coordinates and back, one dimension at a time.

    * ``"linear"`` maps the interval to [0, 1].
    * ``"log"`` maps its logarithm to [0, 1]; the bounds must be above zero.
    * ``"identity"`` leaves the interval as it is.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        transform: One name for all dimensions, or one for each.

    Attributes:
        bounds: The bounds as given.
        box: The ``2 x d`` bounds in search coordinates.

    Example:
        >>> bounds = torch.tensor([[1e-4, 0.0], [1e0, 10.0]], dtype=torch.float64)
        >>> search_box = SearchBox(bounds, ("log", "linear"))
        >>> search_box.to_search(torch.tensor([0.01, 5.0], dtype=torch.float64))
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    def __init__(
        self, bounds: Tensor, transform: str | Sequence[str] = "linear"
    ) -> None:
        self.bounds = check_box("bounds", bounds)
        names = [transform] * self.dim if isinstance(transform, str) else [*transform]
        if len(names) != self.dim:
            raise InvalidArgumentError(
                f"transform must be one name or {self.dim}, one for each dimension, "
                f"got {transform!r}."
            )
        for name in names:
            check_choice("transform", name, TRANSFORMS)
        self.transform = tuple(names)
        self._log, self._any_log = self._mask("log"), "log" in names
        if (self._log & (self.bounds[0] <= 0)).any():
            raise InvalidArgumentError(
                "bounds must be above 0 where transform is 'log', got "
                f"{self.bounds[0].tolist()}."
            )
        lower, upper = self._take_logs(self.bounds)
        kept = self._mask("identity")
        self._shift = torch.where(kept, torch.zeros_like(lower), lower)
        self._range = torch.where(kept, torch.ones_like(lower), upper - lower)
        self.box = self.to_search(self.bounds)

    @property
    def dim(self) -> int:
        """The number of dimensions d."""
        return self.bounds.shape[-1]

    def on_cpu(self) -> "SearchBox":
        """Return the same box in the memory of the CPU."""
        if self.bounds.device.type == "cpu":
            return self
        return SearchBox(self.bounds.cpu(), self.transform)

    def to_search(self, X: Tensor) -> Tensor:
        """Return ``... x d`` points of the box in search coordinates."""
        return (self._take_logs(X) - self._shift) / self._range

    def from_search(self, U: Tensor) -> Tensor:
        """Return points of the box from their search coordinates."""
        values = U * self._range + self._shift
        if not self._any_log:
            return values.clamp_(min=self.bounds[0], max=self.bounds[1])
        # Only the logarithmic dimensions: in the others the exponential may overflow.
        logs = torch.where(self._log, values, torch.zeros_like(values))
        X = torch.where(self._log, logs.exp(), values)
        # Rounding may have moved a point across a bound.
        return X.clamp(min=self.bounds[0], max=self.bounds[1])

    def slope(self, U: Tensor) -> Tensor:
        """Return the derivative of :meth:`from_search`, which scales gradients."""
        slope = torch.where(self._log, self.from_search(U), torch.ones_like(U))
        return slope * self._range

    def project(self, U: Tensor) -> Tensor:
        """Return the nearest points within the box, in search coordinates."""
        return U.clamp(min=self.box[0], max=self.box[1])

    def check_inside(self, name: str, X: Tensor) -> Tensor:
        """Return a ``d`` tensor if it is a point of the box."""
        check_tensor(name, X, (self.dim,), meaning="one point of the box")
        return check_inside(name, X, self.bounds)

    def _mask(self, name: str) -> Tensor:
        chosen = [name == other for other in self.transform]
        return torch.tensor(chosen, device=self.bounds.device)

    def _take_logs(self, X: Tensor) -> Tensor:
        if not self._any_log:
            return X
        return torch.where(self._log, X.clamp(min=torch.finfo(X.dtype).tiny).log(), X)


__getattr__ = renamed_names(__name__, {"Coordinates": "SearchBox"})
