r"""How much the end of a Bayesian optimization can change with one record.

[Kusner2015dpbo]_ runs Bayesian optimization on the private function :math:`f_V` of a
data set V and releases only how it ended: a point, by the exponential mechanism, or a
value, by the Laplace mechanism. The noise follows from these sensitivities, which are
functions of public numbers:

* :class:`PointSensitivity`: the point of Algorithm 1 (Theorem 1);
* :class:`ValueSensitivity`: its value (Theorem 3);
* :class:`NoiseFreeValueSensitivity`: the value of Algorithm 2 (Theorem 5);
* :class:`~botorch_dp.optimizers.release.kusner.lipschitz.LipschitzValueSensitivity`:
  the value of Algorithm 3 (Theorem 7).

The first three hold **under a Gaussian process assumption**
(:class:`~botorch_dp.optimizers.release.kusner.setting.KusnerSetting`): their delta is
the probability, over the prior and the observation noise, that the sensitivity is
larger than computed, for one pair of neighbours. That is not differential privacy for
every data set. Neighbours differ in the value of one record. Releasing both the point
and the value doubles epsilon and delta.

``docs/theory/published_releases.md`` has the proofs, what was repaired in them, and
what the releases cost in utility: at epsilon = 1 they are close to random.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015.
    .. [Kusner2015workshop] The same authors and title, workshop version of 2015.
    .. [Srinivas2010gpucb] N. Srinivas, A. Krause, S. Kakade and M. Seeger. Gaussian
        Process Optimization in the Bandit Setting: No Regret and Experimental Design.
        ICML 2010. Lemma 5.1 to 5.4 and Theorem 1.
    .. [deFreitas2012exponential] N. de Freitas, A. Smola and M. Zoghi. Exponential
        Regret Bounds for Gaussian Process Bandits with Deterministic Observations.
        ICML 2012. Theorem 2.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any, ClassVar

from botorch_dp._deprecated import warn_deprecated
from botorch_dp._validation import check_count, check_nonnegative, check_positive
from botorch_dp.optimizers.release.kusner.lipschitz import LipschitzValueSensitivity
from botorch_dp.optimizers.release.kusner.setting import (
    KusnerSetting,
    log_ratio,
    two_sided_tail,
)


@dataclass(frozen=True)
class _Bound(ABC):
    """A sensitivity that holds with probability 1 - delta in a setting."""

    setting: KusnerSetting

    # The number of shares of delta, and the terms that are shown beside the setting.
    shares: ClassVar[int] = 3
    terms: ClassVar[tuple[str, ...]]

    @property
    def c(self) -> float:
        """How much the function may change with one record."""
        return self.setting.shift(shares=self.shares)

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """How much the released quantity may change with one record."""

    @property
    @abstractmethod
    def failure_probabilities(self) -> dict[str, float]:
        """Bounds on the probability of each kind of event that breaks the bound."""

    def to_dict(self) -> dict[str, Any]:
        """Return the setting and the terms of the bound."""
        terms = {name: getattr(self, name) for name in self.terms}
        return {**asdict(self.setting), **terms, "sensitivity": self.sensitivity}


@dataclass(frozen=True)
class PointSensitivity(_Bound):
    r"""How much the posterior mean changes with one record: Theorem 1.

    .. math::
        |\mu'_T(\lambda) - \mu_T(\lambda)| \le 2 s \sqrt{\beta} + c
        \quad \text{for all } \lambda \in \Lambda

    with probability :math:`1 - \delta`, whatever the points were and with observation
    noise or without. The exponential mechanism with scores :math:`\mu_T` and this
    sensitivity releases a candidate (Corollary 1, line 12 of Algorithm 1).

    Args:
        setting: The setting.

    Example:
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> point = PointSensitivity(setting)
        >>> round(point.beta, 3), round(point.c, 3), round(point.sensitivity, 3)
        (20.618, 0.642, 9.724)
        >>> sum(point.failure_probabilities.values()) <= setting.delta
        True
    """

    terms = ("beta", "c")

    @property
    def beta(self) -> float:
        r"""The weight of the variance: :math:`\beta = 2 \log(3 |\Lambda| / \delta)`.

        **Repaired.** The papers take :math:`\beta_{T+1}` of the search, which holds at
        all times and is larger than the one time T needs: valid, with more noise.
        """
        if self.setting.is_repaired:
            return 2 * log_ratio(3 * self.setting.num_candidates, self.setting.delta)
        return self.setting.ucb_beta(self.setting.num_steps + 1)

    @property
    def sensitivity(self) -> float:
        """How much the posterior mean may change at any candidate."""
        return 2 * math.sqrt(self.setting.prior_variance * self.beta) + self.c

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """Bounds on the probability of each kind of event that breaks the bound.

        ``"means"``: a function leaves the confidence bounds, for V or for V';
        ``"shift"``: the function changes by more than c.
        """
        count = self.setting.num_candidates
        return {
            "means": 2 * count * two_sided_tail(math.sqrt(self.beta)),
            "shift": self.setting.shift_failure(shares=self.shares),
        }


@dataclass(frozen=True, kw_only=True)
class ValueSensitivity(_Bound):
    r"""How much the greatest observation changes with one record: Theorem 3.

    .. math::
        \bigl|\max_{t \le T} v'_t - \max_{t \le T} v_t\bigr| \le
        \sqrt{\frac{C_1 \beta_T \gamma_T}{T}} + c + q

    with probability :math:`1 - \delta`, if every point maximized the upper confidence
    bound with the weight of :func:`~botorch_dp.acquisition.private_ucb.ucb_beta` and
    the same ``constants``. The Laplace mechanism with this sensitivity releases the
    value (Corollary 2, line 14 of Algorithm 1).

    Args:
        setting: The setting.
        noise_variance: The variance :math:`\sigma^2` of an observation.
        gamma: A bound on the information gain of T observations:
            :func:`botorch_dp.optimizers.release.kusner.information_gain.information_gain_bound`.

    Example:
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> value = ValueSensitivity(setting, noise_variance=0.01, gamma=20.0)
        >>> round(value.regret, 3), round(value.q, 3), round(value.sensitivity, 3)
        (5.083, 0.8, 6.525)
        >>> sum(value.failure_probabilities.values()) <= setting.delta
        True
    """

    noise_variance: float
    gamma: float

    terms = ("noise_variance", "gamma", "beta", "c", "q", "C1", "regret")

    def __post_init__(self) -> None:
        check_positive("noise_variance", self.noise_variance)
        check_nonnegative("gamma", self.gamma)

    @property
    def beta(self) -> float:
        r"""The weight of the variance at the last step, :math:`\beta_T`."""
        return self.setting.ucb_beta(self.setting.num_steps)

    @property
    def q(self) -> float:
        r"""What observation noise adds: :math:`q = \sigma \sqrt{8 \log(6 T / \delta)}`.

        **Repaired.** It covers all 2 T noises. Line 10 of Algorithm 1 has
        :math:`\sigma \sqrt{8 \log(3 / \delta)}`, which covers one of them; the workshop
        version has a 4 in place of the 8.
        """
        setting = self.setting
        count = 6 * setting.num_steps if setting.is_repaired else 3
        factor = 4 if setting.constants == "workshop" else 8
        return math.sqrt(self.noise_variance * factor * log_ratio(count, setting.delta))

    @property
    def C1(self) -> float:
        r""":math:`8 s^2 / \log(1 + s^2 / \sigma^2)`, line 11 of Algorithm 1."""
        variance = self.setting.prior_variance
        return 8 * variance / math.log1p(variance / self.noise_variance)

    @property
    def regret(self) -> float:
        r""":math:`\Omega / T`, how far the best value found may be below the best.

        It bounds the mean regret of T steps ([Srinivas2010gpucb]_, Lemma 5.4).
        """
        return math.sqrt(self.C1 * self.beta * self.gamma / self.setting.num_steps)

    @property
    def sensitivity(self) -> float:
        """How much the greatest observation may change."""
        return self.regret + self.c + self.q

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """Bounds on the probability of each kind of event that breaks the bound.

        ``"regret"``: a function leaves the confidence bounds at some step, for V or for
        V'; ``"shift"``: the function changes by more than c; ``"noise"``: a noise is
        above q / 2, for V or for V'.
        """
        count, num_steps = self.setting.num_candidates, self.setting.num_steps
        betas = map(self.setting.ucb_beta, range(1, num_steps + 1))
        tails = math.fsum(two_sided_tail(math.sqrt(beta)) for beta in betas)
        noise = two_sided_tail(self.q / (2 * math.sqrt(self.noise_variance)))
        return {
            "regret": 2 * count * tails,
            "shift": self.setting.shift_failure(shares=self.shares),
            "noise": 2 * num_steps * noise,
        }


@dataclass(frozen=True, kw_only=True)
class NoiseFreeValueSensitivity(_Bound):
    r"""How much the best value changes, observed without noise: Theorem 5.

    .. math::
        \bigl|\max_{t \le T} f'(\lambda'_t) - \max_{t \le T} f(\lambda_t)\bigr| \le
        A \exp\Bigl(-\frac{\tau T}{(\log T)^{d/4}}\Bigr) + c

    with probability :math:`1 - \delta`, if the search is that of
    [deFreitas2012exponential]_.

    **The user asserts A and tau**: for each of the two functions, the regret must
    exceed the first term with probability :math:`\delta / 4` at most. The theorem they
    come from says that they exist for large T; it does not compute them, and they must
    not be estimated from the private function. The bound is not monotone in T: if it
    holds for every T, ``num_steps`` may be the number of steps, up to T, at which it is
    smallest.

    **Repaired.** The best value is released, not the last one as in [Kusner2015dpbo]_.
    The workshop version has T = 2 whatever T is.

    Args:
        setting: The setting, with at least 2 steps.
        num_dims: The dimension d of the points.
        regret_scale: The constant A.
        regret_rate: The constant tau.

    Example:
        >>> setting = KusnerSetting(
        ...     num_steps=50, num_candidates=1000, delta=0.1, correlation=0.99
        ... )
        >>> value = NoiseFreeValueSensitivity(
        ...     setting, num_dims=2, regret_scale=4.0, regret_rate=0.1
        ... )
        >>> round(value.regret, 3), round(value.sensitivity, 3)
        (0.319, 0.949)
    """

    num_dims: int
    regret_scale: float
    regret_rate: float

    shares = 2
    terms = ("num_dims", "c", "regret")

    def __post_init__(self) -> None:
        check_count("num_steps", self.setting.num_steps, minimum=2)
        check_count("num_dims", self.num_dims)
        check_nonnegative("regret_scale", self.regret_scale)
        check_positive("regret_rate", self.regret_rate)

    @property
    def regret(self) -> float:
        r""":math:`\Omega`, how far the best value found may be below the best."""
        steps = 2 if self.setting.constants == "workshop" else self.setting.num_steps
        exponent = self.regret_rate * steps / math.log(steps) ** (self.num_dims / 4)
        return self.regret_scale * math.exp(-exponent)

    @property
    def sensitivity(self) -> float:
        """How much the best value found may change."""
        return self.regret + self.c

    @property
    def failure_probabilities(self) -> dict[str, float]:
        """Bounds on the probability of each kind of event that breaks the bound.

        ``"regret"``: the regret is larger than the user asserts, for V or for V';
        ``"shift"``: the function changes by more than c.
        """
        return {
            "regret": self.setting.delta / 2,
            "shift": self.setting.shift_failure(shares=self.shares),
        }


_RENAMED: dict[str, type] = {
    "PointRelease": PointSensitivity,
    "ValueRelease": ValueSensitivity,
    "NoiseFreeValueRelease": NoiseFreeValueSensitivity,
    "LipschitzValueRelease": LipschitzValueSensitivity,
    "lipschitz_value_release": LipschitzValueSensitivity,
}
_FUNCTIONS: dict[str, type] = {
    "kusner_point_release": PointSensitivity,
    "kusner_value_release": ValueSensitivity,
    "noise_free_value_release": NoiseFreeValueSensitivity,
}


def __getattr__(name: str) -> Any:
    """Return what an earlier name stands for, and warn."""
    kind = _RENAMED.get(name) or _FUNCTIONS.get(name)
    if kind is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warn_deprecated(f"{__name__}.{name}", kind.__name__)
    return kind if name in _RENAMED else partial(_from_numbers, kind)


def _from_numbers(kind: type, **numbers: Any) -> Any:
    """Return a bound from the numbers of its setting and its own."""
    names = [field.name for field in fields(KusnerSetting) if field.name in numbers]
    setting = KusnerSetting(**{name: numbers.pop(name) for name in names})
    return kind(setting, **numbers)
