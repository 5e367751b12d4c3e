"""The base class of surrogates of the gradient at a moving point.

A surrogate gives the points where to evaluate a loss and the weights with which these
losses add up to its gradient. Points and weights are public. Losses are private: they
enter once, linearly, and nothing looks at their values.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from botorch_dp._validation import check_like, check_tensor
from botorch_dp.exceptions import InvalidArgumentError


class GradientSurrogate(ABC):
    """Points around a moving one, and weights for the losses there; batched.

    Geometry is computed in double precision. Results have the dtype of x.

    Args:
        initial_x: A ``batch_shape x p`` tensor: the first point.
    """

    _weights: Tensor  # batch_shape x p x M, set by _move

    def __init__(self, initial_x: Tensor) -> None:
        check_tensor("initial_x", initial_x, ("...", "p"))
        if not initial_x.numel():
            raise InvalidArgumentError(
                f"initial_x must not be empty, got shape {tuple(initial_x.shape)}."
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
    def points_shape(self) -> torch.Size:
        """The shape of :attr:`points`, ``batch_shape x M x p``."""
        return self.points.shape

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
        check_like("x", x, self._shape, self._weights, dtype=self._dtype)
        self._move(self._flat(x))

    def gradient(self, losses: Tensor) -> Tensor:
        """Return the ``batch_shape x p`` gradients: linear in the losses.

        Args:
            losses: A ``batch_shape x M`` tensor: private losses at :attr:`points`.
        """
        shape = self._weights.shape[:-2] + self._weights.shape[-1:]
        if losses.shape != shape:
            raise InvalidArgumentError(
                f"losses must have one value for each point, shape {tuple(shape)}, got "
                f"shape {tuple(losses.shape)}."
            )
        return (self._weights @ losses.unsqueeze(-1)).squeeze(-1)

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return what :meth:`load_state_dict` needs in addition to the current x."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Restore a state, after :meth:`update` with the same x."""
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
