r"""The geometry of DP-GIBO: where to evaluate, and the weights of the losses there.

Everything here depends on public points only: no loss enters. The weights
:math:`W = \nabla k(\theta, D) (K + s^2 I)^{-1}` turn a record's losses at D into its
gradient at theta. They are known as soon as the points are, before any loss is.
"""

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.optim import optimize_acqf
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.acquisition import GradientInformation, design_traces
from botorch_dp.acquisition._refinement import refine, scales_of_starts
from botorch_dp.acquisition.design import design_choices
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import (
    GradientGP,
    describe_kernel,
    nearest_points,
    prior_gradient_covariance,
    radial_kernel,
)
from botorch_dp.models.gradient_weights import gradient_weights
from botorch_dp.models.kernels.radial import RadialKernel
from botorch_dp.optimizers.core.randomness import kept_generators
from botorch_dp.optimizers.gibo.arguments import check_variances, fixed_kernel
from botorch_dp.optimizers.gibo.surrogate import Placement, RadialSurrogate

DEFAULT_NOISE_VARIANCE = 1e-6
_SEARCHES = ("design", "refine", "polish", "optimize")
_MEANS = ("constant", "zero")
# Shares of the prior variance below this are rounding errors.
_NOTHING = 1e-8
# From this dimension on, earlier points cost more than they tell. Measured: with 200
# dimensions, windows of 0, d + 1 and 4 (d + 1) points reached the same loss to two
# digits in six settings: a step moves far away from them. With 1000 dimensions, a step
# took 13 times as long with a window of 4 (d + 1) points as with none.
_MANY_DIMS = 200


@dataclass(frozen=True)
class Proposal:
    """Points to evaluate, and how to weigh the losses at them and at earlier points.

    Attributes:
        points: The new points, ``b x d``.
        weights: W, which maps a record's losses at the earlier and the new points to
            its gradient: a row for each coordinate that the step learns.
        trace: The trace of the gradient's covariance, given all these points.
    """

    points: Tensor
    weights: Tensor
    trace: float


class GIBOGeometry:
    """Chooses points around the current one, and weighs losses there.

    Args:
        box: The ``2 x d`` bounds in search coordinates.
        start: Where the run starts, a ``d`` tensor; the kernel is checked there.
        kernel: A twice differentiable kernel; by default RBF with length scale 0.5.
        noise_variance: The variance of the observations' noise, or one for each step.
            It sets the distance of the points.
        mean: ``"constant"`` or ``"zero"``.
        window: How many of the nearest earlier points the surrogate uses; by
            default 4 (d + 1), and none from 200 dimensions on.
        batch_size: The number of new points a step; d + 1 by default.
        tolerance: The trace that new points have to reach (Algorithm 2); excludes
            ``batch_size``.
        search: ``"design"``, ``"refine"``, ``"polish"`` or ``"optimize"``; by default a
            design in closed form if the kernel has one.
        num_directions: How many coordinates of the gradient a step is to learn; all by
            default. The coordinates take turns in a random order.
    """

    def __init__(
        self,
        box: Tensor,
        start: Tensor,
        *,
        kernel: Kernel | None = None,
        noise_variance: float | Sequence[float] = DEFAULT_NOISE_VARIANCE,
        mean: str = "constant",
        window: int | None = None,
        batch_size: int | None = None,
        tolerance: float | None = None,
        search: str | None = None,
        num_directions: int | None = None,
    ) -> None:
        self._box, self.dim = box, box.shape[-1]
        self.kernel = fixed_kernel(kernel, start)
        self._noise_variances = check_variances(noise_variance)
        self.mean = check_choice("mean", mean, _MEANS)
        default = 4 * (self.dim + 1) if self.dim < _MANY_DIMS else 0
        self.window = check_count(
            "window", default if window is None else window, minimum=0
        )
        self._radial = radial_kernel(self.kernel, start.unsqueeze(0))
        if search is None:
            search = "optimize" if self._radial is None else "design"
        self.search = check_choice("search", search, _SEARCHES)
        if self._radial is None and self.search != "optimize":
            raise InvalidArgumentError(
                f"search must be 'optimize' with {type(self.kernel).__name__}, which "
                f"has no design in closed form, got {search!r}."
            )
        if batch_size is not None and tolerance is not None:
            raise InvalidArgumentError(
                "batch_size and tolerance exclude each other: Algorithm 2 chooses the "
                f"batch size, got batch_size={batch_size!r}, tolerance={tolerance!r}."
            )
        self.num_directions = self._check_directions(num_directions, tolerance)
        # A constant mean uses up one point: a single point gives no gradient.
        self._fewest = 2 if self.mean == "constant" else 1
        self.batch_size = check_count(
            "batch_size",
            self.num_directions + 1 if batch_size is None else batch_size,
            minimum=self._fewest,
        )
        self.tolerance = None if tolerance is None else self._check_tolerance(tolerance)
        if self._radial is not None:
            self._surrogate = self._new_surrogate(self._radial)
            if self.num_directions < self.dim:
                few = start[: self.num_directions].unsqueeze(0)
                radial = radial_kernel(self.kernel, few)
                assert radial is not None
                self._of_directions = self._new_surrogate(radial)

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            "batch_size": self.batch_size,
            "kernel": describe_kernel(self.kernel),
            "noise_variance": self.noise_variance,
            "num_directions": self.num_directions,
            "mean": self.mean,
            "window": self.window,
            "tolerance": self.tolerance,
            "search": self.search,
        }

    @property
    def noise_variance(self) -> float | list[float]:
        """The variance of the observations' noise, or a list with one for each step."""
        first, *others = self._noise_variances
        return [first, *others] if others else first

    def noise_variance_at(self, step: int) -> float:
        """Return the variance of the observations' noise in a step, from 0 on."""
        return self._noise_variances[min(step, len(self._noise_variances) - 1)]

    def directions(self, step: int) -> list[int]:
        """Return the coordinates of the gradient that a step learns.

        Args:
            step: The number of the step, from 0 on: the only thing they depend on.
        """
        if self.num_directions == self.dim:
            return list(range(self.dim))
        generator = torch.Generator("cpu").manual_seed(0)
        order = torch.randperm(self.dim, generator=generator, device="cpu")
        first = step * self.num_directions
        return order.roll(-first)[: self.num_directions].tolist()

    def nearby(self, points: Tensor, theta: Tensor) -> list[int]:
        """Return which of the earlier points the surrogate uses, oldest first.

        Args:
            points: All points seen before, ``M x d``.
            theta: The current point, a ``d`` tensor.
        """
        if self.window >= len(points):
            return list(range(len(points)))
        if not self.window:
            return []
        # Look at a few times as many as needed, so the cost does not grow with M.
        order = nearest_points(
            self.kernel if self._radial is None else self._radial,
            points,
            theta,
            4 * self.window,
        )
        # If the iterate does not move, points repeat: put copies after all others.
        rows = (points[order] + 0.0).cpu().numpy()  # a zero has no sign then
        seen: set[bytes] = set()
        first: list[int] = []
        copies: list[int] = []
        for index, row in zip(order.tolist(), rows, strict=True):
            point = row.tobytes()
            (copies if point in seen else first).append(index)
            seen.add(point)
            if len(first) == self.window:
                break
        return sorted((first + copies)[: self.window])

    def forget(self) -> None:
        """Drop the factor of earlier points: others come in their place."""
        if self._radial is not None:
            self._surrogate.forget()

    def propose(
        self, theta: Tensor, points: Tensor, nearby: list[int], *, step: int
    ) -> Proposal:
        """Return the points that leave the least uncertainty about the gradient.

        Args:
            theta: The current point, a ``d`` tensor.
            points: All points seen before, ``M x d``. Later calls may only append to
                them, until :meth:`forget` is called.
            nearby: Which of them the surrogate uses. The weights are in this order,
                with the new points behind them.
            step: The number of the step, from 0 on; it seeds random starts.
        """
        noise = self.noise_variance_at(step)
        if self.search == "optimize":
            new = self._search(theta, points[nearby], step)
            found = gradient_weights(
                self.kernel,
                theta,
                torch.cat([points[nearby], new]),
                noise_variance=noise,
                constant_mean=self.mean == "constant",
            )
            weights, trace = found.weights, float(found.trace)
        else:
            surrogate = self._surrogate
            surrogate.look(theta, nearby, points, noise)
            placed = self._place(theta, points[nearby], step)
            first = len(points)
            keys = list(range(first, first + len(placed.points)))
            surrogate.add(placed, keys)
            new = placed.points
            weights, trace = surrogate.weights([*nearby, *keys])
        if self.num_directions < self.dim:
            weights = weights[self.directions(step)]
        return Proposal(new, weights, trace)

    def _new_surrogate(self, radial: RadialKernel) -> RadialSurrogate:
        return RadialSurrogate(radial, constant_mean=self.mean == "constant")

    def _place(self, theta: Tensor, seen: Tensor, step: int) -> Placement:
        """Return a design in closed form, polished if the user wants that."""
        if self.num_directions < self.dim:
            return self._place_in_some_directions(theta, step)
        surrogate, batch_size = self._surrogate, self.batch_size
        directions = surrogate.directions()
        if self.tolerance is not None:
            placed = self._fewest_points(theta, directions, self.tolerance)
            batch_size = len(placed.points)
        else:
            placed = self._best_design(theta, directions, batch_size)
        if self.search != "polish" or not batch_size:
            return placed
        acqf = GradientInformation(self._model(seen, step), theta)
        start = placed.points.unsqueeze(0)
        polished = self._optimize(
            acqf, batch_size, step, num_restarts=1, batch_initial_conditions=start
        )
        return surrogate.place(torch.stack([placed.points, polished]))

    def _best_design(
        self,
        theta: Tensor,
        directions: Tensor,
        batch_size: int,
        target: float | None = None,
    ) -> Placement:
        """Return a design in the box, refined if the user wants that.

        Args:
            theta: The current point, a ``d`` tensor.
            directions: The directions of the gradient, the least known first.
            batch_size: The number of points, at least 1.
            target: A trace that is small enough; then the design is refined, unless it
                reaches it.
        """
        surrogate = self._surrogate
        placed = self._design(surrogate, theta, directions, batch_size, self._box)
        trace = surrogate.trace_with(placed)
        refined = self.search == "refine" if target is None else trace > target
        if not (refined and surrogate.has_history):
            return placed
        choices = partial(
            design_choices,
            surrogate.radial,
            directions,
            theta,
            batch_size,
            surrogate.unit_noise,
            self._box,
        )
        geometry = surrogate.geometry()
        points, _ = refine(
            geometry,
            theta,
            choices(scales_of_starts(geometry, batch_size)),
            self._box,
        )
        better = surrogate.place(points.unsqueeze(0))
        # The search ignores what it costs not to know the mean.
        return (
            better
            if surrogate.trace_with(better) < trace
            else surrogate.place(placed.points.unsqueeze(0))
        )

    @staticmethod
    def _design(
        surrogate: RadialSurrogate,
        theta: Tensor,
        directions: Tensor,
        batch_size: int,
        box: Tensor,
    ) -> Placement:
        """Return the better of the designs that lie in the box."""
        choices = design_choices(
            surrogate.radial, directions, theta, batch_size, surrogate.unit_noise, box
        )
        return surrogate.place(choices)

    def _place_in_some_directions(self, theta: Tensor, step: int) -> Placement:
        """Return a design that varies only the coordinates of this step."""
        chosen, bare = self.directions(step), self._of_directions
        some = theta[chosen]
        bare.look(
            some, [], some.new_empty(0, len(chosen)), self.noise_variance_at(step)
        )
        design = self._design(
            bare, some, bare.directions(), self.batch_size, self._box[:, chosen]
        )
        points = theta.repeat(self.batch_size, 1)
        points[:, chosen] = design.points
        return self._surrogate.place(points.unsqueeze(0))

    def _search(self, theta: Tensor, seen: Tensor, step: int) -> Tensor:
        """Return points that a search from random starts finds."""
        acqf = GradientInformation(self._model(seen, step), theta)
        if self._is_known(acqf, theta):  # a kernel of finite rank: any points do
            return self._random_points(step)
        return self._optimize(
            acqf, self.batch_size, step, num_restarts=2, raw_samples=64
        )

    def _model(self, points: Tensor, step: int) -> GradientGP:
        # The choice of points does not depend on the targets.
        targets = torch.zeros_like(points[:, :1])
        return GradientGP(points, targets, self.kernel, self.noise_variance_at(step))

    def _check_directions(
        self, num_directions: int | None, tolerance: float | None
    ) -> int:
        if num_directions in (None, self.dim):
            return self.dim
        radial = self._radial
        isotropic = radial is not None and bool(
            (radial.inverse_lengthscale == radial.inverse_lengthscale[0]).all()
        )
        if not (isotropic and self.search == "design" and tolerance is None):
            raise InvalidArgumentError(
                f"num_directions={num_directions!r} needs search='design', a radial "
                "kernel with one length scale, and no tolerance."
            )
        return num_directions

    def _is_known(self, acqf: GradientInformation, theta: Tensor) -> bool:
        """Return whether only rounding is left to learn about the gradient."""
        prior = prior_gradient_covariance(self.kernel, theta.unsqueeze(0))
        left, before = (
            covariance.diagonal(dim1=-2, dim2=-1).sum()
            for covariance in (acqf.prior_covariance, prior)
        )
        return bool(left <= _NOTHING * before)

    def _optimize(
        self, acqf: GradientInformation, batch_size: int, seed: int, **options: Any
    ) -> Tensor:
        with self._public_randomness(seed), warnings.catch_warnings():
            warnings.simplefilter("ignore", BotorchWarning)
            points, _ = optimize_acqf(acqf, self._box, q=batch_size, **options)
        return points.detach()

    def _random_points(self, seed: int) -> Tensor:
        low, high = self._box
        with self._public_randomness(seed):
            return low + (high - low) * torch.rand_like(low.expand(self.batch_size, -1))

    @contextlib.contextmanager
    def _public_randomness(self, seed: int) -> Iterator[None]:
        """Seed torch from public state: the same points when asked again."""
        with kept_generators(), self._box.device:
            torch.manual_seed(seed)
            yield

    def _fewest_points(
        self, theta: Tensor, directions: Tensor, tolerance: float
    ) -> Placement:
        """Return the fewest points that reach the tolerance (Algorithm 2, line 4).

        There are none if the earlier points suffice. Otherwise it bisects: except for
        rounding, more points leave less uncertainty. If 2 d points do not suffice, as
        may happen near a wall, it returns these.
        """
        surrogate = self._surrogate
        if surrogate.trace <= tolerance:
            return surrogate.place(theta.new_empty(1, 0, self.dim))
        low = 1 if surrogate.has_history else self._fewest
        high = 2 * self.dim
        best = self._best_design(theta, directions, high, tolerance)
        while low < high:
            middle = (low + high) // 2
            placed = self._best_design(theta, directions, middle, tolerance)
            if surrogate.trace_with(placed) <= tolerance:
                high, best = middle, placed
            else:
                low = middle + 1
        return surrogate.place(best.points.unsqueeze(0))

    def _check_tolerance(self, tolerance: float) -> float:
        tolerance = check_positive("tolerance", tolerance)
        if self._radial is None or self.search == "optimize":
            raise InvalidArgumentError(
                "tolerance needs designs in closed form: use a radial kernel (RBF, "
                "Matern-5/2, rational quadratic) and search='design' or 'polish'."
            )
        noise = max(self._noise_variances)
        floor = design_traces(self._radial, noise_variance=noise)[-1]
        if tolerance < floor:
            raise InvalidArgumentError(
                f"tolerance must be at least {floor:.6g}, what 2 d points leave "
                f"unknown with noise_variance={noise:g}, got {tolerance!r}."
            )
        return tolerance
