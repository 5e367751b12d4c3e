r"""Surrogates on fixed random points, for comparison with compressed dictionaries.

Every user evaluates its loss at the same M points Z, drawn once in a box around the
first point, and the gradient at a moving point x is W times these losses
([LDPBO2025]_, section D.4 and Table 9: M = 128). This needs no search and no state, but
the points do not follow x, and in many dimensions all of them are far from it.

Points, features and weights are public.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression. Section D.4.
    .. [Rahimi2007random] A. Rahimi and B. Recht. Random Features for Large-Scale Kernel
        Machines. NeurIPS 2007.
    .. [Williams2001nystrom] C. K. I. Williams and M. Seeger. Using the Nystrom Method
        to Speed Up Kernel Machines. NeurIPS 2001.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import (
    check_box,
    check_count,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models.kernels.closed_forms import rbf_profile
from botorch_dp.models.kernels.covariances import Covariances, default_gradient_kernel
from botorch_dp.models.kernels.describe import describe_kernel
from botorch_dp.models.kernels.radial import radial_kernel
from botorch_dp.models.surrogates.base import GradientSurrogate
from botorch_dp.models.surrogates.wasserstein import public_generator


class _FixedSurrogate(GradientSurrogate):
    """Fixed points, shared by the batch, with weights that depend on where x is."""

    @torch.no_grad()
    def __init__(
        self,
        initial_x: Tensor,
        *,
        num_points: int = 128,
        half_width: float = 2.0,
        bounds: Tensor | None = None,
        kernel: Kernel | None = None,
        noise_variance: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(initial_x)
        x = self._flat(initial_x)
        half_width = check_positive("half_width", half_width)
        if bounds is None:
            lower, upper = x.amin(dim=0) - half_width, x.amax(dim=0) + half_width
        else:
            lower, upper = check_box("bounds", bounds, dim=self.dim).to(x)
        self.box = torch.stack([lower, upper])
        check_tensor("The box around initial_x", self.box, finite=True)
        self.seed = check_count("seed", seed, minimum=0)
        self._generator = public_generator(seed, purpose=type(self).__name__)
        uniform = torch.rand(
            check_count("num_points", num_points),
            self.dim,
            generator=self._generator,
            dtype=x.dtype,
            device="cpu",
        ).to(x.device)
        self._points = lower + (upper - lower) * uniform  # M x p
        kernel = default_gradient_kernel(x) if kernel is None else kernel
        self._covariances = Covariances(kernel, x)
        if noise_variance is None:
            noise_variance = 1e-6 * float(self._covariances.variance(x[:1]))
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self._prepare()
        self._move(x)

    @property
    def points(self) -> Tensor:
        """Where to evaluate, ``batch_shape x M x p``: the same for the whole batch."""
        points = self._points.to(self._dtype, copy=True)
        return points.expand(*self._shape[:-1], *points.shape)

    @property
    def num_points(self) -> Tensor:
        """The number of points of each element of the batch."""
        number = len(self._points)
        return torch.full(self._shape[:-1], number, device=self._points.device)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "surrogate": type(self).__name__,
            "num_points": len(self._points),
            "box": self.box.tolist(),
            "kernel": describe_kernel(self._covariances.kernel),
            "noise_variance": self.noise_variance,
            "seed": self.seed,
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, which may be published: the current x."""
        return {"x": self._shaped(self._x).clone()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Continue from the state of a surrogate with the same settings."""
        self.update(state_dict["x"].to(self._weights))

    def _move(self, x: Tensor) -> None:
        self._x, self._weights = x, self._shaped(self._weights_at(x))

    @abstractmethod
    def _prepare(self) -> None:
        """Compute what does not depend on x."""

    @abstractmethod
    def _weights_at(self, x: Tensor) -> Tensor:
        """Return the ``B x p x M`` weights at ``B x p`` x."""


class NystromSurrogate(_FixedSurrogate):
    r"""The exact posterior given values at fixed points Z.

    The weights are :math:`W = \nabla k(x, Z) (k(Z, Z) + s^2 I)^{-1}`. (A Nystrom
    approximation with Z as its landmarks, fitted to values at Z, is this posterior
    [Williams2001nystrom]_.)

    Args:
        initial_x: A ``batch_shape x p`` tensor: the first x.
        num_points: The number M of points.
        half_width: The largest distance of points from the first x, per coordinate.
        bounds: A ``2 x p`` box to draw the points from instead.
        kernel: A twice differentiable kernel without batch dimensions, its
            hyperparameters fixed; by default that of
            :class:`~botorch_dp.models.CompressedSurrogate`.
        noise_variance: The variance :math:`s^2`; 1e-6 of the prior variance by default.
        seed: The seed of the points.

    Example:
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> surrogate = NystromSurrogate(x)
        >>> losses = (surrogate.points - 1.0).square().sum(dim=-1) / 2
        >>> surrogate.gradient(losses).round(decimals=1)
        tensor([-1., -1.], dtype=torch.float64)
    """

    def _prepare(self) -> None:
        # Not gradient_weights, which factorizes K at every call: these points never
        # move, so that K^-1 is computed once.
        Z = self._points
        K = self._covariances.value(Z, Z)
        K.diagonal().add_(self.noise_variance)
        self._inverse = torch.cholesky_inverse(torch.linalg.cholesky(K))  # M x M

    def _weights_at(self, x: Tensor) -> Tensor:
        cross = self._covariances.gradient(x, self._points.expand(len(x), -1, -1))
        return cross @ self._inverse


class RandomFeatureSurrogate(_FixedSurrogate):
    r"""A linear model of random Fourier features, fitted to values at fixed points Z.

    With F features :math:`\phi_i(x) = \sigma \sqrt{2/F} \cos(\omega_i^\top x + b_i)`,
    whose inner products approximate an RBF kernel [Rahimi2007random]_, and
    :math:`\Phi = \phi(Z)`, the weights are

    .. math:: W = \nabla \phi(x)^\top (\Phi^\top \Phi + s^2 I)^{-1} \Phi^\top,

    which converge to those of :class:`NystromSurrogate` as F grows.

    Args:
        initial_x: A ``batch_shape x p`` tensor: the first x.
        num_features: The number F of features.
        num_points: The number M of points.
        half_width: The largest distance of points from the first x, per coordinate.
        bounds: A ``2 x p`` box to draw the points from instead.
        kernel: An RBF kernel, also scaled, its hyperparameters fixed; by default that
            of :class:`~botorch_dp.models.CompressedSurrogate`.
        noise_variance: The variance :math:`s^2`; 1e-6 of the prior variance by default.
        seed: The seed of the points and features.

    Example:
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> RandomFeatureSurrogate(x, num_features=64, num_points=32).weights.shape
        torch.Size([2, 32])
    """

    def __init__(
        self, initial_x: Tensor, *, num_features: int = 128, **kwargs: Any
    ) -> None:
        self.num_features = check_count("num_features", num_features)
        super().__init__(initial_x, **kwargs)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), "num_features": self.num_features}

    @torch.no_grad()
    def features(self, X: Tensor) -> Tensor:
        r"""Return the ``... x F`` features :math:`\phi` at ``... x p`` points."""
        angles = X @ self._frequencies + self._phases
        return self._amplitude * torch.cos(angles)

    def _prepare(self) -> None:
        Z = self._points
        radial = radial_kernel(self._covariances.kernel, Z)
        if radial is None or radial.unit_profile is not rbf_profile:
            raise InvalidArgumentError(
                "kernel must be an RBF kernel, possibly scaled, got "
                f"{self._covariances.kernel!r}; use NystromSurrogate with others."
            )
        shape = (Z.shape[-1], self.num_features)
        drawn: dict[str, Any] = {
            "generator": self._generator,
            "dtype": Z.dtype,
            "device": "cpu",
        }
        normal = torch.randn(shape, **drawn).to(Z.device)
        self._frequencies = normal * radial.inverse_lengthscale.unsqueeze(-1)  # p x F
        uniform = torch.rand(self.num_features, **drawn).to(Z.device)
        self._phases = 2 * math.pi * uniform
        self._amplitude = (2 * radial.outputscale / self.num_features).sqrt()
        features = self.features(Z)  # M x F
        if len(Z) < self.num_features:
            # The same matrix, from the smaller system of equations.
            gram = features @ features.T
            gram.diagonal().add_(self.noise_variance)
            self._fit = torch.linalg.solve(gram, features).T
        else:
            gram = features.T @ features
            gram.diagonal().add_(self.noise_variance)
            self._fit = torch.linalg.solve(gram, features.T)  # F x M

    def _weights_at(self, x: Tensor) -> Tensor:
        slopes = -self._amplitude * torch.sin(x @ self._frequencies + self._phases)
        return (slopes.unsqueeze(-2) * self._frequencies) @ self._fit
