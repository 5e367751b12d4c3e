r"""Sliced-Wasserstein compression: few points that know the gradient at another.

A server that has moved to :math:`\theta` needs points D near it and weights
:math:`W = \nabla k(\theta, D) (K + s^2 I)^{-1}`; a user then gets its gradient from its
own losses at D as W times the losses. Both depend on public points and a fixed kernel
only ([LDPBO2025]_, section 3.2; posterior means are not used, see
:mod:`botorch_dp.models.surrogates.wasserstein`). Two rules keep D small:

**Trace** (default). Keep :math:`\mathrm{tr}\, \Sigma_D(\theta) / p \le \kappa^2`. Then
D is within :math:`\kappa` of every larger dictionary D', without any projections: as
:math:`\Sigma_{D'} \preceq \Sigma_D`, and :math:`(a - b)^2 \le a^2 - b^2` if
:math:`a \ge b \ge 0`, and :math:`E\, u u^\top = I / p`,

.. math::
    SW_2^2(\Sigma_D, \Sigma_{D'})
    = E_u \Big( \sqrt{u^\top \Sigma_D u} - \sqrt{u^\top \Sigma_{D'} u} \Big)^2
    \le E_u \, u^\top (\Sigma_D - \Sigma_{D'}) u
    = \frac{\mathrm{tr}(\Sigma_D - \Sigma_{D'})}{p}
    \le \frac{\mathrm{tr}\, \Sigma_D}{p} \le \kappa^2.

**Literal**. Algorithm 2 of the paper, with the point removed that its line 10 forgets
to remove. Each step is compared with its own enlarged dictionary, so that errors add up
without a bound; and a first point changes standard deviations only to second order
(by 0.015 at p = 20). So it collapses: with :math:`\kappa = 0.1` at p = 20 under noise
there is one point left. It is here to reproduce, and warns.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
"""

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.exceptions import CollapseWarning, InvalidArgumentError
from botorch_dp.models.dictionary import KernelDictionary
from botorch_dp.models.gradient_weights import GradientWeights
from botorch_dp.models.kernels.covariances import Covariances, default_gradient_kernel
from botorch_dp.models.kernels.derivatives import (
    kernel_gradient,
    prior_gradient_covariance,
)
from botorch_dp.models.kernels.describe import describe_kernel
from botorch_dp.models.surrogates.base import GradientSurrogate, check_box
from botorch_dp.models.surrogates.padded_dictionary import PaddedDictionary
from botorch_dp.models.surrogates.pruning import (
    append_best,
    prune_by_distance,
    prune_by_trace,
)
from botorch_dp.models.surrogates.wasserstein import (
    leave_one_out_distances,
    projection_directions,
    sliced_wasserstein,
)

__all__ = [
    "CompressedSurrogate",
    "compress",
    "leave_one_out_distances",
    "sliced_wasserstein",
]

_RULES = ("trace", "literal")
# Of the budget for the mean variance: appending goes on until half is used, pruning
# until all is. Measured along noisy paths, the whole for both left up to 2.5 points
# more (p = 20) and violated the rule up to three times as often.
_APPEND_TO = 0.5
# A search has stalled if it removes less than this share of a direction's variance.
_STALLED = 0.1
# Distances to search at, in length scales.
_RADII = (0.05, 0.1, 0.2, 0.4, 0.8)
# Updates after which a dictionary has had the time to fill.
_WARM_UP = 10


@torch.no_grad()
def compress(
    dictionary: KernelDictionary,
    x: Tensor,
    budget: float,
    *,
    rule: str = "trace",
    num_projections: int = 100,
    seed: int = 0,
) -> KernelDictionary:
    r"""Leave out points as long as the gradient's posterior stays within a budget.

    Points are left out one by one, always the one that is missed least, and at least
    one is kept. The posterior compared with is that of the whole dictionary.

    Args:
        dictionary: A dictionary without batch dimensions; it is not changed.
        x: A ``p`` tensor: where the gradient matters.
        budget: The distance :math:`\kappa` in :math:`SW_2`, in units of the gradient.
        rule: ``"trace"`` bounds the distance by the trace of the difference of
            covariances over p; ``"literal"`` measures it by random projections.
        num_projections: How many, for ``"literal"``.
        seed: Of the projections.

    Returns:
        A dictionary of the points that are left, in their order.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> near = 0.1 * torch.eye(2, dtype=torch.float64)
        >>> points = torch.cat([near, -near, near + 9.0])
        >>> dictionary = KernelDictionary(RBFKernel(), points)
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> compress(dictionary, x, 0.01).num_points
        4
        >>> compress(dictionary, x, 0.2).num_points
        3
    """
    kappa = check_positive("budget (kappa)", budget)
    check_choice("rule", rule, _RULES)
    if dictionary.batch_shape:
        raise InvalidArgumentError(
            "dictionary must have no batch dimensions, got batch_shape "
            f"{tuple(dictionary.batch_shape)}; compress its elements one by one."
        )
    dim = dictionary.points.shape[-1]
    directions = projection_directions(
        dim,
        num_projections,
        seed=seed,
        dtype=dictionary.dtype,
        device=dictionary.device,
    )
    if not isinstance(x, Tensor) or x.shape != (dim,):
        raise InvalidArgumentError(f"x must be a tensor of {dim} numbers, got {x!r}.")
    smaller = copy.copy(dictionary)  # its tensors are replaced, not written to
    x = x.to(dictionary.points).unsqueeze(0)
    prior = prior_gradient_covariance(smaller.kernel, x).squeeze(0)
    before: Tensor | None = None
    while smaller.num_points > 1:
        C = kernel_gradient(smaller.kernel, x, smaller.points).squeeze(0).mT
        leave_one_out = smaller.leave_one_out(C)
        weights = leave_one_out.weights
        covariance = GradientWeights.from_solution(weights, C, prior).covariance
        before = covariance if before is None else before
        if rule == "trace":
            trace = (covariance - before).trace() + leave_one_out.trace_increase
            distances = (trace.clamp(min=0.0) / dim).sqrt()
        else:
            distances = leave_one_out_distances(
                leave_one_out, covariance, directions, reference=before
            )
        least, index = distances.min(dim=-1)
        if least > kappa:
            break
        smaller.delete(int(index))
    return smaller


class CompressedSurrogate(GradientSurrogate):
    r"""A small dictionary that follows a moving point, batched.

    At every :meth:`update` the dictionary is brought to know the gradient at the new
    point, by appending points near it and leaving out others. Under the trace rule
    nothing but the weights changes while the rule holds and there are p + 1 points.
    Where it is violated, points are appended, one by one, until half of the budget is
    used; then others go, the least missed first (those that x has left behind), as long
    as the rule holds and more than p + 1 are left. If it cannot be made to hold (the
    noise leaves p + 1 points about :math:`\sqrt{2 s^2 / k(x, x)}` of the prior
    variance), what was found is kept, at most 4 p + 4 points, and :attr:`covariance`
    shows it.

    A point to append is searched on a line through x along the top eigenvector v of
    the posterior covariance :math:`\Sigma`, at 0.05 to 0.8 length scales on both
    sides: the one that lowers the trace most, by :math:`\|c(\xi)\|^2 / \sigma(\xi)`
    with c its covariance with the gradient and :math:`\sigma` its variance given D. A
    length scale along v is :math:`\sqrt{k(x, x) / v^\top \Sigma_0 v}`, with
    :math:`\Sigma_0` the prior covariance; for an RBF kernel that is its own. While the
    value at x itself is unknown, x is appended first: no single point beside it says
    much about a difference.

    With p + 1 points differences are one-sided, and the budget is an error that stays:
    the root mean squared error of a partial derivative, for functions from the prior.
    It does not average out. Following a quadratic with second derivatives 1 to its
    minimum with :math:`\kappa = 0.1`, the average of the iterates came to rest 0.03 to
    0.05 from it in each coordinate. A symmetric :class:`Stencil` of 2 p points has no
    such error.

    Geometry is in double precision whatever the dtype of x, which is that of all
    results. It sees no losses: what is published is a function of the points that were
    visited, all of them public.

    Args:
        initial_x: A ``batch_shape x p`` tensor: where to start. The dictionary is ready
            for it.
        budget: The budget :math:`\kappa`, in units of the gradient.
        rule: ``"trace"`` or ``"literal"``, see the top of this module.
        kernel: A twice differentiable kernel without batch dimensions, its
            hyperparameters fixed. By default RBF with length scale
            :math:`\ell = \max(2, \sqrt p)` and variance :math:`\ell^2`: a prior
            standard deviation of 1 for each partial derivative, in units of which the
            budget then is.
        noise_variance: The variance :math:`s^2`; 1e-6 of the prior variance by default.
        bounds: A ``2 x p`` box that no point of the dictionary leaves.
        num_projections: How many directions the literal rule averages over.
        seed: Of these directions, which are public.

    Example:
        >>> x = torch.zeros(2, dtype=torch.float64)
        >>> surrogate = CompressedSurrogate(x, budget=0.1)
        >>> surrogate.num_points
        tensor(3)
        >>> losses = (surrogate.points - 1.0).square().sum(dim=-1) / 2
        >>> surrogate.gradient(losses).round(decimals=1)
        tensor([-0.9000, -0.9000], dtype=torch.float64)
    """

    @torch.no_grad()
    def __init__(
        self,
        initial_x: Tensor,
        *,
        budget: float,
        rule: str = "trace",
        kernel: Kernel | None = None,
        noise_variance: float | None = None,
        bounds: Tensor | None = None,
        num_projections: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(initial_x)
        self.budget = check_positive("budget (kappa)", budget)
        self.rule = check_choice("rule", rule, _RULES)
        self.num_projections = check_count("num_projections", num_projections)
        self.seed = check_count("seed", seed, minimum=0)
        x = self._flat(initial_x)
        if bounds is not None:
            bounds = check_box(bounds, self.dim).to(x.device)
        self._bounds = bounds
        kernel = default_gradient_kernel(x) if kernel is None else kernel
        if noise_variance is None:
            noise_variance = 1e-6 * float(Covariances(kernel, x).variance(x[:1]))
        self._dictionary = PaddedDictionary(
            kernel, x.unsqueeze(-2)[:, :0], noise_variance=noise_variance
        )
        self._directions = projection_directions(
            self.dim, self.num_projections, seed=self.seed, device=x.device
        )
        self._num_updates, self._warned = 0, False
        self._move(x)

    @property
    def points(self) -> Tensor:
        """Where to evaluate, ``batch_shape x S x p``.

        S is the largest number of points in the batch. Where there are fewer, empty
        slots hold x itself, and have weight zero.
        """
        x = self._clamp(self._x).unsqueeze(-2)
        mask = self._dictionary.mask.unsqueeze(-1)
        return self._shaped(torch.where(mask, self._dictionary.points, x))

    @property
    def num_points(self) -> Tensor:
        """The ``batch_shape`` numbers of points."""
        return self._dictionary.num_points.reshape(self._shape[:-1])

    @property
    def covariance(self) -> Tensor:
        """The ``batch_shape x p x p`` posterior covariance of the gradient at x."""
        return self._shaped(self._posterior.covariance)

    def update(self, x: Tensor) -> None:
        """Move to ``x``, a ``batch_shape x p`` tensor, and bring the dictionary along.

        Warns:
            CollapseWarning: Once, if the literal rule leaves fewer than p points, with
                which no posterior can know the gradient.
        """
        super().update(x)
        self._num_updates += 1
        if self.rule == "literal" and self._num_updates >= _WARM_UP:
            self._warn_of_collapse()

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "rule": self.rule,
            "budget": self.budget,
            "kernel": describe_kernel(self._dictionary.kernel),
            "noise_variance": self._dictionary.noise_variance,
            "bounds": None if self._bounds is None else self._bounds.tolist(),
            "num_projections": self.num_projections,
            "seed": self.seed,
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state, which may be published."""
        return {
            "x": self._x.clone(),
            "num_updates": torch.tensor(self._num_updates, device=self._x.device),
            **self._dictionary.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        """Go on from the state of a surrogate with the same settings, to the bit."""
        x, num_updates = state_dict["x"], int(state_dict["num_updates"])
        if x.shape != self._x.shape or not x.isfinite().all():
            raise InvalidArgumentError(
                f"state_dict must have a finite x of shape {tuple(self._x.shape)}, got "
                f"{x!r}."
            )
        self._dictionary.load_state_dict(state_dict)
        self._num_updates = num_updates
        self._settle_at(x.to(self._x).clone())

    def _move(self, x: Tensor) -> None:
        if self.rule == "trace":
            posterior = self._dictionary.gradient(x)
            # Not a number, and so not below the limit, where x is not finite.
            holds = (posterior.trace <= self._limit) & self._is_filled(self._dictionary)
            if holds.all():
                self._settle_at(x, posterior)
                return
            changed = (~holds).nonzero().squeeze(-1)
        else:
            changed = torch.arange(len(x), device=x.device)
        if not x.isfinite().all():
            raise InvalidArgumentError("x must be finite, got nan or inf in it.")
        part = self._dictionary.select(changed)
        if self.rule == "trace":
            self._follow_trace_rule(part, x[changed])
        else:
            self._follow_literal_rule(part, x[changed])
        part.settle()
        self._dictionary.assign(changed, part)
        self._dictionary.compact()
        self._settle_at(x)

    def _follow_trace_rule(self, part: PaddedDictionary, x: Tensor) -> None:
        for _ in range(2 * self.dim + 2):
            posterior = part.gradient(x)
            lacking = posterior.trace > _APPEND_TO * self._limit
            lacking |= ~self._is_filled(part)
            if not lacking.any():
                break
            changed = append_best(
                part,
                x,
                posterior,
                radii=_RADII,
                bounds=self._bounds,
                where=lacking,
                center_first=True,
                least_gain=_STALLED,
            )
            if not changed.any():
                break
        most = 4 * self.dim + 4
        prune_by_trace(part, x, limit=self._limit, keep=self.dim + 1, at_most=most)

    def _follow_literal_rule(self, part: PaddedDictionary, x: Tensor) -> None:
        append_best(part, x, part.gradient(x), radii=_RADII, bounds=self._bounds)
        prune_by_distance(
            part,
            x,
            reference=part.gradient(x).covariance,
            directions=self._directions,
            limit=self.budget,
        )

    def _settle_at(self, x: Tensor, posterior: GradientWeights | None = None) -> None:
        self._x = x
        self._posterior = posterior or self._dictionary.gradient(x)
        self._weights = self._shaped(self._posterior.weights)

    @property
    def _limit(self) -> float:
        """How large the trace may be."""
        return self.dim * self.budget**2

    def _is_filled(self, dictionary: PaddedDictionary) -> Tensor:
        return dictionary.num_points > self.dim

    def _warn_of_collapse(self) -> None:
        if self._warned or not (self.num_points < self.dim).any():
            return
        self._warned = True
        warnings.warn(
            f"After {self._num_updates} updates fewer points than the {self.dim} "
            f"dimensions are left: under the literal rule with budget={self.budget} "
            "the dictionary has collapsed, and the gradient is not known. Use "
            "rule='trace', or a smaller budget.",
            CollapseWarning,
            stacklevel=3,
        )

    def _clamp(self, x: Tensor) -> Tensor:
        return x if self._bounds is None else x.clamp(*self._bounds)
