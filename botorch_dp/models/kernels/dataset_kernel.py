r"""A prior over the functions of all data sets: :math:`k_1(V, V') \, k_2(x, x')`.

The published release bounds (:mod:`botorch_dp.optimizers.release.kusner.sensitivity`)
assume that the functions :math:`f_V` of all data sets V are one Gaussian process, with
a kernel :math:`k_1` on data sets and a kernel :math:`k_2` on points: a multi-task
process, each data set a task [Bonilla2007multitask]_. Here

.. math::
    k_1(V, V') = \rho^{\,|\{i : V_i \ne V'_i\}|}, \qquad 0 \le \rho \le 1,

where :math:`\rho` is the correlation of neighbours, which differ in one record. **Why
it is a kernel**: it is the product over the records of
:math:`\rho + (1 - \rho) \, 1[V_i = V'_i]`, each a constant plus an identity with
nonnegative weights, and products of kernels are kernels. Its expansion contains
:math:`(1 - \rho)^m \, 1[V = V']`, so the matrix of distinct data sets of m records is
positive definite if :math:`\rho < 1`. Negative correlations are impossible: data sets
that differ in the same record are all neighbours of each other, and the pairwise
correlation of n variables cannot be below :math:`-1 / (n - 1)`.

Nothing here sees private data: these are priors for bounds and simulations.

References:
    .. [Bonilla2007multitask] E. Bonilla, K. M. Chai and C. Williams. Multi-task
        Gaussian Process Prediction. NeurIPS 2007.
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Assumption 1.
"""

from numbers import Real
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_count, check_tensor
from botorch_dp.exceptions import InvalidArgumentError


def check_correlation(name: str, value: float) -> float:
    """Return ``value`` as a float if it is a number from zero to one."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value <= 1:
        raise InvalidArgumentError(f"{name} must be from 0 to 1, got {value!r}.")
    return float(value)


def dataset_correlation(num_different: int, *, correlation: float) -> float:
    r"""Return :math:`k_1(V, V')` of data sets that differ in ``num_different`` records.

    Args:
        num_different: The number of records that differ.
        correlation: The correlation :math:`\rho` of neighbours.

    Example:
        >>> dataset_correlation(0, correlation=0.5)
        1.0
        >>> dataset_correlation(3, correlation=0.5)
        0.125
    """
    num_different = check_count("num_different", num_different, minimum=0)
    return check_correlation("correlation", correlation) ** num_different


class DatasetKernel(Kernel):
    r"""The product kernel :math:`k_1(V, V') \, k_2(x, x')` on rows (data set, point).

    The first coordinate of an input is the index of the data set, starting at 0; the
    others are the point. GPyTorch and BoTorch can use it for several data sets at once.

    Args:
        base_kernel: The kernel :math:`k_2` on points.
        datasets: The n data sets, ``n x m`` if a record is a number, or ``n x m x p``.
            By default two neighbours. Only which records differ matters.
        correlation: The correlation :math:`\rho` of neighbours, from 0 to 1.

    Attributes:
        correlations: :math:`k_1`, an ``n x n`` tensor.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> datasets = torch.tensor([[1.0, 2.0], [1.0, 5.0], [4.0, 3.0]])
        >>> kernel = DatasetKernel(RBFKernel(), datasets, correlation=0.9)
        >>> kernel.correlations
        tensor([[1.0000, 0.9000, 0.8100],
                [0.9000, 1.0000, 0.8100],
                [0.8100, 0.8100, 1.0000]], dtype=torch.float64)
        >>> same_point = torch.tensor([[0.0, 0.3], [1.0, 0.3]])
        >>> kernel(same_point).to_dense()
        tensor([[1.0000, 0.9000],
                [0.9000, 1.0000]], grad_fn=<MulBackward0>)
    """

    has_lengthscale = False

    def __init__(
        self,
        base_kernel: Kernel,
        datasets: Tensor | None = None,
        *,
        correlation: float,
    ) -> None:
        correlation = check_correlation("correlation", correlation)
        if datasets is None:
            on = next((p.device for p in base_kernel.parameters()), "cpu")
            datasets = torch.tensor([[0], [1]], device=on)
        if not isinstance(datasets, Tensor) or datasets.dim() not in (2, 3):
            shape = tuple(datasets.shape) if isinstance(datasets, Tensor) else datasets
            raise InvalidArgumentError(
                f"datasets must be an n x m or n x m x p tensor, got {shape!r}."
            )
        if datasets.numel() == 0:
            raise InvalidArgumentError(
                f"datasets must not be empty, got shape {tuple(datasets.shape)}."
            )
        records = datasets.flatten(2) if datasets.dim() == 3 else datasets.unsqueeze(-1)
        different = torch.stack(
            [(records != other).any(dim=-1).sum(dim=-1) for other in records]
        )  # n x n
        super().__init__()
        self.base_kernel = base_kernel
        self.register_buffer("correlations", correlation ** different.double())

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any
    ) -> Tensor:
        """Return the covariances, or those of equal rows if ``diag``."""
        first, second = self._indices(x1), self._indices(x2)
        values = self.base_kernel(x1[..., 1:], x2[..., 1:], diag=diag, **params)
        if not diag:
            values = values.to_dense()
            first, second = first.unsqueeze(-1), second.unsqueeze(-2)
        return self.correlations[first, second].to(values) * values

    def _indices(self, x: Tensor) -> Tensor:
        indices = x[..., 0].round().long()
        if ((indices < 0) | (indices >= len(self.correlations))).any():
            raise InvalidArgumentError(
                "The first coordinate must be the index of a data set, from 0 to "
                f"{len(self.correlations) - 1}, got {x[..., 0]!r}."
            )
        return indices


@torch.no_grad()
def sample_neighbours(
    kernel: Kernel,
    points: Tensor,
    *,
    correlation: float,
    num_samples: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Draw the functions of two neighbouring data sets from the prior.

    Each is a draw of the process with kernel :math:`k_2`, and
    :math:`\mathrm{Cov}(f(x), f'(x')) = \rho \, k_2(x, x')`: with K the kernel matrix of
    the points, :math:`K = R R^T` and independent standard normal z, z',

    .. math::
        f = R z, \qquad f' = \rho f + \sqrt{1 - \rho^2} \, R z'.

    R comes from an eigendecomposition, exact up to rounding and without jitter, in
    O(N^3) for all samples together.

    Args:
        kernel: The kernel :math:`k_2`, on the device of the points.
        points: A ``batch_shape x N x d`` tensor.
        correlation: The correlation :math:`\rho`, from 0 to 1.
        num_samples: The number of pairs.
        generator: The generator of the draws.

    Returns:
        f and f', each ``num_samples x batch_shape x N``.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> points = torch.linspace(0, 1, 50).unsqueeze(-1)
        >>> f, neighbour = sample_neighbours(
        ...     RBFKernel(), points, correlation=0.99, num_samples=8
        ... )
        >>> f.shape, neighbour.shape
        (torch.Size([8, 50]), torch.Size([8, 50]))
    """
    correlation = check_correlation("correlation", correlation)
    num_samples = check_count("num_samples", num_samples)
    check_tensor("points", points, ("...", "N", "d"))
    values, vectors = torch.linalg.eigh(kernel(points).to_dense())
    root = vectors * values.clamp(min=0.0).sqrt().unsqueeze(-2)
    z = torch.randn(
        2,
        num_samples,
        *root.shape[:-1],
        1,
        dtype=root.dtype,
        device=root.device,
        generator=generator,
    )
    f, other = (root @ z).squeeze(-1)
    return f, correlation * f + (1 - correlation**2) ** 0.5 * other
