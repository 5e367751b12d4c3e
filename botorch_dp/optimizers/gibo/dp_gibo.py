r"""DP-GIBO: private optimization in many dimensions, from losses alone.

The surrogate's geometry, hence where to evaluate and the weights
:math:`W = \nabla k(\theta, D) (K + s^2 I)^{-1}`, depends on public points only. The
private losses L (n x M) enter once, linearly: the gradients of all records are
:math:`G = L W^\top`. They are clipped, averaged, noised and followed.

References:
    .. [Sopa2025dpgibo] G. Sopa, J. Marusic, M. Avella-Medina and J. Cunningham.
        Scalable Differentially Private Bayesian Optimization. 2025. Algorithms 1 and 2.
"""

import contextlib
import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from botorch.exceptions.warnings import BotorchWarning
from botorch.optim import optimize_acqf
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from botorch_dp._validation import check_choice, check_count, check_positive
from botorch_dp.acquisition import GradientInformation, design_traces, optimal_design
from botorch_dp.exceptions import InvalidArgumentError
from botorch_dp.models import (
    GradientGP,
    KernelDictionary,
    check_twice_differentiable,
    describe_kernel,
    kernel_gradient,
    nearest_points,
    prior_gradient_covariance,
    radial_kernel,
)
from botorch_dp.optimizers.core.optimizer import Step
from botorch_dp.optimizers.core.private_values import (
    Losses,
    PrivateLosses,
    checked_chunks,
)
from botorch_dp.optimizers.gibo.bounds import GIBOPlan, plan
from botorch_dp.optimizers.gibo.gradient_descent import PrivateGradientDescent, Update
from botorch_dp.privacy import Guarantee, Ledger, SecureNoise

_DEFAULT_LENGTHSCALE = 0.5  # for the unit cube, from the measured experiments
_SEARCHES = ("design", "polish", "optimize")
_MEANS = ("constant", "zero")
_UNKNOWN = -1
# Shares of the prior variance below this are taken for rounding.
_NOTHING = 1e-8


class DPGIBO(PrivateGradientDescent):
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
        num_steps: The number T of steps, which share the budget equally.
        clip_norm: The bound B on a record's gradient, in search coordinates.
        batch_size: The number b of points a step; d + 1 by default, and no less than 2
            with a constant mean.
        kernel: A twice differentiable GPyTorch kernel with fixed hyperparameters, in
            search coordinates; by default an RBF kernel with length scale 0.5.
        noise_variance: The variance of the observations' noise: what is known of noisy
            losses (section 3.4), or a jitter beside the kernel's scale.
        mean: ``"constant"``: a prior mean estimated for each record (it changes W by a
            rank-one term), so that losses need not be centred; or ``"zero"``, as in the
            paper.
        transform: ``"linear"``, ``"log"`` or ``"identity"``, for all or for each
            dimension.
        update: ``"adagrad"``, ``"sgd"``, or a ``torch.optim`` class.
        step_size: Its learning rate, in search coordinates.
        initial_x: Where to start; the centre of the box by default.
        window: How many of the nearest points seen so far the surrogate uses beside
            the new ones; by default 4 (d + 1), with which a step costs the same however
            many there are. Losses that are told as tensors are kept inside until the
            run ends, 8 n bytes for each point; those that are told in chunks are not,
            and the window's points are asked for again: ``window=0`` asks for new
            points only.
        tolerance: Algorithm 2: evaluate, in each step, the fewest points that bring the
            trace of the gradient's covariance below it, but no more than 2 d: where
            walls of the box are in the way they may not suffice, which the trace in
            ``history`` shows. Excludes ``batch_size``.
        search: How to choose the points: ``"design"`` in closed form (the default, for
            radial kernels), ``"polish"`` it by ``optimize_acqf``, or ``"optimize"``
            from random starts (the default for other kernels).
        adjacency: For which neighbours the guarantee holds: ``"replace_one"``, or
            ``"zero_out"``, where one record contributes nothing and the noise is half
            as large; see :class:`PrivateGradientDescent`.
        ledger: What is charged; by default one with the guarantee as its cap.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise; with ``ApproxDP`` or ``RDP``.

    Example:
        >>> from botorch_dp import GDP
        >>> records = torch.rand(1000, 2, dtype=torch.float64)  # private
        >>> def losses(X):  # 1000 x b
        ...     return (records.unsqueeze(1) - X).square().sum(dim=-1) / 2
        >>> bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
        >>> opt = DPGIBO(bounds, 1000, GDP(mu=1.0), num_steps=10, clip_norm=1.0)
        >>> result = opt.run(losses, progress=False)
        >>> result.x.shape, result.certificate.guarantee
        (torch.Size([2]), GDP(mu=1))
    """

    name = "dp-gibo"

    def __init__(
        self,
        bounds: Tensor,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int,
        clip_norm: float,
        *,
        batch_size: int | None = None,
        kernel: Kernel | None = None,
        noise_variance: float = 1e-6,
        mean: str = "constant",
        transform: str | Sequence[str] = "linear",
        update: Update = "adagrad",
        step_size: float | None = None,
        initial_x: Tensor | None = None,
        window: int | None = None,
        tolerance: float | None = None,
        search: str | None = None,
        adjacency: str = "replace_one",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        super().__init__(
            bounds,
            num_records,
            guarantee,
            num_steps,
            clip_norm,
            transform=transform,
            update=update,
            step_size=step_size,
            initial_x=initial_x,
            adjacency=adjacency,
            ledger=ledger,
            generator=generator,
            secure=secure,
        )
        d = self.coordinates.dim
        self.kernel = self._make_kernel(kernel)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.mean = check_choice("mean", mean, _MEANS)
        self.window = check_count(
            "window", 4 * (d + 1) if window is None else window, minimum=0
        )
        radial = radial_kernel(self.kernel, self._parameter.unsqueeze(0))
        if search is None:
            search = "optimize" if radial is None else "design"
        self.search = check_choice("search", search, _SEARCHES)
        if radial is None and self.search != "optimize":
            raise InvalidArgumentError(
                f"search must be 'optimize' with {type(self.kernel).__name__}, which "
                f"has no design in closed form, got {search!r}."
            )
        if batch_size is not None and tolerance is not None:
            raise InvalidArgumentError(
                "batch_size and tolerance exclude each other: Algorithm 2 chooses the "
                f"batch size, got batch_size={batch_size!r}, tolerance={tolerance!r}."
            )
        # A constant mean takes one point for itself: of one alone, nothing is left.
        self._fewest = 2 if self.mean == "constant" else 1
        self.batch_size = check_count(
            "batch_size",
            d + 1 if batch_size is None else batch_size,
            minimum=self._fewest,
        )
        self.tolerance = None
        if tolerance is not None:
            self.tolerance = self._check_tolerance(tolerance)
        self._points = self._parameter.new_empty(0, d)  # all seen, search coordinates
        self._rows: list[int] = []  # where their losses are, _UNKNOWN if nowhere
        self._losses = PrivateLosses()
        self._last_trace = float("nan")

    @staticmethod
    def plan(**kwargs: Any) -> GIBOPlan:
        """Choose the number of steps and the clip norm from public facts, and print it.

        Args:
            **kwargs: See :func:`botorch_dp.optimizers.gibo.bounds.plan`.
        """
        chosen = plan(**kwargs)
        print(chosen)
        return chosen

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "batch_size": self.batch_size,
            "kernel": describe_kernel(self.kernel),
            "noise_variance": self.noise_variance,
            "mean": self.mean,
            "window": self.window,
            "tolerance": self.tolerance,
            "search": self.search,
        }

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "points": self._points}

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        points = state["points"].to(self.bounds)
        if points.shape[1:] != self._parameter.shape or not points.isfinite().all():
            raise ValueError("points are not points of the box")

    def _restore(self, state: dict[str, Any]) -> None:
        # The state holds no losses: points that are needed are asked for once more.
        super()._restore(state)
        self._points = state["points"].to(self.bounds)
        self._rows = [_UNKNOWN] * len(self._points)
        self._losses.forget()

    def _propose(self) -> Tensor:
        # Line 4: the points that leave least unknown of the gradient at theta.
        nearby = self._nearby()
        new = self._new_points(self._points[nearby])
        # Line 5: D_t. Where losses were told in chunks, or before a crash, ask again.
        self._remembered = [i for i in nearby if self._rows[i] != _UNKNOWN]
        self._again = [i for i in nearby if self._rows[i] == _UNKNOWN]
        return torch.cat([self._points[self._again], new])

    def _private_gradients(self, losses: Losses, points: Tensor) -> Iterator[Tensor]:
        known = self._points[self._remembered]
        # Line 6: G = L W^T, the gradients of all records; W is public.
        weights, self._last_trace = self._weights(torch.cat([known, points]))
        known_weights, told_weights = weights.mT.split([len(known), len(points)])
        rows = [self._rows[i] for i in self._remembered]
        chunks = checked_chunks(
            losses,
            self.coordinates.from_search(points),
            self.num_records,
            len(points),
            self.noun,
        )
        for remembered, told in self._losses.blocks(rows, chunks):
            gradients = told @ told_weights
            if remembered is not None:
                gradients += remembered @ known_weights
            yield gradients

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        shape = (self.num_records, len(points))
        if (
            isinstance(losses, Tensor)
            and losses.is_floating_point()
            and losses.shape == shape
        ):
            # Now, since nothing may fail once a step has been paid for.
            losses = losses.detach().to(points)
            self._losses.reserve(len(points), losses)
        step = super()._learn(losses, points)
        rows = [_UNKNOWN] * len(points)
        if self.done:
            self._losses.forget()
        elif isinstance(losses, Tensor):
            rows = self._losses.append(losses)
        again = len(self._again)
        for index, row in zip(self._again, rows[:again], strict=True):
            self._rows[index] = row
        self._points = torch.cat([self._points, points[again:]])
        self._rows += rows[again:]
        return step

    def _trace(self) -> float:
        return self._last_trace

    def _nearby(self) -> list[int]:
        """Return which of the points seen before the surrogate uses, oldest first.

        The nearest, and copies of a point (where the iterate rests) after all others.
        """
        M = len(self._points)
        if self.window >= M:
            return list(range(M))
        # Of a few times as many as needed, so that the cost does not grow with M.
        order = nearest_points(
            self.kernel, self._points, self._parameter, 4 * self.window
        )
        _, which = self._points[order].unique(dim=0, return_inverse=True)
        seen: set[int] = set()
        first: list[int] = []
        copies: list[int] = []
        for index, point in zip(order.tolist(), which.tolist(), strict=True):
            (copies if point in seen else first).append(index)
            seen.add(point)
        return sorted((first + copies)[: self.window])

    @torch.no_grad()
    def _weights(self, D: Tensor) -> tuple[Tensor, float]:
        r"""Return W, which maps a record's losses at D to its gradient, and the trace.

        With a constant mean :math:`1^\top K^{-1} l / 1^\top K^{-1} 1` for each record,
        W loses what it would make of a constant.
        """
        theta = self._parameter.unsqueeze(0)
        dictionary = KernelDictionary(
            self.kernel, D, noise_variance=self.noise_variance
        )
        cross = kernel_gradient(self.kernel, theta, D).squeeze(0)  # M x d
        solved = dictionary.solve(torch.cat([cross, torch.ones_like(D[:, :1])], dim=-1))
        W, ones = solved[:, :-1].mT, solved[:, -1]  # d x M, M
        prior = prior_gradient_covariance(self.kernel, theta)
        trace = prior.diagonal(dim1=-2, dim2=-1).sum() - (W * cross.mT).sum()
        if self.mean == "constant":
            of_constants = W.sum(dim=-1)  # d
            trace = trace + of_constants.square().sum() / ones.sum()
            W = W - of_constants.unsqueeze(-1) * ones / ones.sum()
        return W, float(trace)

    def _new_points(self, seen: Tensor) -> Tensor:
        # Geometry alone: no target enters.
        model = GradientGP(
            seen, torch.zeros_like(seen[:, :1]), self.kernel, self.noise_variance
        )
        box, batch_size = self.coordinates.box, self.batch_size
        if self.search == "optimize":
            acqf = GradientInformation(model, self._parameter)
            if self._is_known(acqf):  # a kernel of finite rank: any points will do
                return self._random_points()
            return self._optimize(acqf, num_restarts=2, raw_samples=64)
        if self.tolerance is not None:
            batch_size = self._smallest_batch(model, self.tolerance)
        design = optimal_design(model, self._parameter, batch_size, box)
        if self.search == "design":
            return design.points
        acqf = GradientInformation(model, self._parameter)
        polished = self._optimize(
            acqf, num_restarts=1, batch_initial_conditions=design.points.unsqueeze(0)
        )
        return polished if acqf.trace(polished) < design.trace else design.points

    def _is_known(self, acqf: GradientInformation) -> bool:
        """Whether nothing but rounding is left to learn about the gradient."""
        prior = prior_gradient_covariance(self.kernel, self._parameter.unsqueeze(0))
        left, before = (
            covariance.diagonal(dim1=-2, dim2=-1).sum()
            for covariance in (acqf.prior_covariance, prior)
        )
        return bool(left <= _NOTHING * before)

    def _optimize(self, acqf: GradientInformation, **options: Any) -> Tensor:
        starts = options.get("batch_initial_conditions")
        batch_size = self.batch_size if starts is None else starts.shape[-2]
        with self._public_randomness(), warnings.catch_warnings():
            warnings.simplefilter("ignore", BotorchWarning)
            points, _ = optimize_acqf(
                acqf, self.coordinates.box, q=batch_size, **options
            )
        return points.detach()

    def _random_points(self) -> Tensor:
        low, high = self.coordinates.box
        with self._public_randomness():
            return low + (high - low) * torch.rand_like(low.expand(self.batch_size, -1))

    @contextlib.contextmanager
    def _public_randomness(self) -> Iterator[None]:
        """Seed torch from public state: the same points when asked again."""
        devices = range(torch.cuda.device_count())  # manual_seed seeds all of them
        with torch.random.fork_rng(devices=devices), self.bounds.device:
            torch.manual_seed(len(self._history))
            yield

    def _smallest_batch(self, model: GradientGP, tolerance: float) -> int:
        """Algorithm 2, line 4: the fewest points that reach the tolerance.

        By bisection: but for rounding, more points leave less unknown.
        """
        seen, box = model.train_inputs[0], self.coordinates.box
        low, high = self._fewest, 2 * self.coordinates.dim
        while low < high:
            middle = (low + high) // 2
            design = optimal_design(model, self._parameter, middle, box)
            _, trace = self._weights(torch.cat([seen, design.points]))
            if trace <= tolerance:
                high = middle
            else:
                low = middle + 1
        return low

    def _check_tolerance(self, tolerance: float) -> float:
        tolerance = check_positive("tolerance", tolerance)
        radial = radial_kernel(self.kernel, self._parameter.unsqueeze(0))
        if radial is None or self.search == "optimize":
            raise InvalidArgumentError(
                "tolerance needs designs in closed form: use a radial kernel (RBF, "
                "Matern-5/2, rational quadratic) and search='design' or 'polish'."
            )
        floor = design_traces(radial, noise_variance=self.noise_variance)[-1]
        if tolerance < floor:
            raise InvalidArgumentError(
                f"tolerance must be at least {floor:.6g}, what 2 d points leave "
                f"unknown with noise_variance={self.noise_variance:g}, got "
                f"{tolerance!r}."
            )
        return tolerance

    def _make_kernel(self, kernel: Kernel | None) -> Kernel:
        if kernel is None:
            with self._parameter.device:
                kernel = RBFKernel()
                kernel.lengthscale = _DEFAULT_LENGTHSCALE
        check_twice_differentiable(kernel)
        kernel = copy.deepcopy(kernel).to(self._parameter)
        kernel = kernel.requires_grad_(False).eval()
        if kernel.batch_shape:
            raise InvalidArgumentError(
                f"kernel must not be batched, got batch_shape {kernel.batch_shape}."
            )
        prior = prior_gradient_covariance(kernel, self._parameter.unsqueeze(0))
        if not (prior.diagonal(dim1=-2, dim2=-1) > 0).all():
            raise InvalidArgumentError(
                f"kernel must vary in all {self.coordinates.dim} dimensions for "
                f"gradients to be learnt, got {kernel!r}."
            )
        return kernel
