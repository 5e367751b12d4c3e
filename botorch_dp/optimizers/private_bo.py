r"""Private release of the best candidate and its value.

The losses of n records at T points are told; what leaves is one candidate, its value,
or both. Four ways, which differ in what they assume:

* ``"stable"`` (the default): worst case, no assumption. Per-record losses are clipped
  to a public range, points are chosen without private data, so that the sensitivity of
  every score is known exactly (:mod:`botorch_dp.optimizers.stable_scores`). With
  ``adaptive=True`` every observed mean is released instead, with Gaussian noise, so
  that later points, and the choice in the end, may depend on them for free.
* ``"kusner"``: Algorithm 1 of [Kusner2015dpbo]_: UCB on private values, and one release
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
import math
from collections.abc import Sequence
from typing import Any

import torch
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_dp._checks import check_choice, check_count, check_positive
from botorch_dp.exceptions import InvalidArgumentError, OptimizerStateError
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.base import OptimizationResult, Step
from botorch_dp.optimizers.charging import (
    ASSUMPTIONS,
    ChargingOptimizer,
    RunLedger,
    check_gaussian,
    share_of_a_step,
)
from botorch_dp.optimizers.private_losses import Losses, checked_chunks
from botorch_dp.optimizers.stable_scores import METHODS, StableScores
from botorch_dp.privacy import (
    ApproxDP,
    Certificate,
    ExponentialMechanism,
    GaussianMechanism,
    Guarantee,
    LaplaceMechanism,
    Ledger,
    PureDP,
    SecureNoise,
)

# For the unit cube, like DP-GIBO's; Matern-5/2 because scores need not be smooth.
_DEFAULT_LENGTHSCALE = 0.5
# Candidates among which a design is sought: more would not make it better.
_DESIGN_CANDIDATES = 10_000
_WHAT = ("both", "point", "value")


class PrivateBO(ChargingOptimizer):
    r"""Release the best of many candidates, and its value, under differential privacy.

    Minimizes the mean of per-record losses in a known range.

    Args:
        candidates: An ``N x d`` tensor to choose from. Or give ``bounds``.
        bounds: A ``2 x d`` tensor: ``num_candidates`` Sobol points of the box.
        num_records: The number n of private records.
        guarantee: What all releases together have to meet. ``PureDP`` or ``ApproxDP``;
            with ``adaptive=True`` ``GDP``, ``ApproxDP`` or ``RDP``.
        num_steps: The number T of steps.
        loss_range: The range of a loss, ``(low, high)``. Losses outside are clipped to
            it, never rescaled; one that is not a number counts as ``high``. A property
            of the loss, not of the data.
        adaptive: Whether to release every observed mean, for UCB to act on.
        what: ``"both"``, ``"point"`` or ``"value"``: what is released. The budget is
            split equally between the two.
        scoring: How candidates are scored: ``"evaluated"``, ``"per-record"`` or
            ``"linear"``; by default whichever promises most, from public numbers.
        batch_size: Points a step; one if ``adaptive``.
        kernel: The covariance function of the losses in search coordinates, with unit
            variance and fixed hyperparameters; by default Matern-5/2 with length scale
            0.5.
        noise_variance: The variance of the observations' noise, beside the kernel's
            unit variance.
        beta: The weight of the variance in UCB, if ``adaptive``.
        num_candidates: How many points of a box.
        transform: The search coordinates, see :class:`Coordinates`.
        ledger: What is charged; by default one with the guarantee as its cap.
        generator: Seeds the noise: for experiments only.
        secure: Exact discrete noise.

    Example:
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
        adaptive: bool = False,
        what: str = "both",
        scoring: str | None = None,
        batch_size: int = 1,
        kernel: Kernel | None = None,
        noise_variance: float = 1e-4,
        beta: float = 2.0,
        num_candidates: int = 10_000,
        transform: str | Sequence[str] = "linear",
        ledger: Ledger | None = None,
        generator: torch.Generator | None = None,
        secure: bool | SecureNoise = False,
    ) -> None:
        if (candidates is None) == (bounds is None):
            raise InvalidArgumentError("Give either candidates or bounds.")
        if candidates is not None:
            candidates = _check_candidates(candidates)
            bounds = torch.stack([candidates.amin(dim=0), candidates.amax(dim=0)])
        assert bounds is not None
        super().__init__(
            bounds=bounds,
            num_records=num_records,
            guarantee=_check_guarantee(guarantee, adaptive, secure),
            num_steps=num_steps,
            transform=transform,
            ledger=ledger,
        )
        self.loss_range = _check_range(loss_range)
        self.adaptive = bool(adaptive)
        self.what = check_choice("what", what, _WHAT)
        self.scoring = (
            None if scoring is None else check_choice("scoring", scoring, METHODS)
        )
        self.batch_size = check_count("batch_size", batch_size)
        if self.adaptive and self.batch_size != 1:
            raise InvalidArgumentError(
                f"batch_size must be 1 with adaptive=True, got {batch_size!r}."
            )
        self.noise_variance = check_positive("noise_variance", noise_variance)
        self.beta = check_positive("beta", beta)
        self._noise: dict[str, Any] = {"generator": generator, "secure": secure}
        if candidates is None:
            count = check_count("num_candidates", num_candidates, minimum=2)
            self._U = self._sobol(count)
        else:
            self._U = self.coordinates.to_search(candidates)
        self.kernel = self._make_kernel(kernel)
        if self.num_steps * self.batch_size > len(self._U):
            raise InvalidArgumentError(
                f"num_steps x batch_size must be at most {len(self._U)}, the number of "
                f"candidates, got {self.num_steps * self.batch_size}."
            )
        self._released: tuple[int | None, float | None] | None = None
        self._details: dict[str, Any] = {}
        self._start()

    @property
    def candidates(self) -> Tensor:
        """The candidates, ``N x d``."""
        return self.coordinates.from_search(self._U)

    @property
    def done(self) -> bool:
        """Whether everything has been told and released."""
        return self._released is not None or (
            self.adaptive and self._num_charged >= self.num_steps
        )

    def result(self) -> OptimizationResult:
        """Return what was released, with its certificate."""
        if self._released is None:
            raise OptimizerStateError(
                "Nothing is released before all "
                f"{self.num_steps} steps are told: call run(), or ask()."
            )
        index, value = self._released
        x = torch.full_like(self.bounds[0], torch.nan)
        if index is not None:
            x = self.coordinates.from_search(self._U[index])
        return OptimizationResult(
            x=x,
            average=x,
            history=self.history,
            certificate=self.certificate(),
            value=value,
            details=self._details,
        )

    def certificate(self) -> Certificate:
        """Return what is guaranteed of everything charged to the ledger."""
        return Certificate.from_ledger(
            self.ledger, assumptions=ASSUMPTIONS, parameters=self._to_certify()
        )

    def settings(self) -> dict[str, Any]:
        """Return the public parameters, as plain values."""
        return {
            **super().settings(),
            "loss_range": list(self.loss_range),
            "adaptive": self.adaptive,
            "what": self.what,
            "scoring": self.scoring,
            "batch_size": self.batch_size,
            "noise_variance": self.noise_variance,
            "beta": self.beta,
            "num_candidates": len(self._U),
        }

    def _state(self) -> dict[str, Any]:
        # Without ``adaptive`` nothing is released before the end: an unfinished run
        # starts over, with the same points and at no cost.
        return {
            **super()._state(),
            "released": self._released,
            "details": self._details,
            "indices": self._indices if self.adaptive else [],
            "values": self._values,
        }

    def _num_due(self, num_steps: int) -> int:
        if self.adaptive:
            return num_steps
        return 0 if num_steps < self.num_steps else 1

    def _check_state(self, state: dict[str, Any]) -> None:
        super()._check_state(state)
        if len(state["indices"]) != len(state["values"]):
            raise ValueError("as many values as points expected")

    def _restore(self, state: dict[str, Any]) -> None:
        super()._restore(state)
        released = state["released"]
        self._released = None if released is None else tuple(released)
        self._details = state["details"]
        self._start()
        if self.adaptive:
            for index, value in zip(state["indices"], state["values"], strict=True):
                self._observe(index, value)
            self._skip_noise(self._mechanism, 1)
            if self._values and self._num_charged >= self.num_steps:
                self._finish_adaptive()
        elif not self.done:
            self._history = []

    def _start(self) -> None:
        self._private_losses: list[Tensor] = []
        self._indices: list[int] = []
        self._values: list[float] = []  # released means, if adaptive
        if self.adaptive:
            sensitivity = self._range / self.num_records
            share = share_of_a_step(
                self.guarantee,
                self.num_steps,
                sensitivity=sensitivity,
                size=1,
                secure=self._noise["secure"],
            )
            self._mechanism = GaussianMechanism(
                share, sensitivity=sensitivity, **self._noise
            )
            # Losses are centred and divided by a quarter of their range.
            noise = (self._mechanism.noise_std / self._scale) ** 2
            self._posterior = CandidatePosterior(
                self.kernel,
                self._U,
                noise_variance=self.noise_variance + noise,
                max_observations=self.num_steps,
            )
        else:
            self._design = self._choose_design()

    def _propose(self) -> Tensor:
        if self.adaptive:
            bound = self._posterior.mean + math.sqrt(self.beta) * (
                self._posterior.variance.sqrt()
            )
            self._asked = [int(bound.argmax())]
        else:
            first = len(self._history) * self.batch_size
            self._asked = self._design[first : first + self.batch_size]
        return self._U[self._asked]

    def _learn(self, losses: Losses, points: Tensor) -> Step:
        X = self.coordinates.from_search(points)
        private = torch.cat(
            [
                self._clip(chunk)
                for chunk in checked_chunks(
                    losses, X, self.num_records, len(points), self.noun
                )
            ]
        )
        noise_std = 0.0
        if self.adaptive:
            released = self._mechanism.release(
                private.mean(dim=0).double(), ledger=RunLedger(self)
            )
            noise_std = self._mechanism.noise_std
            self._observe(self._asked[0], float(released))
            if self._num_charged >= self.num_steps:
                self._finish_adaptive()
        else:
            self._indices += self._asked
            self._private_losses.append(private)
            if len(self._history) + 1 == self.num_steps:
                self._finish_stable()
        return Step(
            number=len(self._history) + 1,
            x=X[-1],
            num_evaluations=self.num_evaluations + len(points),
            noise_std=noise_std,
        )

    def _observe(self, index: int, value: float) -> None:
        self._indices.append(index)
        self._values.append(value)
        gain = (self._middle - value) / self._scale
        self._posterior.observe(index, gain)

    def _finish_adaptive(self) -> None:
        """Choose from what was released: post-processing, at no cost."""
        index = int(self._posterior.mean.argmax())
        value = self._middle - self._scale * float(self._posterior.mean[index])
        self._released = (
            None if self.what == "value" else index,
            None if self.what == "point" else value,
        )
        self._details = {"noise_std": self._mechanism.noise_std}

    def _finish_stable(self) -> None:
        private = torch.cat(self._private_losses, dim=-1)  # n x T
        point, value = self._split()
        scores = StableScores(
            self.kernel,
            self._U,
            self._indices,
            num_records=self.num_records,
            loss_range=self.loss_range,
            noise_variance=self.noise_variance,
        )
        method = self.scoring or scores.choose_method(point.to_pure().epsilon)
        sensitivity = scores.sensitivity(method)
        chooser = ExponentialMechanism(point, sensitivity=sensitivity, **self._noise)
        ledger = RunLedger(self)
        chosen = chooser.release(scores.private_scores(method, private), ledger=ledger)
        index = int(scores.candidates(method)[chosen])
        self._details = {
            "scoring": method,
            "sensitivity": sensitivity,
            "scale": chooser.scale,
        }
        released_value = None
        if value is not None:
            private_value, size = scores.private_value(method, private, index)
            mechanism_class = (
                LaplaceMechanism if isinstance(value, PureDP) else GaussianMechanism
            )
            mechanism = mechanism_class(value, sensitivity=size, **self._noise)
            released_value = float(
                mechanism.release(private_value.double().reshape(1), ledger=ledger)
            )
            self._details["value_sensitivity"] = size
        self._private_losses = []
        self._released = (index if self.what != "value" else None, released_value)

    def _split(self) -> tuple[Guarantee, Guarantee | None]:
        """Return the shares of the point and of the value."""
        if self.what == "point":
            return self.guarantee, None
        if isinstance(self.guarantee, PureDP):
            half = PureDP(self.guarantee.epsilon / 2)
            return half, half
        assert isinstance(self.guarantee, ApproxDP)
        half_epsilon = self.guarantee.epsilon / 2
        return PureDP(half_epsilon), ApproxDP(half_epsilon, self.guarantee.delta)

    @property
    def _range(self) -> float:
        return self.loss_range[1] - self.loss_range[0]

    @property
    def _middle(self) -> float:
        return sum(self.loss_range) / 2

    @property
    def _scale(self) -> float:
        return self._range / 4

    def _clip(self, private: Tensor) -> Tensor:
        low, high = self.loss_range
        return private.nan_to_num(nan=high, posinf=high, neginf=low).clamp(low, high)

    def _choose_design(self) -> list[int]:
        """Return the points to evaluate: each where the others tell least."""
        total, N = self.num_steps * self.batch_size, len(self._U)
        among = torch.arange(N, device=self._U.device)
        if max(_DESIGN_CANDIDATES, total) < N:
            among = torch.linspace(
                0, N - 1, max(_DESIGN_CANDIDATES, total), device=self._U.device
            ).long()
        posterior = CandidatePosterior(
            self.kernel,
            self._U[among],
            noise_variance=self.noise_variance,
            max_observations=total,
        )
        chosen: list[int] = []
        seen = torch.zeros_like(posterior.variance)
        for _ in range(total):
            index = int((posterior.variance - seen).argmax())
            seen[index] = torch.inf  # never twice
            posterior.observe(index)
            chosen.append(int(among[index]))
        return chosen

    def _sobol(self, count: int) -> Tensor:
        with torch.device("cpu"):
            points = SobolEngine(self.coordinates.dim, scramble=True, seed=0).draw(
                count, dtype=torch.float64
            )
        low, high = self.coordinates.box
        return low + (high - low) * points.to(self.bounds)

    def _make_kernel(self, kernel: Kernel | None) -> Kernel:
        if kernel is None:
            with self.bounds.device:
                kernel = MaternKernel(nu=2.5)
                kernel.lengthscale = _DEFAULT_LENGTHSCALE
        if not isinstance(kernel, Kernel):
            raise InvalidArgumentError(
                "kernel must be a gpytorch.kernels.Kernel, got "
                f"{type(kernel).__name__}."
            )
        kernel = copy.deepcopy(kernel).to(self.bounds)
        return kernel.requires_grad_(False).eval()


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


def _check_range(loss_range: tuple[float, float]) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in loss_range)
    except (TypeError, ValueError):
        raise InvalidArgumentError(
            f"loss_range must be (low, high), got {loss_range!r}."
        ) from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidArgumentError(
            f"loss_range must be finite with low below high, got {loss_range!r}."
        )
    return low, high


def _check_guarantee(
    guarantee: Guarantee, adaptive: bool, secure: bool | SecureNoise
) -> Guarantee:
    if adaptive:
        return check_gaussian(guarantee, secure)
    if not isinstance(guarantee, PureDP | ApproxDP):
        raise InvalidArgumentError(
            "guarantee must be a PureDP or an ApproxDP, which the exponential "
            f"mechanism can meet (or adaptive=True), got {guarantee!r}."
        )
    return guarantee
