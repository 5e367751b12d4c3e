r"""How much a validation score changes with one record: Algorithm 3.

References:
    .. [Kusner2015dpbo] M. J. Kusner, J. R. Gardner, R. Garnett and K. Q. Weinberger.
        Differentially Private Bayesian Optimization. ICML 2015. Theorem 7.
"""

from dataclasses import dataclass
from typing import Any

from botorch_dp._validation import (
    check_choice,
    check_count,
    check_nonnegative,
    check_positive,
)
from botorch_dp.acquisition.private_ucb import CONSTANTS
from botorch_dp.exceptions import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class LipschitzValueSensitivity:
    r"""How much a validation score changes with one record: Theorem 7.

    The score of a regularization :math:`\lambda` is minus the mean of
    :math:`g(w_\lambda, z)` over m private validation records z, and :math:`w_\lambda`
    minimizes :math:`\frac{\lambda}{2} \|w\|^2` plus the mean of convex, 1-Lipschitz
    losses of public training records. With g L-Lipschitz in w, for any two neighbours
    and any two regularizations the scores differ by at most

    .. math::
        \frac{(\lambda_{\max} - \lambda_{\min}) L}{\lambda_{\max} \lambda_{\min}}
        + \frac1m \min\Bigl\{g^*, \; \frac{2 L}{\lambda_{\min}} + g_0\Bigr\}
        \quad \text{and at most } g^*,

    whatever was searched and how. This needs no assumption about priors: the Laplace
    mechanism with this sensitivity is differentially private (Corollary 4, line 5 of
    Algorithm 3 in [Kusner2015dpbo]_). The first term does not shrink with m: at
    [0.1, 1] and L = 1 it is 9. The proof is in ``docs/theory/published_releases.md``.

    **Repaired.** The paper has :math:`L / \lambda_{\min}` for the second term of the
    minimum: half of what a loss that is linear in w attains. It does not use that
    scores lie in :math:`[-g^*, 0]`.

    Args:
        lipschitz: The Lipschitz constant L of the validation loss g in w.
        min_regularization: The smallest regularization that may be tried.
        max_regularization: The largest regularization that may be tried.
        num_records: The number m of validation records.
        loss_bound: The bound :math:`g^*` of g, which is nonnegative; None if there is
            none.
        zero_spread: The most :math:`g_0` that :math:`g(0, z)` differs between records:
            0 for losses of a margin, such as ramp, hinge, logistic and sigmoid. None if
            it is not known: then only ``loss_bound`` is used.
        constants: ``"repaired"``, or ``"icml2015"`` as printed; the workshop version
            has no Algorithm 3.

    Raises:
        InvalidArgumentError: If both ``loss_bound`` and ``zero_spread`` are None, among
            others.

    Example:
        >>> value = LipschitzValueSensitivity(
        ...     lipschitz=1.0,
        ...     min_regularization=1.0,
        ...     max_regularization=1.25,
        ...     num_records=100,
        ...     loss_bound=1.0,
        ... )
        >>> round(value.search_term, 3), round(value.record_term, 3)
        (0.2, 0.01)
        >>> value.is_trivial
        False
    """

    lipschitz: float
    min_regularization: float
    max_regularization: float
    num_records: int
    loss_bound: float | None = None
    zero_spread: float | None = None
    constants: str = "repaired"

    def __post_init__(self) -> None:
        check_positive("lipschitz", self.lipschitz)
        check_positive("min_regularization", self.min_regularization)
        check_positive("max_regularization", self.max_regularization)
        check_count("num_records", self.num_records)
        if self.max_regularization < self.min_regularization:
            raise InvalidArgumentError(
                "max_regularization must not be below min_regularization, got "
                f"{self.max_regularization!r} and {self.min_regularization!r}."
            )
        if self.loss_bound is not None:
            check_positive("loss_bound", self.loss_bound)
        if self.zero_spread is not None:
            check_nonnegative("zero_spread", self.zero_spread)
        if check_choice("constants", self.constants, CONSTANTS) == "workshop":
            raise InvalidArgumentError(
                "constants must be 'repaired' or 'icml2015', got 'workshop': the "
                "workshop version has no Algorithm 3."
            )
        if not self._changes:
            raise InvalidArgumentError(
                "loss_bound or zero_spread must be given, both are None: nothing "
                "bounds how much the loss of one record may change."
            )

    @property
    def search_term(self) -> float:
        """How much the score may change because another regularization was tried."""
        return self.lipschitz * (
            1 / self.min_regularization - 1 / self.max_regularization
        )

    @property
    def record_term(self) -> float:
        """How much the score of one model may change with one record."""
        return min(self._changes) / self.num_records

    @property
    def sensitivity(self) -> float:
        """How much the best score may change with one record."""
        sensitivity = self.search_term + self.record_term
        if self.loss_bound is not None and self.constants == "repaired":
            return min(sensitivity, self.loss_bound)
        return sensitivity

    @property
    def is_trivial(self) -> bool:
        """Whether the theorem says no more than the range of the score does."""
        return self.loss_bound is not None and self.sensitivity >= self.loss_bound

    @property
    def _changes(self) -> list[float]:
        """Bounds on how much the loss of one model changes from record to record."""
        changes = [] if self.loss_bound is None else [self.loss_bound]
        if self.constants == "icml2015":
            changes.append(self.lipschitz / self.min_regularization)
        elif self.zero_spread is not None:
            changes.append(
                2 * self.lipschitz / self.min_regularization + self.zero_spread
            )
        return changes

    def to_dict(self) -> dict[str, Any]:
        """Return the number of records, the constants and the terms of the bound."""
        return {
            "num_records": self.num_records,
            "constants": self.constants,
            "search_term": self.search_term,
            "record_term": self.record_term,
            "range": self.loss_bound,
            "sensitivity": self.sensitivity,
        }
