"""What every test problem has: records, candidates, and a loss for each pair of them.

A problem plays the curator: it holds the private records and answers with one loss per
record and candidate. An optimizer of this library takes these losses and lets only the
release of a mechanism out. Everything a problem returns is therefore private, as are
its optimum and its mean loss, which are there to measure how well an optimizer did.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from botorch.exceptions import UnsupportedError
from torch import Tensor

from botorch_dp._validation import check_choice, check_count
from botorch_dp.exceptions import InvalidArgumentError

# From rows to their losses, ``num_rows x b``, at candidates that are fixed already.
RowLosses = Callable[[slice], Tensor]

_TRANSFORMS = ("linear", "log", "identity")
_DTYPES = (torch.float32, torch.float64)
# How far outside the box, in rounding units of its width, is taken for rounding.
_ROUNDING_UNITS = 1000.0
# How many rows the mean over all records takes at a time.
_MEAN_CHUNK_SIZE = 2**16


class PerRecordProblem(ABC):
    """A function to be minimized that is a mean of losses, one per private record.

    A subclass implements :meth:`_loss_function`, and :meth:`_gradients` where a closed
    form exists.

    Args:
        num_records: How many private records there are.
        bounds: A (lower, upper) pair for each dimension, as in BoTorch.
        transform: The coordinates in which each dimension is best searched:
            ``"linear"`` (scaled to the unit interval), ``"log"`` (the logarithm, scaled
            to the unit interval) or ``"identity"`` (as they are).
        negate: If True, the sign of losses, their mean and gradients is flipped.
        dtype: ``torch.float32`` or ``torch.float64``, of candidates and losses.
        device: The device of candidates and losses; torch's default if None.

    Attributes:
        dim: The number of dimensions d.
        bounds: A ``2 x d`` tensor.
        num_records: The number of records n.
        transform: A tuple of d names.
        negate: Whether signs are flipped.
        optimal_x: The minimizer of the mean loss in the box, a ``d`` tensor, or None
            where it is unknown.
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
        if dtype not in _DTYPES:
            raise InvalidArgumentError(
                f"dtype must be torch.float32 or torch.float64, got {dtype!r}."
            )
        self.num_records = check_count("num_records", num_records)
        if device is None:
            device = torch.get_default_device()
        self.bounds = _bounds_tensor(bounds).to(dtype=dtype, device=device)
        self.dim = self.bounds.shape[-1]
        if len(transform) != self.dim:
            raise InvalidArgumentError(
                f"transform must name {self.dim} coordinates, got {transform!r}."
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
        """Return :meth:`losses`, so that a problem is an objective to run on."""
        return self.losses(X)

    def chunks(self, X: Tensor, chunk_size: int) -> Iterator[Tensor]:
        """Return the losses a few records at a time, in the order of :meth:`losses`.

        Whatever the candidates need (a fit, a factorization) is done once, and the
        ``n x b`` tensor of all losses is never formed.

        Args:
            X: A ``b x d`` tensor of candidates within the bounds.
            chunk_size: How many records at a time; the last chunk may have fewer.

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
        """Return the mean loss over all records, without noise of any kind.

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
            UnsupportedError: If the problem has no closed form of it.
        """
        if not isinstance(x, Tensor) or x.shape != (self.dim,):
            got = tuple(x.shape) if isinstance(x, Tensor) else x
            raise InvalidArgumentError(
                f"x must be one point, a tensor of shape ({self.dim},), got {got!r}."
            )
        return self._signed(self._gradients(self._check_candidates(x.unsqueeze(0))[0]))

    @abstractmethod
    def _loss_function(self, X: Tensor) -> RowLosses:
        """Return a function from rows to their losses at X, to be minimized."""

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
        if not isinstance(X, Tensor) or X.dim() != 2 or X.shape[-1] != self.dim:
            got = tuple(X.shape) if isinstance(X, Tensor) else X
            raise InvalidArgumentError(
                f"X must be a b x {self.dim} tensor, got {got!r}."
            )
        if X.shape[0] == 0:
            raise InvalidArgumentError("X must hold at least one candidate (b >= 1).")
        if X.dtype != self.dtype or X.device != self.device:
            raise InvalidArgumentError(
                f"X must be {self.dtype} on {self.device}, got {X.dtype} on {X.device}."
            )
        if not X.isfinite().all():
            raise InvalidArgumentError(f"X must be finite, got {X!r}.")
        lower, upper = self.bounds
        slack = _ROUNDING_UNITS * torch.finfo(self.dtype).eps * (upper - lower)
        if (X.lt(lower - slack) | X.gt(upper + slack)).any():
            raise InvalidArgumentError(
                f"X must lie within the bounds {self.bounds.tolist()}, got "
                f"{X.tolist()}."
            )
        return X.clamp(min=lower, max=upper)


def seeded_generator(seed: int) -> torch.Generator:
    """Return a generator on the CPU, so that a seed gives the same data anywhere."""
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
    """Return ``bounds`` if they have ``dim`` pairs, or as many of the default if None.

    What the pairs are is checked by the problem.
    """
    if bounds is None:
        return [default] * dim
    if len(bounds) != dim:
        raise InvalidArgumentError(f"bounds must have {dim} pairs, got {bounds!r}.")
    return bounds


def _bounds_tensor(bounds: Sequence[tuple[float, float]]) -> Tensor:
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
    return pairs.T.contiguous()
