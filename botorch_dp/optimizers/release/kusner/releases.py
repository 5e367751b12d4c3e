r"""The published releases after UCB, as faithful as a valid proof allows.

UCB runs on the private values themselves, so that the points it asks for are private;
one release in the end covers everything. What bounds its sensitivity is an assumption:
that the objectives of neighbouring data sets are draws from one Gaussian process (both
of Kusner's), or that they come from a regularized linear model (Lipschitz). The
constants are in :mod:`botorch_dp.optimizers.release.kusner.sensitivity`, repaired by
default.

References:
    .. [Kusner2015dpbo] M. Kusner, J. Gardner, R. Garnett and K. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Algorithms 1 to 3.
    .. [deFreitas2012exponential] N. de Freitas, A. Smola and M. Zoghi. Exponential
        Regret Bounds for Gaussian Process Bandits with Deterministic Observations.
        ICML 2012.
"""

import math
import warnings
from abc import abstractmethod
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from botorch_dp.acquisition.private_ucb import ucb_beta
from botorch_dp.exceptions import InvalidArgumentError, UselessReleaseWarning
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.release.kusner.information_gain import information_gain_bound
from botorch_dp.optimizers.release.kusner.sensitivity import (
    LipschitzValueRelease,
    NoiseFreeValueRelease,
    PointRelease,
    ValueRelease,
    kusner_point_release,
    kusner_value_release,
    lipschitz_value_release,
    noise_free_value_release,
)
from botorch_dp.optimizers.release.strategy import Release, Released
from botorch_dp.privacy import (
    ApproxDP,
    ExponentialMechanism,
    Guarantee,
    LaplaceMechanism,
    PrivacyEvent,
    PureDP,
    SecureNoise,
)

if TYPE_CHECKING:
    from botorch_dp.optimizers.release.private_bo import PrivateBO

ValueBound = ValueRelease | NoiseFreeValueRelease | LipschitzValueRelease

_GP_ASSUMPTION = (
    "GP-ASSUMPTION PRIVACY, not plain differential privacy: if the objectives of any "
    "two neighbouring data sets are jointly drawn from a Gaussian process with the "
    "stated kernel, prior_std and correlation, observed with the stated noise, "
    "delta bounds the probability, over these draws, that the sensitivity is larger "
    "than assumed; for a given pair of data sets nothing is promised"
)


class PublishedRelease(Release):
    """UCB on private values, and a release in the end."""

    points_are_public: ClassVar[bool] = False
    # From a warning in the constructor up to who made the optimizer.
    _frames: ClassVar[int] = 4

    def __init__(self, run: "PrivateBO") -> None:
        super().__init__(run)
        self._private_best = -math.inf
        self._chooser: ExponentialMechanism | None = None
        self._valuer: LaplaceMechanism | None = None
        self._start()

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the point and of the value, if they are released."""
        events = []
        if self._chooser is not None:
            events.append(self._chooser.event())
        if self._valuer is not None:
            events.append(self._valuer.event(1))
        return [(self.run.account.cost(event), 1) for event in events]

    def next(self, step: int) -> list[int]:
        """Return the candidate with the largest upper confidence bound: private."""
        width = math.sqrt(self._beta(step + 1)) * self._private.variance.sqrt()
        return [int((self._private.mean + width).argmax())]

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Learn from the private mean; nothing leaves."""
        if self._private.num_observations < self.run.num_steps:
            gain = float(self.to_gain(private_losses.mean()))
            self._private.observe(indices[0], gain)
            self._private_best = max(self._private_best, gain)
        return 0.0  # otherwise told once more, after a release that was refused

    def _start(self) -> None:
        """Forget everything that was observed."""
        self._private = CandidatePosterior(
            self.run.kernel,
            self.run.search_candidates,
            noise_variance=self.run.noise_variance,
            max_observations=self.run.num_steps,
        )
        self._private_best = -math.inf

    def _beta(self, step: int) -> float:
        return self.run.beta

    def finish(self) -> Released:
        """Draw a candidate (Algorithm 1, line 12), then the value (lines 13 to 15)."""
        ledger, index, value = self.run.account, None, None
        if self._chooser is not None:
            index = int(self._chooser.release(self._private.mean, ledger=ledger))
        if self._valuer is not None:
            # Of shape 1, as a tensor of the private value alone.
            device = self.run.bounds.device
            private = torch.full(
                (1,), self._private_best, dtype=torch.float64, device=device
            )
            value = self.to_loss(float(self._valuer.release(private, ledger=ledger)))
        self._start()
        return Released(index, value)

    def _warn_if_useless(self, what: str, scale: float) -> None:
        """Warn, from public numbers, where noise is larger than what it hides."""
        width = self.loss_width / self.run.prior_std
        if scale > width:
            warnings.warn(
                f"The noise on the {what} has scale {scale:.3g}, more than the whole "
                f"range {width:.3g} of what it is added to: what is released says "
                "next to nothing. release='stable' does better, and needs no "
                "assumption.",
                UselessReleaseWarning,
                stacklevel=self._frames,
            )


class _GaussianProcessRelease(PublishedRelease):
    """Point and value under the assumption that objectives are a Gaussian process."""

    assumptions: ClassVar[tuple[str, ...]] = (_GP_ASSUMPTION,)
    condition: ClassVar[str] = "objectives from the stated Gaussian process"

    def __init__(
        self, run: "PrivateBO", *, correlation: float, constants: str = "repaired"
    ) -> None:
        super().__init__(run)
        assert isinstance(run.guarantee, ApproxDP)
        parts = 2 if run.what == "both" else 1
        # A hair less, so that the deltas add up to less than the whole.
        run.account.failure = run.guarantee.delta / parts * (1 - 1e-6)
        self._share = PureDP(run.guarantee.epsilon / parts)
        self._setting: dict[str, Any] = {
            "num_steps": run.num_steps,
            "num_candidates": len(run.search_candidates),
            "delta": run.account.failure,
            "correlation": correlation,
            "constants": constants,
            "prior_variance": run.prior_variance,
        }
        self.point: PointRelease | None = None
        self.value: ValueBound | None = None
        if run.what != "value":
            self.point = kusner_point_release(**self._setting)
            self.details["point"] = asdict(self.point)
            self._chooser = ExponentialMechanism(
                self._share, sensitivity=self.point.sensitivity, **self.noise
            )
            self._warn_if_useless("point's score", self._chooser.scale)
        if run.what != "point":
            self.value = self._value_bound()
            self.details["value"] = asdict(self.value)
            self._valuer = LaplaceMechanism(
                self._share, sensitivity=self.value.sensitivity, **self.noise
            )
            self._warn_if_useless("value", self._valuer.scale)

    @staticmethod
    def check_guarantee(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
        """Return the guarantee if it has a delta for the assumption to fail."""
        if not isinstance(guarantee, ApproxDP):
            raise InvalidArgumentError(
                "guarantee must be an ApproxDP(epsilon, delta) for this release, got "
                f"{guarantee!r}."
            )
        return guarantee

    @abstractmethod
    def _value_bound(self) -> ValueBound:
        """Bound the sensitivity of the value."""

    def _beta(self, step: int) -> float:
        return ucb_beta(
            step=step,
            num_candidates=self._setting["num_candidates"],
            delta=self._setting["delta"],
            constants=self._setting["constants"],
        )


class KusnerRelease(_GaussianProcessRelease):
    """Algorithm 1 of [Kusner2015dpbo]_: noisy observations.

    Args:
        run: The optimizer; its ``noise_variance`` is that of the observations.
        correlation: The least correlation k1(V, V') of the objectives of two
            neighbouring data sets, as the user asserts.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.
    """

    def _value_bound(self) -> ValueBound:
        gamma = information_gain_bound(
            self.run.kernel,
            self.run.search_candidates,
            num_steps=self.run.num_steps,
            noise_variance=self.run.noise_variance,
        )
        return kusner_value_release(
            gamma=gamma, noise_variance=self.run.noise_variance, **self._setting
        )


class NoiseFreeRelease(_GaussianProcessRelease):
    """Algorithm 2 of [Kusner2015dpbo]_: exact observations.

    The paper takes the search of [deFreitas2012exponential]_, which shrinks the space;
    here it is UCB, and the two constants have to be asserted for that.

    Args:
        run: The optimizer.
        regret_scale: The constant A of the regret bound, the user's to state.
        regret_rate: Its constant tau.
        correlation: The least correlation of two neighbouring objectives.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.
    """

    _frames: ClassVar[int] = 5

    def __init__(
        self,
        run: "PrivateBO",
        *,
        regret_scale: float,
        regret_rate: float,
        correlation: float,
        constants: str = "repaired",
    ) -> None:
        self._regret: dict[str, Any] = {
            "regret_scale": regret_scale,
            "regret_rate": regret_rate,
        }
        super().__init__(run, correlation=correlation, constants=constants)

    def _value_bound(self) -> ValueBound:
        return noise_free_value_release(
            num_dims=self.run.search_box.dim, **self._regret, **self._setting
        )


class LipschitzRelease(PublishedRelease):
    """Algorithm 3 of [Kusner2015dpbo]_: the value after tuning a regularization.

    Args:
        run: The optimizer; its one parameter is the regularization of a linear model
            with a convex loss, and its loss range starts at 0.
        lipschitz: The Lipschitz constant L of the validation loss in the weights.
        zero_spread: How much the loss of the zero model differs between records, see
            :func:`lipschitz_value_release`.
        constants: ``"repaired"``, or ``"icml2015"`` as printed.
    """

    releases: ClassVar[tuple[str, ...]] = ("value",)
    assumptions: ClassVar[tuple[str, ...]] = (
        "if models are minimizers of a regularized convex 1-Lipschitz training loss "
        "within the stated range of regularizations, and the validation loss is "
        "Lipschitz in their weights with the stated constant; worst case otherwise",
    )
    condition: ClassVar[str] = "models of Assumption 2 with their constants"

    def __init__(
        self,
        run: "PrivateBO",
        *,
        lipschitz: float,
        zero_spread: float | None = None,
        constants: str = "repaired",
    ) -> None:
        super().__init__(run)
        low, high = run.loss_range
        if run.search_box.dim != 1 or low != 0.0:
            raise InvalidArgumentError(
                "release='lipschitz' tunes one regularization parameter, with losses "
                f"from 0: got d={run.search_box.dim}, loss_range={run.loss_range}."
            )
        self.value = lipschitz_value_release(
            lipschitz=lipschitz,
            min_regularization=float(run.bounds[0, 0]),
            max_regularization=float(run.bounds[1, 0]),
            num_records=run.num_records,
            loss_bound=high,
            zero_spread=zero_spread,
            constants=constants,
        )
        self.details = {"value": asdict(self.value)}
        # In units of the gain, like the value itself.
        self._valuer = LaplaceMechanism(
            run.guarantee,
            sensitivity=self.value.sensitivity / run.prior_std,
            **self.noise,
        )
        self._warn_if_useless("value", self._valuer.scale)

    @staticmethod
    def check_guarantee(guarantee: Guarantee, secure: bool | SecureNoise) -> Guarantee:
        """Return the guarantee if it is pure."""
        if not isinstance(guarantee, PureDP):
            raise InvalidArgumentError(
                f"guarantee must be a PureDP for this release, got {guarantee!r}."
            )
        return guarantee
