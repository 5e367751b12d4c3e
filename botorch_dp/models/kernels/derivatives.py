r"""Kernels and their derivatives: the covariances of a process and its gradient.

If f is a Gaussian process with covariance k, its gradient is one too, with

.. math::
    \mathrm{Cov}(\nabla f(x_1), f(x_2)) = \nabla_1 k(x_1, x_2), \qquad
    \mathrm{Cov}(\nabla f(x_1), \nabla f(x_2)) = \nabla_1 \nabla_2^\top k(x_1, x_2).

Any twice differentiable GPyTorch kernel is supported. RBF, Matern-5/2, rational
quadratic, periodic, cosine, polynomial, linear and constant kernels have closed forms;
scaled, summed and multiplied kernels are composed from their parts. All others use
``torch.func``, pair by pair, after a check that its derivatives are correct where two
points coincide. Autograd cannot be trusted there: for GPyTorch's Matern, periodic and
cosine kernels it gives a mixed second derivative of zero (for Matern-5/2 it is 5/3 at
unit scale), because they are computed from distances instead of their squares.

All results are differentiable in the points and in the kernel's hyperparameters, also
at coincident points. Nothing here sees private data.
"""

import functools

import torch
from botorch.models.kernels import CategoricalKernel
from gpytorch.kernels import (
    AdditiveKernel,
    ArcKernel,
    HammingIMQKernel,
    IndexKernel,
    Kernel,
    MaternKernel,
    PiecewisePolynomialKernel,
    ProductKernel,
    ScaleKernel,
)
from linear_operator import to_dense
from torch import Tensor

from botorch_dp._validation import check_instance, describe
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models.kernels.autograd import autograd_jet, check_by_probe
from botorch_dp.models.kernels.closed_forms import closed_form
from botorch_dp.models.kernels.jets import (
    Jet,
    Pairs,
    add_jets,
    embed_jet,
    multiply_jets,
    scale_jet,
)

_NOT_DIFFERENTIABLE: dict[type[Kernel], str] = {
    ArcKernel: "its mask can switch coordinates off abruptly",
    CategoricalKernel: "it compares categories",
    HammingIMQKernel: "it compares categories",
    IndexKernel: "it compares categories",
    PiecewisePolynomialKernel: "it is computed from distances, whose second derivative "
    "autograd loses at coincident points (and with q=0 it has a kink there)",
}
_ADVICE = "use RBFKernel, MaternKernel(nu=2.5) or another smooth kernel instead."


def kernel_value(kernel: Kernel, X1: Tensor, X2: Tensor) -> Tensor:
    r"""Return :math:`k(x_1, x_2)` for all pairs of rows, as a dense tensor.

    Args:
        kernel: A GPyTorch kernel, on the device of the points.
        X1: A ``batch_shape x n x d`` tensor of points.
        X2: A ``batch_shape x m x d`` tensor of points.

    Returns:
        A ``batch_shape x n x m`` tensor. Batch shapes of points and kernel broadcast.
    """
    (value,) = _evaluate(kernel, Pairs(X1, X2), order=0)
    return value


def kernel_gradient(
    kernel: Kernel, X1: Tensor, X2: Tensor, *, categories: bool = False
) -> Tensor:
    r"""Return :math:`\nabla_1 k(x_1, x_2)`, the gradient in the first argument.

    Args:
        kernel: A differentiable GPyTorch kernel, on the device of the points.
        X1: A ``batch_shape x n x d`` tensor of points.
        X2: A ``batch_shape x m x d`` tensor of points.
        categories: Whether the kernel may have parts that compare categories. Their
            derivatives are zero, and refused otherwise.

    Returns:
        A ``batch_shape x n x m x d`` tensor.

    Raises:
        UnsupportedKernelError: If the kernel has no gradient at coincident points.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> kernel = RBFKernel()
        >>> kernel.lengthscale = 2.0
        >>> x, origin = torch.tensor([[2.0, 0.0]]), torch.zeros(1, 2)
        >>> kernel_gradient(kernel, x, origin)  # -x / 4 * exp(-1/2)
        tensor([[[-0.3033, -0.0000]]], grad_fn=<ExpandBackward0>)
    """
    return _evaluate(kernel, Pairs(X1, X2), order=1, categories=categories)[1]


def kernel_value_and_gradient(
    kernel: Kernel, X1: Tensor, X2: Tensor
) -> tuple[Tensor, Tensor]:
    """Return :func:`kernel_value` and :func:`kernel_gradient` from one computation."""
    value, gradient = _evaluate(kernel, Pairs(X1, X2), order=1)
    return value, gradient


def kernel_cross_hessian(
    kernel: Kernel, X1: Tensor, X2: Tensor, *, categories: bool = False
) -> Tensor:
    r"""Return :math:`\nabla_1 \nabla_2^\top k(x_1, x_2)`, the mixed second derivative.

    Args:
        kernel: A twice differentiable GPyTorch kernel, on the device of the points.
        X1: A ``batch_shape x n x d`` tensor of points.
        X2: A ``batch_shape x m x d`` tensor of points.
        categories: Whether the kernel may compare categories, see
            :func:`kernel_gradient`.

    Returns:
        A ``batch_shape x n x m x d x d`` tensor, whose entry ``[..., a, b]`` is
        :math:`\partial^2 k / \partial x_{1a} \partial x_{2b}`.

    Raises:
        UnsupportedKernelError: If the kernel is not smooth enough, see
            :func:`check_twice_differentiable`.
    """
    return _evaluate(kernel, Pairs(X1, X2), order=2, categories=categories)[3]


def prior_gradient_covariance(
    kernel: Kernel, X: Tensor, *, categories: bool = False
) -> Tensor:
    """Return the prior covariance of the gradient at each row of X.

    It is the mixed second derivative at coincident points, in O(n d^2): no pairs of
    different rows are formed.

    Args:
        kernel: A twice differentiable GPyTorch kernel, on the device of the points.
        X: A ``batch_shape x n x d`` tensor of points.
        categories: Whether the kernel may compare categories, see
            :func:`kernel_gradient`.

    Returns:
        A ``batch_shape x n x d x d`` tensor.

    Raises:
        UnsupportedKernelError: If the kernel is not smooth enough, see
            :func:`check_twice_differentiable`.

    Example:
        >>> from gpytorch.kernels import MaternKernel
        >>> kernel = MaternKernel(nu=2.5)
        >>> kernel.lengthscale = 1.0
        >>> covariance = prior_gradient_covariance(kernel, torch.zeros(1, 2))
        >>> covariance.diagonal(dim1=-2, dim2=-1).detach()  # 5/3
        tensor([[1.6667, 1.6667]])
    """
    pairs = Pairs(X, X, aligned=True)
    return _evaluate(kernel, pairs, order=2, categories=categories)[3]


def check_twice_differentiable(kernel: Kernel, *, categories: bool = False) -> None:
    """Raise if the kernel, or a part of it, is known not to be smooth enough.

    A process has a gradient if its kernel has a mixed second derivative at coincident
    points. Matern-3/2 has one, but with a kink: the posterior of the gradient would not
    be differentiable in the point, so it is not supported either. Kernels unknown to
    this library pass here; they are probed when derivatives are first computed.

    Args:
        kernel: The kernel.
        categories: Whether it may compare categories, see :func:`kernel_gradient`.

    Raises:
        UnsupportedKernelError: With the name of the part and what to use instead.
    """
    _check_kernel(kernel, order=2, categories=categories)


def _evaluate(
    kernel: Kernel, pairs: Pairs, order: int, *, categories: bool = False
) -> Jet:
    """Return the kernel's jet at the pairs, each part in its full shape."""
    _check_kernel(kernel, order, categories)
    batch_shape = _check_points(kernel, pairs)
    jet = _call_jet(kernel, pairs, order)
    n, m, d = pairs.X1.shape[-2], pairs.X2.shape[-2], pairs.X1.shape[-1]
    points = batch_shape + torch.Size((n,) if pairs.aligned else (n, m))
    shapes = ((), (d,), (d,), (d, d))
    return tuple(
        part.expand(points + torch.Size(shape))
        for part, shape in zip(jet, shapes[: len(jet)], strict=True)
    )


def _call_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    """Mirror ``Kernel.__call__``: select the active dimensions, then go forward."""
    dims = kernel.active_dims
    if dims is None:
        return _forward_jet(kernel, pairs, order)
    num_dims = pairs.X1.shape[-1]
    if int(dims.min()) < 0 or int(dims.max()) >= num_dims:
        raise InvalidArgumentError(
            f"{type(kernel).__name__} has active_dims {dims.tolist()}, which do not "
            f"exist in points with d={num_dims} features."
        )
    return embed_jet(_forward_jet(kernel, pairs.select(dims), order), dims, num_dims)


def _forward_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    """Mirror ``Kernel.forward``: take composite kernels apart, evaluate the others."""
    forward = type(kernel).forward
    if forward is ScaleKernel.forward:
        # A ScaleKernel has already selected the active dimensions of its base kernel.
        base = _forward_jet(kernel.base_kernel, pairs, order)
        return scale_jet(pairs.scalars(kernel.outputscale.unsqueeze(-1)), base)
    if forward in (AdditiveKernel.forward, ProductKernel.forward):
        combine = add_jets if forward is AdditiveKernel.forward else multiply_jets
        parts = (_call_jet(part, pairs, order) for part in kernel.kernels)
        return functools.reduce(combine, parts)
    num_dims = pairs.X1.shape[-1]
    if kernel.ard_num_dims not in (None, num_dims):
        raise InvalidArgumentError(
            f"{type(kernel).__name__} has ard_num_dims={kernel.ard_num_dims}, but the "
            f"points it is given have d={num_dims} features."
        )
    if isinstance(kernel, CategoricalKernel):
        return _step_jet(kernel, pairs, order)
    form = closed_form(kernel)
    if form is not None:
        return form(kernel, pairs, order)
    if order > 0:
        check_by_probe(kernel, pairs.X1)
    return autograd_jet(kernel, pairs, order)


def _step_jet(kernel: Kernel, pairs: Pairs, order: int) -> Jet:
    """Return the jet of a kernel that compares categories: it is constant in between.

    A row of pairs is computed as a kernel matrix with one row and one column.
    """
    left, right = (x.unsqueeze(-2) for x in (pairs.left, pairs.right))
    split = -3 if pairs.aligned else -4
    shape = torch.broadcast_shapes(left.shape, right.shape)
    # The batch shape of the kernel is in front of the dimensions of the pairs.
    inner = tuple(range(split, -2))
    outer_ = tuple(range(-split - 2))
    batch_shape = torch.broadcast_shapes(shape[:split], kernel.batch_shape)
    shape = batch_shape + shape[split:]
    x1, x2 = (x.expand(shape).movedim(inner, outer_) for x in (left, right))
    value = to_dense(kernel.forward(x1, x2))[..., 0, 0]
    value = value.movedim(outer_, tuple(range(split + 2, 0)))
    zeros = value.new_zeros(pairs.X1.shape[-1])
    return (value, zeros, zeros, zeros.diag_embed())[: (1, 2, 4)[order]]


def _check_kernel(kernel: Kernel, order: int, categories: bool = False) -> None:
    check_instance("kernel", kernel, Kernel, expected="a gpytorch.kernels.Kernel")
    for part in (kernel, *kernel.sub_kernels()):
        if categories and isinstance(part, CategoricalKernel):
            continue
        reason = _reason_against(part, order)
        if reason is not None:
            name = type(part).__name__
            if part is not kernel:
                name += f" (inside {type(kernel).__name__})"
            raise UnsupportedKernelError(f"{name} is not supported: {reason}")


def _reason_against(kernel: Kernel, order: int) -> str | None:
    dummy = torch.empty(1, 1, device="cpu")
    if kernel.num_outputs_per_input(dummy, dummy) != 1:
        return (
            "it has several outputs per point; pass the kernel of the function alone, "
            "its derivatives are computed here."
        )
    if order == 0:
        return None
    if isinstance(kernel, MaternKernel):
        if kernel.nu < 1.5:
            return (
                f"with nu={kernel.nu} it has a kink at coincident points and no "
                f"gradient there; {_ADVICE}"
            )
        if kernel.nu < 2.5 and order == 2:
            return (
                f"with nu={kernel.nu} its second derivatives have a kink at coincident "
                f"points; {_ADVICE}"
            )
    for cls, reason in _NOT_DIFFERENTIABLE.items():
        if isinstance(kernel, cls):
            return f"{reason}; {_ADVICE}"
    return None


def _check_points(kernel: Kernel, pairs: Pairs) -> torch.Size:
    """Check that points and kernel fit together, and return the batch shape."""
    names = ("X", "X") if pairs.aligned else ("X1", "X2")
    X1, X2 = pairs.X1, pairs.X2
    for name, X in zip(names, (X1, X2), strict=True):
        if not isinstance(X, Tensor) or not X.is_floating_point() or X.dim() < 2:
            raise InvalidArgumentError(
                f"{name} must be a floating-point ... x n x d tensor, got "
                f"{describe(X)}."
            )
    if X1.shape[-1] != X2.shape[-1] or X1.dtype != X2.dtype or X1.device != X2.device:
        raise InvalidArgumentError(
            "X1 and X2 must have the same number of features, dtype and device, got "
            f"d={X1.shape[-1]}, {X1.dtype} on {X1.device} and d={X2.shape[-1]}, "
            f"{X2.dtype} on {X2.device}."
        )
    for tensor in (*kernel.parameters(), *kernel.buffers()):
        if tensor.device != X1.device:
            raise InvalidArgumentError(
                f"kernel must be on the device of {names[0]}, {X1.device}, got "
                f"{tensor.device}; move it with kernel.to({names[0]})."
            )
    shapes = (X1.shape[:-2], X2.shape[:-2], kernel.batch_shape)
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        raise InvalidArgumentError(
            "The batch shapes of X1, X2 and kernel must broadcast, got "
            f"{', '.join(str(tuple(shape)) for shape in shapes)}."
        ) from error
