r"""The published releases after UCB, as close to the papers as a valid proof allows.

UCB runs on the private values themselves, so the points it asks for are private. One
release at the end covers everything. An assumption bounds its sensitivity: that the
objectives of neighbouring data sets are draws from one Gaussian process (Algorithms 1
and 2), or that they come from a regularized linear model (Algorithm 3). The constants
are in :mod:`botorch_dp.optimizers.release.kusner.sensitivity`, repaired by default.

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

import torch
from torch import Tensor

from botorch_dp._validation import check_choice, check_count
from botorch_dp.exceptions import InvalidArgumentError, UselessReleaseWarning
from botorch_dp.models.candidate_posterior import CandidatePosterior
from botorch_dp.optimizers.release.kusner.branch_and_bound import (
    Cover,
    DerivedValueSensitivity,
    RelevantSet,
    cover,
    exact_posterior,
    observe_exactly,
)
from botorch_dp.optimizers.release.kusner.information_gain import information_gain_bound
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.sensitivity import (
    NoiseFreeValueSensitivity,
    PointSensitivity,
    ValueSensitivity,
)
from botorch_dp.optimizers.release.kusner.setting import KusnerSetting
from botorch_dp.optimizers.release.problem import ReleaseProblem
from botorch_dp.optimizers.release.strategy import ReleasedCandidate, ReleaseStrategy
from botorch_dp.privacy import (
    ApproxDP,
    ExponentialMechanism,
    Guarantee,
    LaplaceMechanism,
    PrivacyEvent,
    PureDP,
)
from botorch_dp.privacy.account import RunAccount

GP_ASSUMPTION = (
    "GP-ASSUMPTION PRIVACY, not plain differential privacy: if the objectives of any "
    "two neighbouring data sets are jointly drawn from a Gaussian process with the "
    "stated kernel, prior_std and correlation, observed with the stated noise, "
    "delta bounds the probability, over these draws, that the sensitivity is larger "
    "than assumed; for a given pair of data sets nothing is promised"
)
LINEAR_MODEL_ASSUMPTION = (
    "if models are minimizers of a regularized convex 1-Lipschitz training loss within "
    "the stated range of regularizations, and the validation loss is Lipschitz in "
    "their weights with the stated constant; worst case otherwise"
)


class PublishedRelease(ReleaseStrategy):
    """Runs UCB on private values, and releases a point, a value or both at the end.

    Args:
        problem: The public facts about the run.
        account: The account that is charged for every release.
    """

    points_are_public = False

    def __init__(self, problem: ReleaseProblem, account: RunAccount) -> None:
        super().__init__(problem, account)
        self._chooser: ExponentialMechanism | None = None
        self._valuer: LaplaceMechanism | None = None
        self._private_best = -math.inf
        self.forget()

    def plan(self) -> list[tuple[PrivacyEvent, int]]:
        """Return the costs of the point and of the value, if they are released."""
        events: list[PrivacyEvent] = []
        if self._chooser is not None:
            events.append(self._chooser.event())
        if self._valuer is not None:
            events.append(self._valuer.event(1))
        return [(self.account.cost(event), 1) for event in events]

    def next(self, step: int) -> list[int]:
        """Return the candidate with the largest upper confidence bound: private."""
        width = math.sqrt(self._beta(step + 1)) * self._private.variance.sqrt()
        return [int((self._private.mean + width).argmax())]

    def observe(self, indices: list[int], private_losses: Tensor) -> float:
        """Learn from the private mean, without a release."""
        # A tell that was refused at the end may be repeated: it was observed before.
        if self._num_observed < self.problem.num_steps:
            gain = float(self.problem.to_gain(private_losses.mean()))
            self._learn(indices[0], gain)
            self._num_observed += 1
            self._private_best = max(self._private_best, gain)
        return 0.0

    def _learn(self, index: int, private_gain: float) -> None:
        """Condition on the value of a candidate."""
        self._private.observe(index, private_gain)

    def finish(self) -> ReleasedCandidate:
        """Draw a candidate (Algorithm 1, line 12), then the value (lines 13 to 15)."""
        ledger, index, value = self.account, None, None
        if self._chooser is not None:
            index = int(self._chooser.release(self._private.mean, ledger=ledger))
        if self._valuer is not None:
            device = self.problem.bounds.device
            private = torch.full(
                (1,), self._private_best, dtype=torch.float64, device=device
            )
            released = float(self._valuer.release(private, ledger=ledger))
            value = self.problem.to_loss(released)
        return ReleasedCandidate(index, value)

    def warn_if_useless(self, *, stacklevel: int) -> None:
        """Warn, from public numbers, if the noise is larger than what it hides."""
        width = self.problem.loss_width / self.problem.prior_std
        for name, mechanism in (
            ("point's score", self._chooser),
            ("value", self._valuer),
        ):
            if mechanism is not None and mechanism.scale > width:
                warnings.warn(
                    f"The noise on the {name} has scale {mechanism.scale:.3g}, more "
                    f"than the whole range {width:.3g} of what it is added to: the "
                    "release contains almost no information. release='stable' does "
                    "better, and needs no assumption.",
                    UselessReleaseWarning,
                    stacklevel=stacklevel,
                )

    def forget(self) -> None:
        """Drop everything that was observed."""
        self._private = CandidatePosterior(
            self.problem.kernel,
            self.problem.candidates,
            noise_variance=self.problem.noise_variance,
            max_observations=self.problem.num_steps,
        )
        self._num_observed = 0
        self._private_best = -math.inf

    def _beta(self, step: int) -> float:
        return self.problem.beta


class _GaussianProcessRelease(PublishedRelease):
    """Point and value under the assumption that objectives are a Gaussian process."""

    guarantees = (ApproxDP,)
    needs = "an ApproxDP(epsilon, delta) for this release"
    assumption = GP_ASSUMPTION
    condition = "objectives from the stated Gaussian process"

    def __init__(
        self,
        problem: ReleaseProblem,
        account: RunAccount,
        *,
        correlation: float,
        constants: str = "repaired",
    ) -> None:
        super().__init__(problem, account)
        assert isinstance(problem.guarantee, ApproxDP)
        share = PureDP(problem.guarantee.epsilon / _num_parts(problem.output))
        self._setting = KusnerSetting(
            num_steps=problem.num_steps,
            num_candidates=len(problem.candidates),
            delta=account.failure,
            correlation=correlation,
            prior_variance=problem.prior_variance,
            constants=constants,
        )
        if problem.output != "value":
            point = PointSensitivity(self._setting)
            self.details["point"] = point.to_dict()
            self._chooser = ExponentialMechanism(
                share, sensitivity=point.sensitivity, **problem.noise
            )
        if problem.output != "point":
            value = self._value_sensitivity()
            self.details["value"] = value.to_dict()
            self._valuer = LaplaceMechanism(
                share, sensitivity=value.sensitivity, **problem.noise
            )

    @staticmethod
    def failure(guarantee: Guarantee, output: str) -> float:
        """Return the share of delta that each release has."""
        assert isinstance(guarantee, ApproxDP)
        # Slightly less, so that rounding cannot bring the sum above the whole.
        return guarantee.delta / _num_parts(output) * (1 - 1e-6)

    @abstractmethod
    def _value_sensitivity(
        self,
    ) -> ValueSensitivity | NoiseFreeValueSensitivity | DerivedValueSensitivity:
        """Bound the sensitivity of the value."""

    def _beta(self, step: int) -> float:
        return self._setting.ucb_beta(step)


class KusnerRelease(_GaussianProcessRelease):
    """Algorithm 1 of [Kusner2015dpbo]_: noisy observations.

    Args:
        problem: The public facts about the run; its ``noise_variance`` is that of the
            observations.
        account: The account that is charged for every release.
        correlation: The smallest correlation k1(V, V') of the objectives of two
            neighbouring data sets, as the user asserts.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.
    """

    def _value_sensitivity(self) -> ValueSensitivity:
        noise_variance = self.problem.noise_variance
        gamma = information_gain_bound(
            self.problem.kernel,
            self.problem.candidates,
            num_steps=self.problem.num_steps,
            noise_variance=noise_variance,
        )
        return ValueSensitivity(
            self._setting, noise_variance=noise_variance, gamma=gamma
        )


class NoiseFreeRelease(_GaussianProcessRelease):
    """Algorithm 2 of [Kusner2015dpbo]_: exact observations.

    The search is branch and bound, as in [deFreitas2012exponential]_: the first half of
    the steps covers all candidates, the next ones what can still be the best, and the
    last one is the largest upper confidence bound. The regret then follows from the
    kernel and the candidates alone
    (:mod:`botorch_dp.optimizers.release.kusner.branch_and_bound`). With both constants
    of the paper's regret bound, which the user asserts, it is that bound.

    Args:
        problem: The public facts about the run.
        account: The account that is charged for every release.
        regret_scale: The constant A of the regret bound, as the user asserts.
        regret_rate: The constant tau of the regret bound, as the user asserts.
        correlation: The smallest correlation of two neighbouring objectives.
        constants: ``"repaired"``, or ``"icml2015"`` or ``"workshop"`` as printed.
        search: ``"branch-and-bound"`` or ``"ucb"``. By default UCB if the constants are
            asserted, and branch and bound if they are not. UCB needs the constants.
    """

    def __init__(
        self,
        problem: ReleaseProblem,
        account: RunAccount,
        *,
        regret_scale: float | None = None,
        regret_rate: float | None = None,
        correlation: float,
        constants: str = "repaired",
        search: str | None = None,
    ) -> None:
        is_asserted = regret_scale is not None and regret_rate is not None
        if search is None:
            search = "ucb" if is_asserted else "branch-and-bound"
        check_choice("search", search, ("branch-and-bound", "ucb"))
        if not is_asserted and (
            search == "ucb" or regret_scale is not None or regret_rate is not None
        ):
            raise InvalidArgumentError(
                "regret_scale and regret_rate must both be given: search='ucb' has no "
                "regret that follows from public numbers. Leave both out with "
                f"search='branch-and-bound'. Got {regret_scale!r} and {regret_rate!r}."
            )
        self._regret = (regret_scale, regret_rate)
        self._cover: Cover | None = None
        if search == "branch-and-bound":
            check_count("num_steps", problem.num_steps, minimum=2)
            self._cover = cover(
                problem.kernel, problem.candidates, num_points=problem.num_steps // 2
            )
        super().__init__(problem, account, correlation=correlation, constants=constants)
        if self._cover is not None:
            self.details["search"] = search

    def next(self, step: int) -> list[int]:
        """Return the next candidate of the cover, or of the search: private."""
        if self._cover is None:
            return super().next(step)
        if step < len(self._cover.indices):
            return [self._cover.indices[step]]
        beta = self._beta(step + 1)
        self._relevant.shrink(self._private, beta)
        if step < self.problem.num_steps - 1:
            return [self._relevant.most_uncertain(self._private)]
        return [self._relevant.most_promising(self._private, beta)]

    def forget(self) -> None:
        """Drop everything that was observed."""
        super().forget()
        if self._cover is not None:
            problem = self.problem
            self._private = exact_posterior(
                problem.kernel, problem.candidates, problem.num_steps
            )
            self._relevant = RelevantSet(
                len(problem.candidates), problem.candidates.device
            )

    def _learn(self, index: int, private_gain: float) -> None:
        if self._cover is None:
            super()._learn(index, private_gain)
        else:
            observe_exactly(self._private, index, private_gain)

    def _value_sensitivity(self) -> NoiseFreeValueSensitivity | DerivedValueSensitivity:
        scale, rate = self._regret
        if scale is None or rate is None:
            assert self._cover is not None
            return DerivedValueSensitivity(
                self._setting, deviation=self._cover.deviation
            )
        return NoiseFreeValueSensitivity(
            self._setting,
            num_dims=self.problem.bounds.shape[-1],
            regret_scale=scale,
            regret_rate=rate,
        )


class LipschitzRelease(PublishedRelease):
    """Algorithm 3 of [Kusner2015dpbo]_: the value after tuning a regularization.

    Args:
        problem: The public facts about the run. Its one parameter is the regularization
            of a linear model with a convex loss, and its loss range starts at 0.
        account: The account that is charged for the release.
        lipschitz: The Lipschitz constant L of the validation loss in the weights.
        zero_spread: How much the loss of the zero model differs between records, see
            :class:`~botorch_dp.optimizers.release.kusner.lipschitz.LipschitzValueSensitivity`.
        constants: ``"repaired"``, or ``"icml2015"`` as printed.
    """

    guarantees = (PureDP,)
    needs = "a PureDP for this release"
    outputs = ("value",)
    assumption = LINEAR_MODEL_ASSUMPTION
    condition = "models of Assumption 2 with their constants"

    def __init__(
        self,
        problem: ReleaseProblem,
        account: RunAccount,
        *,
        lipschitz: float,
        zero_spread: float | None = None,
        constants: str = "repaired",
    ) -> None:
        super().__init__(problem, account)
        (low, high), dim = problem.loss_range, problem.bounds.shape[-1]
        if dim != 1 or low != 0.0:
            raise InvalidArgumentError(
                "release='lipschitz' tunes one regularization parameter, with losses "
                f"from 0: got d={dim}, loss_range={problem.loss_range}."
            )
        value = LipschitzValueSensitivity(
            lipschitz=lipschitz,
            min_regularization=float(problem.bounds[0, 0]),
            max_regularization=float(problem.bounds[1, 0]),
            num_records=problem.num_records,
            loss_bound=high,
            zero_spread=zero_spread,
            constants=constants,
        )
        self.details = {"value": value.to_dict()}
        # In units of the gain, like the value itself.
        self._valuer = LaplaceMechanism(
            problem.guarantee,
            sensitivity=value.sensitivity / problem.prior_std,
            **problem.noise,
        )


def _num_parts(output: str) -> int:
    """Return how many releases share the budget."""
    return 2 if output == "both" else 1
