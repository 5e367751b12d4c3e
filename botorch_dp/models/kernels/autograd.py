"""Derivatives of kernels without a closed form, by ``torch.func``."""

from typing import Any
from weakref import WeakSet

import torch
from gpytorch import settings
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from botorch_dp.exceptions import UnsupportedKernelError
from botorch_dp.models.kernels.jets import Jet, Pairs

_ADVICE = (
    "If the kernel computes distances, let it use their squares, covar_dist(..., "
    "square_dist=True); otherwise use a kernel with a closed form, e.g. RBFKernel."
)

# Kernels that passed the probe of check_by_probe.
_PROBED: WeakSet[Kernel] = WeakSet()


def autograd_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    """Differentiate the kernel by ``torch.func``, each pair on its own.

    GPyTorch centres points at their mean before it expands squared distances. So the
    matrix of one pair is exact at coincident points, while a larger one is not.
    """
    if order == 0:
        return (_dense(kernel, pairs.X1, pairs.X2),)
    shape = torch.broadcast_shapes(pairs.left.shape, pairs.right.shape)
    split = -2 if pairs.aligned else -3
    batch_shape = torch.broadcast_shapes(shape[:split], kernel.batch_shape)
    # Kernels align their batch shape with the last batch dimensions of the points, so
    # the dimensions of the pairs come first.
    inner = tuple(range(len(batch_shape), len(batch_shape) - split - 1))
    outer = tuple(range(-split - 1))
    x1, x2 = (
        x.expand(batch_shape + shape[split:]).movedim(inner, outer)
        for x in (pairs.left, pairs.right)
    )  # pairs x batch_shape x d

    def total(x1: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]:
        # No two pairs share a term, so the gradient of the sum is that of each pair.
        value = _dense(kernel, x1.unsqueeze(-2), x2.unsqueeze(-2))[..., 0, 0]
        return value.sum(), value

    if order == 1:
        first, value = torch.func.grad(total, has_aux=True)(x1, x2)
        jet: Jet = (value, first)
    else:

        def gradients(x2: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            gradient = torch.func.grad(total, argnums=(0, 1), has_aux=True)
            (first, second), value = gradient(x1, x2)
            return first, (second, value)

        vjp: Any = torch.func.vjp  # its stub does not know has_aux
        first, pullback, (second, value) = vjp(gradients, x2, has_aux=True)
        basis = torch.eye(x1.shape[-1], dtype=first.dtype, device=first.device)
        rows = [pullback(direction.expand_as(first))[0] for direction in basis]
        jet = (value, first, second, torch.stack(rows, dim=-2))
    return tuple(part.movedim(outer, inner).to(x1.dtype) for part in jet)


def check_by_probe(kernel: Kernel, X: Tensor) -> None:
    """Check once that autograd is right at coincident points of an unknown kernel.

    The mixed second derivative at one point must agree with the central difference of
    first derivatives around it. The point lies in the unit cube and in the unit ball,
    and depends only on the kernel and the number of features.
    """
    if kernel in _PROBED:
        return
    d = X.shape[-1]
    parts = (kernel, *kernel.sub_kernels())
    lengthscales = [part.lengthscale.detach() for part in parts if part.has_lengthscale]
    scale = min((float(scales.min()) for scales in lengthscales), default=1.0)
    # The usual balance of truncation and rounding for central differences.
    step = scale * torch.finfo(X.dtype).eps ** (1 / 3)
    point = torch.linspace(0.4, 0.8, d, dtype=X.dtype, device=X.device) / d**0.5
    steps = step * torch.eye(d, dtype=X.dtype, device=X.device)
    around = torch.cat([point + steps, point - steps])  # 2 d x d
    here = point.expand_as(around)
    try:
        with torch.no_grad():
            pair = Pairs(point.unsqueeze(0), point.unsqueeze(0))
            cross = autograd_jet(kernel, pair, order=2)[3][..., 0, 0, :, :]
            first = autograd_jet(kernel, Pairs(here, around, aligned=True), order=1)[1]
    except RuntimeError as error:
        raise UnsupportedKernelError(
            f"{type(kernel).__name__} cannot be differentiated twice by torch.func "
            f"({error}). {_ADVICE}"
        ) from error
    expected = (first[..., :d, :] - first[..., d:, :]).transpose(-2, -1) / (2 * step)
    tolerance = 0.05 * float(expected.abs().max())
    if not torch.allclose(cross, expected, rtol=0.0, atol=tolerance):
        raise UnsupportedKernelError(
            f"{type(kernel).__name__} has no mixed second derivative at coincident "
            "points, or autograd gets it wrong: at a test point autograd gives "
            f"{cross.flatten()[0]:.4g}, differences of the gradient give "
            f"{expected.flatten()[0]:.4g}. {_ADVICE}"
        )
    _PROBED.add(kernel)


def _dense(kernel: Kernel, X1: Tensor, X2: Tensor) -> Tensor:
    """Return the kernel matrix, by a formula in which X1 and X2 are two variables.

    If X1 equals X2, GPyTorch takes shortcuts that ignore X2 and its derivatives.
    Unequal shapes prevent them.
    """
    num_columns = X2.shape[-2]
    if X1.shape[-2] == num_columns:
        X2 = torch.cat([X2, X2[..., -1:, :]], dim=-2)
    with settings.lazily_evaluate_kernels(False):
        return to_dense(kernel.forward(X1, X2))[..., :num_columns]
