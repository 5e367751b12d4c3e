r"""DP-GIBO: private optimization in many dimensions, from losses alone.

The surrogate's geometry, hence where to evaluate and the weights
:math:`W = \nabla k(\theta, D) (K + s^2 I)^{-1}`, depends on public points only. The
private losses L (n x M) enter once, linearly: the gradients of all records are
:math:`G = L W^\top`. They are clipped, averaged, noised and followed.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Algorithms 1 and 2.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_dp._deprecated import warn_deprecated
from botorch_dp._validation import check_choice
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import (
    Losses,
    PrivateValues,
    checked_chunks,
)
from botorch_dp.optimizers.core.search_box import SearchBox
from botorch_dp.optimizers.core.transfer import send
from botorch_dp.optimizers.gibo.descent_plan import DescentPlan, plan_descent
from botorch_dp.optimizers.gibo.geometry import DEFAULT_NOISE_VARIANCE, GIBOGeometry
from botorch_dp.optimizers.gibo.gradient_descent import (
    MOVES,
    GradientDescent,
    PrivateGradientDescent,
)
from botorch_dp.optimizers.gibo.planning import GIBOPlan, plan
from botorch_dp.optimizers.gibo.updates import ADAGRADS, Update
from botorch_dp.privacy import Guarantee, Ledger, SecureNoise
from botorch_dp.privacy.budget import check_gaussian

_UNKNOWN = -1


class GradientInformationDescent(GradientDescent):
    """Algorithm 1 of [Sopa2025dpgibo]_, up to how the mean gradient is released."""

    # Whether points whose losses are not known any more are asked for again.
    _asks_again = True

    def _start(self, geometry: GIBOGeometry) -> None:
        self.geometry = geometry
        # All points seen so far, in search coordinates, and the rows of their losses.
        self._points = self._parameter.new_empty(0, self.search_box.dim)
        self._rows: list[int] = []
        self._losses = PrivateValues()

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {**super().settings(), **self.geometry.settings()}

    def _propose(self) -> Tensor:
        theta = self._parameter
        nearby = self.geometry.nearby(self._points, theta)
        # Losses that came in chunks, or before a crash, are asked for again.
        remembered = [i for i in nearby if self._rows[i] != _UNKNOWN]
        again = [i for i in nearby if self._rows[i] == _UNKNOWN and self._asks_again]
        # Lines 4 and 5: the points that leave the least uncertainty about the gradient.
        # With those nearby they are D_t, which gives the weights W of line 6.
        proposal = self.geometry.propose(
            theta, self._points, remembered + again, step=len(self._history)
        )
        self._remembered, self._again, self._trace = remembered, again, proposal.trace
        points = torch.cat([self._points[again], proposal.points])
        self._asked, self._weights, self._known_rows = send(
            [
                self._box.from_search(points),
                proposal.weights,
                torch.tensor([self._rows[i] for i in remembered], device=theta.device),
            ],
            self.bounds.device,
        )
        return points

    def _points_of(self, pending: Tensor) -> Tensor:
        if pending is self._pending:
            return self._asked.clone()
        return super()._points_of(pending)

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        losses = self._make_room(losses, points)
        # Lines 6 and 7: the gradient of each record, clipped; their mean.
        private_mean = self._clipped_mean(self._gradients(losses, points))
        # Line 8: charged, then noised. What follows is post-processing.
        try:
            gradient = self._release(private_mean)
        finally:
            if self._is_paid_for():  # even if the draw is interrupted
                self._losses.forget()
        # Line 9: the next theta.
        directions = self.geometry.directions(len(self._history))
        whole = gradient.new_zeros(self.search_box.dim)
        whole[directions] = gradient
        step = self._follow(whole, num_points=len(points), trace=self._trace)
        self._remember(losses, points)
        return step

    def _gradients(self, losses: Losses, points: Tensor) -> Iterator[Tensor]:
        """Yield G = L W^T, the private gradients of consecutive records."""
        X, width = self._points_of(points), len(points)
        chunks = checked_chunks(losses, X, self.num_records, width, self.noun)
        num_known = self._weights.shape[-1] - width
        known_weights, told_weights = self._weights.tensor_split([num_known], dim=-1)
        for known, told in self._losses.blocks(self._known_rows, chunks):
            # As W L^T: BLAS is several times faster with long rows than with long
            # columns, and so is the clipping.
            gradients = told_weights @ told.mT
            yield gradients.addmm_(known_weights, known).mT

    def _make_room(self, losses: Losses, points: Tensor) -> Losses:
        """Reserve memory now, since nothing may fail once a step has been paid for."""
        if (
            not isinstance(losses, Tensor)
            or not losses.is_floating_point()
            or losses.shape != (self.num_records, len(points))
        ):
            return losses
        losses = losses.detach().to(self.bounds)
        self._losses.reserve(len(points), losses)
        return losses

    def _remember(self, losses: Losses, points: Tensor) -> None:
        rows = [_UNKNOWN] * len(points)
        last = len(self._history) + 1 >= self.num_steps
        if last or self._is_paid_for():
            self._losses.forget()
        elif isinstance(losses, Tensor):
            rows = self._losses.append(losses)
        again = len(self._again)
        for index, row in zip(self._again, rows[:again], strict=True):
            self._rows[index] = row
        self._points = torch.cat([self._points, points[again:]])
        self._rows += rows[again:]

    def _is_paid_for(self) -> bool:
        """Return whether all steps have been paid for."""
        return False

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "points": self._points}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        points = state["points"].to(self._points)
        if points.shape[1:] != self._parameter.shape or not points.isfinite().all():
            raise ValueError("points are not points of the box")

    def _restore(self, state: dict[str, Any]) -> None:
        # The state holds no losses: points that are needed are asked for once more.
        super()._restore(state)
        self._points = state["points"].to(self._points)
        self.geometry.forget()
        self._rows = [_UNKNOWN] * len(self._points)
        self._losses.forget()


class _Plan:
    """The plan of a run, or, under its earlier name, the planner of the theory."""

    @overload
    def __get__(self, run: None, kind: type) -> Callable[..., GIBOPlan]: ...

    @overload
    def __get__(self, run: "DPGIBO", kind: type) -> DescentPlan | None: ...

    def __get__(self, run: Any, kind: type) -> Any:
        if run is not None:
            return run._plan
        warn_deprecated("DPGIBO.plan(...)", "DPGIBO.plan_by_theory(...)")
        return DPGIBO.plan_by_theory


def _dim_of_a_cube(bounds: Tensor, transform: str | Sequence[str]) -> int:
    if "identity" in SearchBox(bounds, transform).transform:
        raise InvalidArgumentError(
            "transform must be 'linear' or 'log' for a plan, which needs the unit "
            "cube: give num_steps and clip_norm with transform='identity'."
        )
    return bounds.shape[-1]


class DPGIBO(GradientInformationDescent, PrivateGradientDescent):
    r"""Gradient-information Bayesian optimization under differential privacy.

    Minimizes the mean of per-record losses over a box. Each step evaluates b points
    around the current one, estimates every record's gradient from its own losses,
    releases the clipped mean with noise, and follows it ([Sopa2025dpgibo]_, Algorithm
    1). Everything happens in search coordinates: the unit cube unless ``transform``
    says otherwise.

    Args:
        bounds: A ``2 x d`` tensor of lower and upper bounds.
        num_records: The number n of private records.
        guarantee: What the whole run has to meet: ``GDP``, ``ApproxDP`` or ``RDP``.
        num_steps: The number T of steps, which share the budget equally. If it or
            ``clip_norm`` is left out, all settings that are not given are planned from
            public facts (:mod:`botorch_dp.optimizers.gibo.descent_plan`); ``plan``
            says how.
        clip_norm: The bound B on a record's gradient, in search coordinates.
        loss_range: The range ``(low, high)`` of a record's loss, from which the clip
            norm is planned. It must be a property of the loss, not of the data. A loss
            outside the range costs accuracy, never privacy.
        max_evaluations: How many points the planned run may evaluate. Points of earlier
            steps are then not evaluated again, if losses come in chunks or a run
            resumes.
        batch_size: The number b of points a step; d + 1 by default, and at least 2
            with a constant mean.
        kernel: A twice differentiable GPyTorch kernel with fixed hyperparameters, in
            search coordinates; by default an RBF kernel, with a planned length scale
            or 0.5.
        noise_variance: The variance of the observations' noise, if losses are noisy
            (section 3.4); otherwise a jitter, relative to the kernel's scale, which
            sets how far from the current point losses are evaluated. One number, or one
            for each step; 1e-6 if it is not planned.
        mean: ``"constant"`` estimates a prior mean for each record (it changes W by a
            rank-one term), so that losses need not be centred; ``"zero"`` is the
            paper's choice.
        transform: ``"linear"``, ``"log"`` or ``"identity"``, for all or for each
            dimension.
        update: ``"adagrad"``, ``"sparse-adagrad"``, ``"sgd"`` or a torch.optim class.
        step_size: Its learning rate, in search coordinates.
        initial_accumulator: The value at which AdaGrad's sums of squares start; 0 if it
            is not planned.
        num_directions: How many coordinates of the gradient a step estimates and
            releases; all by default. They take turns.
        initial_x: Where to start; the centre of the box by default.
        window: How many of the nearest earlier points the surrogate uses in addition
            to the new ones, so that the cost of a step does not grow; by default
            4 (d + 1), and none from 200 dimensions on. Losses in one tensor are kept
            inside until the run ends (8 n bytes a point). Losses in chunks are not
            kept: the points of the window are asked for again, and ``window=0`` asks
            for new points only.
        tolerance: Algorithm 2: each step evaluates the fewest points, at most 2 d, that
            bring the trace of the gradient's covariance below this value. There are
            none if what is known suffices: ``ask`` then returns a ``0 x d`` tensor and
            ``tell`` takes an ``n x 0`` one. Such a step costs the same privacy, since
            it releases a gradient of losses that were told before. Near a wall of the
            box 2 d points may not suffice, as the trace in ``history`` shows. Excludes
            ``batch_size``.
        search: How to choose the points: ``"design"`` in closed form (the default for
            radial kernels), ``"refine"`` it with a few steps of L-BFGS that use earlier
            points, ``"polish"`` it with ``optimize_acqf``, or ``"optimize"`` from
            random starts (the default for other kernels).
        adjacency: The neighbours for which the guarantee holds: ``"replace_one"``, or
            ``"zero_out"``, where one record contributes nothing and the noise is half
            as large; see :class:`PrivateGradientDescent`.
        unit: Who a row of losses belongs to, and is protected: ``"record"``, or
            ``"person"`` if every row combines all records of one person.
        ledger: The ledger to charge; by default one with the guarantee as its cap.
        generator: Seeds the noise, for experiments only.
        secure: Whether to draw exact discrete noise; with ``ApproxDP`` or ``RDP``.

    Attributes:
        plan: The :class:`~botorch_dp.optimizers.gibo.descent_plan.DescentPlan`, or None
            if ``num_steps`` and ``clip_norm`` were given.

    Example:
        >>> from botorch_dp import GDP
        >>> records = torch.rand(1000, 2, dtype=torch.float64)  # private
        >>> def losses(X):  # 1000 x b
        ...     return (records.unsqueeze(1) - X).square().sum(dim=-1) / 2
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> opt = DPGIBO(bounds, 1000, GDP(mu=1.0), loss_range=(0.0, 1.0))
        >>> print(opt.plan)
        DP-GIBO: 20 steps in 2 dimensions, 80 evaluations,
        stencil radius 0.0685, gradients clipped to 5.59, noise 0.05
        >>> result = opt.run(losses, progress=False)
        >>> result.x.shape, result.certificate.guarantee
        (torch.Size([2]), GDP(mu=1))
    """

    name = "dp-gibo"
    plan = _Plan()

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int | None = None,
        clip_norm: float | None = None,
        *,
        loss_range: tuple[float, float] | None = None,
        max_evaluations: int | None = None,
        batch_size: int | None = None,
        kernel: Kernel | None = None,
        noise_variance: float | Sequence[float] | None = None,
        mean: str = "constant",
        transform: str | Sequence[str] = "linear",
        update: Update = "adagrad",
        step_size: float | None = None,
        initial_accumulator: float | None = None,
        num_directions: int | None = None,
        initial_x: Tensor | None = None,
        window: int | None = None,
        tolerance: float | None = None,
        search: str | None = None,
        adjacency: str = "replace_one",
        unit: str = "record",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        self._plan: DescentPlan | None = None
        given = (num_steps, clip_norm)
        if None in given or not (max_evaluations is None and loss_range is None):
            if max_evaluations is not None and (batch_size, tolerance) != (None, None):
                raise InvalidArgumentError(
                    "max_evaluations plans the number of points a step: leave out "
                    "batch_size and tolerance."
                )
            self._plan = planned = plan_descent(
                num_records=num_records,
                dim=_dim_of_a_cube(bounds, transform),
                guarantee=check_gaussian(guarantee, secure),
                loss_range=loss_range,
                clip_norm=clip_norm,
                num_steps=num_steps,
                num_directions=num_directions,
                max_evaluations=max_evaluations,
                moves=MOVES[check_choice("adjacency", adjacency, tuple(MOVES))],
            )
            num_steps, clip_norm = planned.num_steps, planned.clip_norm
            if num_directions is None and planned.num_directions < planned.dim:
                num_directions = planned.num_directions
            if batch_size is None and tolerance is None:
                batch_size = planned.batch_size
            if kernel is None and noise_variance is None:
                noise_variance = planned.noise_variances
                with torch.device("cpu"):
                    kernel = RBFKernel()
                    kernel.lengthscale = planned.length_scale
            if update in ADAGRADS:
                step_size = planned.step_size if step_size is None else step_size
                if initial_accumulator is None:
                    initial_accumulator = planned.initial_accumulator
        assert num_steps is not None
        assert clip_norm is not None
        super().__init__(
            bounds,
            num_records,
            guarantee,
            num_steps,
            clip_norm,
            transform=transform,
            update=update,
            step_size=step_size,
            initial_accumulator=initial_accumulator,
            num_directions=num_directions,
            initial_x=initial_x,
            adjacency=adjacency,
            unit=unit,
            ledger=ledger,
            generator=generator,
            secure=secure,
        )
        geometry = GIBOGeometry(
            self._box.box,
            self._parameter,
            batch_size=batch_size,
            kernel=kernel,
            noise_variance=(
                DEFAULT_NOISE_VARIANCE if noise_variance is None else noise_variance
            ),
            mean=mean,
            window=window,
            tolerance=tolerance,
            search=search,
            num_directions=num_directions,
        )
        self._start(geometry)
        self._asks_again = max_evaluations is None

    def _is_paid_for(self) -> bool:
        return self.account.num_known >= self.num_steps

    def _certified_parameters(self) -> dict[str, Any]:
        parameters = super()._certified_parameters()
        variances = parameters["noise_variance"]
        if isinstance(variances, list):
            parameters["noise_variance"] = f"{variances[0]:.3g} to {variances[-1]:.3g}"
        return parameters

    @staticmethod
    def plan_by_theory(**kwargs: Any) -> GIBOPlan:
        """Choose the number of steps and the clip norm from public facts, and print it.

        Args:
            **kwargs: See :func:`botorch_dp.optimizers.gibo.planning.plan`.
        """
        chosen = plan(**kwargs)
        print(chosen)
        return chosen
