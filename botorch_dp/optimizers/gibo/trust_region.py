r"""A private trust region, driven by released gradients and released differences.

A step is one of two kinds, by its number alone:

* a **gradient step** evaluates a design around the current point, releases the clipped
  mean gradient and moves against it, by the radius of the region. If the gradient
  opposes the one before, the search has jumped over a valley: the radius is multiplied
  by :math:`2^c`, with the cosine c < 0 of both. Every other design is mirrored, so that
  the errors that curvature makes in the gradient cancel over two steps;
* after ``moves_per_check`` gradient steps, a **check** evaluates the current point x'
  and the centre x of the region, and releases the clipped mean slope

  .. math::
      \frac1n \sum_{i=1}^n \mathrm{clip}_B\Big(
          \frac{l_i(x') - l_i(x)}{\|x' - x\|} \Big) + N(0, \sigma^2).

  If it is negative, x' becomes the centre, and the radius grows after
  ``success_tolerance`` such checks in a row. Otherwise the search returns to the centre
  and the radius is halved.

A record whose gradient is at most B long between x and x' is not clipped, and
replacing a record moves the slope by at most 2 B / n, as it does a mean gradient. Both
kinds of release thus have one sensitivity, one noise and one cost: the plan of a run
with T steps is T equal releases, reserved before the first. Counters, radius and moves
are computed from releases alone.

TuRBO compares values. Two released values would cost two releases, and the sensitivity
of each is the range of the losses, however close the points are. The slope between
them is one release, its bound shrinks with their distance, and no range is needed.

References:
    .. [Eriksson2019turbo] D. Eriksson, M. Pearce, J. R. Gardner, R. Turner and
        M. Poloczek. Scalable Global Optimization via Local Bayesian Optimization.
        NeurIPS 2019.
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025.
"""

from collections.abc import Iterable
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor
from torch.nn.functional import normalize

from botorch_dp._validation import check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import Losses, checked_chunks
from botorch_dp.optimizers.core.transfer import send
from botorch_dp.optimizers.gibo.geometry import DEFAULT_NOISE_VARIANCE, GIBOGeometry
from botorch_dp.optimizers.gibo.gradient_descent import PrivateGradientDescent
from botorch_dp.privacy import Guarantee, clipped_row_sum

_LEAST_RADIUS = 1e-3
_GROWTH, _DECAY = 2.0, 0.5  # TuRBO's


class DPTrustRegion(PrivateGradientDescent):
    """A trust region under differential privacy.

    It has no learning rate: it is for losses on whose scale none can be chosen in
    advance. ``benchmarks/results/local_bo.md`` compares it with :class:`DPGIBO`. It
    releases slopes and not values, since values cost more.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of records.
        guarantee: What the whole run has to meet: ``GDP``, ``ApproxDP`` or ``RDP``.
        num_steps: The number T of steps of both kinds, which share the budget equally.
        clip_norm: The bound B on a record's gradient and slope, in search coordinates.
        radius: The first length of a move, in search coordinates, for each root of a
            dimension: a move is ``radius * sqrt(d)`` long.
        moves_per_check: How many gradient steps there are between two checks.
        success_tolerance: After how many successful checks in a row the radius grows.
        batch_size: The number of points of a gradient step; d + 1 by default.
        kernel: A radial kernel, as in :class:`DPGIBO`.
        noise_variance: The variance of the observations' noise, as in :class:`DPGIBO`.
        mean: ``"constant"`` or ``"zero"``.
        **kwargs: ``transform``, ``initial_x``, ``adjacency``, ``unit``, ``ledger``,
            ``generator`` and ``secure`` of :class:`DPGIBO`.

    Attributes:
        radius: The present radius.

    Example:
        >>> from botorch_dp import GDP
        >>> records = torch.rand(1000, 2, dtype=torch.float64)  # private
        >>> def losses(X):  # 1000 x b
        ...     return (records.unsqueeze(1) - X).square().sum(dim=-1) / 2
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> opt = DPTrustRegion(bounds, 1000, GDP(mu=1.0), num_steps=10, clip_norm=1.0)
        >>> result = opt.run(losses, progress=False)
        >>> result.x.shape, result.certificate.guarantee
        (torch.Size([2]), GDP(mu=1))
    """

    name = "dp-trust-region"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int,
        clip_norm: float,
        *,
        radius: float = 0.1,
        moves_per_check: int = 2,
        success_tolerance: int = 2,
        batch_size: int | None = None,
        kernel: Kernel | None = None,
        noise_variance: float = DEFAULT_NOISE_VARIANCE,
        mean: str = "constant",
        **kwargs: Any,
    ) -> None:
        refused = {"update", "step_size", "initial_accumulator", "num_directions"}
        refused &= {*kwargs}
        if refused:
            raise InvalidArgumentError(
                f"DPTrustRegion takes no {', '.join(sorted(refused))}: the region sets "
                "the length of its moves, which are along whole gradients."
            )
        super().__init__(
            bounds, num_records, guarantee, num_steps, clip_norm, update="sgd", **kwargs
        )
        self.radius = self.first_radius = check_positive("radius", radius)
        self.moves_per_check = check_count("moves_per_check", moves_per_check)
        self.success_tolerance = check_count("success_tolerance", success_tolerance)
        self.geometry = GIBOGeometry(
            self._box.box,
            self._parameter,
            batch_size=batch_size,
            kernel=kernel,
            noise_variance=noise_variance,
            mean=mean,
            window=0,
        )
        self._center, self._successes = self._parameter, 0
        self._direction = torch.zeros_like(self._parameter)  # of the last gradient

    @property
    def center(self) -> Tensor:
        """The centre of the region, a ``d`` tensor."""
        return self._points_of(self._center)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        unused = ("update", "step_size", "initial_accumulator")
        settings = {**super().settings(), **self.geometry.settings()}
        return {
            **{key: value for key, value in settings.items() if key not in unused},
            "radius": self.first_radius,
            "moves_per_check": self.moves_per_check,
            "success_tolerance": self.success_tolerance,
        }

    def is_check(self, number: int) -> bool:
        """Return whether a step is a check: the last step, and every k-th before it.

        Args:
            number: The number of the step, starting at 1.
        """
        return number % (self.moves_per_check + 1) == 0 or number == self.num_steps

    def _propose(self) -> Tensor:
        number = len(self._history) + 1
        if self.is_check(number):
            return torch.stack([self._parameter, self._center])
        proposal = self.geometry.propose(
            self._parameter,
            self._parameter.new_empty(0, self.search_box.dim),
            [],
            step=number - 1,
        )
        points, weights = proposal.points, proposal.weights
        mirrored = 2 * self._parameter - points
        if self._is_mirrored(number) and torch.equal(
            mirrored, self._box.project(mirrored)
        ):
            points, weights = mirrored, -weights
        (self._weights,) = send([weights], self.bounds.device)
        self._trace = proposal.trace
        return points

    def _is_mirrored(self, number: int) -> bool:
        """Return whether a gradient step mirrors its design, if that is in the box."""
        gradient_steps = number - number // (self.moves_per_check + 1)
        return gradient_steps % 2 == 0 and self.geometry.search != "optimize"

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        check = self.is_check(len(self._history) + 1)
        X = self._points_of(points)
        chunks = checked_chunks(losses, X, self.num_records, len(points), self.noun)
        if check:
            distance = float((self._parameter - self._center).norm())
            private_mean = self._mean_slope(
                (chunk[:, :1] - chunk[:, 1:]) / max(distance, _LEAST_RADIUS**2)
                for chunk in chunks
            )
        else:
            private_mean = self._clipped_mean(
                (self._weights @ chunk.mT).mT for chunk in chunks
            )
        released = self._release(private_mean).to(self._parameter)
        # What follows is post-processing.
        if check:
            self._judge(improved=bool(released[0] < 0))
        else:
            self._move_against(released)
        return Step(
            number=len(self._history) + 1,
            x=self._box.from_search(self._parameter),
            num_evaluations=self.num_evaluations + len(points),
            noise_std=self.noise_std,
            trace=None if check else self._trace,
        )

    def _mean_slope(self, private_slopes: Iterable[Tensor]) -> Tensor:
        """Return the mean of the clipped slopes, and zeros.

        With zeros it has the size of a gradient, hence the same cost where noise is
        discrete: all releases of the plan are alike.
        """
        mean = self.bounds.new_zeros(self.search_box.dim, dtype=torch.float64)
        for slopes in private_slopes:
            mean[:1] += clipped_row_sum(slopes, self.clip_norm)
        return mean / self.num_records

    def _move_against(self, gradient: Tensor) -> None:
        """Move by the radius, which shrinks if the last gradient opposes this one."""
        direction = normalize(gradient, dim=0)
        cosine = float((direction * self._direction).sum())
        self.radius = max(self.radius * 2 ** min(cosine, 0.0), _LEAST_RADIUS)
        length = self.radius * self.search_box.dim**0.5
        self._parameter = self._box.project(self._parameter - length * direction)
        self._direction = direction

    def _judge(self, *, improved: bool) -> None:
        """Move the region and resize it, by the sign of a released slope."""
        if improved:
            self._center, self._successes = self._parameter, self._successes + 1
            if self._successes >= self.success_tolerance:
                self.radius, self._successes = min(_GROWTH * self.radius, 0.5), 0
        else:
            self._parameter, self._successes = self._center, 0
            self.radius = max(_DECAY * self.radius, _LEAST_RADIUS)

    def _state(self) -> dict[str, Any]:
        return {
            **super()._state(),
            "center": self._center,
            "direction": self._direction,
            "radius": self.radius,
            "successes": self._successes,
        }

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        center = state["center"].to(self._center)
        if not torch.equal(center, self._box.project(center)):
            raise ValueError("a center outside the box")
        if state["direction"].shape != center.shape:
            raise ValueError("a direction of another dimension")
        if not (state["radius"] > 0 and state["successes"] >= 0):
            raise ValueError("no region")

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._center = state["center"].to(self._center)
        self._direction = state["direction"].to(self._direction)
        self.radius = float(state["radius"])
        self._successes = int(state["successes"])
