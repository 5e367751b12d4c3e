r"""Private release of the best candidate and its value.

A run evaluates the losses of n records at T points and releases one candidate, its
value, or both. There are four ways, which differ in what they assume:

* ``"stable"`` (the default): worst case, no assumption. Per-record losses are clipped
  to a public range and points are chosen without private data, so that the sensitivity
  of every score is known exactly (:mod:`botorch_dp.optimizers.release.scores`). With
  ``adaptive=True`` a part of the budget releases some means with Gaussian noise, on
  which later points then depend (:mod:`botorch_dp.optimizers.release.adaptive`).
* ``"kusner"``: Algorithm 1 of [Kusner2015dpbo]_: UCB on private values, and a release
  at the end, whose sensitivity is bounded with probability 1 - delta *if the objectives
  of neighbouring data sets are draws from a known Gaussian process*.
* ``"kusner-noise-free"``: its Algorithm 2, under further assumptions.
* ``"lipschitz"``: its Algorithm 3, for regularized linear models; the value only.
  These last three are here for comparison: their releases are close to random.

References:
    .. [Kusner2015dpbo] M. Kusner, J. Gardner, R. Garnett and K. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from botorch_dp._deprecated import warn_deprecated
from botorch_dp._validation import (
    check_count,
    check_positive,
    check_range,
)
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.models.kernels.describe import describe_kernel
from botorch_dp.optimizers.core.optimizer import OptimizationResult, Step
from botorch_dp.optimizers.core.private_optimizer import PrivateOptimizer
from botorch_dp.optimizers.core.private_values import Losses, checked_chunks
from botorch_dp.optimizers.release.planning import plan_steps
from botorch_dp.optimizers.release.problem import (
    ReleaseProblem,
    box_candidates,
    check_candidates,
    fixed_kernel,
    row_of,
)
from botorch_dp.optimizers.release.strategies import choose_strategy
from botorch_dp.optimizers.release.strategy import ReleasedCandidate, ReleaseStrategy
from botorch_dp.privacy import (
    Guarantee,
    Ledger,
    PrivacyEvent,
    SecureNoise,
)
from botorch_dp.privacy.budget import warn_of_large_delta

_NUM_CANDIDATES = 10_000  # of a box, by default


class PrivateBO(PrivateOptimizer):
    r"""Release the best of many candidates, and its value, under differential privacy.

    Minimizes the mean of per-record losses in a known range; the gain of the papers is
    minus the loss.

    Args:
        num_records: The number n of private records.
        guarantee: The guarantee of all releases together: ``PureDP`` or ``ApproxDP``;
            with ``adaptive=True`` ``GDP``, ``ApproxDP`` or ``RDP``; ``ApproxDP`` for
            both of Kusner's, ``PureDP`` for ``"lipschitz"``.
        num_steps: The number T of steps. A stable release plans it by default: it
            evaluates n epsilon / 2 points, between 16 and 200, in one step, or one by
            one if it is adaptive. Here epsilon is that of the choice.
        loss_range: The range of a loss, ``(low, high)``. Losses outside are clipped to
            it, never rescaled; one that is not a number counts as ``high``. It must be
            a property of the loss, not of the data.
        candidates: An ``N x d`` tensor to choose from. Give this or ``bounds``.
        bounds: A ``2 x d`` tensor. The candidates are ``initial_x`` and Sobol points of
            the box.
        initial_x: A ``d`` tensor, the first point that a stable release evaluates; one
            of the candidates. By default the centre of the box, or the candidate
            nearest to the centre of all.
        release: ``"stable"``, ``"kusner"``, ``"kusner-noise-free"`` or ``"lipschitz"``.
            With the last three the points asked for are private.
        adaptive: Whether a stable release peeks at some means with noise to learn where
            losses are low, before it picks one of all evaluated points.
        output: What to release: ``"point"`` (the default of a stable release),
            ``"both"`` (the default of the others) or ``"value"``. With ``"both"`` each
            gets half of the budget.
        kernel: The covariance function of the losses in search coordinates, with unit
            variance; by default Matern-5/2 with length scale 0.5. It is not fitted.
        noise_variance: The variance of the observation noise, in units of the kernel.
        prior_std: The standard deviation of the mean loss under the prior, in units of
            the loss; a quarter of the range by default.
        beta: The weight of the variance in UCB, where the paper has no schedule.
        batch_size: The number of points in a step; only a stable release that is not
            adaptive supports more than 1. By default 1 if ``num_steps`` is given, and
            otherwise all points that are planned.
        max_evaluations: The largest number of points that a stable release may plan.
        num_candidates: The number of candidates in a box, 10,000 by default.
        transform: The search coordinates, see :class:`SearchBox`.
        unit: Who a row of losses belongs to, and is protected: ``"record"``, or
            ``"person"`` if every row combines all records of one person.
        ledger: The ledger to charge; by default one with the guarantee as its cap.
        generator: A seeded generator of the noise, for experiments only.
        secure: Whether to draw exact discrete noise.
        what: Deprecated, use ``output``.
        **options: Keyword arguments of the release, such as ``scoring``, ``num_peeks``
            or ``correlation``: see the classes in
            :mod:`botorch_dp.optimizers.release.stable`,
            :mod:`botorch_dp.optimizers.release.adaptive` and
            :mod:`botorch_dp.optimizers.release.kusner.releases`.

    Example:
        >>> from botorch_dp import PureDP
        >>> records = torch.rand(1000, 1, dtype=torch.float64)  # private
        >>> candidates = torch.linspace(0, 1, 101, dtype=torch.float64).unsqueeze(-1)
        >>> opt = PrivateBO(
        ...     candidates=candidates,
        ...     num_records=1000,
        ...     guarantee=PureDP(1.0),
        ...     loss_range=(0.0, 1.0),
        ... )
        >>> result = opt.run(lambda X: (X.mT - records).square(), progress=False)
        >>> result.x.shape, result.certificate.num_releases
        (torch.Size([1]), 1)

    Attributes:
        candidates: The candidates, ``N x d``.
        search_candidates: The candidates in search coordinates.
        problem: The public facts that the strategy is given.
    """

    name = "private-bo"

    def __init__(
        self,
        *,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int | None = None,
        loss_range: tuple[float, float],
        candidates: Tensor | None = None,
        bounds: Tensor | None = None,
        initial_x: Tensor | None = None,
        release: str = "stable",
        adaptive: bool = False,
        output: str | None = None,
        kernel: Kernel | None = None,
        noise_variance: float = 1e-4,
        prior_std: float | None = None,
        beta: float = 2.0,
        batch_size: int | None = None,
        max_evaluations: int | None = None,
        num_candidates: int | None = None,
        transform: str | Sequence[str] = "linear",
        unit: str = "record",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        what: str | None = None,
        **options: Any,
    ) -> None:
        if what is not None:
            warn_deprecated("PrivateBO(what=...)", "output=...")
            output = what
        if (candidates is None) == (bounds is None):
            raise InvalidArgumentError("Give either candidates or bounds.")
        if candidates is not None:
            candidates = check_candidates(candidates)
            bounds = torch.stack([candidates.amin(dim=0), candidates.amax(dim=0)])
        assert bounds is not None
        kind, self.output = choose_strategy(release, adaptive, output)
        kind.check_guarantee(guarantee, secure)
        num_records = check_count("num_records", num_records)
        num_steps, self.batch_size = plan_steps(
            num_steps,
            batch_size,
            max_evaluations,
            planned=kind.default_evaluations(guarantee, self.output, num_records),
            num_candidates=num_candidates if candidates is None else len(candidates),
            in_batches=kind.takes_batches,
        )
        if self.batch_size != 1 and not kind.takes_batches:
            raise InvalidArgumentError(
                "batch_size must be 1 where points depend on what was observed, got "
                f"{batch_size!r}."
            )
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            guarantee=guarantee,
            num_steps=num_steps,
            transform=transform,
            unit=unit,
            ledger=ledger,
            secure=secure,
            condition=kind.condition,
            failure=kind.failure(guarantee, self.output),
        )
        if release == "stable":  # otherwise delta covers an assumption, not records
            warn_of_large_delta(guarantee, self.num_records)
        self.release, self.adaptive = release, bool(adaptive)
        self.loss_range = check_range("loss_range", loss_range)
        if prior_std is None:
            prior_std = (self.loss_range[1] - self.loss_range[0]) / 4
        self.prior_std = check_positive("prior_std", prior_std)
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.beta = check_positive("beta", beta)
        total = self.num_steps * self.batch_size
        if initial_x is not None and not kind.has_start:
            raise InvalidArgumentError(
                f"initial_x needs release='stable', got release={release!r}."
            )
        if candidates is not None:
            self.candidates = candidates
            self.search_candidates = self.search_box.to_search(candidates)
        else:
            self.candidates, self.search_candidates = box_candidates(
                self.search_box,
                num_candidates or max(_NUM_CANDIDATES, total),
                initial_x,
                has_start=kind.has_start,
            )
        start = None if initial_x is None else row_of(self.candidates, initial_x)
        self._initial_x = None if initial_x is None else initial_x.tolist()
        if total > len(self.candidates):
            raise InvalidArgumentError(
                f"num_steps x batch_size must be at most {len(self.candidates)}, the "
                f"number of candidates, got {total}."
            )
        self.kernel, prior_variance = fixed_kernel(kernel, self.search_candidates)
        self.problem = ReleaseProblem(
            bounds=self.bounds,
            candidates=self.search_candidates,
            start=start,
            is_sequence=candidates is None,
            kernel=self.kernel,
            prior_variance=prior_variance,
            prior_std=self.prior_std,
            noise_variance=self.noise_variance,
            beta=self.beta,
            num_records=self.num_records,
            num_steps=self.num_steps,
            batch_size=self.batch_size,
            loss_range=self.loss_range,
            guarantee=self.guarantee,
            output=self.output,
            noise={"generator": generator, "secure": secure, "unit": unit},
        )
        self._strategy: ReleaseStrategy
        try:
            self._strategy = kind(self.problem, self.account, **options)
        except TypeError as error:
            raise InvalidArgumentError(
                f"release={release!r} does not take these options: {error}."
            ) from error
        self._strategy.warn_if_useless(stacklevel=3)
        self._options = options
        self._released: ReleasedCandidate | None = None

    @property
    def done(self) -> bool:
        """Whether everything has been released, or the budget is spent."""
        if self._released is not None:
            return True
        # The ledger knows of a charge that was interrupted before it returned.
        return self.account.num_charged > 0 and self._strategy.is_spent

    @property
    def details(self) -> dict[str, Any]:
        """Public quantities that the release is calibrated with."""
        released = {} if self._released is None else self._released.details
        return {**self._strategy.details, **released}

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, and how many there are of it."""
        return self._strategy.plan()

    def result(self) -> OptimizationResult:
        """Return what was released, with its certificate."""
        released = self._released or self._strategy.so_far()
        if released is None:
            raise OptimizerStateError(
                self._why_done()
                if self.done
                else f"Nothing is released before all {self.num_steps} steps: call "
                "run(), or ask()."
            )
        x = torch.full_like(self.bounds[0], torch.nan)
        if released.index is not None:
            x = self.candidates[released.index].clone()
        return OptimizationResult(
            x=x,
            average=x,
            history=self.history,
            certificate=self.certificate(),
            value=released.value,
            details=self.details,
        )

    def _why_done(self) -> str:
        if self._released is not None:
            return super()._why_done()
        return (
            "The budget of this run was spent on a release that was interrupted: start "
            "a new run with a budget of its own."
        )

    @property
    def assumptions(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the certificate says about the guarantee."""
        return (self._strategy.assumption,)

    def _certified_parameters(self) -> dict[str, Any]:
        kernel = describe_kernel(self.kernel)
        return {**super()._certified_parameters(), "kernel": kernel}

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "release": self.release,
            "adaptive": self.adaptive,
            "initial_x": self._initial_x,
            "output": self.output,
            "loss_range": list(self.loss_range),
            "noise_variance": self.noise_variance,
            "prior_std": self.prior_std,
            "beta": self.beta,
            "batch_size": self.batch_size,
            "num_candidates": len(self.candidates),
            "candidates": _digest(self.candidates),
            "kernel": describe_kernel(self.kernel),
            **self._options,
        }

    def _state(self) -> dict[str, Any]:
        if not self._strategy.points_are_public and not self.done:
            raise OptimizerStateError(
                f"The state of release={self.release!r} is private until it ends: it "
                "cannot be saved."
            )
        released = None if self._released is None else vars(self._released)
        state = {"released": released, "release": self._strategy.state()}
        return {**super()._state(), **state}

    def _num_due(self, num_steps: int) -> int:
        return self._strategy.num_due(num_steps)

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if state["released"] is not None:
            released = ReleasedCandidate(**state["released"])
            released.check(self.output, len(self.candidates))
            if left := self.account.left_of(self.planned_releases(), state["charges"]):
                raise ValueError(f"a release without the charges for {left!r}")
        num_charged = sum(charge["count"] for charge in state["charges"])
        self._strategy.check_state(state["release"], num_charged)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        released = self._strategy.restore(state["release"])
        if state["released"] is not None:
            released = released or ReleasedCandidate(**state["released"])
        elif not self._strategy.can_resume:
            self._history = []
        self._released = released

    def _propose(self) -> Tensor:
        self._asked = self._strategy.next(len(self._history))
        return self.search_candidates[self._asked]

    def _points_of(self, pending: Tensor) -> Tensor:
        return self.candidates[self._asked]

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        X = self._points_of(points)
        chunks = checked_chunks(losses, X, self.num_records, len(points), self.noun)
        private = torch.cat([self.problem.clip(chunk) for chunk in chunks])
        noise_std = self._strategy.observe(self._asked, private)
        if len(self._history) + 1 == self.num_steps or self._strategy.is_spent:
            # Others may have charged since, and a point without its value is wasted.
            self.account.reserve(self._strategy.last_releases())
            try:
                self._released = self._strategy.finish()
            finally:
                if self._strategy.is_spent:  # otherwise the same losses may come again
                    self._strategy.forget()
        x = X[-1]
        if not self._strategy.points_are_public:
            x, self._asked = torch.full_like(x, torch.nan), []
        return Step(
            number=len(self._history) + 1,
            x=x,
            num_evaluations=self.num_evaluations + len(points),
            noise_std=noise_std,
        )


def _digest(candidates: Tensor) -> str:
    """Return a short hash of the candidates."""
    return hashlib.sha256(candidates.cpu().numpy().tobytes()).hexdigest()[:16]
