r"""Private release of the best candidate and its value.

The losses of n records at T points are told; what leaves is one candidate, its value,
or both. Four ways, which differ in what they assume:

* ``"stable"`` (the default): worst case, no assumption. Per-record losses are clipped
  to a public range, points are chosen without private data, so that the sensitivity of
  every score is known exactly (:mod:`botorch_dp.optimizers.release.scores`). With
  ``adaptive=True`` every observed mean is released instead, with Gaussian noise, so
  that later points, and the choice in the end, may depend on them for free.
* ``"kusner"``: Algorithm 1 of [Kusner2015dpbo]_: UCB on private values, and a release
  in the end, whose sensitivity is bounded with probability 1 - delta *if the objectives
  of neighbouring data sets are draws from a known Gaussian process*.
* ``"kusner-noise-free"``: its Algorithm 2, under further assumptions.
* ``"lipschitz"``: its Algorithm 3, for regularized linear models; the value only.

The published bounds are far larger than the range of the functions they are about, so
that what they release is close to random (see the benchmark). They are here to be
compared with.

References:
    .. [Kusner2015dpbo] M. Kusner, J. Gardner, R. Garnett and K. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
"""

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_positive,
    check_range,
)
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.models.kernels.describe import describe_kernel
from botorch_dp.optimizers.core.optimizer import OptimizationResult, Step
from botorch_dp.optimizers.core.private_optimizer import PrivateOptimizer
from botorch_dp.optimizers.core.private_values import Losses, checked_chunks
from botorch_dp.optimizers.release.kusner.releases import (
    KusnerRelease,
    LipschitzRelease,
    NoiseFreeRelease,
)
from botorch_dp.optimizers.release.stable import AdaptiveRelease, StableRelease
from botorch_dp.optimizers.release.strategy import Release, Released
from botorch_dp.privacy import (
    Guarantee,
    Ledger,
    PrivacyEvent,
    SecureNoise,
)
from botorch_dp.privacy.budget import warn_of_large_delta

# For the unit cube, like DP-GIBO's; Matern-5/2 because losses need not be smooth.
_DEFAULT_LENGTHSCALE = 0.5
_WHAT = ("both", "point", "value")
RELEASES: dict[str, type[Release]] = {
    "stable": StableRelease,
    "kusner": KusnerRelease,
    "kusner-noise-free": NoiseFreeRelease,
    "lipschitz": LipschitzRelease,
}


class PrivateBO(PrivateOptimizer):
    r"""Release the best of many candidates, and its value, under differential privacy.

    Minimizes the mean of per-record losses in a known range; the papers' gain is minus
    the loss.

    Args:
        candidates: An ``N x d`` tensor to choose from. Or give ``bounds``.
        bounds: A ``2 x d`` tensor: ``num_candidates`` Sobol points of the box.
        num_records: The number n of private records.
        guarantee: What all releases together have to meet. ``PureDP`` or ``ApproxDP``;
            with ``adaptive=True`` ``GDP``, ``ApproxDP`` or ``RDP``; ``ApproxDP`` for
            both of Kusner's, ``PureDP`` for ``"lipschitz"``.
        num_steps: The number T of steps.
        loss_range: The range of a loss, ``(low, high)``. Losses outside are clipped to
            it, never rescaled; one that is not a number counts as ``high``. A property
            of the loss, not of the data.
        release: ``"stable"``, ``"kusner"``, ``"kusner-noise-free"`` or ``"lipschitz"``.
            With the last three the points asked for are private, too.
        adaptive: Whether a stable release publishes every observed mean, for UCB to act
            on.
        what: ``"both"``, ``"point"`` or ``"value"``: what is released. The budget is
            split equally between the two.
        kernel: The covariance function of the losses in search coordinates, with unit
            variance and fixed hyperparameters; by default Matern-5/2 with length scale
            0.5.
        noise_variance: The variance of the observations' noise, beside the kernel's
            unit variance.
        prior_std: The standard deviation of the mean loss under the prior, in units of
            the loss; a quarter of the range by default.
        beta: The weight of the variance in UCB, where the paper has no schedule.
        batch_size: Points a step, for a stable release that is not adaptive.
        num_candidates: How many points of a box.
        transform: The search coordinates, see :class:`SearchBox`.
        ledger: What is charged; by default one with the guarantee as its cap.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.
        **options: Of the release: ``scoring`` for ``"stable"``; ``correlation`` and
            ``constants`` for Kusner's, with ``regret_scale`` and ``regret_rate`` where
            it is noise-free; ``lipschitz``, ``zero_spread`` and ``constants`` for
            ``"lipschitz"``. See the classes in
            :mod:`botorch_dp.optimizers.release.stable` and
            :mod:`botorch_dp.optimizers.release.kusner.releases`.

    Example:
        >>> from botorch_dp import PureDP
        >>> records = torch.rand(1000, 1, dtype=torch.float64)  # private
        >>> candidates = torch.linspace(0, 1, 101, dtype=torch.float64).unsqueeze(-1)
        >>> opt = PrivateBO(
        ...     candidates=candidates,
        ...     num_records=1000,
        ...     guarantee=PureDP(1.0),
        ...     num_steps=20,
        ...     loss_range=(0.0, 1.0),
        ... )
        >>> result = opt.run(lambda X: (X.mT - records).square(), progress=False)
        >>> result.x.shape, result.certificate.num_releases
        (torch.Size([1]), 2)

    Attributes:
        candidates: The candidates, ``N x d``.
        search_candidates: The same in search coordinates.
    """

    name = "private-bo"

    def __init__(
        self,
        *,
        num_records: int,
        guarantee: Guarantee,
        num_steps: int,
        loss_range: tuple[float, float],
        candidates: Tensor | None = None,
        bounds: Tensor | None = None,
        release: str = "stable",
        adaptive: bool = False,
        what: str | None = None,
        kernel: Kernel | None = None,
        noise_variance: float = 1e-4,
        prior_std: float | None = None,
        beta: float = 2.0,
        batch_size: int = 1,
        num_candidates: int = 10_000,
        transform: str | Sequence[str] = "linear",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
        **options: Any,
    ) -> None:
        if (candidates is None) == (bounds is None):
            raise InvalidArgumentError("Give either candidates or bounds.")
        if candidates is not None:
            candidates = _check_candidates(candidates)
            bounds = torch.stack([candidates.amin(dim=0), candidates.amax(dim=0)])
        assert bounds is not None
        check_choice("release", release, tuple(RELEASES))
        if adaptive and release != "stable":
            raise InvalidArgumentError(
                f"adaptive=True needs release='stable', got release={release!r}."
            )
        kind = AdaptiveRelease if adaptive else RELEASES[release]
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            guarantee=kind.check_guarantee(guarantee, secure),
            num_steps=num_steps,
            transform=transform,
            ledger=ledger,
            secure=secure,
            condition=kind.condition or None,
        )
        if release == "stable":  # else delta is of an assumption, not of records
            warn_of_large_delta(guarantee, self.num_records)
        self.release, self.adaptive = release, bool(adaptive)
        self.what = check_choice("what", what or kind.releases[0], _WHAT)
        if self.what not in kind.releases:
            raise InvalidArgumentError(
                f"what must be {kind.releases[0]!r} with release={release!r}, got "
                f"{what!r}."
            )
        self.loss_range = check_range("loss_range", loss_range)
        low, high = self.loss_range
        self.prior_std = check_positive(
            "prior_std", (high - low) / 4 if prior_std is None else prior_std
        )
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.beta = check_positive("beta", beta)
        self.batch_size = check_count("batch_size", batch_size)
        if self.batch_size != 1 and kind is not StableRelease:
            raise InvalidArgumentError(
                "batch_size must be 1 where points depend on what was observed, got "
                f"{batch_size!r}."
            )
        self.generator = generator
        if candidates is None:
            count = check_count("num_candidates", num_candidates, minimum=2)
            self.search_candidates = self._sobol(count)
            candidates = self.search_box.from_search(self.search_candidates)
        else:
            self.search_candidates = self.search_box.to_search(candidates)
        self.candidates = candidates
        if self.num_steps * self.batch_size > len(self.search_candidates):
            raise InvalidArgumentError(
                "num_steps x batch_size must be at most "
                f"{len(self.search_candidates)}, the number of candidates, got "
                f"{self.num_steps * self.batch_size}."
            )
        self.kernel = self._make_kernel(kernel)
        try:
            self._release: Release = kind(self, **options)
        except TypeError as error:
            raise InvalidArgumentError(
                f"release={release!r} has other options: {error}."
            ) from error
        self._options = options
        self._released: Released | None = None

    @property
    def done(self) -> bool:
        """Whether everything has been told and released."""
        return self._released is not None or self._release.is_spent

    @property
    def details(self) -> dict[str, Any]:
        """Public quantities that the release is calibrated with."""
        released = {} if self._released is None else self._released.details
        return {**self._release.details, **released}

    def planned_releases(self) -> list[tuple[PrivacyEvent, int]]:
        """Return every release of the whole run, and how many there are of it."""
        return self._release.plan()

    def result(self) -> OptimizationResult:
        """Return what was released, with its certificate."""
        released = self._released or self._release.so_far()
        if released is None:
            raise OptimizerStateError(
                self._why_done()
                if self.done
                else f"Nothing is released before all {self.num_steps} steps are told: "
                "call run(), or ask()."
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
        if self._released is not None or self.adaptive:
            return super()._why_done()
        return (
            "The budget of this run was spent on a release that was interrupted: start "
            "a new run with a budget of its own."
        )

    @property
    def assumptions(self) -> tuple[str, ...]:  # type: ignore[override]
        """What the release assumes."""
        return self._release.assumptions

    def _certified_parameters(self) -> dict[str, Any]:
        kernel = describe_kernel(self.kernel)
        return {**super()._certified_parameters(), "kernel": kernel}

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "release": self.release,
            "adaptive": self.adaptive,
            "what": self.what,
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
        if not self._release.points_are_public and not self.done:
            raise OptimizerStateError(
                f"The state of release={self.release!r} is private until it ends: it "
                "cannot be saved."
            )
        released = None if self._released is None else vars(self._released)
        return {
            **super()._state(),
            "released": released,
            "release": self._release.state(),
        }

    def _num_due(self, num_steps: int) -> int:
        return self._release.num_due(num_steps)

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if state["released"] is not None:
            index = Released(**state["released"]).index
            if index is not None and not 0 <= index < len(self.candidates):
                raise ValueError(f"no candidate {index}")
            if left := self.account.left_of(self.planned_releases(), state["charges"]):
                raise ValueError(f"a release without the charges for {left!r}")
        num_charged = sum(charge["count"] for charge in state["charges"])
        self._release.check_state(state["release"], num_charged)

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        self._released = None
        if state["released"] is not None:
            self._released = Released(**state["released"])
        elif not self._release.can_go_on:
            self._history = []
        self._released = self._release.restore(state["release"]) or self._released

    def _propose(self) -> Tensor:
        self._asked = self._release.next(len(self._history))
        return self.search_candidates[self._asked]

    def _points_of(self, pending: Tensor) -> Tensor:
        return self.candidates[self._asked]

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        X = self._points_of(points)
        chunks = checked_chunks(losses, X, self.num_records, len(points), self.noun)
        private = torch.cat([self._clip(chunk) for chunk in chunks])
        noise_std = self._release.observe(self._asked, private)
        if len(self._history) + 1 == self.num_steps or self._release.is_spent:
            # Once more, for all of them: others may have spent in the meantime, and a
            # point that was drawn would be lost if its value could not be paid for.
            if not self.account.num_charged:
                self.account.reserve(self.planned_releases())
            self._released = self._release.finish()
        x = X[-1]
        if not self._release.points_are_public:
            x, self._asked = torch.full_like(x, torch.nan), []
        return Step(
            number=len(self._history) + 1,
            x=x,
            num_evaluations=self.num_evaluations + len(points),
            noise_std=noise_std,
        )

    def _clip(self, private: Tensor) -> Tensor:
        """Count losses from the lower end of their range, and clip them to it.

        In double precision: further from zero, or in single precision, the sums that
        follow would round more coarsely than one record counts.
        """
        low, high = self.loss_range
        above = private.double() - low
        return above.nan_to_num(nan=high - low, posinf=high - low, neginf=0.0).clamp(
            0.0, high - low
        )

    def _sobol(self, count: int) -> Tensor:
        with torch.device("cpu"):
            points = SobolEngine(self.search_box.dim, scramble=True, seed=0).draw(
                count, dtype=torch.float64
            )
        low, high = self.search_box.box
        return low + (high - low) * points.to(self.bounds)

    def _make_kernel(self, kernel: Kernel | None) -> Kernel:
        if kernel is None:
            with self.bounds.device:
                kernel = MaternKernel(nu=2.5)
                kernel.lengthscale = _DEFAULT_LENGTHSCALE
        if not isinstance(kernel, Kernel):
            hint = (
                ", not a model, whose targets may be private"
                if hasattr(kernel, "train_targets")
                else ""
            )
            raise InvalidArgumentError(
                f"kernel must be a gpytorch.kernels.Kernel{hint}; got "
                f"{type(kernel).__name__}."
            )
        kernel = copy.deepcopy(kernel).to(self.bounds)
        kernel = kernel.requires_grad_(False).eval()
        variances = kernel(self.search_candidates, diag=True)
        if variances.dim() != 1 or not torch.allclose(
            variances, torch.ones_like(variances), atol=1e-5
        ):
            raise InvalidArgumentError(
                "kernel must have variance 1 at every candidate (prior_std scales it), "
                f"got values from {float(variances.min()):.6g} to "
                f"{float(variances.max()):.6g}."
            )
        self.prior_variance = float(variances.max())
        return kernel


def _digest(candidates: Tensor) -> str:
    """Return what tells one set of candidates from another."""
    return hashlib.sha256(candidates.cpu().numpy().tobytes()).hexdigest()[:16]


def _check_candidates(candidates: Tensor) -> Tensor:
    if (
        not isinstance(candidates, Tensor)
        or candidates.dim() != 2
        or candidates.dtype not in (torch.float32, torch.float64)
        or not candidates.isfinite().all()
    ):
        raise InvalidArgumentError(
            "candidates must be a finite N x d tensor of torch.float32 or "
            f"torch.float64, got {candidates!r}."
        )
    if len(candidates) < 2:
        raise InvalidArgumentError(
            f"candidates must be at least two to choose from, got {len(candidates)}."
        )
    return candidates.detach()
