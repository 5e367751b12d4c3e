r"""Random Fourier features that agents share [Rahimi2007features]_.

For a stationary kernel with spectral density p, frequencies :math:`w_i \sim p` and
phases :math:`b_i` uniform on :math:`[0, 2\pi)`,

.. math::
    \phi(x) = \sqrt{2 \sigma^2 / M} \, \big(\cos(w_i^T x + b_i)\big)_{i \le M}, \qquad
    E[\phi(x)^T \phi(x')] = k(x, x').

Agents that exchange weights :math:`\omega` of :math:`f(x) = \phi(x)^T \omega` must all
use the same :math:`\phi` [Dai2021dpfts]_. It depends on published numbers only:
hyperparameters, M and a seed.

This module needs torch and numpy. Only :meth:`FourierFeatures.from_kernel` needs
GPyTorch.

References:
    .. [Rahimi2007features] A. Rahimi and B. Recht. Random Features for Large-Scale
        Kernel Machines. NeurIPS 2007.
    .. [Dai2021dpfts] Z. Dai, B. K. H. Low and P. Jaillet. Differentially Private
        Federated Bayesian Optimization with Distributed Exploration. NeurIPS 2021.
    .. [Rasmussen2006gp] C. E. Rasmussen and C. K. I. Williams. Gaussian Processes for
        Machine Learning. MIT Press, 2006. Equation 4.15: spectral densities.
"""

import hashlib
import json
import math
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from botorch_dp._validation import (
    check_count,
    check_like,
    check_positive,
    check_tensor,
)
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError

if TYPE_CHECKING:
    from gpytorch.kernels import Kernel


class FourierFeatures:
    r"""A feature map :math:`\phi: R^D \to R^M` of cosines.

    Create it with :meth:`draw` or :meth:`from_kernel`; the constructor uses the given
    frequencies and phases.

    With ``normalize=True``, as in the scripts of [Dai2021dpfts]_, features are
    :math:`\sigma \cos(W x + b) / \|\cos(W x + b)\|`, so that the prior variance
    :math:`\phi(x)^T \phi(x)` is :math:`\sigma^2` at every point and not only in
    expectation.

    **What agents share.** Frequencies and phases come from numpy's seeded PCG64, in
    double precision on the CPU, and are the same on every machine and device. A later
    version of numpy may draw other normal numbers, so publish :attr:`fingerprint`
    together with the seed and compare. Cosines are then equal up to rounding.

    Args:
        frequencies: An ``M x D`` tensor W.
        phases: An ``M`` tensor b.
        outputscale: The variance :math:`\sigma^2`.
        normalize: Whether features have the same length at every point.

    Example:
        >>> lengthscale = torch.tensor([0.2, 0.5], dtype=torch.float64)
        >>> features = FourierFeatures.draw(lengthscale, num_features=100, seed=7)
        >>> X = torch.rand(3, 10, 2, dtype=torch.float64)
        >>> features(X).shape
        torch.Size([3, 10, 100])
        >>> other = FourierFeatures.draw(lengthscale, num_features=100, seed=7)
        >>> other.fingerprint == features.fingerprint
        True
    """

    # Why not BoTorch's gen_kernel_features: it draws from torch's global generator
    # (Sobol points, no seed), takes no frequencies, and imports all of BoTorch.

    def __init__(
        self,
        frequencies: Tensor,
        phases: Tensor,
        *,
        outputscale: float = 1.0,
        normalize: bool = True,
    ) -> None:
        check_tensor("frequencies", frequencies, ("M", "D"))
        check_like("phases", phases, frequencies.shape[:1], frequencies)
        check_tensor("frequencies", frequencies, finite=True)
        check_tensor("phases", phases, finite=True)
        self.frequencies = frequencies.detach()
        self.phases = phases.detach()
        self.outputscale = check_positive("outputscale", outputscale)
        self.normalize = bool(normalize)

    @classmethod
    def draw(
        cls,
        lengthscale: Tensor,
        *,
        num_features: int,
        seed: int,
        nu: float | Literal["rbf"] = "rbf",
        outputscale: float = 1.0,
        normalize: bool = True,
    ) -> "FourierFeatures":
        r"""Draw features of a kernel with given hyperparameters.

        The spectral density of an RBF kernel is normal with standard deviation
        :math:`1 / l_j` in dimension j. That of a Matern kernel is a multivariate t with
        :math:`2 \nu` degrees of freedom and the same scales.

        Args:
            lengthscale: A ``D`` tensor of length scales :math:`l_j`. Features have its
                dtype and device.
            num_features: The number of features M.
            seed: The seed, a whole number that all agents share.
            nu: The smoothness of a Matern kernel, any number above 0, or ``"rbf"``.
            outputscale: The variance :math:`\sigma^2` of the kernel.
            normalize: Whether features have the same length at every point.
        """
        check_tensor("lengthscale", lengthscale, ("D",), meaning="one per dimension")
        scales = lengthscale.detach().cpu().double()
        if not (scales.isfinite().all() and (scales > 0).all()):
            raise InvalidArgumentError(
                f"lengthscale must be finite and above 0, got {lengthscale.tolist()}."
            )
        num_features = check_count("num_features", num_features)
        # Not default_rng, whose generator may differ between versions of numpy.
        generator = np.random.Generator(
            np.random.PCG64(check_count("seed", seed, minimum=0))
        )
        frequencies = generator.standard_normal((num_features, scales.numel()))
        phases = 2 * math.pi * generator.random(num_features)
        if nu != "rbf":
            nu = check_positive("nu", nu)
            gammas = generator.standard_gamma(nu, (num_features, 1)) / nu
            frequencies = frequencies / np.sqrt(gammas)
        return cls(
            (torch.from_numpy(frequencies) / scales).to(lengthscale),
            torch.from_numpy(phases).to(lengthscale),
            outputscale=outputscale,
            normalize=normalize,
        )

    @classmethod
    def from_kernel(
        cls,
        kernel: "Kernel",
        dim: int,
        *,
        num_features: int,
        seed: int,
        normalize: bool = True,
    ) -> "FourierFeatures":
        """Draw features of a GPyTorch kernel, with its dtype and device.

        Two kernels that were fitted to equal values may differ in the last digit.
        Agents that share features should agree on the values and use :meth:`draw`.

        Args:
            kernel: RBF or Matern, with one length scale or one for each dimension, also
                inside ``ScaleKernel``, without batch dimensions.
            dim: The number of dimensions D. Where the kernel is not active, frequencies
                are zero.
            num_features: The number of features M.
            seed: The seed, a whole number that all agents share.
            normalize: Whether features have the same length at every point.

        Raises:
            UnsupportedKernelError: If it is another kernel.

        Example:
            >>> from gpytorch.kernels import MaternKernel, ScaleKernel
            >>> kernel = ScaleKernel(MaternKernel(nu=2.5)).double()
            >>> features = FourierFeatures.from_kernel(
            ...     kernel, 3, num_features=50, seed=0
            ... )
            >>> features.dim, features.num_features
            (3, 50)
        """
        from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel

        dim = check_count("dim", dim)
        base, outputscale = kernel, 1.0
        while type(base).forward is ScaleKernel.forward and not base.batch_shape:
            outputscale *= float(base.outputscale.detach())
            base = base.base_kernel
        # Compare forward: kernels of derivatives are subclasses of these.
        forward = type(base).forward
        if base.batch_shape or forward not in (RBFKernel.forward, MaternKernel.forward):
            raise UnsupportedKernelError(
                "kernel must be RBF or Matern, also inside ScaleKernel, without batch "
                f"dimensions, got {kernel!r}."
            )
        # A ScaleKernel selects the active dimensions of its base, which does not do so
        # again.
        active = list(range(dim))
        if kernel.active_dims is not None:
            active = kernel.active_dims.tolist()
        lengthscale = base.lengthscale.detach().reshape(-1)
        if max(active) >= dim or lengthscale.numel() not in (1, len(active)):
            raise InvalidArgumentError(
                f"dim must be the number of dimensions of the kernel, got {dim}, but "
                f"its active dimensions are {active}, with {lengthscale.numel()} "
                "length scales."
            )
        drawn = cls.draw(
            lengthscale.expand(len(active)),
            num_features=num_features,
            seed=seed,
            nu="rbf" if forward is RBFKernel.forward else float(base.nu),
            outputscale=outputscale,
            normalize=normalize,
        )
        frequencies = drawn.frequencies.new_zeros(num_features, dim)
        frequencies[:, active] = drawn.frequencies
        drawn.frequencies = frequencies
        return drawn

    @property
    def num_features(self) -> int:
        """The number of features M."""
        return len(self.frequencies)

    @property
    def dim(self) -> int:
        """The number of dimensions D."""
        return self.frequencies.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of points and features."""
        return self.frequencies.dtype

    @property
    def device(self) -> torch.device:
        """The device of points and features."""
        return self.frequencies.device

    @property
    def fingerprint(self) -> str:
        """A digest of everything that defines the map, to check that two are equal."""
        digest = hashlib.sha256()
        for tensor in (self.frequencies, self.phases):
            array = tensor.cpu().numpy()
            digest.update(f"{array.dtype.name}{array.shape}".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        digest.update(json.dumps([self.outputscale, self.normalize]).encode())
        return digest.hexdigest()

    def __call__(self, X: Tensor) -> Tensor:
        """Return the features of points; differentiable.

        Args:
            X: A ``batch_shape x n x D`` tensor.

        Returns:
            A ``batch_shape x n x M`` tensor.
        """
        check_like("X", X, ("...", self.dim), self.frequencies)
        # One addmm over all points takes a quarter of the time of a product and a sum.
        angles = torch.addmm(
            self.phases, X.reshape(-1, self.dim), self.frequencies.mT
        ).reshape(*X.shape[:-1], self.num_features)
        # In place, unless autograd needs the angles: a new tensor costs as much as the
        # cosines where it does not fit into the cache.
        in_place = not angles.requires_grad
        cosines = angles.cos_() if in_place else angles.cos()
        if not self.normalize:
            scale: float | Tensor = math.sqrt(2 * self.outputscale / self.num_features)
        else:
            # They are never zero: no floating-point number is a zero of the cosine.
            lengths = torch.linalg.vector_norm(cosines, dim=-1, keepdim=True)
            scale = math.sqrt(self.outputscale) / lengths
        return cosines.mul_(scale) if in_place else cosines * scale

    @torch.no_grad()
    def value_and_gradient(self, X: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return :math:`\phi(x)^T w` and its gradient at points, in closed form.

        Args:
            X: An ``n x D`` tensor of points.
            weights: An ``n x M`` tensor: one w for each point.

        Returns:
            An ``n x 1`` and an ``n x D`` tensor.
        """
        angles = torch.addmm(self.phases, X, self.frequencies.mT)  # n x M
        cosines, sines = angles.cos(), angles.sin_()
        value = (cosines * weights).sum(dim=-1, keepdim=True)
        if not self.normalize:
            scale = math.sqrt(2 * self.outputscale / self.num_features)
            slopes = sines.mul_(weights) @ self.frequencies
            return scale * value, -scale * slopes
        squares = cosines.square().sum(dim=-1, keepdim=True)
        squares = squares.clamp(min=torch.finfo(self.dtype).tiny)
        scales = math.sqrt(self.outputscale) / squares.sqrt()
        slopes = cosines.mul_(value / squares).sub_(weights).mul_(sines)
        return value * scales, (slopes @ self.frequencies) * scales

    def gradient(self, X: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of :meth:`value_and_gradient`, ``n x D``."""
        return self.value_and_gradient(X, weights)[1]

    def to(
        self,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> "FourierFeatures":
        """Return the same map for points of another dtype or device."""
        return FourierFeatures(
            self.frequencies.to(dtype=dtype, device=device),
            self.phases.to(dtype=dtype, device=device),
            outputscale=self.outputscale,
            normalize=self.normalize,
        )
