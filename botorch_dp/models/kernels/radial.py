r"""Radial kernels in the form that fast geometry needs.

A radial kernel :math:`k(x, x') = \sigma^2 \phi(q)` with
:math:`q = \|(x - x')/\ell\|^2` is given by length scales, an output scale and the
profiles :math:`\phi, \rho = -2\phi', \tau = 4\phi''` of
:mod:`botorch_dp.models.kernels.closed_forms`. Hyperparameters are constants.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor

from botorch_dp.models.kernels.closed_forms import (
    closed_form,
    matern_five_halves_profile,
    rbf_profile,
    rq_profile,
)


@dataclass(frozen=True)
class RadialKernel:
    """A radial kernel on d features.

    Attributes:
        inverse_lengthscale: A ``d`` tensor.
        outputscale: A scalar tensor, the variance of the process.
        unit_profile: Maps squared distances q to phi, rho and tau at unit output scale.
    """

    inverse_lengthscale: Tensor
    outputscale: Tensor
    unit_profile: Callable[[Tensor], tuple[Tensor, ...]]

    def profile(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return phi, rho and tau times the output scale."""
        phi, rho, tau = (self.outputscale * part for part in self.unit_profile(q)[:3])
        return phi, rho, tau


@torch.no_grad()
def radial_kernel(kernel: Kernel, X: Tensor) -> RadialKernel | None:
    """Return the kernel in radial form, or None if it has none.

    Args:
        kernel: RBF, Matern-5/2 or rational quadratic, also inside ``ScaleKernel``;
            without batch dimensions, and active in all features.
        X: Points, which give the number of features, the dtype and the device.
    """
    scale = torch.ones((), dtype=X.dtype, device=X.device)
    while type(kernel).forward is ScaleKernel.forward:
        if kernel.batch_shape or not _all_active(kernel, X):
            return None
        scale = scale * kernel.outputscale.to(X)
        kernel = kernel.base_kernel
    unit_profile = _unit_profile(kernel, X)
    if unit_profile is None or kernel.batch_shape or not _all_active(kernel, X):
        return None
    inverse = kernel.lengthscale.detach().to(X).reciprocal().reshape(-1)
    return RadialKernel(inverse.expand(X.shape[-1]), scale, unit_profile)


def _unit_profile(
    kernel: Kernel, X: Tensor
) -> Callable[[Tensor], tuple[Tensor, ...]] | None:
    forward = type(kernel).forward
    if closed_form(kernel) is None:
        return None
    if forward is RBFKernel.forward:
        return rbf_profile
    if forward is MaternKernel.forward and kernel.nu == 2.5:
        return matern_five_halves_profile
    if forward is RQKernel.forward:
        return functools.partial(
            rq_profile, alpha=kernel.alpha.detach().to(X).squeeze()
        )
    return None


def _all_active(kernel: Kernel, X: Tensor) -> bool:
    dims = kernel.active_dims
    return dims is None or dims.tolist() == list(range(X.shape[-1]))
