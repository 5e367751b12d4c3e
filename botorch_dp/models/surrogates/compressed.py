r"""Sliced-Wasserstein compression: few points that determine the gradient at another.

A server at :math:`\theta` needs points D near it and the weights W of
:mod:`botorch_dp.models.gradient_weights`; a user's gradient is then W times its own
losses at D. Points and weights depend on public points and a fixed kernel only
([LDPBO2025]_, section 3.2; posterior means are not used, see
:mod:`botorch_dp.models.surrogates.wasserstein`). Two rules keep D small:

**Trace** (default). Keep :math:`\mathrm{tr}\, \Sigma_D(\theta) / p \le \kappa^2`. Then
D is within :math:`\kappa` of every larger dictionary D', without any projections: since
:math:`\Sigma_{D'} \preceq \Sigma_D`, :math:`(a - b)^2 \le a^2 - b^2` if
:math:`a \ge b \ge 0`, and :math:`E\, u u^\top = I / p`,

.. math::
    SW_2^2(\Sigma_D, \Sigma_{D'})
    = E_u \Big( \sqrt{u^\top \Sigma_D u} - \sqrt{u^\top \Sigma_{D'} u} \Big)^2
    \le E_u \, u^\top (\Sigma_D - \Sigma_{D'}) u
    = \frac{\mathrm{tr}(\Sigma_D - \Sigma_{D'})}{p}
    \le \frac{\mathrm{tr}\, \Sigma_D}{p} \le \kappa^2.

**Literal**. Algorithm 2 of the paper, except that it removes the point which line 10
forgets to remove. Each step is compared with its own enlarged dictionary, so errors add
up without a bound, and a first point changes standard deviations only to second order
(by 0.015 at p = 20). Therefore the dictionary collapses: with :math:`\kappa = 0.1`,
p = 20 and noise, one point remains. The rule is here to reproduce the paper, and warns.

References:
    .. [LDPBO2025] Online Differential Privacy Bayesian Optimization with Sliced
        Wasserstein Compression.
"""

import warnings
from collections.abc import Mapping
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import (
    check_box,
    check_choice,
    check_count,
    check_positive,
)
from botorch_dp.exceptions import CollapseWarning, InvalidArgumentError
from botorch_dp.models.gradient_weights import GradientWeights
from botorch_dp.models.kernels.covariances import Covariances, default_gradient_kernel
from botorch_dp.models.kernels.describe import describe_kernel
from botorch_dp.models.surrogates.base import GradientSurrogate
from botorch_dp.models.surrogates.budget import BudgetSchedule
from botorch_dp.models.surrogates.compress import RULES, compress
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

# Appending stops at this share of the budget for the mean variance; pruning may use all
# of it. Measured along noisy paths, 1 for both left up to 2.5 points more (p = 20) and
# violated the rule up to three times as often.
_APPEND_TO = 0.5
# A search stalls if it removes less than this share of a direction's variance.
_STALLED = 0.1
# Distances to search at, in length scales.
_RADII = (0.05, 0.1, 0.2, 0.4, 0.8)
# The number of updates after which a dictionary should be full.
_WARM_UP = 10


class CompressedSurrogate(GradientSurrogate):
    r"""A small dictionary that follows a moving point, batched.

    Every :meth:`update` appends points near the new x and deletes others. Under the
    trace rule only the weights change while the rule is satisfied and there are p + 1
    points. Otherwise points are appended, one by one, until half of the budget is used;
    then points are deleted, those with the smallest effect first, as long as the rule
    is satisfied and more than p + 1 remain. If it cannot be satisfied (with p + 1
    points, the noise leaves about :math:`\sqrt{2 s^2 / k(x, x)}` of the prior
    variance), at most 4 p + 4 points are kept, and :attr:`covariance` shows how much
    uncertainty remains.

    The point to append lies on a line through x along the top eigenvector v of the
    posterior covariance :math:`\Sigma`, at 0.05 to 0.8 length scales on both sides. It
    is the one that lowers the trace most, by :math:`\|c(\xi)\|^2 / \sigma(\xi)` with c
    its covariance with the gradient and :math:`\sigma` its variance given D. A length
    scale along v is :math:`\sqrt{k(x, x) / v^\top \Sigma_0 v}`, with :math:`\Sigma_0`
    the prior covariance; for an RBF kernel that is its own. While the value at x itself
    is uncertain, x is appended first, because a difference needs both of its values.

    With p + 1 points differences are one-sided, and the budget is a bias: the root mean
    squared error of a partial derivative, for functions from the prior. It does not
    average out. On a quadratic with second derivatives 1 and with :math:`\kappa = 0.1`,
    the average of the iterates converged 0.03 to 0.05 from the minimum in each
    coordinate. A :class:`BudgetSchedule` lets the budget fall with the number of
    updates, so that this bias stays below the noise of the average. A symmetric
    :class:`Stencil` of 2 p points has no such error.

    The surrogate sees no losses: it is a function of the visited points, all of them
    public.

    Args:
        initial_x: A ``batch_shape x p`` tensor: the first point, for which the
            dictionary is prepared.
        budget: The budget :math:`\kappa`, in units of the gradient: a number, or a
            :class:`BudgetSchedule` that gives it for each update.
        rule: ``"trace"`` or ``"literal"``, see the top of this module.
        kernel: A twice differentiable kernel without batch dimensions, its
            hyperparameters fixed. By default RBF with length scale
            :math:`\ell = \max(2, \sqrt p)` and variance :math:`\ell^2`, with which each
            partial derivative has a prior standard deviation of 1.
        noise_variance: The variance :math:`s^2`; 1e-6 of the prior variance by default.
        bounds: A ``2 x p`` box that no point of the dictionary leaves.
        num_projections: The number of directions over which the literal rule averages.
        seed: The seed of these directions, which are public.

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
        budget: float | BudgetSchedule,
        rule: str = "trace",
        kernel: Kernel | None = None,
        noise_variance: float | None = None,
        bounds: Tensor | None = None,
        num_projections: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(initial_x)
        if not isinstance(budget, BudgetSchedule):
            budget = check_positive("budget (kappa)", budget)
        self.budget = budget
        self.rule = check_choice("rule", rule, RULES)
        self.num_projections = check_count("num_projections", num_projections)
        self.seed = check_count("seed", seed, minimum=0)
        x = self._flat(initial_x)
        if bounds is not None:
            bounds = check_box("bounds", bounds, dim=self.dim, finite=False).to(x)
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

        S is the largest number of points in the batch. Elements with fewer points
        repeat x, with weight zero.
        """
        x = self._clamp(self._x).unsqueeze(-2)
        mask = self._dictionary.mask.unsqueeze(-1)
        return self._shaped(torch.where(mask, self._dictionary.points, x))

    @property
    def num_points(self) -> Tensor:
        """The ``batch_shape`` numbers of points."""
        return self._dictionary.num_points.reshape(self._shape[:-1])

    @property
    def current_budget(self) -> float:
        """The budget of the next update."""
        if isinstance(self.budget, BudgetSchedule):
            return self.budget(self._num_updates + 1)
        return self.budget

    @property
    def covariance(self) -> Tensor:
        """The ``batch_shape x p x p`` posterior covariance of the gradient at x."""
        return self._shaped(self._posterior.covariance)

    def update(self, x: Tensor) -> None:
        """Move to ``x``, a ``batch_shape x p`` tensor, and adapt the dictionary.

        Warns:
            CollapseWarning: Once, if the literal rule leaves fewer than p points, which
                cannot determine the gradient.
        """
        super().update(x)
        self._num_updates += 1
        if self.rule == "literal" and self._num_updates >= _WARM_UP:
            self._warn_of_collapse()

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "rule": self.rule,
            "budget": self.budget.settings()
            if isinstance(self.budget, BudgetSchedule)
            else self.budget,
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
        """Continue from the state of a surrogate with the same settings, to the bit."""
        x, num_updates = state_dict["x"], int(state_dict["num_updates"])
        if x.shape != self._x.shape or not x.isfinite().all():
            raise InvalidArgumentError(
                f"state_dict must have a finite x of shape {tuple(self._x.shape)}, got "
                f"{x!r}."
            )
        self._dictionary.load_state_dict(state_dict)
        self._num_updates = num_updates
        self._finish(x.to(self._x).clone())

    def _move(self, x: Tensor) -> None:
        if self.rule == "trace":
            posterior = self._dictionary.gradient(x)
            # The trace is nan, hence not below the limit, where x is not finite.
            kept = (posterior.trace <= self._limit) & self._is_filled(self._dictionary)
            if kept.all():
                self._finish(x, posterior)
                return
            changed = (~kept).nonzero().squeeze(-1)
        else:
            changed = torch.arange(len(x), device=x.device)
        if not x.isfinite().all():
            raise InvalidArgumentError("x must be finite, but contains nan or inf.")
        part = self._dictionary.select(changed)
        if self.rule == "trace":
            self._follow_trace_rule(part, x[changed])
        else:
            self._follow_literal_rule(part, x[changed])
        part.refactorize()
        self._dictionary.assign(changed, part)
        self._dictionary.compact()
        self._finish(x)

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
            limit=self.current_budget,
        )

    def _finish(self, x: Tensor, posterior: GradientWeights | None = None) -> None:
        self._x = x
        self._posterior = posterior or self._dictionary.gradient(x)
        self._weights = self._shaped(self._posterior.weights)

    @property
    def _limit(self) -> float:
        """The largest trace that the budget allows."""
        return self.dim * self.current_budget**2

    def _is_filled(self, dictionary: PaddedDictionary) -> Tensor:
        return dictionary.num_points > self.dim

    def _warn_of_collapse(self) -> None:
        if self._warned or not (self.num_points < self.dim).any():
            return
        self._warned = True
        warnings.warn(
            f"After {self._num_updates} updates the dictionary has fewer points than "
            f"the {self.dim} dimensions: under the literal rule with "
            f"budget={self.budget} it has collapsed and cannot determine the gradient. "
            "Use rule='trace' or a smaller budget.",
            CollapseWarning,
            stacklevel=3,
        )

    def _clamp(self, x: Tensor) -> Tensor:
        return x if self._bounds is None else x.clamp(*self._bounds)
