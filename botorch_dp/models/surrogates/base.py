"""What surrogates of the gradient at a moving point have in common.

A surrogate says where to evaluate a loss, and with which weights the losses there add
up to its gradient. Points and weights are public; losses are private, enter once and
linearly, and nothing looks at their values.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_dp.exceptions import InvalidArgumentError


class GradientSurrogate(ABC):
    """Points around a moving one, and weights for the losses there; batched.

    Geometry is in double precision whatever the dtype of x, which is that of all
    results.

    Args:
        initial_x: A ``batch_shape x p`` tensor: where to start.
    """

    _weights: Tensor  # batch_shape x p x M, set by _move

    def __init__(self, initial_x: Tensor) -> None:
        if (
            not isinstance(initial_x, Tensor)
            or initial_x.dtype not in (torch.float32, torch.float64)
            or initial_x.dim() < 1
            or not initial_x.numel()
        ):
            raise InvalidArgumentError(
                "initial_x must be a batch_shape x p tensor of torch.float32 or "
                f"torch.float64, got {initial_x!r}."
            )
        self._shape, self._dtype = initial_x.shape, initial_x.dtype

    @property
    def dim(self) -> int:
        """The number p of dimensions."""
        return self._shape[-1]

    @property
    @abstractmethod
    def points(self) -> Tensor:
        """Where to evaluate, ``batch_shape x M x p``."""

    @property
    @abstractmethod
    def num_points(self) -> Tensor:
        """The ``batch_shape`` numbers of points."""

    @property
    def weights(self) -> Tensor:
        """The ``batch_shape x p x M`` weights of the losses."""
        return self._weights

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Move to ``x``, a ``batch_shape x p`` tensor."""
        if (
            not isinstance(x, Tensor)
            or x.shape != self._shape
            or x.dtype != self._dtype
            or x.device != self._weights.device
        ):
            raise InvalidArgumentError(
                f"x must be a {self._dtype} tensor of shape {tuple(self._shape)} on "
                f"{self._weights.device}, got {describe_tensor(x)}."
            )
        self._move(self._flat(x))

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the ``batch_shape x p`` gradients: linear in the losses.

        Args:
            losses: A ``batch_shape x M`` tensor: private losses at :attr:`points`.
        """
        shape = self._weights.shape[:-2] + self._weights.shape[-1:]
        if losses.shape != shape:
            raise InvalidArgumentError(
                f"losses must have a value for each of the points, {tuple(shape)}, got "
                f"shape {tuple(losses.shape)}."
            )
        return (self._weights @ losses.unsqueeze(-1)).squeeze(-1)

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what :meth:`load_state_dict` needs beside the current point."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Take over a state, after :meth:`update` with the same point."""
        if state_dict:
            raise InvalidArgumentError(
                f"state_dict must be empty for {type(self).__name__}, got "
                f"{sorted(state_dict)}."
            )

    @abstractmethod
    def _move(self, x: Tensor) -> None:
        """Move to a ``B x p`` tensor, and set the weights."""

    def _flat(self, x: Tensor) -> Tensor:
        """Return a copy in double precision, with one batch dimension."""
        return x.detach().reshape(-1, self._shape[-1]).to(torch.float64, copy=True)

    def _shaped(self, flat: Tensor) -> Tensor:
        """Return a result for one batch dimension in the shape and dtype of x."""
        return flat.reshape(self._shape[:-1] + flat.shape[1:]).to(self._dtype)


def describe_tensor(value: object) -> str:
    """Return what an error message says of a tensor: all but its values."""
    if not isinstance(value, Tensor):
        return repr(value)
    return f"{value.dtype} of shape {tuple(value.shape)} on {value.device}"


def check_box(bounds: Tensor, dim: int) -> Tensor:
    """Return the bounds in double precision if they are a ``2 x p`` box."""
    if (
        not isinstance(bounds, Tensor)
        or bounds.shape != (2, dim)
        or not (bounds[0] < bounds[1]).all()
    ):
        raise InvalidArgumentError(
            f"bounds must be a 2 x {dim} tensor of lower and larger upper bounds, got "
            f"{bounds!r}."
        )
    return bounds.detach().double()
