"""The base class of test problems with one loss for each record and candidate.

A problem plays the curator, who has the private records and returns one loss per record
and candidate. An optimizer of this library uses these losses and only releases the
output of a mechanism. Everything that a problem returns is therefore private. Its
optimum and its mean loss are also private; they measure how good an optimizer is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

import torch
from botorch.exceptions import UnsupportedError
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_tensor
from botorch_dp.exceptions import InvalidArgumentError

# Maps a slice of records to their ``num_rows x b`` losses at fixed candidates.
RowLosses = Callable[[slice], Tensor]

_TRANSFORMS = ("linear", "log", "identity")
_DTYPES = (torch.float32, torch.float64)
# Points this far outside the box, in rounding units of its width, count as inside.
_ROUNDING_UNITS = 1000.0
# The number of records that the mean over all records reads at a time.
_MEAN_CHUNK_SIZE = 2**16


class ProblemSettings(TypedDict, total=False):
    """Keyword arguments that problems pass on to :class:`PerRecordProblem`."""

    negate: bool
    dtype: torch.dtype
    device: torch.device | str | None


class PerRecordProblem(ABC):
    """A function to minimize that is a mean of losses, one per private record.

    A subclass implements :meth:`_loss_function`, and :meth:`_gradients` where a closed
    form exists.

    Args:
        num_records: The number n of private records.
        bounds: A (lower, upper) pair for each dimension, as in BoTorch.
        transform: The best search coordinates of each dimension: ``"linear"`` (scaled
            to the unit interval), ``"log"`` (the logarithm, scaled to the unit
            interval) or ``"identity"`` (unchanged).
        negate: Whether to flip the sign of losses, their mean and gradients.
        dtype: The dtype of candidates and losses, ``torch.float32`` or
            ``torch.float64``.
        device: The device of candidates and losses; torch's default if None.

    Attributes:
        dim: The number of dimensions d.
        bounds: A ``2 x d`` tensor.
        optimal_x: The minimizer of the mean loss in the box, a ``d`` tensor, or None if
            it is unknown.
        optimal_value: The mean loss there (negated if ``negate``), or None.
    """

    def __init__(
        self,
        *,
        num_records: int,
        bounds: Sequence[tuple[float, float]],
        transform: Sequence[str],
        negate: bool = False,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.num_records = check_count("num_records", num_records)
        self.bounds = bounds_tensor(bounds, dtype, device)
        self.dim = self.bounds.shape[-1]
        if len(transform) != self.dim:
            raise InvalidArgumentError(
                f"transform must have {self.dim} names, got {transform!r}."
            )
        self.transform = tuple(
            check_choice("transform", name, _TRANSFORMS) for name in transform
        )
        self.negate = bool(negate)
        self.optimal_x: Tensor | None = None
        self.optimal_value: float | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of candidates and losses."""
        return self.bounds.dtype

    @property
    def device(self) -> torch.device:
        """The device of candidates and losses."""
        return self.bounds.device

    def losses(self, X: Tensor) -> Tensor:
        """Return one loss per record and candidate.

        Args:
            X: A ``b x d`` tensor of candidates within the bounds.

        Returns:
            An ``n x b`` tensor: private.
        """
        rows = self._loss_function(self._check_candidates(X))
        return self._signed(rows(slice(0, self.num_records)))

    def __call__(self, X: Tensor) -> Tensor:
        """Return :meth:`losses`, so that a problem is an objective."""
        return self.losses(X)

    def chunks(self, X: Tensor, chunk_size: int) -> Iterator[Tensor]:
        """Return the losses of a few records at a time, in the order of :meth:`losses`.

        The candidates are fitted once, and the ``n x b`` tensor is never formed.

        Args:
            X: A ``b x d`` tensor of candidates within the bounds.
            chunk_size: The number of records of a chunk; the last one may have fewer.

        Returns:
            An iterator over ``chunk_size x b`` tensors: private.
        """
        check_count("chunk_size", chunk_size)
        rows = self._loss_function(self._check_candidates(X))
        return (
            self._signed(rows(slice(start, min(start + chunk_size, self.num_records))))
            for start in range(0, self.num_records, chunk_size)
        )

    def evaluate_true(self, X: Tensor) -> Tensor:
        """Return the mean loss over all records, without noise.

        Args:
            X: A ``b x d`` tensor of candidates within the bounds.

        Returns:
            A ``b`` tensor: private, for measuring only.
        """
        sums = [chunk.sum(dim=0) for chunk in self.chunks(X, _MEAN_CHUNK_SIZE)]
        return torch.stack(sums).sum(dim=0) / self.num_records

    def gradients(self, x: Tensor) -> Tensor:
        """Return the gradient of each record's loss at one point.

        Args:
            x: A ``d`` tensor within the bounds.

        Returns:
            An ``n x d`` tensor: private.

        Raises:
            UnsupportedError: If the problem has no closed form of its gradients.
        """
        check_tensor("x", x, (self.dim,), dtype=self.dtype, meaning="one point")
        return self._signed(self._gradients(self._check_candidates(x.unsqueeze(0))[0]))

    @abstractmethod
    def _loss_function(self, X: Tensor) -> RowLosses:
        """Return a function from records to their losses at X, without the sign."""

    def _gradients(self, x: Tensor) -> Tensor:
        raise UnsupportedError(
            f"{type(self).__name__} has no closed form of its gradients: use an "
            "optimizer that learns them from losses, such as DP-GIBO."
        )

    def _set_optimum(self, x: Tensor) -> None:
        self.optimal_x = x.to(self.bounds)
        self.optimal_value = float(self.evaluate_true(self.optimal_x.unsqueeze(0)))

    def _signed(self, values: Tensor) -> Tensor:
        return -values if self.negate else values

    def _check_candidates(self, X: Tensor) -> Tensor:
        check_tensor("X", X, ("b", self.dim), dtype=self.dtype)
        return inside_box(X, self.bounds)


def inside_box(X: Tensor, bounds: Tensor) -> Tensor:
    """Return points in a ``2 x d`` box; rounding errors outside are clamped."""
    if X.device != bounds.device:
        raise InvalidArgumentError(f"X must be on {bounds.device}, got {X.device}.")
    lower, upper = bounds
    slack = _ROUNDING_UNITS * torch.finfo(bounds.dtype).eps * (upper - lower)
    if not ((lower - slack <= X) & (upper + slack >= X)).all():
        raise InvalidArgumentError(
            f"X must be finite and within the bounds {bounds.tolist()}, got "
            f"{X.tolist()}."
        )
    return X.clamp(min=lower, max=upper)


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype if it is float32 or float64."""
    if dtype not in _DTYPES:
        raise InvalidArgumentError(
            f"dtype must be torch.float32 or torch.float64, got {dtype!r}."
        )
    return dtype


def seeded_generator(seed: int) -> torch.Generator:
    """Return a generator on the CPU, which gives the same data on all devices."""
    seed = check_count("seed", seed, minimum=0)
    return torch.Generator(device="cpu").manual_seed(seed)


def normal(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw standard normal numbers in double precision on the CPU."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64, device="cpu")


def uniform(*shape: int, generator: torch.Generator) -> Tensor:
    """Draw uniform numbers in [0, 1) in double precision on the CPU."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64, device="cpu")


def check_bounds(
    bounds: Sequence[tuple[float, float]] | None,
    dim: int,
    default: tuple[float, float],
) -> Sequence[tuple[float, float]]:
    """Return ``bounds`` if they have ``dim`` pairs, or default pairs if None."""
    if bounds is None:
        return [default] * dim
    if len(bounds) != dim:
        raise InvalidArgumentError(f"bounds must have {dim} pairs, got {bounds!r}.")
    return bounds


def bounds_tensor(
    bounds: Sequence[tuple[float, float]],
    dtype: torch.dtype,
    device: torch.device | str | None,
) -> Tensor:
    """Return (lower, upper) pairs as a ``2 x d`` tensor."""
    check_dtype(dtype)
    try:
        pairs = torch.tensor(bounds, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        pairs = torch.empty(0, device="cpu")
    if (
        pairs.dim() != 2
        or pairs.shape[0] == 0
        or pairs.shape[1] != 2
        or not pairs.isfinite().all()
        or not (pairs[:, 0] < pairs[:, 1]).all()
    ):
        raise InvalidArgumentError(
            "bounds must be a list of finite (lower, upper) pairs with lower < upper, "
            f"got {bounds!r}."
        )
    if device is None:
        device = torch.get_default_device()
    return pairs.T.contiguous().to(dtype=dtype, device=device)
