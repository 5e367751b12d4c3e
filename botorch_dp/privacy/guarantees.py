"""Guarantees: what is promised about a release, as frozen values.

A guarantee converts in two directions:

* To what it *implies*: ``to_approx(delta)`` and ``to_rdp(order)`` are weaker statements
  that follow from it, as tight as is known.
* To what *meets* it, as a budget: ``to_gdp()`` is the largest mu such that every mu-GDP
  mechanism meets it, which determines Gaussian noise, and ``to_pure()`` the largest
  epsilon such that every epsilon-DP mechanism meets it, which determines Laplace noise.

The formulas and their references are in :mod:`botorch_dp.privacy.curves`.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any

from botorch_dp._validation import check_nonnegative, check_positive, check_probability
from botorch_dp.exceptions import InvalidArgumentError, UnsupportedConversionError
from botorch_dp.privacy import curves

# A conversion that ends at epsilon = 0 reports this larger value, which is also valid.
_SMALLEST_EPSILON = 1e-12


@dataclass(frozen=True, repr=False)
class Guarantee(ABC):
    """A differential privacy guarantee, or a budget of that form."""

    def __post_init__(self) -> None:
        checks = {"delta": check_probability, "order": _check_order}
        for item in fields(self):
            check = checks.get(item.name, check_positive)
            value = check(item.name, getattr(self, item.name))
            object.__setattr__(self, item.name, value)

    def __repr__(self) -> str:
        values = (f"{name}={value:.7g}" for name, value in asdict(self).items())
        return f"{type(self).__name__}({', '.join(values)})"

    @abstractmethod
    def to_approx(self, delta: float) -> "ApproxDP":
        """Return the smallest epsilon that this guarantee implies at ``delta``."""

    @abstractmethod
    def to_gdp(self) -> "GDP":
        """Return the largest mu such that every mu-GDP mechanism meets this."""

    @abstractmethod
    def to_pure(self) -> "PureDP":
        """Return the largest epsilon such that every epsilon-DP mechanism meets this.

        It is exact for randomized response and a little conservative for mechanisms
        of which more is known, such as Laplace noise.
        """

    def to_dict(self) -> dict[str, Any]:
        """Return the guarantee as plain numbers, for JSON."""
        return {"type": type(self).__name__, **asdict(self)}

    @staticmethod
    def from_dict(state: dict[str, Any]) -> "Guarantee":
        """Return the guarantee that ``to_dict`` described."""
        kinds = {kind.__name__: kind for kind in (PureDP, ApproxDP, GDP, RDP)}
        kind = kinds.get(state.get("type", ""))
        if kind is None:
            raise InvalidArgumentError(
                f"state must name a guarantee ({', '.join(kinds)}), got {state!r}."
            )
        values = {key: value for key, value in state.items() if key != "type"}
        if set(values) != {field.name for field in fields(kind)}:
            raise InvalidArgumentError(
                f"state does not fit {kind.__name__}, got {state!r}."
            )
        return kind(**values)


@dataclass(frozen=True, repr=False)
class PureDP(Guarantee):
    """Pure epsilon-differential privacy.

    Args:
        epsilon: The largest log-ratio of probabilities, finite and above zero.

    Example:
        >>> PureDP(epsilon=1.0).to_approx(delta=1e-5)
        ApproxDP(epsilon=0.9999863, delta=1e-05)
    """

    epsilon: float

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that this guarantee implies at ``epsilon``."""
        return curves.pure_delta(self.epsilon, check_nonnegative("epsilon", epsilon))

    def to_approx(self, delta: float) -> "ApproxDP":
        """Return the smallest epsilon that this guarantee implies at ``delta``."""
        delta = check_probability("delta", delta)
        return _approx(curves.pure_epsilon_at(self.epsilon, delta), delta)

    def to_rdp(self, order: float) -> "RDP":
        """Return the smallest Renyi divergence that this guarantee implies."""
        order = _check_order("order", order)
        return RDP(order, curves.pure_rdp(self.epsilon, order))

    def to_gdp(self) -> "GDP":
        """Raise, because no amount of Gaussian noise is purely private."""
        raise UnsupportedConversionError(
            f"{self!r} cannot be met by Gaussian noise of any size: use "
            "ApproxDP(epsilon, delta), or a Laplace or exponential mechanism."
        )

    def to_pure(self) -> "PureDP":
        """Return the guarantee itself."""
        return self


@dataclass(frozen=True, repr=False)
class ApproxDP(Guarantee):
    """Approximate (epsilon, delta)-differential privacy.

    Args:
        epsilon: A finite number above zero.
        delta: A number strictly between zero and one. It should be well below one over
            the number of records.

    Example:
        >>> ApproxDP(epsilon=1.0, delta=1e-5).to_gdp()
        GDP(mu=0.2680511)
    """

    epsilon: float
    delta: float

    def to_approx(self, delta: float) -> "ApproxDP":
        """Return the guarantee at a larger ``delta``; a smaller one is not implied."""
        delta = check_probability("delta", delta)
        if delta < self.delta:
            raise UnsupportedConversionError(
                f"{self!r} implies nothing at the smaller delta={delta:.7g}."
            )
        # (epsilon, delta) bounds the whole curve by that of randomized response that
        # also fails with probability delta.
        rest = (delta - self.delta) / (1.0 - self.delta)
        if rest == 0.0:
            return self
        return _approx(curves.pure_epsilon_at(self.epsilon, rest), delta)

    def to_gdp(self) -> "GDP":
        """Return the largest mu whose privacy curve lies within this guarantee."""
        return GDP(curves.gdp_mu(self.epsilon, self.delta))

    def to_pure(self) -> "PureDP":
        """Return the largest pure epsilon that implies this guarantee."""
        return PureDP(curves.pure_epsilon_within(self.epsilon, self.delta))


@dataclass(frozen=True, repr=False)
class GDP(Guarantee):
    """Gaussian differential privacy.

    Neighbouring outputs are at least as hard to tell apart as N(0, 1) and N(mu, 1).

    Args:
        mu: A finite number above zero.

    Example:
        >>> round(GDP(mu=1.0).epsilon(delta=1e-5), 6)
        4.377178
    """

    mu: float

    def epsilon(self, delta: float) -> float:
        """Return the smallest epsilon that this guarantee implies at ``delta``."""
        return curves.gdp_epsilon(self.mu, check_probability("delta", delta))

    def delta(self, epsilon: float) -> float:
        """Return the smallest delta that this guarantee implies at ``epsilon``."""
        return curves.gdp_delta(self.mu, check_nonnegative("epsilon", epsilon))

    def tradeoff(self, type_one: float) -> float:
        """Return the least type II error of any test with this type I error."""
        if not 0.0 <= type_one <= 1.0:
            raise InvalidArgumentError(
                f"type_one must lie between 0 and 1, got {type_one!r}."
            )
        return curves.gdp_tradeoff(self.mu, type_one)

    def to_approx(self, delta: float) -> "ApproxDP":
        """Return the smallest epsilon that this guarantee implies at ``delta``."""
        return _approx(self.epsilon(delta), delta)

    def to_rdp(self, order: float) -> "RDP":
        """Return the Renyi divergence of the Gaussian pair, order * mu^2 / 2."""
        order = _check_order("order", order)
        return RDP(order, order * self.mu**2 / 2)

    def to_gdp(self) -> "GDP":
        """Return the guarantee itself."""
        return self

    def to_pure(self) -> "PureDP":
        """Return the largest pure epsilon that implies this guarantee.

        The tradeoff functions of randomized response and of the Gaussian pair touch on
        the diagonal, where the type I error is 1/(1 + e^epsilon) and Phi(-mu/2).
        """
        return PureDP(curves.gdp_pure_epsilon(self.mu))


@dataclass(frozen=True, repr=False)
class RDP(Guarantee):
    """Renyi differential privacy at one order.

    Args:
        order: The order (alpha) of the divergence, finite and above one.
        epsilon: The bound on the divergence, finite and above zero.

    Example:
        >>> RDP(order=8.0, epsilon=0.5).to_approx(delta=1e-5)
        ApproxDP(epsilon=1.709902, delta=1e-05)
    """

    order: float
    epsilon: float

    def to_approx(self, delta: float) -> "ApproxDP":
        """Return the smallest epsilon that is known to follow at ``delta``."""
        delta = check_probability("delta", delta)
        return _approx(curves.rdp_epsilon(self.order, self.epsilon, delta), delta)

    def to_gdp(self) -> "GDP":
        """Return the largest mu whose Renyi divergence lies within this guarantee."""
        return GDP((2 * self.epsilon / self.order) ** 0.5)

    def to_pure(self) -> "PureDP":
        """Return the largest pure epsilon that implies this guarantee."""
        return PureDP(curves.pure_epsilon_for_rdp(self.order, self.epsilon))


def _approx(epsilon: float, delta: float) -> ApproxDP:
    return ApproxDP(max(epsilon, _SMALLEST_EPSILON), delta)


def _check_order(name: str, order: float) -> float:
    order = check_positive(name, order)
    if order <= 1.0:
        raise InvalidArgumentError(f"{name} must be above 1, got {order!r}.")
    return order
