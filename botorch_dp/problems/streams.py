"""The base class of streams: one user per step, who has one private record.

In local privacy there is no curator. A user arrives, evaluates its own loss at public
points, sends the release of its mechanism, and leaves. A stream plays the users of many
independent replications of an experiment at once. Everything that it returns is a batch
over replications, and private.

Records are generated on demand and then dropped, so that a stream of a million users
needs no more memory than one of a thousand.
"""

from abc import ABC, abstractmethod
from typing import TypedDict

import numpy as np
import torch
from botorch.exceptions import UnsupportedError
from torch import Tensor

from botorch_dp._validation import check_count, describe
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.problems.base import check_dtype

# The private record of one step: tensors whose first dimension is the replication.
Record = tuple[Tensor, ...]

_WORD = 2**64


class StreamSettings(TypedDict, total=False):
    """Keyword arguments that streams pass on to :class:`StreamProblem`."""

    num_replications: int
    num_steps: int | None
    dtype: torch.dtype
    device: torch.device | str | None


class StreamProblem(ABC):
    """A function to minimize that is an expectation over arriving users.

    A subclass implements :meth:`_chunk`, :meth:`_losses` and :meth:`_gradients`.

    Args:
        dim: The number of parameters p.
        num_replications: The number of independent replications R.
        initial_x: A public point to start from, a ``p`` tensor; zero if None.
        optimal_x: The minimizer of the expected loss, a ``p`` tensor, if known.
        num_steps: The number of users; unlimited if None.
        dtype: The dtype of points and losses, ``torch.float32`` or ``torch.float64``.
        device: The device of points and losses; torch's default if None.

    Attributes:
        optimal_x: The minimizer, or None if it is unknown or moves.
        gradient_bound: A bound on the norm of every user's gradient at any point, up to
            rounding, or None if there is none.
    """

    # The number of steps generated at a time.
    chunk_size = 512

    def __init__(
        self,
        dim: int,
        *,
        num_replications: int = 1,
        initial_x: Tensor | None = None,
        optimal_x: Tensor | None = None,
        num_steps: int | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> None:
        self.dtype = check_dtype(dtype)
        self.dim = check_count("dim", dim)
        self.num_replications = check_count("num_replications", num_replications)
        if num_steps is not None:
            num_steps = check_count("num_steps", num_steps)
        self.num_steps = num_steps
        if device is None:
            device = torch.get_default_device()
        if initial_x is None:
            initial_x = torch.zeros(self.dim, dtype=dtype, device=device)
        self.initial_x = initial_x.to(dtype=dtype, device=device)
        self.device = self.initial_x.device
        self.optimal_x = None if optimal_x is None else optimal_x.to(self.initial_x)
        self.gradient_bound: float | None = None
        self._first_step = 0
        self._records: list[Record] = []

    def losses(self, step: int, X: Tensor) -> Tensor:
        """Return the loss of one step's user at its points.

        Args:
            step: The step, from 1. Any order works; ascending order is fastest.
            X: An ``R x M x p`` tensor of points, M for each replication, or ``M x p``
                for the same points in all of them.

        Returns:
            An ``R x M`` tensor, or ``M`` if there is one replication and X is
            ``M x p``: private.
        """
        if not isinstance(X, Tensor):
            raise self._bad_points("X", X)
        shared = X.dim() == 2
        if shared:
            X = X.expand(self.num_replications, -1, -1)
        shape = X.shape
        if (
            len(shape) != 3
            or shape[0] != self.num_replications
            or shape[2] != self.dim
            or X.dtype != self.dtype
        ):
            raise self._bad_points("X", X)
        losses = self._losses(self._record(step), X)
        return losses.squeeze(0) if shared and self.num_replications == 1 else losses

    def gradients(self, step: int, x: Tensor) -> Tensor:
        """Return the gradient of the loss of one step's user at one point.

        At a kink of the loss, it is a subgradient.

        Args:
            step: The step, from 1.
            x: An ``R x p`` tensor with one point for each replication, or a ``p``
                tensor if there is one replication.

        Returns:
            A tensor like x: private.
        """
        gradients = self._gradients(self._record(step), self._check_point(x))
        return gradients.squeeze(0) if x.dim() == 1 else gradients

    def optimal_x_at(self, step: int) -> Tensor:
        """Return the minimizer of the expected loss at a step, for measuring only.

        Args:
            step: The step, from 1.

        Raises:
            UnsupportedError: If the minimizer is unknown.
        """
        self._check_step(step)
        if self.optimal_x is None:
            raise UnsupportedError(
                f"{type(self).__name__} does not know its optimum. Measure its "
                "parameters in another way, e.g. by their predictions."
            )
        return self.optimal_x

    @abstractmethod
    def _chunk(self, number: int) -> Record:
        """Return the records of the steps after ``number * chunk_size``.

        They are tensors of shape ``chunk_size x R x ...``, the same in every call, and
        may include steps after the last one.
        """

    @abstractmethod
    def _losses(self, record: Record, X: Tensor) -> Tensor:
        """Return the ``R x M`` losses of a record at ``R x M x p`` points."""

    @abstractmethod
    def _gradients(self, record: Record, x: Tensor) -> Tensor:
        """Return the ``R x p`` gradients of a record at ``R x p`` points."""

    def _record(self, step: int) -> Record:
        if type(step) is not int:
            step = self._check_step(step)
        index = step - self._first_step
        if not 0 <= index < len(self._records):
            number = (self._check_step(step) - 1) // self.chunk_size
            # Reading a list is ten times as fast as indexing a tensor.
            parts = [part.unbind(0) for part in self._chunk(number)]
            records = list(zip(*parts, strict=True))
            self._first_step = number * self.chunk_size + 1
            if self.num_steps is not None:
                del records[self.num_steps - self._first_step + 1 :]
            self._records = records
            index = step - self._first_step
        return self._records[index]

    def _check_step(self, step: int) -> int:
        step = check_count("step", step)
        if self.num_steps is not None and step > self.num_steps:
            raise InvalidArgumentError(
                f"step must be at most num_steps, {self.num_steps}, got {step}."
            )
        return step

    def _check_point(self, x: Tensor) -> Tensor:
        """Return x as an ``R x p`` tensor."""
        if not isinstance(x, Tensor):
            raise self._bad_points("x", x)
        point = x.unsqueeze(0) if x.dim() == 1 else x
        if (
            point.shape != (self.num_replications, self.dim)
            or point.dtype != self.dtype
        ):
            raise self._bad_points("x", x)
        return point

    def _bad_points(self, name: str, value: object) -> InvalidArgumentError:
        sizes = f"{self.num_replications} x {self.dim}"
        if name == "X":
            sizes = f"{self.num_replications} x M x {self.dim} or M x {self.dim}"
        return InvalidArgumentError(
            f"{name} must be a {self.dtype} tensor of shape {sizes}, got "
            f"{describe(value)}."
        )


def check_seed(seed: int) -> int:
    """Return ``seed`` if it is a whole number from 0 to below 2^64."""
    seed = check_count("seed", seed, minimum=0)
    if seed >= _WORD:
        raise InvalidArgumentError(f"seed must be below 2^64, got {seed}.")
    return seed


def numbered_generator(seed: int, number: int) -> np.random.Generator:
    """Return generator ``number`` of the family of ``seed``, both below 2^64.

    Each pair is the 128-bit key of a counter-based generator, so no two pairs share a
    sequence. (A torch generator on the CPU only distinguishes 2^32 seeds, so hashed
    pairs would collide.)
    """
    return np.random.Generator(np.random.Philox(key=seed * _WORD + number))


def chunk_normals(
    seed: int, number: int, *, num_replications: int, num_steps: int, size: int
) -> Tensor:
    """Draw the standard normal numbers of a chunk, in double precision on the CPU.

    The numbers of a replication do not depend on the number of replications.

    Args:
        seed: The seed of the stream.
        number: The index of the chunk.
        num_replications: The number of replications.
        num_steps: The number of steps of the chunk.
        size: The number of draws for one record.

    Returns:
        A ``num_steps x num_replications x size`` tensor.
    """
    generator = numbered_generator(seed, number)
    draws = generator.standard_normal((num_replications, num_steps, size))
    return torch.from_numpy(draws).transpose(0, 1).contiguous()
