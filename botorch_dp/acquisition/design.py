r"""Designs in closed form: the best points to learn one gradient from.

For a radial kernel and no history, minimizing the trace of the gradient's covariance
over b points has an analytic optimum [Sopa2025dpgibo]_: in coordinates divided by the
length scales, the vertices of regular simplices around the point. With m + 1 vertices
at radius h, the share of the prior variance that remains in each of the m directions
that they span is

.. math::
    1 - \frac{(m + 1) h^2 \rho(h)^2}
             {m \, \rho(0) \, (1 - \phi(h \sqrt{2 (m + 1) / m}) + s^2)},

with the kernel's profiles :math:`\phi, \rho` at unit output scale and :math:`s^2` the
noise over the output scale. The best h comes from a search in one dimension. Two points
:math:`\pm h` are the simplex of one direction: they leave the least variance and need
the most points.

* b <= d + 1: one simplex in b - 1 directions.
* d + 1 < b < 2 d: b - d - 1 directions with a pair, one simplex in the others.
* b = 2 d: a pair in every direction. More points repeat pairs.

With history, the directions are the leading eigenvectors of the posterior covariance of
the gradient, and a few steps of L-BFGS start from the better of some radii. In up to
three dimensions they also start from the best points of a grid. Points outside the box
are reflected through x or moved to its boundary, whichever leaves the smaller trace.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Line 4 of
        Algorithm 1 is the problem solved here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from botorch.models import ModelListGP
from gpytorch.models import ExactGP
from scipy.optimize import minimize_scalar
from torch import Tensor

from botorch_dp._deprecated import renamed_argument
from botorch_dp._validation import check_box, check_count, check_inside, check_positive
from botorch_dp.acquisition._refinement import (
    is_history,
    refine,
    scales_of_starts,
)
from botorch_dp.acquisition.gradient_information import GradientInformation
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedKernelError
from botorch_dp.models.kernels.radial import RadialKernel


@dataclass(frozen=True)
class Design:
    """Points to evaluate, and the uncertainty that remains after them.

    Attributes:
        points: A ``b x d`` tensor.
        trace: The trace of the gradient's covariance after observing them.
    """

    points: Tensor
    trace: Tensor


@renamed_argument("X_at", "X_center")
@torch.no_grad()
def optimal_design(
    model: ExactGP,
    X_center: Tensor,
    batch_size: int,
    bounds: Tensor | None = None,
    *,
    max_evaluations: int | None = None,
) -> Design:
    """Return the points that are most informative about the gradient at ``X_center``.

    The design is optimal without history. With history, a few steps of L-BFGS refine
    it. It takes milliseconds, compared with seconds for ``optimize_acqf``, for which it
    is a good start (as ``batch_initial_conditions``).

    Args:
        model: A :class:`GradientGP`, or another exact model with one output such as
            ``SingleTaskGP``, with a radial kernel (RBF, Matern-5/2, rational quadratic,
            also scaled) and no input transform. Observations far from ``X_center`` have
            no effect.
        X_center: The point, ``d`` or ``1 x d``.
        batch_size: The number b of points.
        bounds: A ``2 x d`` tensor of lower and upper bounds, or None.
        max_evaluations: How often a search that refines the design may evaluate the
            trace; 0 for the design in closed form. By default as often as fits into
            about twice the time of the design.

    Raises:
        InvalidArgumentError: If the model has batch dimensions, several outputs or an
            input transform.
        UnsupportedKernelError: If the kernel is not radial.

    Example:
        >>> from botorch_dp.models import GradientGP
        >>> X = torch.rand(4, 3, dtype=torch.float64) + 100.0  # far away
        >>> model = GradientGP(X, X.sum(dim=-1, keepdim=True), noise_variance=1e-6)
        >>> design = optimal_design(model, torch.zeros(3).double(), batch_size=4)
        >>> design.points.shape
        torch.Size([4, 3])
    """
    check_count("batch_size", batch_size)
    if max_evaluations is not None:
        check_count("max_evaluations", max_evaluations, minimum=0)
    acqf = GradientInformation(model, X_center)
    if isinstance(model, ModelListGP) or acqf.prior_covariance.dim() > 3:
        raise InvalidArgumentError(
            "model must have one output and no batch dimensions for a design, got "
            f"{type(model).__name__} with {model.num_outputs} outputs and batch shape "
            f"{tuple(model.batch_shape)}. Use optimize_acqf with GradientInformation."
        )
    if len(acqf.X_center) != 1:
        raise InvalidArgumentError(
            "X_center must be one point, d or 1 x d, got shape "
            f"{tuple(X_center.shape)}."
        )
    X_center = acqf.X_center[0]
    if getattr(model, "input_transform", None) is not None:
        raise InvalidArgumentError("model must have no input_transform for a design.")
    if bounds is not None:
        check_box("bounds", bounds, dim=len(X_center), finite=False)
        check_inside("X_center", X_center, bounds)
    radial = acqf.radial
    if radial is None:
        raise UnsupportedKernelError(
            f"{type(model.covar_module).__name__} has no optimal design in closed "
            "form: use an RBF, Matern-5/2 or rational quadratic kernel, or "
            "optimize_acqf."
        )
    noise = float(acqf._geometry.noise)  # over the output scale
    directions = leading_directions(acqf.prior_covariance[0], radial)

    choices = partial(
        design_choices, radial, directions, X_center, batch_size, noise, bounds
    )
    seen = (model.train_inputs[0] - X_center) * radial.inverse_lengthscale
    if max_evaluations != 0 and is_history(seen, radial):
        points, trace = refine(
            acqf._geometry,
            X_center,
            choices(scales_of_starts(acqf._geometry, batch_size)),
            bounds,
            max_evaluations=max_evaluations,
        )
        return Design(points, points.new_tensor(trace))
    designs = choices()
    traces = acqf.trace(designs)
    best = int(traces.argmin())
    return Design(designs[best], traces[best])


def design_choices(
    radial: RadialKernel,
    directions: Tensor,
    X_center: Tensor,
    batch_size: int,
    noise: float,
    bounds: Tensor | None,
    scales: Sequence[float] = (1.0,),
) -> Tensor:
    """Return designs, ``k x b x d``, of which the smallest trace is to be chosen.

    Args:
        radial: The kernel.
        directions: What :func:`leading_directions` returned.
        X_center: The point, a ``d`` tensor.
        batch_size: The number b of points.
        noise: The variance of the observations' noise over the output scale.
        bounds: A ``2 x d`` tensor of lower and upper bounds, or None.
        scales: Radii over the best one without history.
    """
    d = len(X_center)
    # Points beyond 2 d repeat the pairs, which divides the noise.
    copies = max(1.0, batch_size / (2 * d))
    blocks, first = [], 0
    for num_points, m in _groups(min(batch_size, 2 * d), d):
        radius, _ = _best_radius(
            radial.unit_profile, num_points, m, noise / copies, X_center.device
        )
        vertices = radius * _simplex(m, X_center.dtype, X_center.device)[:num_points]
        blocks.append(vertices @ directions[:, first : first + m].mT)
        first += m
    offsets = torch.cat(blocks).repeat(math.ceil(copies), 1)[:batch_size]
    offsets = offsets / radial.inverse_lengthscale
    sizes = offsets.new_tensor(scales)
    return _within(X_center, sizes[:, None, None] * offsets, bounds)


@torch.no_grad()
def design_traces(radial: RadialKernel, *, noise_variance: float) -> list[float]:
    """Return the traces after optimal designs of 1, ..., 2 d points without history.

    Args:
        radial: The kernel, see :func:`botorch_dp.models.kernels.radial.radial_kernel`.
        noise_variance: The variance of the observations' noise.

    Example:
        >>> from botorch_dp.models import radial_kernel
        >>> from gpytorch.kernels import RBFKernel
        >>> kernel = RBFKernel()
        >>> kernel.lengthscale = 1.0
        >>> radial = radial_kernel(kernel, torch.zeros(1, 2, dtype=torch.float64))
        >>> [round(t, 4) for t in design_traces(radial, noise_variance=1e-6)]
        [1.6321, 1.0001, 0.0016, 0.0001]
    """
    num_dims = len(radial.inverse_lengthscale)
    noise = check_positive("noise_variance", noise_variance) / float(radial.outputscale)
    device = radial.inverse_lengthscale.device
    slope = radial.profile(radial.inverse_lengthscale.new_zeros(()))[1]
    prior = slope * radial.inverse_lengthscale.square()
    variances = prior.sort(descending=True).values.tolist()
    traces = []
    for batch_size in range(1, 2 * num_dims + 1):
        left, first = 0.0, 0
        for num_points, m in _groups(batch_size, num_dims):
            share = _best_radius(radial.unit_profile, num_points, m, noise, device)[1]
            left += share * sum(variances[first : first + m])
            first += m
        traces.append(left + sum(variances[first:]))
    return traces


def _groups(batch_size: int, num_dims: int) -> list[tuple[int, int]]:
    """Return how many points span how many directions, leading directions first."""
    if batch_size == 1:
        return [(1, 1)]
    if batch_size <= num_dims + 1:
        return [(batch_size, batch_size - 1)]
    pairs = batch_size - num_dims - 1
    return [(2, 1)] * pairs + [(num_dims - pairs + 1, num_dims - pairs)]


@lru_cache(maxsize=4096)
def _best_radius(
    profile: Callable[[Tensor], tuple[Tensor, ...]],
    num_points: int,
    m: int,
    noise: float,
    device: torch.device,
) -> tuple[float, float]:
    """Return the best radius, and the share of the variance that it leaves."""

    def at(radius: float) -> tuple[float, float]:
        q = torch.tensor(radius**2, dtype=torch.float64, device=device)
        phi, rho = profile(q)[:2]
        return float(phi), float(rho)

    slope = at(0.0)[1]

    def left(log_radius: float) -> float:
        h = math.exp(log_radius)
        rho = at(h)[1]
        if num_points == 1:
            return 1 - h**2 * rho**2 / (slope * (1 + noise))
        phi = at(h * math.sqrt(2 * (m + 1) / m))[0]
        return 1 - (m + 1) * h**2 * rho**2 / (m * slope * (1 - phi + noise))

    best = minimize_scalar(
        left,
        bounds=(math.log(1e-5), math.log(5.0)),
        method="bounded",
        options={"xatol": 1e-8},
    )
    return math.exp(best.x), float(best.fun)


@lru_cache(maxsize=64)
def _simplex(m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the m + 1 unit vertices of a regular simplex around 0, a row each.

    They are the columns of Helmert's contrasts, which are orthonormal and sum to zero.
    """
    steps = torch.arange(1, m + 1, dtype=dtype, device=device)
    contrasts = torch.ones(m, m + 1, dtype=dtype, device=device).tril()
    contrasts[:, 1:].diagonal().copy_(-steps)
    contrasts = contrasts / (steps * (steps + 1)).sqrt().unsqueeze(-1)
    return contrasts.mT * math.sqrt((m + 1) / m)


def leading_directions(covariance: Tensor, radial: RadialKernel) -> Tensor:
    """Return orthonormal directions in whitened coordinates, the least known first.

    Rounding errors of the covariance turn them by one over the gap between its
    eigenvalues. Where these coincide, as with fewer points than dimensions, rounding
    alone decides between directions that are equally good. Another machine, or another
    order of operations, may therefore lead to other points after a few steps.

    Args:
        covariance: The ``d x d`` covariance of the gradient.
        radial: The kernel.

    Returns:
        A ``d x d`` tensor with a direction in each column.
    """
    vectors = torch.linalg.eigh(covariance).eigenvectors.flip(-1)
    # u . grad f is (u / l) . (l grad f).
    return torch.linalg.qr(radial.inverse_lengthscale.unsqueeze(-1) * vectors).Q


def _within(X_center: Tensor, offsets: Tensor, bounds: Tensor | None) -> Tensor:
    """Return sets of points, each moved into the box in two ways if some are outside.

    Args:
        X_center: The point, a ``d`` tensor.
        offsets: The sets around it, ``k x b x d``.
        bounds: A ``2 x d`` tensor of lower and upper bounds, or None.
    """
    points = X_center + offsets
    if bounds is None:
        return points
    outside = ((points < bounds[0]) | (points > bounds[1])).any(dim=-1, keepdim=True)
    reflected = torch.where(outside, X_center - offsets, points)
    crossing = outside.flatten(1).any(dim=1)
    both = torch.cat([reflected, points[crossing]])
    return both.clamp(min=bounds[0], max=bounds[1])
